"""Upkeep of claims: the runs that are read for it, and the resulting changes of claims."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.claim import BY_COMMAND, Claim, ClaimId, ClaimState, by_apply, claim_json
from reconciler.model.job import KEY, ActualJob, State, labels_digest
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Versioned
from reconciler.submission.claims_upkeep import (
    cancel,
    end_of,
    is_left,
    record_cancel,
    refreshed,
    runs_by_claim,
    with_reason,
)
from reconciler.submission.observe import Observed
from tests.support.memory_ports import Outside
from tests.support.planning import bound_to, claim_on, run_of, wanted

JOB = wanted("a-b")


def group_runs(claims: list[Claim], runs: list[ActualJob]) -> dict[ClaimId, list[ActualJob]]:
    known = {claim.id: Versioned(claim, 1) for claim in claims}
    return runs_by_claim(Observed(known, tuple(runs)))


def test_runs_are_grouped_by_attempt() -> None:
    first, second = run_of(JOB, State.FAILED), run_of(JOB, State.RUNNING, 2, number=2)
    found = group_runs([], [first, second])
    key = label_of(JOB.identity)
    assert (found[ClaimId(key, 1)], found[ClaimId(key, 2)]) == ([first], [second])


def test_job_named_by_claim_belongs_to_claim_with_any_labels() -> None:
    run = replace(run_of(JOB, State.RUNNING), labels={KEY: "taken over"})
    claim = bound_to(JOB, run)
    assert group_runs([claim], [run])[claim.id] == [run]


def test_refresh_takes_name_path_and_on_delete_from_manifest() -> None:
    claim = claim_on(JOB, ClaimState.PENDING)
    moved = wanted("a_b", on_delete="cancel")
    told = refreshed(claim, moved, [])
    assert (told.base_name, told.path, told.on_delete) == ("a_b", "jobs/a_b.yaml", "cancel")
    assert refreshed(claim, None, []) == claim


def test_elder_run_replaces_ended_or_missing_run_in_claim() -> None:
    elder, younger = run_of(JOB, State.RUNNING), run_of(JOB, State.FAILED, number=2)
    for known in ({"ended": State.FAILED}, {"gone": True}):
        claim = bound_to(JOB, younger, **{"ended": None, **known})
        told = refreshed(claim, JOB, [elder, younger])
        assert told == bound_to(JOB, elder, labels=labels_digest(elder.labels))


def test_refresh_clears_gone_when_run_exists() -> None:
    run = run_of(JOB, State.RUNNING)
    assert refreshed(bound_to(JOB, run, gone=True), JOB, [run]) == bound_to(JOB, run)


@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.REJECTED, ClaimState.HELD])
def test_unbound_claim_is_bound_to_own_run_only_when_job_is_unwanted(
    state: ClaimState,
) -> None:
    claim = claim_on(JOB, state)
    own, younger = run_of(JOB, State.RUNNING), run_of(JOB, State.RUNNING, number=2)
    stranger = run_of(JOB, State.RUNNING, number=3, mark="unknown")
    assert refreshed(claim, JOB, [own]) == claim
    assert refreshed(claim, None, []) == claim
    assert refreshed(claim, None, [stranger]) == claim
    told = refreshed(claim, None, [replace(stranger, create_time="2020-01-01T00:00:00Z"), younger, own])
    assert (told.state, told.resource) == (ClaimState.BOUND, own.resource)


@pytest.mark.parametrize(
    ("state", "attempt", "job", "before", "expected"),
    [
        (ClaimState.PENDING, 1, JOB, None, False),
        (ClaimState.PENDING, 1, None, None, True),
        (ClaimState.PENDING, 1, wanted("a-b", suspend=True), None, True),
        (ClaimState.PENDING, 2, JOB, State.FAILED, False),
        (ClaimState.PENDING, 2, JOB, State.SUCCEEDED, True),
        (ClaimState.PENDING, 2, JOB, None, True),
        (ClaimState.PENDING, 3, JOB, State.FAILED, True),
        (ClaimState.BOUND, 1, None, None, False),
        (ClaimState.HELD, 1, None, None, False),
    ],
)
def test_submission_is_left_when_its_job_or_attempt_is_not_wanted(
    state: ClaimState, attempt: int, job: DesiredJob | None, before: State | None, expected: bool
) -> None:
    claim = claim_on(JOB, state, attempt)
    known = {claim.id: claim}
    if before:
        first = claim_on(JOB, ended=before)
        known[first.id] = first
    assert is_left(claim, job, known) is expected


@pytest.mark.parametrize(("reason", "expected"), [(by_apply("superseded"), False), (BY_COMMAND, True)])
def test_submission_is_not_left_after_stop_by_apply(reason: str, expected: bool) -> None:
    claim, first = claim_on(JOB, ClaimState.PENDING, 2), claim_on(JOB, ended=State.CANCELLED, error=reason)
    assert is_left(claim, JOB, {claim.id: claim, first.id: first}) is expected


class Cancels:
    """A service with a single run of `JOB`; the test sets its answers to cancel requests."""

    def __init__(self, *answers: State | None) -> None:
        self.outside = Outside()
        self.run = run_of(JOB, State.RUNNING)
        self.outside.jobs.jobs = [self.run]
        self.asked = 0
        self._answers = iter(answers)
        self.outside.jobs.cancel = self._cancel  # type: ignore[method-assign]

    def _cancel(self, run: ActualJob) -> None:
        """Accept the request, or become a state (None: stay) and fail."""
        self.asked += 1
        for state in self._answers:
            if state:
                self.outside.jobs.becomes(run, state)
            raise ServiceError("away")

    def cancel(self) -> None:
        cancel(self.outside.ports, self.run)


def test_cancel_fails_after_three_failed_requests() -> None:
    service = Cancels(None, None, None, None, None)
    with pytest.raises(ServiceError, match="away"):
        service.cancel()
    assert service.asked == 3


@pytest.mark.parametrize("state", [State.CANCELLING, State.CANCELLED, State.SUCCEEDED])
def test_failed_cancel_is_not_repeated_when_run_is_ending(state: State) -> None:
    service = Cancels(state, None)
    service.cancel()
    assert service.asked == 1


def test_failed_cancel_is_repeated_when_run_cannot_be_read() -> None:
    service = Cancels(None)
    service.outside.jobs.jobs.clear()
    service.cancel()
    assert service.asked == 2


def record_reason(claim: Claim, run: ActualJob, *faults: str) -> Claim:
    outside = Outside()
    outside.claims.write(claim, 0)
    outside.claims.faults = [*faults]
    record_cancel(outside.ports, run, "because")
    return outside.claims.held[claim.id].claim


RUN = run_of(JOB, State.RUNNING)


@pytest.mark.parametrize("faults", [(), ("denied",)])
def test_cancel_is_recorded_once_when_answer_to_write_was_wrong(
    faults: tuple[str, ...],
) -> None:
    assert record_reason(bound_to(JOB, RUN), RUN, *faults) == bound_to(JOB, RUN, error="because")


def test_recorded_cancel_adds_only_error_to_stored_claim() -> None:
    stored = claim_json(bound_to(JOB, RUN, error="because"))
    assert stored == {**claim_json(bound_to(JOB, RUN)), "error": "because"}


def test_last_cancel_reason_counts_unless_person_gave_reason() -> None:
    assert record_reason(bound_to(JOB, RUN, error="first"), RUN).error == "because"
    assert record_reason(bound_to(JOB, RUN, error=BY_COMMAND), RUN).error == BY_COMMAND


def test_cancel_with_recorded_reason_is_not_written_again() -> None:
    outside = Outside()
    outside.claims.write(bound_to(JOB, RUN), 0)
    for _ in range(2):
        record_cancel(outside.ports, RUN, "because")
    assert [claim.error for claim in outside.claims.history] == ["", "because"]


@pytest.mark.fault(59)
@pytest.mark.parametrize("state", State)
def test_refresh_clears_reason_of_failed_cancel_while_run_is_wanted(state: State) -> None:
    run, reason = run_of(JOB, state), by_apply("superseded by a_b_0123 (onChange: cancel)")
    claim = bound_to(JOB, run, error=reason)
    is_stale = not state.ended and state is not State.CANCELLING
    assert refreshed(claim, JOB, [run]).error == ("" if is_stale else reason)
    assert refreshed(claim, None, [run]).error == reason, "no manifest wants it"
    assert refreshed(replace(claim, error=BY_COMMAND), JOB, [run]).error == BY_COMMAND


@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.REJECTED, ClaimState.HELD])
def test_cancel_binds_claim_of_run_with_recorded_request(state: ClaimState) -> None:
    claim = claim_on(JOB, state, error="old", credential_expiry=datetime(2026, 1, 1, tzinfo=UTC))
    told = record_reason(claim, RUN)
    assert (told.state, told.resource, told.error) == (ClaimState.BOUND, RUN.resource, "because")


def test_cancel_of_other_run_is_not_recorded_on_claim() -> None:
    elder, stranger = (
        run_of(JOB, State.RUNNING, number=2),
        run_of(JOB, State.RUNNING, number=3, mark="unknown"),
    )
    claim = bound_to(JOB, RUN)
    assert record_reason(claim, elder) == record_reason(claim, stranger) == claim
    assert record_reason(claim, replace(RUN, labels={})) == claim


@pytest.mark.parametrize("changes", [{"kind": "HyperparameterTuningJob"}, {"labels": {KEY: "another"}}])
def test_cancel_of_run_with_other_kind_or_key_is_not_recorded_on_claim(changes: dict[str, Any]) -> None:
    outside, run = Outside(), replace(RUN, **changes)
    claim = bound_to(JOB, RUN)
    outside.claims.write(claim, 0)
    record_cancel(outside.ports, run, "because")
    assert [held.claim for held in outside.claims.held.values()] == [claim]


def test_cancel_of_later_attempt_is_recorded_on_its_claim() -> None:
    run = run_of(JOB, State.RUNNING, 2)
    assert record_reason(bound_to(JOB, run, attempt=2), run).error == "because"


def test_cancel_record_fails_after_five_failed_claim_writes() -> None:
    outside, written = Outside(), []
    outside.claims.write(bound_to(JOB, RUN), 0)
    outside.claims.write = lambda claim, generation: written.append(claim)  # type: ignore[assignment, method-assign]
    with pytest.raises(ServiceError, match="keeps changing") as raised:
        record_cancel(outside.ports, RUN, "because")
    assert (raised.value.hint, len(written)) == ("another process is updating it", 5)


def read_stored_reason(run: ActualJob, *claims: Claim) -> str | None:
    """Return the reason of a run's cancel after its claim was read."""
    outside = Outside()
    for claim in claims:
        outside.claims.write(claim, 0)
    return with_reason(outside.ports, run).cancelled


