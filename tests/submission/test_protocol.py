"""The protocol of a single submission, step by step: claims, requests, checks and waits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import BY_COMMAND, Claim, ClaimId, ClaimState, by_apply
from reconciler.model.job import ATTEMPT, KEY, REQUEST_ID, SOURCE, ActualJob, State, labels_digest
from reconciler.model.manifest import ML_V1
from reconciler.model.ports import Answer, Credential, NotSent, Refused, Taken, Unknown
from reconciler.submission.protocol import (
    MAX_REQUEST_IDS,
    MAX_UNANSWERED,
    Order,
    SubmissionResult,
    Submitter,
    bound,
)
from tests.support.memory_ports import BOUNDS, Outside
from tests.support.planning import claim_on, run_of, wanted
from tests.support.submission import (
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


@pytest.fixture
def outside() -> Outside:
    return Outside()


def test_claim_is_written_before_request_and_bound_to_created_job(outside: Outside) -> None:
    settled = settle(outside)
    first, second = outside.claims.history
    (job,) = outside.jobs.jobs
    mark = job.labels[REQUEST_ID]
    assert len(mark) == 26
    assert (first.state, first.request_ids, first.commit) == (ClaimState.PENDING, (mark,), "c1")
    assert first.credential_expiry == outside.jobs.sent[0][1].expires
    assert (second.state, second.resource, second.request_ids) == (ClaimState.BOUND, job.resource, (mark,))
    assert (second.credential_expiry, second.ended, second.labels) == (None, None, labels_digest(job.labels))
    assert second.owner == first.owner == "a test"
    assert settled == SubmissionResult(second, job)


def test_submit_never_resends_bound_claim(outside: Outside) -> None:
    settle(outside)
    outside.jobs.jobs.clear()
    outside.time.sleep(RIPE.total_seconds() * 10)
    assert settle(outside).claim.state is ClaimState.BOUND
    assert len(outside.jobs.sent) == 1


@pytest.mark.fault(7)
def test_single_submitter_sends_when_two_write_claim_at_same_time(outside: Outside) -> None:
    """The other's claim is written while this submitter is about to write its own."""

    def submit_meanwhile(claim: Claim) -> None:
        outside.claims.before_write = lambda claim: None
        settle(outside)

    outside.claims.before_write = submit_meanwhile
    settled = settle(outside)
    assert len(outside.jobs.sent) == 1
    assert settled.claim.state is ClaimState.BOUND


@pytest.mark.fault(9)
@pytest.mark.parametrize("fault", ["lost", "denied"])
def test_claim_write_counts_when_it_took_effect_without_success_answer(outside: Outside, fault: str) -> None:
    outside.claims.faults = [fault, fault]
    assert settle(outside).claim.state is ClaimState.BOUND
    assert len(outside.jobs.sent) == 1
    assert [claim.state for claim in outside.claims.history] == [ClaimState.PENDING, ClaimState.BOUND]


@pytest.mark.fault(10)
def test_submit_sends_no_request_when_claim_cannot_be_written(outside: Outside) -> None:
    outside.claims.faults = ["failed"] * 3
    with pytest.raises(ServiceError, match="the store is away"):
        settle(outside)
    assert outside.jobs.sent == []
    assert outside.time.slept == [1.0, 2.0]


@pytest.mark.fault(10)
def test_claim_write_is_repeated_after_failure(outside: Outside) -> None:
    """The store takes a write a second, and the second write follows the first closely."""
    outside.claims.faults = ["", "failed", "failed"]
    assert settle(outside).claim.state is ClaimState.BOUND
    assert len(outside.jobs.sent) == 1


@pytest.mark.fault(2)
def test_job_is_bound_once_seen_when_its_answer_was_lost(outside: Outside) -> None:
    outside.jobs.answers = ["lost"]
    first = settle(outside)
    assert first.claim.state is ClaimState.PENDING
    assert first.cause == "no answer came"
    assert first.until == outside.time.now + RIPE
    settled = settle(outside)
    assert (settled.claim.state, settled.job) == (ClaimState.BOUND, outside.jobs.jobs[0])
    assert len(outside.jobs.sent) == 1


@pytest.mark.fault(12)
def test_submit_waits_until_job_of_unknown_outcome_can_no_longer_appear(outside: Outside) -> None:
    claim = pending(outside)
    assert claim.credential_expiry is not None
    outside.time.now = claim.credential_expiry + BOUNDS.executes + BOUNDS.visible
    waited = settle(outside)
    assert (waited.claim, waited.until, waited.now) == (claim, outside.time.now, outside.time.now)
    assert len(outside.jobs.sent) == 1
    outside.time.now += MOMENT
    settled = settle(outside)
    assert settled.claim.state is ClaimState.BOUND
    first, second = settled.claim.request_ids
    assert (first, first != second) == (claim.request_ids[0], True)
    assert [sent["labels"][REQUEST_ID] for sent, _ in outside.jobs.sent] == [first, second]
    assert outside.time.slept == [BOUNDS.look_again]


def test_job_found_by_second_look_is_bound(outside: Outside) -> None:
    claim = pending(outside)
    job = outside.jobs.add(body(claim.request_ids[0]))
    outside.jobs.hidden.add(job.resource)
    outside.time.now += RIPE + MOMENT

    def sleep(seconds: float) -> None:
        outside.jobs.hidden.clear()

    outside.time.sleep = sleep  # type: ignore[method-assign]
    assert settle(outside).job == job
    assert len(outside.jobs.sent) == 1


