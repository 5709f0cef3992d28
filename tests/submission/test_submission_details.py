"""Submission in its corners: races at the last write, who wrote a claim, what is told of a stop."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import KEY, ActualJob, State
from reconciler.model.manifest import ML_V1
from reconciler.model.ports import Credential, Refused, Taken
from reconciler.submission.protocol import MAX_UNANSWERED, Order, SubmissionResult, Submitter
from tests.submission.test_protocol import (
    CLAIM,
    ID,
    KEY_1,
    ML_ORDER,
    MOMENT,
    ORDER,
    RIPE,
    body,
    ml_body,
    pending,
    settle,
)
from tests.support.memory_ports import BOUNDS, Outside

REFUSED = Refused(403, "PERMISSION_DENIED", "no")
SECOND = Order(replace(CLAIM, id=ClaimId(KEY_1, 2), job_name="census_0123_2"), body)


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def strict(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> Outside:
    """A service that has a job only where it was made: under its API and kind, and its name."""
    read, named = outside.jobs.read, outside.jobs.named

    def strictly(api_version: str, kind: str, resource: str) -> ActualJob:
        job = read(api_version, kind, resource)
        if (job.api_version, job.kind) != (api_version, kind):
            raise ServiceError(f"{api_version} has no {kind}")
        return job

    def of_name(api_version: str, kind: str, job_name: str) -> str | None:
        if not job_name.startswith("census_"):
            raise ServiceError(f"{job_name} is no name")
        return named(api_version, kind, job_name)

    monkeypatch.setattr(outside.jobs, "read", strictly)
    monkeypatch.setattr(outside.jobs, "named", of_name)
    return outside


def another(outside: Outside) -> Submitter:
    """The same repository's submitter in another process."""
    return Submitter(replace(outside.ports, owner="another"))


def meanwhile(outside: Outside, state: ClaimState, does: Any) -> None:
    """Let another do something just before a claim of this state is written."""

    def before(claim: Claim) -> None:
        if claim.state is state:
            outside.claims.before_write = lambda claim: None
            does()

    outside.claims.before_write = before


def taken_over(outside: Outside) -> None:
    """What there is of the claim was written by another process."""
    found = outside.claims.held[ID]
    assert outside.claims.write(replace(found.claim, owner="another"), found.generation)


def ripen(outside: Outside) -> None:
    outside.time.now += RIPE + MOMENT


def test_what_was_bound_before_is_told_without_a_job(outside: Outside) -> None:
    claim = settle(outside).claim
    assert settle(outside) == SubmissionResult(claim, job=None, until=None, now=None, cause="")


def test_a_mark_can_be_a_label(outside: Outside) -> None:
    (mark,) = settle(outside).claim.request_ids
    assert re.fullmatch("[a-z2-7]{26}", mark)


def test_what_is_sent_is_pending_whatever_its_order_says(outside: Outside) -> None:
    settle(outside, replace(ORDER, claim=replace(ORDER.claim, state=ClaimState.HELD)))
    assert outside.claims.history[0].state is ClaimState.PENDING


