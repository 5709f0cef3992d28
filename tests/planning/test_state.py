"""Attempts by base name: their runs, oldest first, and their order."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from reconciler.model.job import State
from tests.support.planning import bound_to, claim_on, run_of, state_of, wanted

JOB = wanted()
LIVE = (State.QUEUED, State.PREPARING, State.RUNNING, State.CANCELLING)


def get_counted_state(*states: State) -> State:
    """Return the state that counts for a job shown by overlapping pages in these states."""
    runs = [run_of(JOB, state) for state in states]
    claim = bound_to(JOB, runs[0])
    (attempt,) = state_of([JOB], runs, [claim]).names["census"].attempts
    assert attempt.run is not None
    return attempt.run.state


@pytest.mark.fault(14, 17)
@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("end", [state for state in State if state.ended])
def test_ended_state_replaces_live_state_of_same_run(live: State, end: State) -> None:
    assert get_counted_state(live, end) == get_counted_state(end, live) == end


def test_later_live_state_counts_when_run_is_listed_twice() -> None:
    for early, late in itertools.combinations(LIVE, 2):
        assert get_counted_state(early, late) == get_counted_state(late, early) == late


def test_runs_of_attempt_are_sorted_oldest_first() -> None:
    runs = [run_of(JOB, State.RUNNING, number=number, mark=f"other{number}") for number in (3, 1, 2)]
    claim = claim_on(JOB)
    for count in (2, 3):
        (attempt,) = state_of([JOB], runs[:count], [claim]).names["census"].attempts
        assert attempt.strangers == tuple(sorted(runs[:count], key=lambda run: run.create_time))


DASHED = wanted("a-b")


def test_run_with_unknown_name_belongs_to_wanted_job_of_its_key() -> None:
    run = run_of(DASHED, State.RUNNING, job_name="odd")
    assert [*state_of([DASHED], [run]).names] == ["a_b"]


def test_run_with_unknown_name_belongs_to_base_name_of_claim_with_its_key() -> None:
    claim = bound_to(DASHED, run_of(DASHED, State.FAILED))
    run = run_of(DASHED, State.RUNNING, attempt=2, job_name="odd", number=2)
    names = state_of([], [run], [claim]).names
    assert [*names] == ["a_b"]
    assert [attempt.id.attempt for attempt in names["a_b"].attempts] == [1, 2]


def test_run_with_unknown_name_keeps_own_base_name_when_its_key_is_unknown() -> None:
    run = run_of(DASHED, State.RUNNING, job_name="odd")
    assert [*state_of([], [run]).names] == ["odd"]


def test_attempts_are_sorted_by_number() -> None:
    numbers = [*range(1, 30)]
    runs = [run_of(DASHED, State.FAILED, attempt=number, number=number) for number in reversed(numbers)]
    (name,) = state_of([DASHED], runs).names.values()
    assert [attempt.id.attempt for attempt in name.attempts] == numbers


def test_further_runs_are_sorted_by_age_in_any_state() -> None:
    states = (State.RUNNING, State.RUNNING, State.QUEUED, State.CANCELLING, State.PREPARING)
    runs = [run_of(DASHED, state, number=number) for number, state in enumerate(states, start=1)]
    claim = bound_to(DASHED, runs[0])
    (attempt,) = state_of([DASHED], reversed(runs), [claim]).names["a_b"].attempts
    assert attempt.run == runs[0]
    assert attempt.others == tuple(runs[1:])


def test_later_listing_of_run_counts_when_state_is_same() -> None:
    run = run_of(wanted(), State.RUNNING)
    state = state_of([], [replace(run, url="first"), replace(run, url="second")])
    (attempt,) = state.names["census"].attempts
    assert attempt.run == replace(run, url="second")


@pytest.mark.fault(18)
def test_run_that_only_claims_to_be_later_attempt_is_not_the_last() -> None:
    run, copy = run_of(JOB, State.SUCCEEDED), run_of(JOB, State.FAILED, 2, number=2)
    name = state_of([JOB], [run, copy], [bound_to(JOB, run)]).names["census"]
    assert name.last_wanted is not None
    assert name.last_wanted.name == JOB.job_name
    failed = replace(run, state=State.FAILED)
    name = state_of([JOB], [failed, copy], [bound_to(JOB, failed)]).names["census"]
    assert name.last_wanted is not None
    assert name.last_wanted.run == copy, "of an attempt that could follow, only the claim may be lost"
