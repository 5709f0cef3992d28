"""What an attempt's claim and runs say together of its end, its cancel and its name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimState, by_apply
from reconciler.model.job import ActualJob, ErrorInfo, State
from reconciler.planning.attempts import Attempt
from tests.support.planning import PARENT, bound_to, claim_on, run_of, wanted

JOB = wanted()
REASON = by_apply("superseded by census_0123456789abcdef (onChange: cancel)")
CANCELLED = run_of(JOB, State.CANCELLED, cancelled=REASON)
CANCELLING = run_of(JOB, State.CANCELLING)
UNSTARTED = run_of(JOB, State.FAILED, info=ErrorInfo("PACKAGES_NOT_RESOLVED", {"class": "set-up"}))
SUCCEEDED = run_of(JOB, State.SUCCEEDED, cancelled=REASON)
ASKED = bound_to(JOB, CANCELLING, error=REASON)
"""The claim while apply cancels its run."""
ID = claim_on(JOB).id


def attempt_of(claim: Claim | None, run: ActualJob | None, *others: ActualJob) -> Attempt:
    return Attempt(ID, claim, run, others)


@pytest.mark.parametrize(
    ("attempt", "stopped"),
    [
        (attempt_of(bound_to(JOB, CANCELLED), CANCELLED), True),
        (attempt_of(bound_to(JOB, CANCELLED, error=REASON), None), True),
        (attempt_of(claim_on(JOB, ClaimState.PENDING), CANCELLED), False),
        (attempt_of(None, CANCELLED), False),
        (attempt_of(bound_to(JOB, SUCCEEDED), SUCCEEDED), False),
        (attempt_of(bound_to(JOB, CANCELLED), replace(CANCELLED, cancelled="")), False),
    ],
    ids=["by apply", "by apply and dropped", "pending", "without claim", "succeeded", "by others"],
)
def test_attempt_is_stopped_when_apply_cancelled_its_bound_run(attempt: Attempt, stopped: bool) -> None:
    assert attempt.stopped is stopped


@pytest.mark.parametrize(
    ("attempt", "stopping"),
    [
        (attempt_of(ASKED, CANCELLING), True),
        (attempt_of(ASKED, None), False),
        (
            attempt_of(ASKED, replace(CANCELLING, state=State.RUNNING)),
            False,
        ),
        (
            attempt_of(
                claim_on(JOB, ClaimState.HELD, resource=CANCELLING.resource, error=REASON), CANCELLING
            ),
            False,
        ),
        (attempt_of(None, CANCELLING), False),
        (attempt_of(bound_to(JOB, CANCELLING, error=REASON, resource=f"{PARENT}/9"), CANCELLING), False),
        (attempt_of(bound_to(JOB, CANCELLING), CANCELLING), False),
    ],
    ids=["by apply", "dropped", "not yet", "held", "without claim", "another run", "by others"],
)
def test_attempt_is_stopping_while_apply_cancels_its_bound_run(attempt: Attempt, stopping: bool) -> None:
    assert attempt.stopping is stopping


@pytest.mark.parametrize(
    ("attempt", "set_up_failed"),
    [
        (attempt_of(bound_to(JOB, UNSTARTED), UNSTARTED), True),
        (attempt_of(bound_to(JOB, UNSTARTED), None), False),
        (attempt_of(bound_to(JOB, UNSTARTED), replace(UNSTARTED, info=None)), False),
        (attempt_of(claim_on(JOB, ClaimState.PENDING), UNSTARTED), False),
        (attempt_of(bound_to(JOB, UNSTARTED), UNSTARTED, replace(UNSTARTED, resource=f"{PARENT}/9")), False),
    ],
    ids=["set-up", "dropped", "trainer", "pending", "second run"],
)
def test_set_up_failed_when_only_run_of_bound_attempt_started_no_trainer(
    attempt: Attempt, set_up_failed: bool
) -> None:
    assert attempt.set_up_failed is set_up_failed


def test_resource_and_name_come_from_run_or_claim() -> None:
    claim = bound_to(JOB, run_of(JOB, State.FAILED, number=4))
    run = run_of(JOB, State.FAILED, number=5, job_name="odd")
    found = [attempt_of(*pair) for pair in ((claim, run), (claim, None), (None, run))]
    assert [one.resource for one in found] == [f"{PARENT}/5", f"{PARENT}/4", f"{PARENT}/5"]
    assert [one.name for one in found] == [JOB.job_name, JOB.job_name, "odd"]
