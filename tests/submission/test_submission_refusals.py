"""What a submission never does: give up what is there, follow a wrong attempt, use a spent credential."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import REQUEST_ID, ActualJob, State
from reconciler.model.ports import Credential, Unknown
from reconciler.submission.protocol import Order, Submitter
from tests.submission.test_protocol import CLAIM, ID, KEY_1, ORDER, body, settle
from tests.support.memory_ports import Outside

SECOND, THIRD = (
    Order(replace(CLAIM, id=ClaimId(KEY_1, number), job_name=f"census_0123_{number}"), body)
    for number in (2, 3)
)


@pytest.fixture
def outside() -> Outside:
    return Outside()


def unbound(outside: Outside) -> tuple[Claim, ActualJob]:
    """A claim whose job was made, and nobody knows."""
    settle(outside)
    claim, job = outside.claims.history[0], outside.jobs.jobs[0]
    outside.claims.write(claim, outside.claims.held[ID].generation)
    return claim, job


def test_a_job_that_is_there_is_not_given_up_by_saying_so(outside: Outside) -> None:
    _, job = unbound(outside)
    found = Submitter(outside.ports).give_up(ID)
    assert found is not None
    assert (found.state, found.resource, found.given_up) == (ClaimState.BOUND, job.resource, False)


def test_a_job_that_no_request_made_keeps_nobody_from_giving_up(outside: Outside) -> None:
    _, job = unbound(outside)
    outside.jobs.jobs = [replace(job, labels={**job.labels, REQUEST_ID: "unknown"})]
    found = Submitter(outside.ports).give_up(ID)
    assert found is not None
    assert (found.state, found.resource, found.given_up) == (ClaimState.HELD, "", True)
    assert found.owner == "a test"


def test_what_is_bound_is_not_given_up(outside: Outside) -> None:
    claim = settle(outside).claim
    outside.jobs.jobs.clear()
    assert Submitter(outside.ports).give_up(ID) == claim
    assert outside.claim == claim


def test_a_claim_that_others_write_all_the_time_is_not_given_up_silently(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.jobs.answers = [Unknown("no answer came")]
    settle(outside, ORDER)
    monkeypatch.setattr(outside.claims, "write", lambda claim, generation: None)
    with pytest.raises(ServiceError):
        Submitter(outside.ports).give_up(ID)


def test_the_failure_that_counts_is_that_of_the_attempt_just_before(outside: Outside) -> None:
    outside.jobs.becomes(settle(outside).job, State.FAILED)  # type: ignore[arg-type]
    settle(outside, SECOND)
    with pytest.raises(ServiceError, match="not submitted: attempt 2 isn't known to have failed"):
        settle(outside, THIRD)


@pytest.mark.parametrize("late", [timedelta(0), timedelta(hours=1)])
def test_nothing_is_sent_with_a_credential_that_ended(
    outside: Outside, monkeypatch: pytest.MonkeyPatch, late: timedelta
) -> None:
    spent = Credential({"Authorization": "Bearer x"}, outside.time.now - late)
    ports = outside.ports
    monkeypatch.setattr(ports.credentials, "mint", lambda: spent)
    with pytest.raises(ServiceError, match="expired at 2"):
        Submitter(ports).submit(ORDER)
    assert outside.jobs.sent == []
    assert outside.claims.held == {}
