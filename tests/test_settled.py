"""What is set aside as settled is just what the whole decision would have said, in every world."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.claim import Claim, ClaimState
from reconciler.job import ActualJob, State
from reconciler.labels import KEY, SOURCE, labels_digest
from reconciler.plan import Action, DesiredJob, Plan
from reconciler.planning import planner
from reconciler.planning.planner import make_plan, sides_of
from reconciler.planning.settled import Sides, Split, split
from tests.planning import LOCAL, OURS, bound_to, run_of, wanted
from tests.test_planner_laws import World, worlds

JOB = wanted("census")
RUN = run_of(JOB, State.SUCCEEDED, number=2)
CLAIM = bound_to(JOB, RUN, labels=labels_digest(RUN.labels))


@dataclass(frozen=True)
class Tidy:
    """Mostly jobs as wanted, with what they were before; a few of the facts about them spoilt."""

    desired: list[DesiredJob]
    runs: list[ActualJob]
    claims: list[Claim]
    whole: bool

    def plan(self) -> Plan:
        claims = {claim.id: claim for claim in self.claims}
        return make_plan(
            LOCAL, self.desired, self.runs, claims, lambda job: job.spec, whole=self.whole, source=OURS
        )

    def split(self) -> Split:
        return split(sides_of(self.desired, self.runs, {claim.id: claim for claim in self.claims}, OURS))


@st.composite
def tidy(draw: st.DrawFn) -> Tidy:
    desired, runs, claims = [], [], []
    for name in draw(st.lists(st.sampled_from(["a", "b-c", "d_e", "f"]), min_size=1, unique=True)):
        contents = draw(st.lists(st.sampled_from("123"), min_size=1, unique=True))
        for content in contents:
            job = wanted(name, content, suspend=draw(st.sampled_from([False] * 7 + [True])))
            is_last = content == contents[-1]
            state = draw(st.sampled_from([State.SUCCEEDED] * 4 + list(State)))
            run = run_of(job, state, number=len(runs) + 1)
            runs.append(run)
            claims.append(bound_to(job, run, labels=labels_digest(run.labels)))
            if is_last and draw(st.integers(0, 7)):
                desired.append(job)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        _spoil(draw, runs, claims)
    # Listings may show a run twice, and leave runs out.
    shown = draw(st.sampled_from([runs, runs, runs, runs[1:], [*runs, runs[0]]]))
    return Tidy(desired, draw(st.permutations(shown)), draw(st.permutations(claims)), draw(st.booleans()))


def _spoil(draw: st.DrawFn, runs: list[ActualJob], claims: list[Claim]) -> None:
    at, other = (draw(st.integers(0, len(runs) - 1)) for _ in "12")
    run, claim = runs[at], claims[at]
    changed_run = {
        "label": replace(run, labels={**run.labels, "team": "other"}),
        "source": replace(run, labels={**run.labels, SOURCE: "theirs"}),
        "key": replace(run, labels={**run.labels, KEY: claims[other].id.key}),
        "no key": replace(run, labels={SOURCE: OURS}),
        "run's kind": replace(run, kind="HyperparameterTuningJob"),
        "time": replace(run, create_time="2025-12-31T00:00:00Z"),
        "unnamed": replace(run, resource=f"{run.resource}0"),
        "twin": replace(run, resource=f"{run.resource}1", state=draw(st.sampled_from(State))),
    }
    changed_claim = {
        "resource": replace(claim, resource=claims[other].resource),
        "state": replace(claim, state=draw(st.sampled_from(ClaimState))),
        "base": replace(claim, base_name=claims[other].base_name),
        "claim's kind": replace(claim, kind="HyperparameterTuningJob"),
        "unlabelled": replace(claim, labels=""),
        "gone": replace(claim, gone=True, ended=None),
        "retry": replace(claim, id=replace(claim.id, attempt=2)),
    }
    what = draw(st.sampled_from([*changed_run, *changed_claim]))
    event(what)
    if what == "twin":
        runs.append(changed_run[what])
        claims.append(claim)
    elif what in changed_run:
        runs[at] = changed_run[what]
    elif what == "retry" and draw(st.booleans()):
        runs.append(run)
        claims.append(changed_claim[what])
    else:
        claims[at] = changed_claim[what]


def all_decided(world: World | Tidy) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "split", lambda sides: Split([], sides))
        return world.plan()


@given(tidy())
def test_of_mostly_settled_jobs_the_plan_is_the_one_that_decides_each(world: Tidy) -> None:
    event(f"settled: {len(world.split().settled)}")
    assert world.plan() == all_decided(world)


@given(worlds())
def test_in_any_world_the_plan_is_the_one_that_decides_each(world: World) -> None:
    assert world.plan() == all_decided(world)


@pytest.mark.parametrize("state", [state for state in State if state not in (State.FAILED, State.CANCELLED)])
def test_a_job_as_wanted_is_set_aside_with_its_claim_and_run(state: State) -> None:
    run = replace(RUN, state=state)
    [change], left = split(Sides([JOB], [run], [], {CLAIM.id: CLAIM}))
    assert (change.action, change.reason, change.desired, change.actual) == (
        Action.NONE,
        state.lower(),
        JOB,
        run,
    )
    assert left == Sides([], [], [], {})


def test_what_the_job_was_before_is_set_aside_with_it_and_all_else_is_left() -> None:
    before, gone, other = wanted("census", "b"), wanted("census", "c"), wanted("trees")
    old = run_of(before, State.FAILED, number=1)
    claims = [CLAIM, bound_to(before, old), bound_to(gone, run_of(gone, State.SUCCEEDED, number=9))]
    kept = bound_to(other, run_of(other, State.RUNNING, number=4))
    runs = [RUN, old, run_of(other, State.RUNNING, number=4)]
    settled, left = split(Sides([JOB], runs, [], {claim.id: claim for claim in (*claims, kept)}))
    assert [change.job_name for change in settled] == [JOB.job_name]
    assert left == Sides([], runs[2:], [], {kept.id: kept})
