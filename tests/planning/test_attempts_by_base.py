"""Which base name an attempt belongs to, and the order in which attempts and their runs are told."""

from __future__ import annotations

from msgspec.structs import replace

from reconciler.model.job import State
from reconciler.planning.attempts import attempts_by_base
from tests.support.planning import bound_to, run_of, wanted

JOB = wanted("a-b")


def test_a_run_with_a_name_that_nobody_gave_it_belongs_to_the_wanted_job_whose_key_it_has() -> None:
    run = run_of(JOB, State.RUNNING, job_name="odd")
    assert [*attempts_by_base([JOB], [run], {})] == ["a_b"]


def test_and_to_the_base_name_that_a_claim_of_the_key_has() -> None:
    claim = bound_to(JOB, run_of(JOB, State.FAILED))
    run = run_of(JOB, State.RUNNING, attempt=2, job_name="odd", number=2)
    (attempts,) = attempts_by_base([], [run], {claim.id: claim}).values()
    assert [attempt.id.attempt for attempt in attempts] == [1, 2]
    assert [*attempts_by_base([], [run], {claim.id: claim})] == ["a_b"]


def test_and_else_to_none_but_its_own() -> None:
    run = run_of(JOB, State.RUNNING, job_name="odd")
    assert [*attempts_by_base([], [run], {})] == ["odd"]


def test_attempts_come_by_their_number() -> None:
    numbers = [*range(1, 30)]
    runs = [run_of(JOB, State.FAILED, attempt=number, number=number) for number in reversed(numbers)]
    (attempts,) = attempts_by_base([JOB], runs, {}).values()
    assert [attempt.id.attempt for attempt in attempts] == numbers


def test_further_runs_come_by_age_whatever_their_states() -> None:
    states = (State.RUNNING, State.RUNNING, State.QUEUED, State.CANCELLING, State.PREPARING)
    runs = [run_of(JOB, state, number=number) for number, state in enumerate(states, start=1)]
    claim = bound_to(JOB, runs[0])
    ((attempt,),) = attempts_by_base([JOB], reversed(runs), {claim.id: claim}).values()
    assert attempt.run == runs[0]
    assert attempt.others == tuple(runs[1:])


def test_later_listing_of_a_run_counts_when_its_state_is_the_same() -> None:
    run = run_of(wanted(), State.RUNNING)
    (found,) = attempts_by_base([], [replace(run, url="first"), replace(run, url="second")], {})["census"]
    assert found.run == replace(run, url="second")