def test_only_cancelled_run_gets_reason_from_claim_of_its_attempt() -> None:
    first, second = run_of(JOB, State.CANCELLED), run_of(JOB, State.CANCELLED, 2, number=2)
    claims = (
        bound_to(JOB, first, error="because"),
        bound_to(JOB, second, attempt=2, error="for another reason"),
    )
    assert read_stored_reason(first, *claims) == "because"
    assert read_stored_reason(second, *claims) == "for another reason"
    assert read_stored_reason(replace(first, state=State.FAILED), *claims) is None
    assert read_stored_reason(replace(first, labels={}), *claims) is None
    assert read_stored_reason(second, claims[0]) is None


def test_cancel_of_adopted_run_is_recorded_on_claim_that_names_it() -> None:
    outside, other = Outside(), wanted("other")
    by_hand = replace(run_of(other, State.RUNNING, number=7), labels={"team": "risk"})
    claims = (bound_to(JOB, RUN, request_ids=()), bound_to(other, by_hand, request_ids=()))
    for claim in claims:
        outside.claims.write(claim, 0)
    record_cancel(outside.ports, by_hand, "because")
    errors = {id: found.claim.error for id, found in outside.claims.held.items()}
    assert errors == {claims[0].id: "", claims[1].id: "because"}
    assert with_reason(outside.ports, replace(by_hand, state=State.CANCELLED)).cancelled == "because"
    stranger = replace(by_hand, resource="another", state=State.CANCELLED)
    record_cancel(outside.ports, stranger, "because")
    assert with_reason(outside.ports, stranger).cancelled is None


