"""What a claim remembers is kept true: whose runs are looked at for it, and what they change in it."""

from __future__ import annotations

import pytest
from memory_ports import Outside
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import KEY, ActualJob, State, labels_digest
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Versioned
from reconciler.submission.claims_upkeep import cancel, end_of, is_left, refreshed, runs_by_claim
from reconciler.submission.observe import Observed
from tests.planning import bound_to, claim_on, run_of, wanted

JOB = wanted("a-b")


def looked_at(claims: list[Claim], runs: list[ActualJob]) -> dict[ClaimId, list[ActualJob]]:
    known = {claim.id: Versioned(claim, 1) for claim in claims}
    return runs_by_claim(Observed(known, tuple(runs)))


def test_each_attempt_has_its_own_runs() -> None:
    first, second = run_of(JOB, State.FAILED), run_of(JOB, State.RUNNING, 2, number=2)
    found = looked_at([], [first, second])
    key = label_of(JOB.identity)
    assert (found[ClaimId(key, 1)], found[ClaimId(key, 2)]) == ([first], [second])


def test_the_job_that_a_claim_names_is_looked_at_for_it_whatever_its_labels_are() -> None:
    run = replace(run_of(JOB, State.RUNNING), labels={KEY: "taken over"})
    claim = bound_to(JOB, run)
    assert looked_at([claim], [run])[claim.id] == [run]


def test_the_names_and_wishes_of_the_manifest_are_taken_over() -> None:
    claim = claim_on(JOB, ClaimState.PENDING)
    moved = wanted("a_b", on_delete="cancel")
    told = refreshed(claim, moved, [])
    assert (told.base_name, told.path, told.on_delete) == ("a_b", "jobs/a_b.yaml", "cancel")
    assert refreshed(claim, None, []) == claim


def test_an_elder_job_takes_the_place_of_the_one_that_ended_or_went() -> None:
    elder, younger = run_of(JOB, State.RUNNING), run_of(JOB, State.FAILED, number=2)
    for known in ({"ended": State.FAILED}, {"gone": True}):
        claim = bound_to(JOB, younger, **{"ended": None, **known})
        told = refreshed(claim, JOB, [elder, younger])
        assert told == bound_to(JOB, elder, labels=labels_digest(elder.labels))


def test_a_job_that_was_thought_to_be_gone_and_is_there_is_not_gone() -> None:
    run = run_of(JOB, State.RUNNING)
    assert refreshed(bound_to(JOB, run, gone=True), JOB, [run]) == bound_to(JOB, run)


@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.REJECTED, ClaimState.HELD])
def test_a_claim_that_is_not_bound_takes_a_job_only_when_nobody_wants_it_and_only_its_own(
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
def test_a_submission_is_left_when_nothing_calls_for_it(
    state: ClaimState, attempt: int, job: DesiredJob | None, before: State | None, expected: bool
) -> None:
    claim = claim_on(JOB, state, attempt)
    known = {claim.id: claim}
    if before:
        first = claim_on(JOB, ended=before)
        known[first.id] = first
    assert is_left(claim, job, known) is expected


class Cancels:
    """A service with one run of `JOB`, whose answers to cancel requests a test chooses."""

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


def test_a_cancel_is_requested_three_times_before_it_counts_as_failed() -> None:
    service = Cancels(None, None, None, None, None)
    with pytest.raises(ServiceError, match="away"):
        service.cancel()
    assert service.asked == 3


@pytest.mark.parametrize("state", [State.CANCELLING, State.CANCELLED, State.SUCCEEDED])
def test_a_failed_cancel_of_a_run_that_ends_is_not_repeated(state: State) -> None:
    service = Cancels(state, None)
    service.cancel()
    assert service.asked == 1


def test_a_failed_cancel_of_a_run_that_cannot_be_read_is_repeated() -> None:
    service = Cancels(None)
    service.outside.jobs.jobs.clear()
    service.cancel()
    assert service.asked == 2


def test_a_cancelled_run_is_read_up_to_the_deadline_under_the_api_and_kind_that_made_it() -> None:
    outside, run = Outside(), run_of(JOB, State.CANCELLING)
    asked = []

    def read(*of: str) -> ActualJob:
        asked.append(of)
        return run

    outside.jobs.read = read  # type: ignore[method-assign]
    assert end_of(outside.ports, run, outside.time.monotonic() + 10.0, 5.0) is State.CANCELLING
    assert outside.time.slept == [5.0, 5.0]
    assert asked == [(run.api_version, run.kind, run.resource)] * 3
