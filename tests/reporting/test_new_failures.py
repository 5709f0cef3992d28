"""Failed ends that a report is the first to post."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from reconciler.model.claim import ClaimId
from reconciler.model.commit_record import CommitRecord
from reconciler.model.job import ActualJob, State
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.reporting.commit_record import record_for
from reconciler.reporting.github.contexts import Contexts
from reconciler.reporting.github.statuses import Failed, Outdated, Posted
from reconciler.reporting.new_failures import NewFailures, new_failures
from reconciler.reporting.status import CommitStatus, run_status
from reconciler.reporting.status_rules import DueStatuses, View, due_statuses
from tests.support.planning import bound_to, plan, run_of, state_of, wanted

SHA = "1" * 40
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CENSUS = wanted()
CONTEXT = "reconciler/prod/census"
FAILURE = NewFailures(frozenset({CENSUS.job_name}))
NOTHING = NewFailures()


def due_of(
    *runs: ActualJob, jobs: Sequence[DesiredJob] = (CENSUS,), per_job: bool | None = None
) -> DueStatuses:
    """Return the due statuses of a commit that brought jobs, after these runs of the first."""
    claims = [bound_to(jobs[0], run, attempt, commit=SHA) for attempt, run in enumerate(runs, 1)]
    made = plan(jobs, runs, claims)
    names = {job.manifest.base_name for job in jobs}
    record = record_for(made, CommitRecord(SHA, NOW, 1), None, names)
    view = View(Contexts("prod"), SHA, state_of(jobs, runs, claims), made, per_job=per_job)
    return due_statuses(view, record)


def news(due: DueStatuses, *outcomes: Posted | Outdated | Failed) -> NewFailures:
    return new_failures([(SHA, due)], {SHA: outcomes}, "reconciler")


def status(due: DueStatuses, context: str = CONTEXT) -> CommitStatus:
    return next(status for status in due.by_commit[SHA] if status.context == context)


def shown(state: State, attempt: int = 1) -> CommitStatus:
    """Return the status that a commit shows of an earlier state."""
    name = CENSUS.job_name if attempt == 1 else f"{CENSUS.job_name}_{attempt}"
    return run_status("failure" if state is State.FAILED else "pending", CONTEXT, str(state), name)


def test_failure_is_new_where_the_commit_showed_none() -> None:
    due = due_of(run_of(CENSUS, State.FAILED))
    assert news(due, Posted(status(due))) == FAILURE
    assert news(due, Posted(status(due), shown(State.RUNNING))) == FAILURE


def test_failure_is_not_new_where_the_commit_shows_it_already() -> None:
    due = due_of(run_of(CENSUS, State.FAILED))
    assert news(due) == NOTHING
    assert news(due, Outdated(status(due))) == NOTHING
    assert news(due, Posted(status(due), shown(State.FAILED))) == NOTHING


def test_failure_of_a_further_attempt_is_new() -> None:
    runs = [run_of(CENSUS, State.FAILED), run_of(CENSUS, State.FAILED, 2, number=2)]
    due = due_of(*runs)
    expected = NewFailures(frozenset({f"{CENSUS.job_name}_2"}))
    assert news(due, Posted(status(due), shown(State.FAILED))) == expected


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.RUNNING, State.CANCELLED])
def test_end_other_than_failed_is_no_failure(state: State) -> None:
    due = due_of(run_of(CENSUS, state))
    assert news(due, Posted(status(due))) == NOTHING


def test_failed_attempt_that_is_retried_is_no_failure() -> None:
    due = due_of(run_of(CENSUS, State.FAILED), jobs=[wanted(attempts=2)])
    assert news(due, Posted(status(due))) == NOTHING


def test_failure_without_a_status_of_its_own_is_new_when_the_overall_status_turns_red() -> None:
    due = due_of(run_of(CENSUS, State.FAILED), per_job=False)
    overall = status(due, "reconciler")
    assert overall.state == "failure"
    assert news(due, Posted(overall)) == FAILURE
    assert news(due, Posted(overall, overall)) == NOTHING


def test_failure_whose_status_was_refused_is_unposted() -> None:
    due = due_of(run_of(CENSUS, State.FAILED))
    refused = Failed(status(due), "no token", SHA)
    assert news(due, refused) == NewFailures(unposted=frozenset({ClaimId(label_of(CENSUS.identity), 1)}))