def test_claim_is_not_read_for_run_that_was_not_cancelled() -> None:
    outside, read = Outside(), []
    outside.claims.read = read.append  # type: ignore[assignment]
    run = run_of(JOB, State.FAILED)
    assert with_reason(outside.ports, run) == run
    assert read == []


def test_claim_is_not_read_for_unadopted_run_without_key() -> None:
    outside, read = Outside(), []
    outside.claims.write(bound_to(JOB, RUN, request_ids=()), 0)
    outside.claims.read = read.append  # type: ignore[assignment]
    stranger = run_of(wanted("other"), State.CANCELLED, number=7, labels={})
    assert with_reason(outside.ports, stranger) == stranger
    record_cancel(outside.ports, stranger, "because")
    assert read == []


def test_refresh_drops_cancel_reason_when_claim_changes_to_other_run() -> None:
    elder, younger = run_of(JOB, State.RUNNING), run_of(JOB, State.CANCELLED, number=2)
    claim = bound_to(JOB, younger, error="because")
    assert refreshed(claim, JOB, [younger]).error == "because"
    assert refreshed(claim, JOB, [elder, younger]).error == ""


def test_ending_run_is_read_until_deadline_by_its_own_api_and_kind() -> None:
    outside, run = Outside(), run_of(JOB, State.CANCELLING)
    asked = []

    def read(*of: str) -> ActualJob:
        asked.append(of)
        return run

    outside.jobs.read = read  # type: ignore[method-assign]
    assert end_of(outside.ports, run, outside.time.monotonic() + 10.0, 5.0) is State.CANCELLING
    assert outside.time.slept == [5.0, 5.0]
    assert asked == [(run.api_version, run.kind, run.resource)] * 3