def test_takeover_sends_no_request_when_other_submitter_writes_first(outside: Outside) -> None:
    pending(outside)
    outside.time.now += RIPE + MOMENT

    def submit_meanwhile(claim: Claim) -> None:
        outside.claims.before_write = lambda claim: None
        settle(outside)

    outside.claims.before_write = submit_meanwhile
    assert settle(outside).claim.state is ClaimState.BOUND
    assert len(outside.jobs.sent) == 2


def test_claim_keeps_commit_of_first_submission(outside: Outside) -> None:
    pending(outside)
    outside.time.now += RIPE + MOMENT
    later = Order(replace(CLAIM, commit="c2", path="jobs/moved.yaml", on_delete="cancel"), body)
    claim = settle(outside, later).claim
    assert (claim.commit, claim.path, claim.on_delete) == ("c1", "jobs/moved.yaml", "cancel")


def test_claim_takes_commit_of_next_submission_after_refusal(outside: Outside) -> None:
    """No job carries the first commit; it may belong to an earlier return of the content."""
    outside.jobs.answers = [Refused(400, "INVALID_ARGUMENT", "no such machine")]
    assert settle(outside).claim.commit == "c1"
    outside.time.now += MOMENT + timedelta(days=1)
    without = Order(replace(CLAIM, commit=""), body)
    outside.jobs.answers = [Refused(400, "INVALID_ARGUMENT", "no such machine")]
    assert settle(outside, without).claim.commit == "c1", "a changed work tree has none"
    outside.time.now += timedelta(days=1)
    claim = settle(outside, Order(replace(CLAIM, commit="c2"), body)).claim
    assert (claim.state, claim.commit) == (ClaimState.BOUND, "c2")


def test_claim_is_held_after_too_many_unanswered_requests(outside: Outside) -> None:
    for _ in range(MAX_UNANSWERED):
        outside.jobs.answers = [Unknown("no answer came")]
        settle(outside)
        outside.time.now += RIPE + MOMENT
    held = settle(outside).claim
    assert (held.state, held.given_up) == (ClaimState.HELD, False)
    assert held.error == "5 requests for it were sent, and none was answered"
    assert len(outside.jobs.sent) == MAX_UNANSWERED
    assert settle(outside).claim == held


REFUSED = [
    Refused(400, "INVALID_ARGUMENT", "no such machine"),
    Refused(401, "UNAUTHENTICATED", "expired"),
    Refused(403, "PERMISSION_DENIED", "no"),
    NotSent("it can't be reached"),
]


@pytest.mark.parametrize("answer", REFUSED, ids=lambda answer: type(answer).__name__ + str(answer)[-20:])
def test_refused_or_unsent_request_is_sent_again_without_wait(outside: Outside, answer: Answer) -> None:
    outside.jobs.answers = [answer] * 3
    refused = settle(outside).claim
    assert (refused.state, refused.error) == (ClaimState.REJECTED, answer.message)  # type: ignore[union-attr]
    assert (refused.not_before, refused.refusals) == (None, 1)
    outside.jobs.answers = []
    bound = settle(outside).claim
    assert (bound.state, bound.error, bound.refusals) == (ClaimState.BOUND, "", 0)
    assert len(bound.request_ids) == 2


def test_unsent_request_is_repeated_three_times_under_same_mark(outside: Outside) -> None:
    outside.jobs.answers = [NotSent("no way"), NotSent("no way")]
    assert settle(outside).claim.state is ClaimState.BOUND
    assert len({sent["labels"][REQUEST_ID] for sent, _ in outside.jobs.sent}) == 1
    assert len(outside.jobs.sent) == 3


@pytest.mark.fault(8, 32)
def test_paused_process_sends_no_request(outside: Outside) -> None:
    outside.claims.before_write = lambda claim: outside.time.sleep(BOUNDS.lifetime.total_seconds() / 2 + 1)
    refused = settle(outside).claim
    assert refused.state is ClaimState.REJECTED
    assert "was paused" in refused.error
    assert outside.jobs.sent == []


@pytest.mark.fault(4, 49)
def test_wait_after_exhausted_quota_doubles_up_to_an_hour(outside: Outside) -> None:
    waits = []
    for _ in range(9):
        outside.jobs.answers = [Refused(429, "RESOURCE_EXHAUSTED", "quota")]
        claim = settle(outside).claim
        assert claim.not_before is not None
        waits.append((claim.not_before - outside.time.now).total_seconds())
        outside.time.now = claim.not_before - MOMENT
        early = settle(outside)
        assert (early.claim, early.now) == (claim, outside.time.now)
        outside.time.now = claim.not_before
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert len(outside.jobs.sent) == 9
    assert settle(outside).claim.state is ClaimState.BOUND


@pytest.mark.parametrize(("asked", "waits"), [(None, 30), (10.0, 30), (600.0, 600), (1e9, 3600)])
def test_retry_after_is_obeyed_up_to_an_hour(outside: Outside, asked: float | None, waits: float) -> None:
    outside.jobs.answers = [Refused(429, "RESOURCE_EXHAUSTED", "quota", asked)]
    claim = settle(outside).claim
    assert claim.not_before == outside.time.now + timedelta(seconds=waits)


def test_job_of_refused_request_is_bound_before_next_request(outside: Outside) -> None:
    outside.jobs.answers = [Refused(400, "INVALID_ARGUMENT", "no")]
    (mark,) = settle(outside).claim.request_ids
    job = outside.jobs.add(body(mark))
    assert settle(outside).job == job
    assert len(outside.jobs.sent) == 1


@pytest.mark.fault(11)
def test_claim_is_not_begun_in_emptied_store(outside: Outside) -> None:
    outside.claims.genesis = False
    with pytest.raises(ServiceError, match="no genesis"):
        settle(outside)
    assert outside.jobs.sent == []


