"""The words and the order of `status` and of what an apply reports."""

from __future__ import annotations

from msgspec.structs import replace

from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.plan import Action, Change
from reconciler.output.wording.plan import row_error
from reconciler.planning.outcome import JobStatus, Outcome, Status
from reconciler.planning.status_rows import job_statuses
from tests.support.planning import bound_to, claim_on, run_of, saying, wanted

JOB = wanted()


def test_the_words_for_what_came_of_a_change_never_change() -> None:
    assert [str(status) for status in Status] == ["applied", "failed", "skipped"]


def test_what_is_not_said_is_nothing() -> None:
    outcome = Outcome(Change(Action.NONE, saying(""), "a", "a_1", "CustomJob"), Status.APPLIED)
    assert (outcome.state, outcome.reason, outcome.resource) == (None, None, "")
    row = JobStatus("a_1", "a", "CustomJob", None, "none")
    told = (
        row.service_state,
        row.create_time,
        row.start_time,
        row.end_time,
        row.error,
        row.resource,
        row.url,
    )
    assert told == ("",) * 7
    assert (row.commit, row.attempt) == ("", 1)
    assert (row.cause, row.given_up, row.current, row.manifest, row.result) == (None, False, False, None, "")
    assert outcome.cause is None


def test_a_run_without_an_error_tells_none() -> None:
    (row,) = job_statuses([JOB], [run_of(JOB, State.RUNNING)], {})
    assert row.error == ""


def test_a_claim_tells_the_error_of_its_run_where_the_service_does_not() -> None:
    run = run_of(JOB, State.RUNNING)
    claim = claim_on(JOB, ClaimState.HELD, error="once refused")
    (row,) = job_statuses([JOB], [run], {claim.id: claim})
    assert row.error == "once refused"


def test_the_reason_of_a_cancel_shows_only_once_the_run_is_cancelled() -> None:
    run = run_of(JOB, State.RUNNING)
    claim = bound_to(JOB, run, error="cancelled by `reconciler cancel`")
    (live,) = job_statuses([JOB], [run], {claim.id: claim})
    (gone,) = job_statuses([JOB], [], {claim.id: replace(claim, ended=State.CANCELLED)})
    assert (row_error(live), row_error(gone)) == ("", "cancelled by `reconciler cancel`")


def test_an_unwanted_attempt_without_a_run_has_the_name_that_its_claim_gives_it() -> None:
    claim = claim_on(wanted("a-b"), ClaimState.PENDING)
    (row,) = job_statuses([], [], {claim.id: claim})
    assert row.base_name == "a-b"


def test_a_job_is_at_its_newest_attempt_and_a_second_run_of_that_is_not_the_job() -> None:
    for older in ("0" * 64, "f" * 64):
        job = replace(JOB, earlier=(older,))
        first = run_of(JOB, State.FAILED)
        second, beside = (run_of(JOB, State.RUNNING, 2, number=number, identity=older) for number in (2, 3))
        claims = [bound_to(JOB, first), bound_to(JOB, second, attempt=2, identity=older)]
        rows = job_statuses([job], [first, second, beside], {claim.id: claim for claim in claims})
        assert [row.resource for row in rows if row.current] == [second.resource]


def test_a_stranger_beside_a_job_that_is_gone_comes_after_it() -> None:
    claim = claim_on(JOB, resource="jobs/9", ended=State.SUCCEEDED)
    stranger = run_of(JOB, State.RUNNING, mark="unknown")
    rows = job_statuses([JOB], [stranger], {claim.id: claim})
    assert [(row.claim, row.resource) for row in rows] == [("bound", "jobs/9"), ("none", stranger.resource)]


def test_runs_of_one_moment_are_by_name_then_by_resource() -> None:
    moment = "2026-01-01T00:00:00Z"
    first, second = wanted("a", "1"), wanted("a", "2")
    second, first = sorted((first, second), key=lambda job: job.job_name, reverse=True)
    runs = [
        replace(run_of(second, State.RUNNING, number=1), create_time=moment),
        replace(run_of(first, State.RUNNING, number=3), create_time=moment),
        replace(run_of(first, State.RUNNING, number=2, mark="other"), create_time=moment),
        replace(run_of(second, State.RUNNING, 2, number=4), create_time="2025-01-01T00:00:00Z"),
    ]
    rows = job_statuses([], runs, {})
    assert [row.resource.rpartition("/")[2] for row in rows] == ["4", "2", "3", "1"]


def test_a_stranger_of_the_same_moment_has_its_place_by_its_resource() -> None:
    own = run_of(JOB, State.RUNNING, number=2)
    stranger = run_of(JOB, State.RUNNING, number=1, mark="unknown", create_time=own.create_time)
    claim = bound_to(JOB, own)
    rows = job_statuses([JOB], [own, stranger], {claim.id: claim})
    assert [row.resource for row in rows] == [stranger.resource, own.resource]
