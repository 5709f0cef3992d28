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


def test_plan_does_not_resend_attempt_beyond_lowered_attempts() -> None:
    change = only(plan([wanted(attempts=1)], [FAILED], [FIRST, SECOND]))
    assert (change.action, change.attempt, change.stuck) == (Action.NONE, 2, NotDone.FAILED)
    assert reason_of(change) == 'attempt 2 is no longer needed: "attempts" is 1'
    assert only(plan([wanted(attempts=2)], [FAILED], [FIRST, SECOND])).action is Action.RETRY


def test_attempt_beyond_lowered_attempts_is_bound_when_its_job_is_found() -> None:
    run = run_of(JOB, State.RUNNING, 2, number=2)
    change = only(plan([wanted(attempts=1)], [FAILED, run], [FIRST, SECOND]))
    assert (change.action, change.actual) == (Action.RETRY, run)


def test_attempt_beyond_lowered_attempts_has_ended_when_claim_records_end() -> None:
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
def test_suspended_change_names_open_attempt_with_its_reason(second: object, reason: str) -> None:
    assert isinstance(second, type(SECOND))
    change = only(plan([wanted(suspend=True, attempts=2)], [FAILED], [FIRST, second]))
    assert (change.attempt, reason_of(change)) == (2, reason)


def test_recorded_attempt_counts_when_earlier_attempt_has_no_record() -> None:
    run = run_of(JOB, State.RUNNING, 2)
    change = only(plan([JOB], [run], [bound_to(JOB, run, 2)]))
    assert (change.action, change.attempt, reason_of(change)) == (Action.NONE, 2, "running")


def test_unrecorded_attempt_does_not_count_unless_attempt_just_before_failed() -> None:
    third = run_of(JOB, State.SUCCEEDED, 3, number=3)
    change = only(plan([wanted(attempts=3)], [FAILED, third], [FIRST]))
    assert change.attempt == 2


def test_later_attempt_counts_when_two_hash_versions_have_attempts() -> None:
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


def test_blocked_change_names_run_when_ml_job_still_runs() -> None:
    job = replace(JOB, manifest=replace(JOB.manifest, api_version=ML_V1, kind="Job"))
    run = run_of(job, State.RUNNING)
    change = only(plan([job], [run], [claim_on(job, ClaimState.PENDING)], GOOGLE))
    assert (change.action, change.actual) == (Action.BLOCKED, run)


def test_plan_blocks_job_when_second_run_of_other_content_has_its_name() -> None:
    other = wanted(content="b")
    runs = [run_of(other, State.SUCCEEDED), run_of(other, State.SUCCEEDED, number=2, job_name=JOB.job_name)]
    change = only(plan([JOB], runs, [bound_to(other, runs[0])]))
    assert change.action is Action.BLOCKED
    assert reason_of(change).startswith(f"{runs[1].resource} has this name but different content")


def test_unknown_submission_of_other_content_does_not_supersede_succeeded_run() -> None:
    """Other content was submitted since, with an unknown outcome."""
    run = run_of(JOB, State.SUCCEEDED)
    since = claim_on(wanted(content="b"), ClaimState.PENDING)
    assert reason_of(only(plan([JOB], [run], [bound_to(JOB, run), since]))) == "succeeded"