SECOND = Order(replace(CLAIM, id=ClaimId(KEY_1, 2), job_name="census_0123_2"), body)


@pytest.mark.parametrize("state", [None, *State])
def test_further_attempt_is_sent_only_after_failed_attempt(outside: Outside, state: State | None) -> None:
    if state:
        outside.jobs.becomes(settle(outside).job, state)  # type: ignore[arg-type]
    if state is State.FAILED:
        assert settle(outside, SECOND).claim.state is ClaimState.BOUND
        # The service may drop the record of the first job now.
        assert outside.claims.held[ID].claim.ended is State.FAILED
        return
    with pytest.raises(ServiceError, match="not submitted: attempt 1 isn't known to have failed"):
        settle(outside, SECOND)
    assert len(outside.jobs.sent) == (1 if state else 0)


@pytest.mark.parametrize(
    ("reason", "is_sent"),
    [
        (by_apply("superseded"), True),
        (BY_COMMAND, False),
        ("cancelled: superseded by census_4567 (onChange: cancel)", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_further_attempt_is_sent_after_attempt_stopped_by_apply(
    outside: Outside, reason: str, is_sent: bool, is_known: bool
) -> None:
    found = outside.claims.write(replace(settle(outside).claim, error=reason), 2)
    assert found is not None
    (job,) = outside.jobs.jobs
    outside.jobs.becomes(job, State.CANCELLED)
    if is_known:
        outside.claims.write(replace(found.claim, ended=State.CANCELLED), found.generation)
        outside.jobs.jobs.clear()
    if not is_sent:
        with pytest.raises(ServiceError, match="isn't known to have failed, or to have been cancelled by"):
            settle(outside, SECOND)
        return
    assert settle(outside, SECOND).claim.state is ClaimState.BOUND
    # The service may drop the record of the first job now.
    assert outside.claims.held[ID].claim.ended is State.CANCELLED


@pytest.mark.parametrize("state", [State.CANCELLING, State.RUNNING])
def test_further_attempt_is_not_sent_while_stopped_run_is_live(outside: Outside, state: State) -> None:
    outside.claims.write(replace(settle(outside).claim, error=by_apply("superseded")), 2)
    outside.jobs.becomes(outside.jobs.jobs[0], state)
    with pytest.raises(ServiceError, match="attempt 2 is not submitted"):
        settle(outside, SECOND)


@pytest.mark.parametrize("ended", [State.FAILED, State.SUCCEEDED, State.CANCELLED])
def test_end_recorded_in_claim_decides_further_attempt(outside: Outside, ended: State) -> None:
    found = outside.claims.write(replace(settle(outside).claim, ended=ended), 2)
    assert found is not None
    (job,) = outside.jobs.jobs
    outside.jobs.becomes(job, State.FAILED)
    if ended is State.FAILED:
        outside.jobs.jobs.clear()
        assert settle(outside, SECOND).claim.state is ClaimState.BOUND
    else:
        with pytest.raises(ServiceError, match="attempt 2 is not submitted"):
            settle(outside, SECOND)


def test_further_attempt_is_not_sent_while_outcome_of_earlier_attempt_is_unknown(outside: Outside) -> None:
    pending(outside)
    with pytest.raises(ServiceError, match="attempt 2 is not submitted"):
        settle(outside, SECOND)


@pytest.mark.fault(11)
def test_job_of_same_body_is_bound_when_claim_is_missing(outside: Outside) -> None:
    job = outside.jobs.add(body("m1"))
    claim = settle(outside).claim
    assert (claim.state, claim.resource, claim.request_ids) == (ClaimState.BOUND, job.resource, ("m1",))
    assert outside.jobs.sent == []


def test_ended_job_is_bound_with_its_end(outside: Outside) -> None:
    outside.jobs.becomes(outside.jobs.add(body("m1")), State.SUCCEEDED)
    assert settle(outside).claim.ended is State.SUCCEEDED


def test_job_of_other_body_with_own_labels_holds_claim(outside: Outside) -> None:
    job = outside.jobs.add(
        body("m1", workerPoolSpecs=[{"containerSpec": {"imageUri": "evil", "args": ["1"]}}])
    )
    held = settle(outside).claim
    assert held.state is ClaimState.HELD
    assert held.odd == job.resource
    assert held.error == (
        f"{job.resource} has its name or labels, and it is another job: it differs at "
        "/jobSpec/workerPoolSpecs/0/containerSpec/imageUri"
    )
    assert (outside.jobs.sent, outside.jobs.cancelled) == ([], [])


@pytest.mark.fault(18)
@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.REJECTED])
def test_job_without_recorded_request_holds_claim(outside: Outside, state: ClaimState) -> None:
    answer = Unknown("?") if state is ClaimState.PENDING else Refused(400, "INVALID_ARGUMENT", "no")
    outside.jobs.answers = [answer]
    settle(outside)
    job = outside.jobs.add(body("forged"))
    held = settle(outside).claim
    assert held.state is ClaimState.HELD
    assert held.error == f"{job.resource} has its name or labels, and no recorded request created it"
    assert (len(outside.jobs.sent), outside.jobs.cancelled) == (1, [])


@pytest.mark.fault(52)
@pytest.mark.parametrize("other", [{SOURCE: "rival"}, {ATTEMPT: "2"}, {KEY: "o" * 52}])
def test_jobs_with_other_labels_do_not_settle_claim(outside: Outside, other: Mapping[str, str]) -> None:
    made = body("m1")
    outside.jobs.add({**made, "labels": {**made["labels"], **other}})
    assert settle(outside).claim.state is ClaimState.BOUND
    assert (len(outside.jobs.sent), outside.jobs.cancelled) == (1, [])


def test_job_deleted_during_look_is_bound(outside: Outside) -> None:
    claim = pending(outside)
    job = outside.jobs.add(body(claim.request_ids[0]))

    def raise_not_found(api_version: str, kind: str, resource: str) -> None:
        raise NotFoundError(resource)

    outside.jobs.read = raise_not_found  # type: ignore[assignment, method-assign]
    assert settle(outside).claim.resource == job.resource


@pytest.mark.parametrize("answer", [Unknown("?"), Taken("exists")])
def test_taken_name_on_vertex_ai_leaves_outcome_unknown(outside: Outside, answer: Answer) -> None:
    outside.jobs.answers = [answer]
    assert settle(outside).claim.state is ClaimState.PENDING


@pytest.mark.fault(19)
def test_content_claimed_under_older_hash_version_is_not_sent(outside: Outside) -> None:
    settle(outside, Order(replace(CLAIM, id=ClaimId("o" * 52)), body))
    outside.jobs.jobs.clear()
    settled = settle(outside, replace(ORDER, earlier=(ClaimId("n" * 52), ClaimId("o" * 52))))
    assert settled.claim.id == ClaimId("o" * 52)
    assert len(outside.jobs.sent) == 1


def test_refusals_do_not_count_as_unanswered_requests(outside: Outside) -> None:
    for _ in range(2 * MAX_REQUEST_IDS):
        outside.jobs.answers = [Refused(403, "PERMISSION_DENIED", "no")]
        settle(outside)
    refused = outside.claim
    assert (len(refused.request_ids), refused.refusals, refused.unanswered) == (
        MAX_REQUEST_IDS,
        2 * MAX_REQUEST_IDS,
        0,
    )
    outside.jobs.answers = [Unknown("no answer came"), Refused(403, "PERMISSION_DENIED", "no")]
    settle(outside)
    outside.time.now += RIPE + MOMENT
    assert settle(outside).claim.state is ClaimState.REJECTED
    assert settle(outside).claim.state is ClaimState.BOUND


def test_submit_fails_when_listed_job_cannot_be_read(outside: Outside) -> None:
    """Claims were lost, and the listing still shows a deleted job."""
    outside.jobs.add(body("m1"))

    def raise_not_found(api_version: str, kind: str, resource: str) -> None:
        raise NotFoundError(resource)

    outside.jobs.read = raise_not_found  # type: ignore[assignment, method-assign]
    with pytest.raises(ServiceError, match="is listed but can't be read"):
        settle(outside)
    assert (outside.claims.held, outside.jobs.sent) == ({}, [])


def test_resubmit_binds_job_of_own_request_when_body_changed(outside: Outside) -> None:
    """The settings that fill a body changed while the outcome was unknown."""
    outside.jobs.answers = ["lost"]
    settle(outside)
    changed = replace(ORDER, body=lambda mark: body(mark, scheduling={"timeout": "60s"}))
    held = settle(outside, changed).claim
    (job,) = outside.jobs.jobs
    assert (held.state, held.odd) == (ClaimState.HELD, job.resource)
    outside.time.now += RIPE + MOMENT
    settled = Submitter(outside.ports).resubmit(changed)
    assert (settled.claim.state, settled.claim.resource, settled.claim.odd) == (
        ClaimState.BOUND,
        job.resource,
        "",
    )
    assert len(outside.jobs.sent) == 1


class TestAdopt:
    """Existing jobs are bound without a request."""

    def test_adopt_changes_no_claim_when_no_job_exists(self, outside: Outside) -> None:
        Submitter(outside.ports).adopt(ORDER)
        claim = pending(outside)
        outside.time.now += RIPE + MOMENT
        Submitter(outside.ports).adopt(ORDER)
        assert (outside.claim, len(outside.jobs.sent)) == (claim, 1)

    def test_adopt_binds_job_of_claim_once(self, outside: Outside) -> None:
        outside.jobs.answers = ["lost"]
        settle(outside)
        Submitter(outside.ports).adopt(ORDER)
        assert outside.claim.state is ClaimState.BOUND
        writes = len(outside.claims.history)
        Submitter(outside.ports).adopt(ORDER)
        assert len(outside.claims.history) == writes

    def test_adopt_holds_job_of_other_body_once(self, outside: Outside) -> None:
        outside.jobs.answers = ["lost"]
        settle(outside)
        changed = replace(ORDER, body=lambda mark: body(mark, scheduling={"timeout": "60s"}))
        for _ in range(2):
            Submitter(outside.ports).adopt(changed)
        assert [claim.state for claim in outside.claims.history] == [ClaimState.PENDING, ClaimState.HELD]


class TestUniqueNames:
    """`ml.googleapis.com/v1` never makes two jobs with the same name: no wait is needed."""

    def test_job_of_lost_answer_is_bound_by_unique_name(self, outside: Outside) -> None:
        outside.jobs.answers = ["lost"]
        assert settle(outside, ML_ORDER).claim.state is ClaimState.PENDING
        assert settle(outside, ML_ORDER).claim.resource == "projects/acme/jobs/census_0123"
        assert len(outside.jobs.sent) == 1

    def test_lost_request_with_unique_name_is_sent_again_without_wait(self, outside: Outside) -> None:
        pending(outside, ML_ORDER)
        assert settle(outside, ML_ORDER).claim.state is ClaimState.BOUND
        assert len(outside.jobs.sent) == 2
        assert outside.time.slept == []

    def test_job_of_own_request_is_bound_when_its_unique_name_is_taken(self, outside: Outside) -> None:
        outside.jobs.answers = [Taken("exists")]

        def create_late_job(claim: Claim) -> None:
            outside.claims.before_write = lambda claim: None
            outside.jobs.late.append(outside.jobs.add(ml_body(claim.request_ids[0])))

        outside.jobs.hidden = set()
        outside.claims.before_write = create_late_job
        assert settle(outside, ML_ORDER).claim.state is ClaimState.BOUND

    @pytest.mark.fault(24)
    def test_claim_is_held_when_other_job_has_unique_name(self, outside: Outside) -> None:
        made = ml_body("x")
        outside.jobs.add({**made, "labels": {}})
        held = settle(outside, ML_ORDER).claim
        assert held.state is ClaimState.HELD
        assert "projects/acme/jobs/census_0123" in held.error
        assert outside.jobs.sent == []

    def test_taken_name_without_job_is_refused(self, outside: Outside) -> None:
        outside.jobs.answers = [Taken("exists")]
        refused = settle(outside, ML_ORDER).claim
        assert (refused.state, refused.error) == (ClaimState.REJECTED, "exists")


class TestResolve:
    """A person may go on or give up; no second request is sent while the first may still act."""

    def test_resubmit_waits_for_held_claim_as_takeover_does(self, outside: Outside) -> None:
        claim = pending(outside)
        held = Submitter(outside.ports)._put(replace(claim, state=ClaimState.HELD, error="?"), 1)
        assert held is not None
        waited = Submitter(outside.ports).resubmit(ORDER)
        assert (waited.claim, len(outside.jobs.sent)) == (held.claim, 1)
        assert waited.until == outside.time.now + RIPE
        outside.time.now += RIPE + MOMENT
        assert Submitter(outside.ports).resubmit(ORDER).claim.state is ClaimState.BOUND
        assert len(outside.jobs.sent) == 2

    def test_resubmit_sends_without_wait_when_no_request_was_sent(self, outside: Outside) -> None:
        outside.jobs.add(body("m1", workerPoolSpecs=[]))
        assert settle(outside).claim.state is ClaimState.HELD
        assert Submitter(outside.ports).resubmit(ORDER).claim.state is ClaimState.BOUND
        assert len(outside.jobs.sent) == 1

    def test_resubmit_skips_wait_for_quota(self, outside: Outside) -> None:
        outside.jobs.answers = [Refused(429, "RESOURCE_EXHAUSTED", "quota")]
        settle(outside)
        assert Submitter(outside.ports).resubmit(ORDER).claim.state is ClaimState.BOUND

    def test_resubmit_sends_beyond_limit_of_unanswered_requests(self, outside: Outside) -> None:
        for _ in range(MAX_UNANSWERED):
            outside.jobs.answers = [Unknown("no answer came")]
            settle(outside)
            outside.time.now += RIPE + MOMENT
        assert Submitter(outside.ports).resubmit(ORDER).claim.state is ClaimState.BOUND
        assert len(outside.jobs.sent) == MAX_UNANSWERED + 1

    def test_resubmit_and_give_up_leave_bound_claim(self, outside: Outside) -> None:
        bound = settle(outside).claim
        assert Submitter(outside.ports).resubmit(ORDER).claim == bound
        assert Submitter(outside.ports).give_up(ID) == bound

    def test_submit_sends_no_request_when_claim_is_given_up(self, outside: Outside) -> None:
        pending(outside)
        held = Submitter(outside.ports).give_up(ID)
        assert held is not None
        assert (held.state, held.given_up) == (ClaimState.HELD, True)
        outside.time.now += RIPE + MOMENT
        assert settle(outside).claim == held
        assert len(outside.jobs.sent) == 1

    def test_job_that_appears_after_give_up_is_bound(self, outside: Outside) -> None:
        claim = pending(outside)
        Submitter(outside.ports).give_up(ID)
        job = outside.jobs.add(body(claim.request_ids[0]))
        bound = settle(outside).claim
        assert (bound.state, bound.resource, bound.given_up) == (ClaimState.BOUND, job.resource, False)

    def test_give_up_returns_none_without_claim(self, outside: Outside) -> None:
        assert Submitter(outside.ports).give_up(ID) is None


def test_submit_fails_when_claim_keeps_changing(outside: Outside) -> None:
    """A store that refuses writes and always returns new claims."""
    outside.claims.faults = ["failed"] * 20
    other = replace(CLAIM, request_ids=("t",), credential_expiry=outside.time.now)

    def change_claim(claim: Claim) -> None:
        from reconciler.model.ports import Versioned

        number = outside.claims.held[ID].generation + 1 if ID in outside.claims.held else 1
        outside.claims.held[ID] = Versioned(replace(other, request_ids=(f"t{number}",)), number)
        outside.time.now += RIPE + MOMENT

    outside.claims.before_write = change_claim
    with pytest.raises(ServiceError, match="keeps changing") as error:
        settle(outside)
    assert error.value.hint == "another process is updating it: try again"


class TestConclude:
    """A submission that no apply continues comes to an end all the same."""

    def test_conclude_rejects_pending_claim_once_job_can_no_longer_appear(self, outside: Outside) -> None:
        claim = pending(outside)
        submitter = Submitter(outside.ports)
        outside.time.sleep(RIPE.total_seconds())
        submitter.conclude(ID)
        assert outside.claim == claim, "its job may still show up"
        outside.time.sleep(MOMENT.total_seconds())
        submitter.conclude(ID)
        assert (outside.claim.state, outside.claim.request_ids) == (ClaimState.REJECTED, claim.request_ids)
        assert outside.claim.error.startswith("it created no job")
        assert len(outside.jobs.sent) == 1

    @pytest.mark.parametrize("look", [1, 2])
    def test_conclude_leaves_claim_when_either_look_finds_job(self, outside: Outside, look: int) -> None:
        claim = pending(outside)
        outside.time.now += RIPE + MOMENT
        jobs = [make_job_of(claim)]
        outside.jobs.jobs, later = (jobs, []) if look == 1 else ([], jobs)
        sleep = outside.time.sleep

        def sleep_and_reveal(seconds: float) -> None:
            sleep(seconds)
            outside.jobs.jobs = later

        outside.time.sleep = sleep_and_reveal  # type: ignore[method-assign]
        Submitter(outside.ports).conclude(ID)
        assert outside.claim == claim

    def test_conclude_leaves_bound_or_missing_claim(self, outside: Outside) -> None:
        submitter = Submitter(outside.ports)
        submitter.conclude(ID)
        assert outside.claims.held == {}
        settle(outside)
        bound = outside.claim
        outside.time.sleep(10 * RIPE.total_seconds())
        submitter.conclude(ID)
        assert outside.claim == bound

    @pytest.mark.parametrize("state", [ClaimState.REJECTED, ClaimState.HELD])
    def test_conclude_leaves_refused_or_held_claim(self, outside: Outside, state: ClaimState) -> None:
        claim = replace(pending(outside), state=state, error="no")
        assert outside.claims.write(claim, outside.claims.held[ID].generation)
        outside.time.now += RIPE + MOMENT
        Submitter(outside.ports).conclude(ID)
        assert outside.claim == claim


def make_job_of(claim: Claim) -> ActualJob:
    """Return the job made by the newest request of a claim."""
    labels = {SOURCE: "acme", KEY: KEY_1, ATTEMPT: "1", REQUEST_ID: claim.request_ids[-1]}
    return ActualJob(
        "projects/acme/locations/here/customJobs/77",
        claim.job_name,
        claim.api_version,
        claim.kind,
        State.RUNNING,
        "JOB_STATE_RUNNING",
        labels=labels,
        create_time="2026-01-01T00:00:00Z",
    )


# --- bound claims -----------------------------------------------------------------------------------------

JOB = wanted()
TIME = datetime(2026, 1, 1, tzinfo=UTC)
TROUBLED = claim_on(
    JOB,
    ClaimState.HELD,
    credential_expiry=TIME,
    gone=True,
    odd="jobs/7",
    error="why",
    not_before=TIME,
    refusals=3,
    unanswered=2,
    given_up=True,
    request_ids=("first", "second"),
    owner="somebody",
)


def test_bound_claim_clears_fields_of_earlier_troubles() -> None:
    run = run_of(JOB, State.RUNNING, mark="first")
    assert bound(TROUBLED, run) == claim_on(
        JOB,
        resource=run.resource,
        labels=labels_digest(run.labels),
        request_ids=("first", "second"),
        owner="somebody",
    )


def test_bound_claim_keeps_recorded_marks_and_adds_mark_of_job() -> None:
    assert bound(TROUBLED, run_of(JOB, State.RUNNING, mark="third")).request_ids == (
        "first",
        "second",
        "third",
    )


def test_bound_claim_adds_no_mark_for_job_without_mark() -> None:
    unmarked = run_of(JOB, State.RUNNING, labels={})
    assert bound(TROUBLED, unmarked).request_ids == ("first", "second")


def test_bound_claim_records_state_of_job_only_if_ended() -> None:
    for state in State:
        assert bound(TROUBLED, run_of(JOB, state)).ended == (state if state.ended else None)


# --- actions that a submission never takes ----------------------------------------------------------------

THIRD = Order(replace(CLAIM, id=ClaimId(KEY_1, 3), job_name="census_0123_3"), body)


def make_unbound_claim(outside: Outside) -> tuple[Claim, ActualJob]:
    """Return a claim with a job and an unknown outcome."""
    settle(outside)
    claim, job = outside.claims.history[0], outside.jobs.jobs[0]
    outside.claims.write(claim, outside.claims.held[ID].generation)
    return claim, job


def test_give_up_binds_job_of_recorded_request(outside: Outside) -> None:
    _, job = make_unbound_claim(outside)
    found = Submitter(outside.ports).give_up(ID)
    assert found is not None
    assert (found.state, found.resource, found.given_up) == (ClaimState.BOUND, job.resource, False)


def test_give_up_ignores_job_without_recorded_request(outside: Outside) -> None:
    _, job = make_unbound_claim(outside)
    outside.jobs.jobs = [replace(job, labels={**job.labels, REQUEST_ID: "unknown"})]
    found = Submitter(outside.ports).give_up(ID)
    assert found is not None
    assert (found.state, found.resource, found.given_up) == (ClaimState.HELD, "", True)
    assert found.owner == "a test"


def test_give_up_leaves_bound_claim_when_job_is_gone(outside: Outside) -> None:
    claim = settle(outside).claim
    outside.jobs.jobs.clear()
    assert Submitter(outside.ports).give_up(ID) == claim
    assert outside.claim == claim


def test_give_up_fails_when_claim_write_never_succeeds(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.jobs.answers = [Unknown("no answer came")]
    settle(outside, ORDER)
    monkeypatch.setattr(outside.claims, "write", lambda claim, generation: None)
    with pytest.raises(ServiceError):
        Submitter(outside.ports).give_up(ID)


def test_further_attempt_requires_failure_of_attempt_just_before(outside: Outside) -> None:
    outside.jobs.becomes(settle(outside).job, State.FAILED)  # type: ignore[arg-type]
    settle(outside, SECOND)
    with pytest.raises(ServiceError, match="not submitted: attempt 2 isn't known to have failed"):
        settle(outside, THIRD)


@pytest.mark.parametrize("late", [timedelta(0), timedelta(hours=1)])
def test_submit_sends_no_request_with_expired_credential(
    outside: Outside, monkeypatch: pytest.MonkeyPatch, late: timedelta
) -> None:
    spent = Credential({"Authorization": "Bearer x"}, outside.time.now - late)
    ports = outside.ports
    monkeypatch.setattr(ports.credentials, "mint", lambda: spent)
    with pytest.raises(ServiceError, match="expired at 2"):
        Submitter(ports).submit(ORDER)
    assert outside.jobs.sent == []
    assert outside.claims.held == {}


# --- corners ----------------------------------------------------------------------------------------------

FORBIDDEN = Refused(403, "PERMISSION_DENIED", "no")


@pytest.fixture
def strict(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> Outside:
    """Return a service that has a job only under the API, kind and name of its creation."""
    read, named = outside.jobs.read, outside.jobs.named

    def read_strictly(api_version: str, kind: str, resource: str) -> ActualJob:
        job = read(api_version, kind, resource)
        if (job.api_version, job.kind) != (api_version, kind):
            raise ServiceError(f"{api_version} has no {kind}")
        return job

    def find_strictly(api_version: str, kind: str, job_name: str) -> str | None:
        if not job_name.startswith("census_"):
            raise ServiceError(f"{job_name} is no name")
        return named(api_version, kind, job_name)

    monkeypatch.setattr(outside.jobs, "read", read_strictly)
    monkeypatch.setattr(outside.jobs, "named", find_strictly)
    return outside


def make_other_submitter(outside: Outside) -> Submitter:
    """Return the same repository's submitter in another process."""
    return Submitter(replace(outside.ports, owner="another"))


def run_before_write(outside: Outside, state: ClaimState, does: Any) -> None:
    """Run `does` just before a claim of this state is written."""

    def act_once(claim: Claim) -> None:
        if claim.state is state:
            outside.claims.before_write = lambda claim: None
            does()

    outside.claims.before_write = act_once


def take_over_claim(outside: Outside) -> None:
    """Overwrite the claim as another process does."""
    found = outside.claims.held[ID]
    assert outside.claims.write(replace(found.claim, owner="another"), found.generation)


def ripen(outside: Outside) -> None:
    outside.time.now += RIPE + MOMENT


def test_submit_returns_bound_claim_without_job(outside: Outside) -> None:
    claim = settle(outside).claim
    assert settle(outside) == SubmissionResult(claim, job=None, until=None, now=None, cause="")


def test_mark_is_valid_label_value(outside: Outside) -> None:
    (mark,) = settle(outside).claim.request_ids
    assert re.fullmatch("[a-z2-7]{26}", mark)


def test_first_written_claim_is_pending_for_any_state_of_order(outside: Outside) -> None:
    settle(outside, replace(ORDER, claim=replace(ORDER.claim, state=ClaimState.HELD)))
    assert outside.claims.history[0].state is ClaimState.PENDING


def test_submit_checks_store_as_store_that_had_runs(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a request about to be sent, it counts as a store that has had a run."""

    def check(runs: int) -> None:
        if runs:
            raise ServiceError("it was emptied")

    monkeypatch.setattr(outside.claims, "check", check)
    with pytest.raises(ServiceError, match="it was emptied"):
        settle(outside)
    assert outside.jobs.sent == []


@pytest.mark.parametrize(("stood", "sent"), [(timedelta(0), 1), (timedelta(microseconds=1000), 0)])
def test_credential_is_used_for_half_of_its_lifetime(outside: Outside, stood: timedelta, sent: int) -> None:
    def pass_time() -> None:
        outside.time.now += BOUNDS.lifetime / 2 + stood

    run_before_write(outside, ClaimState.PENDING, pass_time)
    settle(outside)
    assert len(outside.jobs.sent) == sent


def test_result_names_cause_of_unknown_outcome_when_name_is_taken(outside: Outside) -> None:
    outside.jobs.answers = [Taken("exists already")]
    settled = settle(outside)
    assert (settled.claim.state, settled.cause) == (ClaimState.PENDING, "exists already")
    assert settled.until == outside.time.now + RIPE


def test_result_of_refusal_has_time_of_refusal(outside: Outside) -> None:
    outside.jobs.answers = [FORBIDDEN]
    assert settle(outside).now == outside.time.now


def test_refusal_resets_count_of_unanswered_requests(outside: Outside) -> None:
    pending(outside)
    ripen(outside)
    assert pending(outside).unanswered == 1
    ripen(outside)
    outside.jobs.answers = [FORBIDDEN]
    refused = settle(outside).claim
    assert (refused.state, refused.unanswered) == (ClaimState.REJECTED, 0)


class TestOwner:
    """A claim names the process that wrote it last."""

    def test_owner_of_given_up_claim_is_process_that_gave_up(self, outside: Outside) -> None:
        pending(outside)
        take_over_claim(outside)
        held = Submitter(outside.ports).give_up(ID)
        assert held is not None
        assert held.owner == "a test"

    def test_owner_of_bound_claim_is_process_that_found_job(self, outside: Outside) -> None:
        outside.jobs.answers = ["lost"]
        settle(outside)
        take_over_claim(outside)
        bound = settle(outside).claim
        assert (bound.state, bound.owner) == (ClaimState.BOUND, "a test")

    def test_owner_of_held_claim_is_process_that_held_it(self, outside: Outside) -> None:
        for _ in range(MAX_UNANSWERED):
            pending(outside)
            ripen(outside)
        take_over_claim(outside)
        held = settle(outside).claim
        assert (held.state, held.owner) == (ClaimState.HELD, "a test")
        # The question is about no job, and the next count starts from zero.
        assert (held.odd, held.unanswered) == ("", 0)


class TestRace:
    """Another process writes just before: its claim is then followed."""

    def test_submit_follows_other_process_that_binds_first(self, outside: Outside) -> None:
        run_before_write(outside, ClaimState.BOUND, lambda: make_other_submitter(outside).submit(ORDER))
        settled = settle(outside)
        assert (settled.claim.state, settled.claim.owner) == (ClaimState.BOUND, "another")
        assert len(outside.jobs.sent) == 1

    def test_submit_follows_other_process_that_holds_first(self, outside: Outside) -> None:
        pending(outside)
        outside.jobs.add(body("forged"))
        run_before_write(outside, ClaimState.HELD, lambda: make_other_submitter(outside).submit(ORDER))
        settled = settle(outside)
        assert (settled.claim.state, settled.claim.owner) == (ClaimState.HELD, "another")

    def test_submit_follows_other_process_that_gives_up_before_refusal(self, outside: Outside) -> None:
        outside.jobs.answers = [FORBIDDEN]
        run_before_write(outside, ClaimState.REJECTED, lambda: make_other_submitter(outside).give_up(ID))
        settled = settle(outside)
        assert (settled.claim.state, settled.claim.given_up) == (ClaimState.HELD, True)


class TestResubmit:
    """A person's decision goes no further than the facts known at that time."""

    def test_resubmit_submits_when_claim_is_missing(self, outside: Outside) -> None:
        assert Submitter(outside.ports).resubmit(ORDER).claim.state is ClaimState.BOUND

    def test_resubmit_does_not_search_for_job_of_bound_claim(self, outside: Outside) -> None:
        claim = settle(outside).claim
        outside.jobs.jobs.clear()
        ripen(outside)
        assert Submitter(outside.ports).resubmit(ORDER).claim == claim
        assert len(outside.jobs.sent) == 1

    def test_resubmit_holds_claim_when_unknown_job_appeared(self, outside: Outside) -> None:
        outside.jobs.answers = [FORBIDDEN]
        settle(outside)
        ripen(outside)
        job = outside.jobs.add(body("forged"))
        held = Submitter(outside.ports).resubmit(ORDER).claim
        assert (held.state, held.odd) == (ClaimState.HELD, job.resource)
        assert len(outside.jobs.sent) == 1


class TestAttemptBefore:
    """A further attempt follows a failed attempt."""

    def test_earlier_attempt_is_read_by_its_own_api_and_kind(self, strict: Outside) -> None:
        strict.jobs.becomes(settle(strict).job, State.FAILED)  # type: ignore[arg-type]
        assert settle(strict, SECOND).claim.state is ClaimState.BOUND

    def test_recorded_failure_of_earlier_attempt_is_not_written_again(self, outside: Outside) -> None:
        claim = replace(settle(outside).claim, ended=State.FAILED)
        generation = outside.claims.held[ID].generation
        assert (written := outside.claims.write(claim, generation))
        assert settle(outside, SECOND).claim.state is ClaimState.BOUND
        assert outside.claims.held[ID] == written

    def test_refused_further_attempt_has_hint(self, outside: Outside) -> None:
        settle(outside)
        with pytest.raises(ServiceError) as error:
            settle(outside, SECOND)
        assert error.value.hint
        assert "plan" in error.value.hint


class TestLook:
    """The search for a job, and the reason given for a job that can't be adopted."""

    @pytest.mark.parametrize("order", [ORDER, ML_ORDER])
    def test_found_job_is_read_by_its_own_api_and_kind(self, strict: Outside, order: Order) -> None:
        strict.jobs.answers = ["lost"]
        settle(strict, order)
        assert settle(strict, order).job == strict.jobs.jobs[0]

    def test_unique_name_is_looked_up_by_job_name(self, strict: Outside) -> None:
        strict.jobs.answers = [Taken("exists")]
        assert settle(strict, ML_ORDER).claim.state is ClaimState.REJECTED
        strict.jobs.add(ml_body(strict.claim.request_ids[0]), ML_V1, "Job")
        assert settle(strict, ML_ORDER).claim.state is ClaimState.BOUND

    def test_listed_job_with_other_key_does_not_settle_claim(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = body("m1")
        outside.jobs.add({**made, "labels": {**made["labels"], KEY: "o" * 52}})
        monkeypatch.setattr(outside.jobs, "with_key", lambda *_: outside.jobs.runs())
        settled = settle(outside)
        assert settled.claim.state is ClaimState.BOUND
        assert settled.job == outside.jobs.jobs[1]

    def test_error_of_held_claim_names_three_differences(self, outside: Outside) -> None:
        outside.jobs.add(body("m1", a=1, b=2, c=3, d=4))
        error = settle(outside).claim.error
        assert error.endswith(": it differs at /jobSpec/a, /jobSpec/b, /jobSpec/c")

    def test_error_of_listed_job_that_is_gone_has_hint(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outside.jobs.add(body("m1"))

        def raise_not_found(api_version: str, kind: str, resource: str) -> ActualJob:
            raise NotFoundError(resource)

        monkeypatch.setattr(outside.jobs, "read", raise_not_found)
        with pytest.raises(ServiceError) as error:
            settle(outside)
        assert error.value.hint == "apply again in a moment"


def test_error_of_expired_credential_has_hint(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = outside.ports
    monkeypatch.setattr(ports.credentials, "mint", lambda: Credential({}, outside.time.now))
    with pytest.raises(ServiceError) as error:
        Submitter(ports).submit(ORDER)
    assert error.value.hint
    assert error.value.hint.startswith("nothing was sent:")
