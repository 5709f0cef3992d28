"""Attempts by base name: their runs, oldest first, and their order."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from reconciler.model.job import State
from tests.support.planning import bound_to, claim_on, run_of, state_of, wanted

JOB = wanted()
LIVE = (State.QUEUED, State.PREPARING, State.RUNNING, State.CANCELLING)


def seen(*states: State) -> State:
    """Return the state that counts for a job shown by overlapping pages in these states."""
    runs = [run_of(JOB, state) for state in states]
    claim = bound_to(JOB, runs[0])
    (attempt,) = state_of([JOB], runs, [claim]).names["census"].attempts
    assert attempt.run is not None
    return attempt.run.state


@pytest.mark.fault(14, 17)
@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("end", [state for state in State if state.ended])
def test_an_end_wins_over_any_state_before_it(live: State, end: State) -> None:
    assert seen(live, end) == seen(end, live) == end


def test_of_two_live_states_the_later_counts() -> None:
    for early, late in itertools.combinations(LIVE, 2):
        assert seen(early, late) == seen(late, early) == late


def test_the_runs_of_an_attempt_come_oldest_first() -> None:
    runs = [run_of(JOB, State.RUNNING, number=number, mark=f"other{number}") for number in (3, 1, 2)]
    claim = claim_on(JOB)
    for count in (2, 3):
        (attempt,) = state_of([JOB], runs[:count], [claim]).names["census"].attempts
        assert attempt.strangers == tuple(sorted(runs[:count], key=lambda run: run.create_time))


DASHED = wanted("a-b")


def test_a_run_with_a_name_that_nobody_gave_it_belongs_to_the_wanted_job_whose_key_it_has() -> None:
    run = run_of(DASHED, State.RUNNING, job_name="odd")
    assert [*state_of([DASHED], [run]).names] == ["a_b"]


def test_and_to_the_base_name_that_a_claim_of_the_key_has() -> None:
    claim = bound_to(DASHED, run_of(DASHED, State.FAILED))
    run = run_of(DASHED, State.RUNNING, attempt=2, job_name="odd", number=2)
    names = state_of([], [run], [claim]).names
    assert [*names] == ["a_b"]
    assert [attempt.id.attempt for attempt in names["a_b"].attempts] == [1, 2]


def test_and_else_to_none_but_its_own() -> None:
    run = run_of(DASHED, State.RUNNING, job_name="odd")
    assert [*state_of([], [run]).names] == ["odd"]


def test_attempts_come_by_their_number() -> None:
    numbers = [*range(1, 30)]
    runs = [run_of(DASHED, State.FAILED, attempt=number, number=number) for number in reversed(numbers)]
    (name,) = state_of([DASHED], runs).names.values()
    assert [attempt.id.attempt for attempt in name.attempts] == numbers


def test_further_runs_come_by_age_whatever_their_states() -> None:
    states = (State.RUNNING, State.RUNNING, State.QUEUED, State.CANCELLING, State.PREPARING)
    runs = [run_of(DASHED, state, number=number) for number, state in enumerate(states, start=1)]
    claim = bound_to(DASHED, runs[0])
    (attempt,) = state_of([DASHED], reversed(runs), [claim]).names["a_b"].attempts
    assert attempt.run == runs[0]
    assert attempt.others == tuple(runs[1:])


def test_later_listing_of_a_run_counts_when_its_state_is_the_same() -> None:
    run = run_of(wanted(), State.RUNNING)
    state = state_of([], [replace(run, url="first"), replace(run, url="second")])
    (attempt,) = state.names["census"].attempts
    assert attempt.run == replace(run, url="second")