def test_a_store_that_would_do_only_before_the_first_run_is_refused(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a request about to leave it counts as one that has had a run."""

    def check(runs: int) -> None:
        if runs:
            raise ServiceError("it was emptied")

    monkeypatch.setattr(outside.claims, "check", check)
    with pytest.raises(ServiceError, match="it was emptied"):
        settle(outside)
    assert outside.jobs.sent == []


@pytest.mark.parametrize(("stood", "sent"), [(timedelta(0), 1), (timedelta(microseconds=1000), 0)])
def test_a_credential_is_used_for_half_of_its_life(outside: Outside, stood: timedelta, sent: int) -> None:
    def slow() -> None:
        outside.time.now += BOUNDS.lifetime / 2 + stood

    meanwhile(outside, ClaimState.PENDING, slow)
    settle(outside)
    assert len(outside.jobs.sent) == sent


def test_why_an_outcome_is_unknown_is_told_of_a_name_that_is_taken_too(outside: Outside) -> None:
    outside.jobs.answers = [Taken("exists already")]
    settled = settle(outside)
    assert (settled.claim.state, settled.cause) == (ClaimState.PENDING, "exists already")
    assert settled.until == outside.time.now + RIPE


def test_when_it_was_refused_is_told(outside: Outside) -> None:
    outside.jobs.answers = [REFUSED]
    assert settle(outside).now == outside.time.now


def test_a_refusal_is_an_answer_after_requests_without_one(outside: Outside) -> None:
    pending(outside)
    ripen(outside)
    assert pending(outside).unanswered == 1
    ripen(outside)
    outside.jobs.answers = [REFUSED]
    refused = settle(outside).claim
    assert (refused.state, refused.unanswered) == (ClaimState.REJECTED, 0)


class TestOwner:
    """A claim names the process that wrote it last."""

    def test_that_gave_it_up(self, outside: Outside) -> None:
        pending(outside)
        taken_over(outside)
        held = Submitter(outside.ports).give_up(ID)
        assert held is not None
        assert held.owner == "a test"

    def test_that_found_its_job(self, outside: Outside) -> None:
        outside.jobs.answers = ["lost"]
        settle(outside)
        taken_over(outside)
        bound = settle(outside).claim
        assert (bound.state, bound.owner) == (ClaimState.BOUND, "a test")

    def test_that_asks_what_to_do(self, outside: Outside) -> None:
        for _ in range(MAX_UNANSWERED):
            pending(outside)
            ripen(outside)
        taken_over(outside)
        held = settle(outside).claim
        assert (held.state, held.owner) == (ClaimState.HELD, "a test")
        # The question is about no job, and the next count begins anew.
        assert (held.odd, held.unanswered) == ("", 0)


class TestRace:
    """Another process writes just before: what it wrote is then gone by."""

    def test_at_the_binding(self, outside: Outside) -> None:
        meanwhile(outside, ClaimState.BOUND, lambda: another(outside).submit(ORDER))
        settled = settle(outside)
        assert (settled.claim.state, settled.claim.owner) == (ClaimState.BOUND, "another")
        assert len(outside.jobs.sent) == 1

    def test_at_the_holding(self, outside: Outside) -> None:
        pending(outside)
        outside.jobs.add(body("forged"))
        meanwhile(outside, ClaimState.HELD, lambda: another(outside).submit(ORDER))
        settled = settle(outside)
        assert (settled.claim.state, settled.claim.owner) == (ClaimState.HELD, "another")

    def test_at_the_refusal(self, outside: Outside) -> None:
        outside.jobs.answers = [REFUSED]
        meanwhile(outside, ClaimState.REJECTED, lambda: another(outside).give_up(ID))
        settled = settle(outside)
        assert (settled.claim.state, settled.claim.given_up) == (ClaimState.HELD, True)


class TestResubmit:
    """A person's word goes no further than what was known when it was given."""

    def test_where_there_is_no_claim_it_is_a_submission(self, outside: Outside) -> None:
        assert Submitter(outside.ports).resubmit(ORDER).claim.state is ClaimState.BOUND

    def test_a_bound_job_is_not_looked_for(self, outside: Outside) -> None:
        claim = settle(outside).claim
        outside.jobs.jobs.clear()
        ripen(outside)
        assert Submitter(outside.ports).resubmit(ORDER).claim == claim
        assert len(outside.jobs.sent) == 1

    def test_a_job_that_is_news_is_asked_about(self, outside: Outside) -> None:
        outside.jobs.answers = [REFUSED]
        settle(outside)
        ripen(outside)
        job = outside.jobs.add(body("forged"))
        held = Submitter(outside.ports).resubmit(ORDER).claim
        assert (held.state, held.odd) == (ClaimState.HELD, job.resource)
        assert len(outside.jobs.sent) == 1


class TestAttemptBefore:
    """A further attempt follows one that failed."""

    def test_its_job_is_asked_where_it_was_made(self, strict: Outside) -> None:
        strict.jobs.becomes(settle(strict).job, State.FAILED)  # type: ignore[arg-type]
        assert settle(strict, SECOND).claim.state is ClaimState.BOUND

    def test_a_failure_that_is_written_down_is_not_written_again(self, outside: Outside) -> None:
        claim = replace(settle(outside).claim, ended=State.FAILED)
        generation = outside.claims.held[ID].generation
        assert (written := outside.claims.write(claim, generation))
        assert settle(outside, SECOND).claim.state is ClaimState.BOUND
        assert outside.claims.held[ID] == written

    def test_what_to_do_otherwise_is_told(self, outside: Outside) -> None:
        settle(outside)
        with pytest.raises(ServiceError) as error:
            settle(outside, SECOND)
        assert error.value.hint
        assert "plan" in error.value.hint


class TestLook:
    """How a job is looked for, and what is told of one that can't be taken."""

    @pytest.mark.parametrize("order", [ORDER, ML_ORDER])
    def test_a_job_is_read_where_it_was_made(self, strict: Outside, order: Order) -> None:
        strict.jobs.answers = ["lost"]
        settle(strict, order)
        assert settle(strict, order).job == strict.jobs.jobs[0]

    def test_a_unique_name_is_the_runs(self, strict: Outside) -> None:
        strict.jobs.answers = [Taken("exists")]
        assert settle(strict, ML_ORDER).claim.state is ClaimState.REJECTED
        strict.jobs.add(ml_body(strict.claim.request_ids[0]), ML_V1, "Job")
        assert settle(strict, ML_ORDER).claim.state is ClaimState.BOUND

    def test_a_listing_that_shows_too_much_settles_nothing(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = body("m1")
        outside.jobs.add({**made, "labels": {**made["labels"], KEY: "o" * 52}})
        monkeypatch.setattr(outside.jobs, "with_key", lambda *_: outside.jobs.runs())
        settled = settle(outside)
        assert settled.claim.state is ClaimState.BOUND
        assert settled.job == outside.jobs.jobs[1]

    def test_three_differences_are_told(self, outside: Outside) -> None:
        outside.jobs.add(body("m1", a=1, b=2, c=3, d=4))
        error = settle(outside).claim.error
        assert error.endswith(": it differs at /jobSpec/a, /jobSpec/b, /jobSpec/c")

    def test_what_to_do_is_told_where_a_listed_job_is_gone(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outside.jobs.add(body("m1"))

        def gone(api_version: str, kind: str, resource: str) -> ActualJob:
            raise NotFoundError(resource)

        monkeypatch.setattr(outside.jobs, "read", gone)
        with pytest.raises(ServiceError) as error:
            settle(outside)
        assert error.value.hint == "apply again in a moment"


def test_what_to_do_is_told_where_a_credential_ended_before_its_use(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = outside.ports
    monkeypatch.setattr(ports.credentials, "mint", lambda: Credential({}, outside.time.now))
    with pytest.raises(ServiceError) as error:
        Submitter(ports).submit(ORDER)
    assert error.value.hint
    assert error.value.hint.startswith("nothing was sent:")
