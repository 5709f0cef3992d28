"""Decisions on a desired job in rare cases: odd attempts, odd names, several versions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.manifest import ML_V1
from reconciler.model.plan import Action, NotDone
from tests.support.planning import GOOGLE, bound_to, claim_on, only, plan, reason_of, run_of, wanted

JOB = wanted()
FAILED = run_of(JOB, State.FAILED)
FIRST = bound_to(JOB, FAILED)
SECOND = claim_on(JOB, ClaimState.PENDING, 2)


def test_an_attempt_that_is_not_wanted_any_more_is_not_sent_again() -> None:
    change = only(plan([wanted(attempts=1)], [FAILED], [FIRST, SECOND]))
    assert (change.action, change.attempt, change.stuck) == (Action.NONE, 2, NotDone.FAILED)
    assert reason_of(change) == 'attempt 2 is no longer needed: "attempts" is 1'
    assert only(plan([wanted(attempts=2)], [FAILED], [FIRST, SECOND])).action is Action.RETRY


def test_but_one_whose_job_is_there_is_bound_to_it() -> None:
    run = run_of(JOB, State.RUNNING, 2, number=2)
    change = only(plan([wanted(attempts=1)], [FAILED, run], [FIRST, SECOND]))
    assert (change.action, change.actual) == (Action.RETRY, run)


def test_and_one_whose_end_is_known_has_ended() -> None:
    ended = claim_on(JOB, attempt=2, resource="jobs/9", ended=State.SUCCEEDED)
    change = only(plan([wanted(attempts=1)], [FAILED], [FIRST, ended]))
    assert reason_of(change) == "succeeded; the service no longer has its record"


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (SECOND, "suspended; the outcome of its submission is unknown"),
        (claim_on(JOB, ClaimState.HELD, 2, error="why"), "suspended; why"),
        (claim_on(JOB, ClaimState.HELD, 2, error="why", given_up=True), "suspended"),
    ],
    ids=["pending", "held", "given up"],
)
def test_of_a_suspended_job_the_attempt_that_is_open_is_told(second: object, reason: str) -> None:
    assert isinstance(second, type(SECOND))
    change = only(plan([wanted(suspend=True, attempts=2)], [FAILED], [FIRST, second]))
    assert (change.attempt, reason_of(change)) == (2, reason)


def test_a_later_attempt_that_is_recorded_counts_without_the_one_before_it() -> None:
    run = run_of(JOB, State.RUNNING, 2)
    change = only(plan([JOB], [run], [bound_to(JOB, run, 2)]))
    assert (change.action, change.attempt, reason_of(change)) == (Action.NONE, 2, "running")


def test_only_a_failure_of_the_very_attempt_before_makes_one_without_a_record_credible() -> None:
    third = run_of(JOB, State.SUCCEEDED, 3, number=3)
    change = only(plan([wanted(attempts=3)], [FAILED, third], [FIRST]))
    assert change.attempt == 2


def test_of_attempts_under_two_versions_of_the_name_the_later_counts() -> None:
    old = "1" * 64
    job = replace(JOB, earlier=(old,))
    runs = [
        run_of(JOB, State.FAILED, identity=old),
        run_of(JOB, State.RUNNING, 2, number=2, identity=old),
        run_of(JOB, State.RUNNING, number=3),
    ]
    claims = [
        bound_to(JOB, runs[0], identity=old),
        bound_to(JOB, runs[1], 2, identity=old),
        bound_to(JOB, runs[2]),
    ]
    change = only(plan([job], runs, claims))
    assert (change.attempt, change.actual) == (2, runs[1])


def test_a_job_of_the_older_service_that_is_there_is_told_with_why_it_is_blocked() -> None:
    job = replace(JOB, manifest=replace(JOB.manifest, api_version=ML_V1, kind="Job"))
    run = run_of(job, State.RUNNING)
    change = only(plan([job], [run], [claim_on(job, ClaimState.PENDING)], GOOGLE))
    assert (change.action, change.actual) == (Action.BLOCKED, run)


def test_a_name_that_a_further_run_of_other_content_has_is_taken() -> None:
    other = wanted(content="b")
    runs = [run_of(other, State.SUCCEEDED), run_of(other, State.SUCCEEDED, number=2, job_name=JOB.job_name)]
    change = only(plan([JOB], runs, [bound_to(other, runs[0])]))
    assert change.action is Action.BLOCKED
    assert reason_of(change).startswith(f"{runs[1].resource} has this name but different content")


def test_what_never_came_to_run_overtakes_nothing() -> None:
    """Other content was submitted since, with an unknown outcome."""
    run = run_of(JOB, State.SUCCEEDED)
    since = claim_on(wanted(content="b"), ClaimState.PENDING)
    assert reason_of(only(plan([JOB], [run], [bound_to(JOB, run), since]))) == "succeeded"
