"""The choice between two jobs of an attempt: the job to keep, and jobs that may be cancelled."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.claim import ClaimState
from reconciler.model.claimed_run import (
    age,
    elder,
    kept,
    made,
    may_cancel,
    may_write_last,
    start_order,
    wrote_last,
)
from reconciler.model.job import ATTEMPT, KEY, REQUEST_ID, SOURCE, ActualJob, State, attempt_of, labels_digest
from reconciler.model.manifest import ML_V1
from tests.support.planning import PARENT, bound_to, claim_on, run_of, wanted

JOB = wanted()
IN_VAIN = (State.FAILED, State.CANCELLED)


def make_runs(*states: State) -> list[ActualJob]:
    return [run_of(JOB, state, number=number) for number, state in enumerate(states, 1)]


def relabel_run(run: ActualJob, **labels: str | None) -> ActualJob:
    names = {"source": SOURCE, "key": KEY, "attempt": ATTEMPT, "mark": REQUEST_ID}
    new = {**run.labels, **{names[name]: value for name, value in labels.items()}}
    return replace(run, labels={name: value for name, value in new.items() if value is not None})


@pytest.mark.fault(18)
@pytest.mark.parametrize(
    ("states", "stays"),
    [
        ([State.RUNNING], 0),
        ([State.RUNNING, State.RUNNING], 0),
        ([State.RUNNING, State.SUCCEEDED], 0),
        ([State.CANCELLING, State.RUNNING], 0),
        ([State.FAILED, State.RUNNING], 1),
        ([State.CANCELLED, State.QUEUED], 1),
        ([State.CANCELLED, State.FAILED, State.PREPARING, State.RUNNING], 2),
        ([State.FAILED, State.SUCCEEDED], 1),
        ([State.FAILED, State.FAILED], 0),
        ([State.FAILED, State.CANCELLED], 0),
        ([State.CANCELLED, State.FAILED], 0),
    ],
)
def test_oldest_run_that_neither_failed_nor_was_cancelled_is_kept(states: list[State], stays: int) -> None:
    runs = make_runs(*states)
    claim = bound_to(JOB, runs[-1])
    assert elder(runs[::-1]) == kept(claim, runs[::-1]) == kept(None, runs) == runs[stays]


@given(st.lists(st.tuples(st.sampled_from(State), st.integers(1, 5)), min_size=1, unique_by=lambda t: t[1]))
def test_kept_run_is_oldest_of_best_runs(states: list[tuple[State, int]]) -> None:
    runs = [run_of(JOB, state, number=number) for state, number in states]
    stays = elder(runs)
    assert stays in runs
    for run in runs:
        assert stays.state in IN_VAIN or run.state in IN_VAIN or age(stays) <= age(run)
        assert stays.state not in IN_VAIN or (run.state in IN_VAIN and age(stays) <= age(run))


@pytest.mark.parametrize(
    "moments",
    [
        ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z"],
        ["2026-01-01T00:00:00.25Z", "2026-01-01T00:00:00.5Z"],
        ["2026-01-01T00:00:00.999999999Z", "2026-01-01T00:00:01Z"],
        ["2026-01-01T00:00:59Z", "2026-01-01T00:01:00Z"],
    ],
)
def test_age_compares_fractions_of_seconds(moments: list[str]) -> None:
    early, late = (run_of(JOB, State.RUNNING, create_time=moment, number=9) for moment in moments)
    assert age(early) < age(late)


@pytest.mark.parametrize(("first", "second"), [("9", "10"), ("2", "11"), ("x", "1"), ("a", "b")])
def test_run_with_smaller_number_is_older_when_times_are_equal(first: str, second: str) -> None:
    one, other = (
        run_of(JOB, State.RUNNING, create_time="2026-01-01T00:00:00Z", resource=f"{PARENT}/{end}")
        for end in (first, second)
    )
    assert age(one) < age(other)


def test_age_compares_resource_numbers_of_any_length() -> None:
    ends = ("7", "9" * 100, "9" * 5000, "x", "²")
    runs = [run_of(JOB, State.RUNNING, resource=f"{PARENT}/{end}") for end in ends]
    assert elder(runs) == elder(runs[::-1])
    assert age(runs[0]) < age(runs[1])


def test_start_order_is_by_start_then_by_age() -> None:
    at = "2026-01-{:02}T00:00:00Z".format
    first = run_of(JOB, State.RUNNING, number=6, create_time=at(2), start_time=at(5))
    second = run_of(JOB, State.RUNNING, number=5, create_time=at(3), start_time=at(5))
    waiting = run_of(JOB, State.QUEUED, number=7)
    last = run_of(JOB, State.RUNNING, number=1, start_time=at(8))
    assert sorted([last, waiting, second, first], key=start_order) == [first, second, waiting, last]


def ran_between(start: int, end: int = 0) -> ActualJob:
    """Return a run that began and ended on these days of a month; 0 for not yet."""
    times = [f"2026-02-{day:02}T00:00:00Z" if day else "" for day in (start, end)]
    state = State.SUCCEEDED if end else State.RUNNING if start else State.QUEUED
    return run_of(JOB, state, start_time=times[0], end_time=times[1])


@pytest.mark.parametrize(
    ("run", "other", "wrote", "may"),
    [
        (ran_between(5, 6), ran_between(1, 2), True, True),
        (ran_between(5), ran_between(1), True, True),
        (ran_between(1, 9), ran_between(2, 8), True, True),
        (ran_between(1), ran_between(2, 8), True, True),
        (ran_between(1, 7), ran_between(2, 8), False, False),
        (ran_between(1, 8), ran_between(2, 8), False, False),
        (ran_between(1), ran_between(2), False, False),
        (ran_between(1, 3), ran_between(2), False, True),
        (ran_between(1, 2), ran_between(2), False, False),
        (ran_between(1, 2), ran_between(3), False, False),
        (ran_between(0, 9), ran_between(2, 8), False, False),
        (ran_between(0, 9), ran_between(2), False, False),
        (ran_between(0), ran_between(2, 8), False, False),
    ],
    ids=[
        "began after the end",
        "began later",
        "ended later",
        "goes on after the end",
        "ended before",
        "ended together",
        "both go on",
        "ended beside one that goes on",
        "ended as the other began",
        "ended before the other began",
        "never began",
        "never began beside one that goes on",
        "waits",
    ],
)
def test_run_writes_last_if_it_began_or_ended_later(
    run: ActualJob, other: ActualJob, wrote: bool, may: bool
) -> None:
    run = replace(run, resource=f"{PARENT}/2")
    assert (wrote_last(run, other), may_write_last(run, other)) == (wrote, may)


def test_no_run_writes_after_itself() -> None:
    run = ran_between(1, 2)
    assert (wrote_last(run, run), may_write_last(run, run)) == (False, False)


# Runs that belong to a claim, or not: only the former may be cancelled
RUN = run_of(JOB, State.RUNNING)
CLAIM = claim_on(JOB, resource=f"{PARENT}/7")
BELONGS: list[tuple[ActualJob, bool]] = [
    (RUN, True),
    (relabel_run(RUN, mark="unknown"), False),
    (relabel_run(RUN, mark=None), False),
    (relabel_run(RUN, key="other"), False),
    (relabel_run(RUN, key=None), False),
    (relabel_run(RUN, attempt="2"), False),
    (relabel_run(RUN, attempt=None), True),
    (replace(RUN, kind="HyperparameterTuningJob"), False),
    (replace(RUN, api_version=ML_V1), False),
]


@pytest.mark.fault(16, 18, 52)
@pytest.mark.parametrize(("run", "belongs"), BELONGS)
def test_run_belongs_to_claim_that_recorded_its_request(run: ActualJob, belongs: bool) -> None:
    assert made(CLAIM, run) == belongs
    assert may_cancel(CLAIM, run) == belongs
    assert kept(CLAIM, [run]) == (run if belongs else None)


def test_job_named_by_claim_belongs_to_it_with_any_labels() -> None:
    named = replace(relabel_run(RUN, mark=None, key=None), resource=CLAIM.resource)
    assert made(CLAIM, named)
    assert kept(CLAIM, [named]) == named
    assert not may_cancel(CLAIM, named)
    assert not made(CLAIM, replace(named, kind="HyperparameterTuningJob"))


@pytest.mark.fault(18)
@pytest.mark.parametrize("state", list(State))
def test_only_live_run_that_is_not_cancelling_may_be_cancelled(state: State) -> None:
    expected = state in (State.QUEUED, State.PREPARING, State.RUNNING)
    assert may_cancel(CLAIM, replace(RUN, state=state)) == expected


@pytest.mark.fault(18)
def test_run_may_not_be_cancelled_without_claim_or_own_source() -> None:
    assert not may_cancel(None, RUN)
    assert not may_cancel(CLAIM, relabel_run(RUN, source=None))


@pytest.mark.fault(18)
@pytest.mark.parametrize("state", State)
def test_adopted_run_may_be_cancelled_only_while_live_and_by_its_own_claim(state: State) -> None:
    by_hand = replace(RUN, state=state, labels={"team": "risk"})
    claim = replace(CLAIM, request_ids=(), resource=RUN.resource)
    expected = state in (State.QUEUED, State.PREPARING, State.RUNNING)
    assert may_cancel(claim, by_hand) == expected
    assert not may_cancel(replace(claim, resource="another"), by_hand)
    assert not may_cancel(CLAIM, by_hand)
    assert not may_cancel(claim, relabel_run(by_hand, key="k"))
    assert not may_cancel(replace(claim, state=ClaimState.HELD), by_hand)


def test_kept_run_is_none_without_runs() -> None:
    assert kept(CLAIM, []) is None
    assert kept(None, []) is None


labels = st.dictionaries(
    st.sampled_from([SOURCE, KEY, ATTEMPT, REQUEST_ID]),
    st.sampled_from(["acme", "1", "2", "x", *CLAIM.request_ids]),
)


@pytest.mark.fault(18)
@given(st.lists(st.tuples(labels, st.sampled_from(State), st.booleans()), max_size=6))
def test_cancellable_runs_are_live_own_and_younger_than_kept_run(drawn: list[Any]) -> None:
    runs = [
        run_of(JOB, state, number=number, labels={**(RUN.labels if ours else {}), **said})
        for number, (said, state, ours) in enumerate(drawn, 1)
    ]
    stays = kept(CLAIM, runs)
    for run in runs:
        if run == stays or not may_cancel(CLAIM, run):
            continue
        assert stays is not None
        assert not run.state.ended
        assert (run.labels[KEY], attempt_of(run)) == (CLAIM.id.key, CLAIM.id.attempt)
        assert run.labels[REQUEST_ID] in CLAIM.request_ids
        assert SOURCE in run.labels
        assert stays.state not in IN_VAIN, "a live run is cancelled only for one that did not fail"
        assert age(stays) < age(run)


# Labels.


@pytest.mark.parametrize(
    ("text", "attempt"),
    [
        (None, 1),
        ("", 1),
        ("1", 1),
        ("2", 2),
        ("03", 3),
        ("0", 1),
        ("-2", 1),
        ("x", 1),
        ("²", 1),
        ("٢", 1),
        ("9" * 9, 999_999_999),
        ("9" * 10, 1),
        ("9" * 5000, 1),
    ],
)
def test_attempt_comes_from_label_or_is_first(text: str | None, attempt: int) -> None:
    assert attempt_of(relabel_run(RUN, attempt=text)) == attempt


def test_labels_digest_depends_on_names_and_values_except_googles_own() -> None:
    one = labels_digest({"a": "1", "b": "2"})
    assert len(one) == 16
    assert one == labels_digest({"b": "2", "a": "1", "goog-x": "y"})
    others = [{"a": "2", "b": "1"}, {"a": "1"}, {"a": "1", "b": "2", "c": ""}, {"a1": "", "b": "2"}, {}]
    assert len({one, *map(labels_digest, others)}) == 6
