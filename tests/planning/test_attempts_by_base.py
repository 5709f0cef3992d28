"""Which base name an attempt belongs to, and the order in which attempts and their runs are told."""

from __future__ import annotations

from msgspec.structs import replace

from reconciler.model.job import State
from tests.support.planning import bound_to, run_of, state_of, wanted

JOB = wanted("a-b")


def test_a_run_with_a_name_that_nobody_gave_it_belongs_to_the_wanted_job_whose_key_it_has() -> None:
    run = run_of(JOB, State.RUNNING, job_name="odd")
    assert [*state_of([JOB], [run]).names] == ["a_b"]


def test_and_to_the_base_name_that_a_claim_of_the_key_has() -> None:
    claim = bound_to(JOB, run_of(JOB, State.FAILED))
    run = run_of(JOB, State.RUNNING, attempt=2, job_name="odd", number=2)
    names = state_of([], [run], [claim]).names
    assert [*names] == ["a_b"]
    assert [attempt.id.attempt for attempt in names["a_b"].attempts] == [1, 2]


def test_and_else_to_none_but_its_own() -> None:
    run = run_of(JOB, State.RUNNING, job_name="odd")
    assert [*state_of([], [run]).names] == ["odd"]


def test_attempts_come_by_their_number() -> None:
    numbers = [*range(1, 30)]
    runs = [run_of(JOB, State.FAILED, attempt=number, number=number) for number in reversed(numbers)]
    (name,) = state_of([JOB], runs).names.values()
    assert [attempt.id.attempt for attempt in name.attempts] == numbers


def test_further_runs_come_by_age_whatever_their_states() -> None:
    states = (State.RUNNING, State.RUNNING, State.QUEUED, State.CANCELLING, State.PREPARING)
    runs = [run_of(JOB, state, number=number) for number, state in enumerate(states, start=1)]
    claim = bound_to(JOB, runs[0])
    (attempt,) = state_of([JOB], reversed(runs), [claim]).names["a_b"].attempts
    assert attempt.run == runs[0]
    assert attempt.others == tuple(runs[1:])


def test_later_listing_of_a_run_counts_when_its_state_is_the_same() -> None:
    run = run_of(wanted(), State.RUNNING)
    state = state_of([], [replace(run, url="first"), replace(run, url="second")])
    (attempt,) = state.names["census"].attempts
    assert attempt.run == replace(run, url="second")
