"""The runs of an attempt: oldest first; one that is listed twice counts once, in the later state."""

from __future__ import annotations

import itertools

import pytest

from reconciler.model.job import State
from tests.support.planning import bound_to, claim_on, run_of, state_of, wanted

JOB = wanted()
LIVE = (State.QUEUED, State.PREPARING, State.RUNNING, State.CANCELLING)


def seen(*states: State) -> State:
    """What counts of a job that overlapping pages show in these states."""
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
