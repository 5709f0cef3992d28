"""Attempts by base name: their runs, oldest first, and their order."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from reconciler.model.expectation import Expectation, Judged, Judgement, Measured, RunMetrics
from reconciler.model.job import State
from reconciler.model.naming import label_of
from reconciler.planning.state import NameState, target_state
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


OTHER = wanted(content="b")
DONE, BEFORE = run_of(JOB, State.SUCCEEDED, number=2), run_of(OTHER, State.FAILED, number=1)
BOTH = state_of([JOB], [DONE, BEFORE], [bound_to(JOB, DONE), bound_to(OTHER, BEFORE)])


def test_unread_metrics_are_told_by_the_names_of_their_runs() -> None:
    state = replace(BOTH, unread={DONE.resource: "no permission", "jobs/9": "gone"})
    assert state.unread_names == {DONE.job_name: "no permission"}


def test_run_is_judged_on_its_own_metrics_as_far_as_they_are_measured() -> None:
    least = Expectation("accuracy", min=0.9)
    value = Measured(0.95)
    metrics = {DONE.resource: RunMetrics(DONE.job_name, DONE.resource, metrics={"accuracy": value})}
    state = replace(BOTH, metrics=metrics, unread={BEFORE.resource: "no permission"})
    assert state.judgement(DONE.resource, [least]) == Judgement((Judged(least, value),))
    assert state.judgement(BEFORE.resource, [least]) == Judgement((), "no permission")
    assert state.judgement("jobs/9", [least]) == Judgement()


def test_state_with_specs_has_them_in_the_runs_that_are_named() -> None:
    spec = {"args": ["new"]}
    runs = [one.run for one in BOTH.with_specs({BEFORE.resource: spec}).names["census"].attempts]
    assert sorted(runs, key=str) == sorted([replace(BEFORE, spec=spec), DONE], key=str)
    assert BOTH.with_specs({}) == BOTH
    claimed = state_of([JOB], [DONE], [bound_to(JOB, DONE), claim_on(OTHER)])
    runs = [one.run for one in claimed.with_specs({DONE.resource: spec}).names["census"].attempts]
    assert sorted(runs, key=str) == sorted([None, replace(DONE, spec=spec)], key=str)


def test_attempts_of_a_content_are_found_by_its_key_under_any_name() -> None:
    fraud = wanted("fraud")
    state = state_of([JOB, fraud], [DONE, BEFORE], [bound_to(JOB, DONE), bound_to(OTHER, BEFORE)])
    keys = [label_of(job.identity) for job in (JOB, OTHER)]
    assert {key: [one.run for one in state.by_key[key]] for key in keys} == {
        keys[0]: [DONE],
        keys[1]: [BEFORE],
    }


def test_without_manifest_every_attempt_is_at_other_content_under_the_name_of_its_claim() -> None:
    claim = bound_to(DASHED, run_of(DASHED, State.FAILED))
    second = run_of(DASHED, State.RUNNING, attempt=2, number=2)
    unclaimed = state_of([], [second]).names["a_b"]
    claimed = state_of([], [second], [claim]).names["a_b"]
    assert (claimed.wanted, len(claimed.others)) == ([], 2)
    assert (unclaimed.name, claimed.name) == ("a_b", "a-b")
    assert replace(claimed, attempts=claimed.attempts[::-1]).name == "a-b"


def test_name_is_the_one_of_the_manifest_before_that_of_a_claim() -> None:
    claim = replace(bound_to(DASHED, run_of(DASHED, State.FAILED)), base_name="a_b")
    assert state_of([DASHED], [], [claim]).names["a_b"].name == "a-b"


def test_every_run_is_own_without_the_id_of_a_repository() -> None:
    run = run_of(JOB, State.RUNNING)
    state = target_state([], [run], {})
    assert (state.foreign, state.owns(run), [*state.names]) == ((), True, ["census"])


def test_base_name_alone_has_no_desired_job() -> None:
    assert (NameState("a_b").desired, NameState("a_b").name) == (None, "a_b")


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
