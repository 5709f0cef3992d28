"""Decisions on a desired job in rare cases: odd attempts, odd names, several versions."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimState
from reconciler.model.expectation import Expectation, Judged, Judgement, Measured
from reconciler.model.job import UNREADABLE, ActualJob, ErrorInfo, State
from reconciler.model.manifest import ML_V1
from reconciler.model.plan import Action, Change, NotDone
from reconciler.model.reason import ReasonCode, because
from reconciler.planning.decide import problems_of_results
from reconciler.planning.overwriting import with_overwriting
from reconciler.planning.planner import make_plan
from reconciler.planning.state import TargetState
from tests.support.planning import (
    GOOGLE,
    LOCAL,
    bound_to,
    claim_on,
    only,
    plan,
    reason_of,
    run_of,
    state_of,
    wanted,
)

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
    ("second", "values", "reason"),
    [
        (
            SECOND,
            {"submission": ClaimState.PENDING},
            "suspended; the outcome of its submission is unknown",
        ),
        (claim_on(JOB, ClaimState.HELD, 2, error="why"), {"error": "why"}, "suspended; why"),
        (claim_on(JOB, ClaimState.HELD, 2, error="why", given_up=True), {}, "suspended"),
    ],
    ids=["pending", "held", "given up"],
)
def test_suspended_change_names_open_attempt_with_its_reason(
    second: Claim, values: dict[str, str], reason: str
) -> None:
    change = only(plan([wanted(suspend=True, attempts=2)], [FAILED], [FIRST, second]))
    assert (change.attempt, change.reason.values, reason_of(change)) == (2, values, reason)


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


LOST = ErrorInfo(UNREADABLE, {"class": "service", "columns": "state"})


def test_job_is_blocked_when_state_of_its_run_cannot_be_read() -> None:
    run = run_of(JOB, State.RUNNING, info=LOST, service_state="JOB_STATE_UNSPECIFIED")
    change = only(plan([JOB], [run], [bound_to(JOB, run)]))
    assert (change.action, change.key, change.attempt) == (Action.BLOCKED, FIRST.id.key, 1)
    assert change.actual == run
    assert reason_of(change) == (
        f"the training service can't read the state of {run.resource}: `reconciler cancel census` stops it "
        "if it runs, and finds out how it ended"
    )


@pytest.mark.parametrize(
    ("state", "stuck", "code"),
    [
        (State.SUCCEEDED, NotDone.UNREADABLE, ReasonCode.RECORD_UNREADABLE),
        (State.CANCELLED, NotDone.CANCELLED, ReasonCode.CANCELLED),
    ],
)
def test_succeeded_run_is_not_done_when_its_record_cannot_be_read(
    state: State, stuck: NotDone, code: ReasonCode
) -> None:
    run = run_of(JOB, state, info=LOST)
    change = only(plan([JOB], [run], [bound_to(JOB, run)]))
    assert (change.action, change.stuck, change.reason.code) == (Action.NONE, stuck, code)


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


GOOD = Judged(Expectation("accuracy", min=0.9), Measured(0.95))
BAD = Judged(Expectation("loss", max=1.0), Measured(1.5))
ENDED = run_of(JOB, State.SUCCEEDED, start_time="2026-01-01T00:00:00Z")


def judged_state(judgement: Judgement, run: ActualJob = ENDED, **reconcile: Any) -> TargetState:
    """Return the state of a job with one run and a judgement."""
    state = state_of([wanted(**reconcile)], [run], [bound_to(JOB, run)])
    names = {base: replace(name, judgement=judgement) for base, name in state.names.items()}
    return replace(state, names=names)


def judged_change(judgement: Judgement, run: ActualJob = ENDED) -> Change:
    """Return the change of a job whose run was judged."""
    return only(make_plan(LOCAL, judged_state(judgement, run)))


@pytest.mark.parametrize(
    ("judgement", "stuck", "code", "reason"),
    [
        (Judgement((GOOD,)), None, ReasonCode.SUCCEEDED, "succeeded"),
        (
            Judgement((GOOD, BAD)),
            NotDone.MISSED,
            ReasonCode.EXPECTATION_MISSED,
            "succeeded; loss 1.5, expected at most 1",
        ),
        (
            Judgement((BAD,), "no permission"),
            NotDone.MISSED,
            ReasonCode.EXPECTATION_MISSED,
            "succeeded; loss 1.5, expected at most 1",
        ),
        (
            Judgement((GOOD,), "no permission"),
            NotDone.UNJUDGED,
            ReasonCode.METRICS_UNREAD,
            "succeeded; its metrics can't be read: no permission",
        ),
    ],
    ids=["met", "missed", "missed and unread", "unread"],
)
def test_succeeded_run_is_told_by_its_judgement_and_never_retried(
    judgement: Judgement, stuck: NotDone | None, code: ReasonCode, reason: str
) -> None:
    change = judged_change(judgement)
    assert (change.action, change.stuck, change.reason.code) == (Action.NONE, stuck, code)
    assert reason_of(change) == reason


def test_overwritten_result_is_told_before_its_judgement() -> None:
    other = wanted(content="b")
    later = run_of(other, State.SUCCEEDED, number=2, start_time="2026-01-02T00:00:00Z")
    state = state_of([JOB], [ENDED, later], [bound_to(JOB, ENDED), bound_to(other, later)])
    state = with_overwriting(state, dict.fromkeys((ENDED.resource, later.resource), "gs://models/census"))
    names = {base: replace(name, judgement=Judgement((BAD,))) for base, name in state.names.items()}
    change = only(make_plan(LOCAL, replace(state, names=names)))
    assert change.stuck is NotDone.OVERWRITTEN
    assert change.reason.values == {
        "job_name": later.job_name,
        "state": State.SUCCEEDED,
        "since": later.create_time,
        "folder": "gs://models/census",
    }


def test_cancelled_run_is_told_as_cancelled_before_any_judgement() -> None:
    run = run_of(JOB, State.CANCELLED)
    assert judged_change(Judgement((BAD,)), run).stuck is NotDone.CANCELLED


def test_problem_of_result_is_told_of_succeeded_run_that_is_not_suspended() -> None:
    bad = Judgement((BAD,))
    state = judged_state(bad)
    reason = because(ReasonCode.EXPECTATION_MISSED, judgement=bad)
    assert [*problems_of_results(state)] == [(state.names["census"], reason, NotDone.MISSED)]
    assert [*problems_of_results(judged_state(Judgement((GOOD,))))] == []
    assert [*problems_of_results(judged_state(bad, suspend=True))] == []
    assert [*problems_of_results(judged_state(bad, run_of(JOB, State.RUNNING)))] == []
    assert [*problems_of_results(state_of([JOB]))] == []
