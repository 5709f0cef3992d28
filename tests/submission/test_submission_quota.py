"""A submission while the service takes no more: nothing is begun, and what is known by then is kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from reconciler.model.claim import Claim, ClaimState
from reconciler.model.ports import NotSent, Refused
from reconciler.submission.protocol import Submitter
from reconciler.submission.quota import NotBegunError, Quota
from tests.submission.test_protocol import ID, ML_ORDER, MOMENT, ORDER, RIPE, body, pending
from tests.support.memory_ports import Outside

FULL = Refused(429, "RESOURCE_EXHAUSTED", "60 submissions a minute")


@pytest.fixture
def outside() -> Outside:
    return Outside()


def full(outside: Outside, *, stopping: bool = False) -> Submitter:
    """One for whom the quota is used up for longer than it waits, or who is to stop."""
    ports = outside.ports
    quota = Quota(ports.clock, ports.chance, patience=600.0 if stopping else 0.0, go_on=lambda: not stopping)
    quota.answered(FULL)
    return Submitter(ports, quota)


@pytest.mark.parametrize("stopping", [False, True])
def test_nothing_is_claimed_or_minted_or_sent(outside: Outside, stopping: bool) -> None:
    with pytest.raises(NotBegunError):
        full(outside, stopping=stopping).submit(ORDER)
    assert (outside.claims.held, outside.credentials.minted, outside.jobs.sent) == ({}, 0, [])


def test_without_a_claim_it_is_not_even_looked_for(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside.jobs, "with_key", None)
    with pytest.raises(NotBegunError):
        full(outside).submit(ORDER)


def test_what_is_found_is_bound_all_the_same(outside: Outside) -> None:
    claim = pending(outside)
    job = outside.jobs.add(body(claim.request_ids[0]))
    assert full(outside).submit(ORDER).job == job


def test_that_nothing_came_of_it_is_kept(outside: Outside) -> None:
    claim = pending(outside)
    assert full(outside).submit(ORDER).claim == claim
    outside.time.now += RIPE + MOMENT
    settled = full(outside).submit(ORDER)
    assert settled.claim.state is ClaimState.REJECTED
    assert settled.claim.error == "not submitted, as the service accepts no more now: 60 submissions a minute"
    assert len(outside.jobs.sent) == 1
    assert Submitter(outside.ports).submit(ORDER).claim.state is ClaimState.BOUND


@pytest.mark.parametrize("waited", [timedelta(0), RIPE])
def test_while_a_request_may_still_make_a_job_it_stays_unknown(outside: Outside, waited: timedelta) -> None:
    """The service makes one job of a name only, so that it needn't be waited for; but it may come."""
    claim = pending(outside, ML_ORDER)
    outside.time.now += waited
    with pytest.raises(NotBegunError):
        full(outside).submit(ML_ORDER)
    assert outside.claims.held[ID].claim == claim


def test_at_a_stop_it_stays_as_it_is(outside: Outside) -> None:
    claim = pending(outside)
    outside.time.now += RIPE + MOMENT
    with pytest.raises(NotBegunError):
        full(outside, stopping=True).submit(ORDER)
    assert outside.claims.held[ID].claim == claim


def test_a_persons_word_changes_nothing_while_the_service_takes_no_more(outside: Outside) -> None:
    claim = pending(outside)
    outside.time.now += RIPE + MOMENT
    with pytest.raises(NotBegunError):
        full(outside).resubmit(ORDER)
    assert outside.claims.held[ID].claim == claim


def test_a_refusal_between_claim_and_request_counts_for_the_claim_too(outside: Outside) -> None:
    ports = outside.ports
    quota = Quota(ports.clock, ports.chance)

    def refused_meanwhile(claim: Claim) -> None:
        outside.claims.before_write = lambda claim: None
        quota.answered(Refused(429, "RESOURCE_EXHAUSTED", "60 submissions a minute", 600.0))

    outside.claims.before_write = refused_meanwhile
    claim = Submitter(ports, quota).submit(ORDER).claim
    assert (claim.state, outside.jobs.sent) == (ClaimState.REJECTED, [])
    assert claim.error == "the service stopped accepting submissions just before this one was sent"
    assert claim.not_before == outside.time.now + timedelta(seconds=600)


def test_what_never_left_has_a_turn_of_its_own_when_it_is_sent_again(outside: Outside) -> None:
    ports = outside.ports
    outside.jobs.answers = [NotSent("it can't be reached"), NotSent("it can't be reached"), ""]
    settled = Submitter(ports, Quota(ports.clock, ports.chance, pace=3.0)).submit(ORDER)
    assert settled.claim.state is ClaimState.BOUND
    assert outside.time.slept == [2.0, 1.0] * 2


def test_a_refusal_is_told_to_all_that_share_the_quota(outside: Outside) -> None:
    ports = outside.ports
    quota = Quota(ports.clock, ports.chance)
    outside.jobs.answers = [FULL]
    claim = Submitter(ports, quota).submit(ORDER).claim
    assert quota.held_for == 30.0
    assert claim.not_before == outside.time.now + timedelta(seconds=30)
