"""Content with a job that apply cancelled comes back when desired again, a limited number of times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.claim import BY_COMMAND, Claim, ClaimState, by_apply
from reconciler.model.job import ActualJob, ErrorInfo, State
from reconciler.model.plan import Action, Change, NotDone
from tests.support.planning import (
    GOOGLE,
    LIVE,
    LOCAL,
    bound_to,
    claim_on,
    only,
    plan,
    reason_of,
    run_of,
    wanted,
)

JOB = wanted()
REASON = by_apply("superseded by census_0123456789abcdef (onChange: cancel)")
EARLIER = "cancelled: superseded by census_0123456789abcdef (onChange: cancel)"
REPAIR = "cancelled: a second run of the same attempt; projects/1/locations/l/customJobs/1 stays"
TOO_OFTEN = (
    "stopped and wanted again three times: another apply wants other content; "
    "run it again with `reconciler rerun`"
)


def make_stopped_attempt(attempt: int = 1, reason: str = REASON) -> tuple[ActualJob, Claim]:
    """Return a cancelled run, and its claim with the recorded reason."""
    run = run_of(JOB, State.CANCELLED, attempt, number=attempt, cancelled=reason)
    return run, bound_to(JOB, run, attempt, error=reason)


def make_failed_attempt(attempt: int) -> tuple[ActualJob, Claim]:
    run = run_of(JOB, State.FAILED, attempt, number=attempt)
    return run, bound_to(JOB, run, attempt)


def plan_attempts(*pairs: tuple[ActualJob | None, Claim], **reconcile: Any) -> Change:
    runs = [run for run, _ in pairs if run]
    return only(plan([wanted(**reconcile)], runs, [claim for _, claim in pairs]))


@pytest.mark.parametrize("target", [LOCAL, GOOGLE])
def test_content_stopped_by_apply_is_submitted_again_and_uses_up_no_attempt(target: Any) -> None:
    run, claim = make_stopped_attempt()
    change = only(plan([JOB], [run], [claim], target))
    assert (change.action, change.attempt, change.free) == (Action.RETRY, 2, 1)
    assert change.job_name == f"{JOB.job_name}_2"
    assert reason_of(change) == "apply cancelled it while it was unwanted, and it is wanted again"
    assert (change.actual, change.stopped, change.not_before) == (run, True, None)


def test_stopped_run_returns_by_its_claim_when_service_has_dropped_it() -> None:
    _, claim = make_stopped_attempt()
    assert plan_attempts((None, claim)).action is Action.RETRY


@pytest.mark.parametrize("reason", [BY_COMMAND, EARLIER, REPAIR, ""])
def test_run_cancelled_by_person_or_earlier_version_or_repair_stays_cancelled(reason: str) -> None:
    change = plan_attempts(make_stopped_attempt(reason=reason))
    assert (change.action, change.stuck, change.stopped) == (Action.NONE, NotDone.CANCELLED, False)


def test_cancel_reason_counts_only_for_run_that_claim_names() -> None:
    run, claim = make_stopped_attempt()
    other = replace(run, resource=f"{run.resource}0", cancelled=None)
    change = only(plan([JOB], [other], [replace(claim, resource="projects/1/locations/l/customJobs/9")]))
    assert (change.action, change.stuck) == (Action.NONE, NotDone.CANCELLED)


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_late_cancel_reason_is_ignored_when_run_succeeded_or_failed(state: State) -> None:
    run = run_of(JOB, state)
    change = plan_attempts((run, bound_to(JOB, run, error=REASON)))
    assert (change.action, change.stopped) == (Action.NONE, False)


def test_content_returns_at_most_three_times() -> None:
    pairs = [make_stopped_attempt(1), make_stopped_attempt(2), make_stopped_attempt(3)]
    change = plan_attempts(*pairs)
    assert (change.action, change.attempt, change.free) == (Action.RETRY, 4, 3)
    change = plan_attempts(*pairs, make_stopped_attempt(4))
    assert (change.action, change.stuck, reason_of(change)) == (Action.NONE, NotDone.CANCELLED, TOO_OFTEN)
    # The same holds if the service has dropped the runs.
    assert (
        reason_of(plan_attempts(*((None, claim) for _, claim in [*pairs, make_stopped_attempt(4)])))
        == TOO_OFTEN
    )


def test_failures_between_stops_count_as_attempts() -> None:
    change = plan_attempts(make_stopped_attempt(1), make_failed_attempt(2), attempts=2)
    assert (change.action, change.attempt, reason_of(change)) == (Action.RETRY, 3, "attempt 1 failed, 1 left")
    change = plan_attempts(make_failed_attempt(1), make_stopped_attempt(2), attempts=2)
    assert (change.action, change.attempt, change.stopped) == (Action.RETRY, 3, True)
    change = plan_attempts(make_stopped_attempt(1), make_failed_attempt(2), attempts=1)
    assert (change.action, change.stuck) == (Action.NONE, NotDone.FAILED)


def test_content_does_not_return_when_failures_reach_lowered_attempts() -> None:
    change = plan_attempts(make_failed_attempt(1), make_stopped_attempt(2), attempts=1)
    assert (change.action, change.stuck) == (Action.NONE, NotDone.FAILED)
    assert reason_of(change) == f'{REASON}; raise "attempts" or run it again with `reconciler rerun`'
    run = run_of(JOB, State.CANCELLING, 2, number=2)
    change = plan_attempts(make_failed_attempt(1), (run, bound_to(JOB, run, 2, error=REASON)), attempts=1)
    assert (change.stuck, change.is_awaited) == (NotDone.FAILED, False)
    assert reason_of(change) == 'cancelling; raise "attempts" or run it again with `reconciler rerun`'


def test_failed_set_ups_before_and_after_stop_are_counted_separately() -> None:
    info = ErrorInfo("PACKAGES_NOT_RESOLVED", {"class": "set-up", "image": "an-image"})

    def make_unstarted_attempt(attempt: int) -> tuple[ActualJob, Claim]:
        run = run_of(JOB, State.FAILED, attempt, number=attempt, info=info)
        return run, bound_to(JOB, run, attempt)

    change = plan_attempts(
        make_unstarted_attempt(1),
        make_unstarted_attempt(2),
        make_stopped_attempt(3),
        make_unstarted_attempt(4),
    )
    assert (change.action, change.attempt, change.free) == (Action.RETRY, 5, 4)
    assert "try 2 of 3" in reason_of(change)


def test_suspended_content_does_not_return() -> None:
    change = plan_attempts(make_stopped_attempt(), suspend=True)
    assert (change.action, change.stuck) == (Action.NONE, NotDone.SUSPENDED)


@pytest.mark.parametrize("state", LIVE)
def test_content_waits_for_end_of_run_that_apply_is_cancelling(state: State) -> None:
    run = run_of(JOB, state)
    change = plan_attempts((run, bound_to(JOB, run, error=REASON)))
    waits = state is State.CANCELLING
    assert (change.action, change.stuck, change.is_awaited) == (Action.NONE, None, waits)
    expected = "cancelling; submitted again once it has ended" if waits else state.lower()
    assert reason_of(change) == expected


@pytest.mark.parametrize("reason", [BY_COMMAND, EARLIER, ""])
def test_content_does_not_wait_for_run_that_others_are_cancelling(reason: str) -> None:
    run = run_of(JOB, State.CANCELLING)
    change = plan_attempts((run, bound_to(JOB, run, error=reason)))
    assert (reason_of(change), change.is_awaited) == ("cancelling", False)


def test_content_does_not_wait_after_three_returns() -> None:
    run = run_of(JOB, State.CANCELLING, 4, number=4)
    pairs = [
        make_stopped_attempt(1),
        make_stopped_attempt(2),
        make_stopped_attempt(3),
        (run, bound_to(JOB, run, 4, error=REASON)),
    ]
    change = plan_attempts(*pairs)
    assert (reason_of(change), change.is_awaited) == (f"cancelling; {TOO_OFTEN}", False)
    # No run is cancelled for it.
    live = run_of(wanted(content="b"), State.RUNNING, number=9)
    claims = [*(claim for _, claim in pairs), bound_to(wanted(content="b"), live)]
    found = plan([wanted(on_change="cancel")], [*(run for run, _ in pairs), live], claims)
    assert [change.action for change in found.changes] == [Action.NONE]


def test_refused_return_is_submitted_again_only_after_stopped_run() -> None:
    refused = claim_on(JOB, ClaimState.REJECTED, 2, error="no quota")
    assert plan_attempts(make_stopped_attempt(), (None, refused)).stopped
    assert not plan_attempts(make_failed_attempt(1), (None, refused), attempts=2).stopped
    found = run_of(JOB, State.RUNNING, 2, number=2)
    change = plan_attempts(make_stopped_attempt(), (found, refused))
    assert (change.actual, change.stopped) == (found, False)


def test_run_of_unknown_origin_blocks_return() -> None:
    run, claim = make_stopped_attempt()
    stranger = run_of(JOB, State.RUNNING, number=2, mark="unknown")
    change = only(plan([JOB], [run, stranger], [claim]))
    assert (change.action, change.attempt, change.actual) == (Action.BLOCKED, 2, stranger)


@pytest.mark.parametrize(
    ("pairs", "cancels"),
    [([make_stopped_attempt()], 1), ([make_stopped_attempt(n) for n in (1, 2, 3, 4)], 0)],
    ids=["it returns", "it returned too often"],
)
def test_run_of_other_content_is_cancelled_only_when_content_returns(
    pairs: list[tuple[ActualJob, Claim]], cancels: int
) -> None:
    other = wanted(content="b")
    live = run_of(other, State.RUNNING, number=9)
    job = wanted(on_change="cancel")
    claims = [*(claim for _, claim in pairs), bound_to(other, live)]
    found = plan([job], [*(run for run, _ in pairs), live], claims)
    assert [change.action for change in found.changes].count(Action.CANCEL) == cancels


def test_run_of_other_content_continues_until_awaited_end() -> None:
    other, run = wanted(content="b"), run_of(JOB, State.CANCELLING)
    live = run_of(other, State.RUNNING, number=9)
    claims = [bound_to(JOB, run, error=REASON), bound_to(other, live)]
    assert only(plan([wanted(on_change="cancel")], [run, live], claims)).is_awaited


def test_return_continues_when_its_outcome_is_unknown() -> None:
    pending = claim_on(JOB, ClaimState.PENDING, 2)
    change = plan_attempts(make_stopped_attempt(), (None, pending))
    assert (change.action, change.attempt, change.free) == (Action.RETRY, 2, 1)


@given(st.lists(st.sampled_from(["stopped", "failed"]), min_size=1, max_size=9), st.integers(1, 4))
def test_returns_and_attempts_never_exceed_limits_for_any_history(ends: list[str], attempts: int) -> None:
    pairs = [
        (make_stopped_attempt if end == "stopped" else make_failed_attempt)(n)
        for n, end in enumerate(ends, 1)
    ]
    change = plan_attempts(*pairs, attempts=attempts)
    if change.action is Action.RETRY:
        assert change.attempt == len(ends) + 1
        returns = ends.count("stopped") if ends[-1] == "stopped" else 0
        assert returns <= 3
        assert ends.count("failed") < attempts
    elif ends.count("failed") >= attempts:
        assert change.stuck is NotDone.FAILED
    else:
        assert (ends[-1], change.stuck) == ("stopped", NotDone.CANCELLED)
