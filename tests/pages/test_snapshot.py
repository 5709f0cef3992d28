"""The data of pages: claims and runs, read again except for jobs that had ended before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.claim import ClaimId, ClaimState
from reconciler.model.job import INSTANCE, KEY, State
from reconciler.pages.snapshot import observe_again
from reconciler.submission.observe import Observed, observe
from reconciler.submission.protocol import Order
from tests.support.memory_ports import Outside, labels
from tests.support.submission import ORDER, body, settle


class World:
    """An outside, and the actions of others on it."""

    def __init__(self) -> None:
        self.outside = Outside()
        self.submitted = 0

    def submit(self, index: int) -> None:
        self.submitted += 1
        self._settle(ClaimId(f"{self.submitted:052}"))

    def _settle(self, id: ClaimId) -> None:
        settle(self.outside, Order(replace(ORDER.claim, id=id), partial(self._body, id.key)))

    @staticmethod
    def _body(key: str, mark: str) -> dict[str, Any]:
        made = body(mark)
        return {**made, "labels": {**made["labels"], KEY: key}}

    def submit_and_lose(self, index: int) -> None:
        self.outside.jobs.answers = ["lost"]
        self.submit(index)

    def submit_again(self, index: int) -> None:
        for id, held in list(self.outside.claims.held.items()):
            if held.claim.state is ClaimState.PENDING:
                self._settle(id)

    def begin_elsewhere(self, index: int) -> None:
        of_another = labels("z" * 52, **{INSTANCE: "other"})
        self.outside.jobs.add({"displayName": "census_0123", "labels": of_another, "jobSpec": {}})

    def end(self, index: int, state: State = State.SUCCEEDED) -> None:
        named = {held.claim.resource for held in self.outside.claims.held.values()}
        jobs = self.outside.jobs.jobs
        if live := [job for job in jobs if not job.state.ended and job.resource in named]:
            self.outside.jobs.becomes(live[index % len(live)], state)

    def cancel(self, index: int) -> None:
        self.end(index, State.CANCELLED)

    def record_ends(self, index: int) -> None:
        claims = self.outside.claims
        for run in self.outside.jobs.jobs:
            for held in list(claims.held.values()):
                if run.state.ended and held.claim.resource == run.resource:
                    claims.write(replace(held.claim, ended=run.state, error="why"), held.generation)


CHANGES = st.tuples(
    st.sampled_from(
        [
            *(World.submit, World.submit, World.submit_and_lose, World.submit_again),
            *(World.begin_elsewhere, World.end, World.end, World.cancel, World.record_ends),
        ]
    ),
    st.integers(0, 9),
)


def values(observed: Observed) -> Any:
    # A run that was read by name has its spec, a listed run doesn't.
    runs = {run.resource: replace(run, spec={}, body={}) for run in observed.runs}
    assert len(runs) == len(observed.runs)
    return observed.versions, runs, {run.resource for run in observed.doubtful}


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.lists(CHANGES, max_size=4), max_size=6))
def test_second_observation_equals_full_one_whatever_live_jobs_did(
    rounds: list[list[tuple[Callable[[World, int], None], int]]],
) -> None:
    world = World()
    ports = world.outside.ports
    before = observe(ports)
    for changes in rounds:
        for change, index in changes:
            change(world, index)
        before = observe_again(ports, before)
        assert values(before) == values(observe(ports))


@pytest.fixture
def world() -> World:
    made = World()
    for _ in range(3):
        made.submit(0)
    made.end(0)
    return made


def listings_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record each listing of all runs from now on."""
    listings: list[str] = []
    runs = world.outside.jobs.runs
    live = world.outside.jobs.live()
    monkeypatch.setattr(world.outside.jobs, "live", lambda: [run for run in runs() if not run.state.ended])
    monkeypatch.setattr(world.outside.jobs, "runs", lambda: listings.append("all") or runs())
    assert live
    return listings


def test_second_observation_lists_no_ended_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = observe(world.outside.ports)
    world.end(0)
    world.submit(0)
    listings = listings_of(world, monkeypatch)
    assert len(observe_again(world.outside.ports, before).runs) == 4
    assert listings == []


def test_second_observation_lacks_live_run_that_was_deleted(world: World) -> None:
    before = observe(world.outside.ports)
    del world.outside.jobs.jobs[1]
    names = [run.resource.rpartition("/")[2] for run in observe_again(world.outside.ports, before).runs]
    assert names == ["1", "3"]


def test_second_observation_lists_everything_when_claim_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = observe(world.outside.ports)
    listings = listings_of(world, monkeypatch)
    del world.outside.claims.held[next(iter(before.versions))]
    assert values(observe_again(world.outside.ports, before)) == values(observe(world.outside.ports))
    assert len(listings) == 2


def test_second_observation_lists_everything_when_too_many_runs_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = observe(world.outside.ports)
    listings = listings_of(world, monkeypatch)
    monkeypatch.setattr("reconciler.pages.snapshot._MOST_READS", 1)
    world.end(0)
    observe_again(world.outside.ports, before)
    assert listings == []
    world.end(0)
    assert len(observe_again(world.outside.ports, before).runs) == 3
    assert listings == ["all"]
