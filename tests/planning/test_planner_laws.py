"""Laws that hold for every plan: Hypothesis makes the worlds."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model import naming
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.claimed_run import elder, kept, may_cancel
from reconciler.model.job import ATTEMPT, KEY, REQUEST_ID, SOURCE, ActualJob, State, attempt_of
from reconciler.model.naming import label_of
from reconciler.model.plan import Action, Change, DesiredJob, Plan
from reconciler.planning.attempts import keys_of
from reconciler.planning.planner import SUBMISSIONS
from tests.support.planning import GOOGLE, OURS, PARENT, claim_on, mark_of, plan, run_of, wanted


def older(job: DesiredJob) -> str:
    """Return the identity that an older version of the hash gave a job."""
    return hashlib.sha256(f"older {job.manifest.name}".encode()).hexdigest()


@dataclass(frozen=True)
class World:
    desired: list[DesiredJob]
    runs: list[ActualJob]
    claims: list[Claim]

    @property
    def known(self) -> dict[ClaimId, Claim]:
        return {claim.id: claim for claim in self.claims}

    def plan(self) -> Plan:
        return plan(self.desired, self.runs, self.claims)


# Few names, contents and attempts, so that much of the drawn data is about the same job.
names = st.sampled_from(["a", "b-c", "d_e"])
jobs = st.builds(wanted, st.sampled_from(["a", "a", "b-c"]), st.sampled_from("112"))
attempts = st.sampled_from([1, 1, 1, 2, 3])


begun = st.tuples(jobs, attempts, st.sampled_from([False, False, False, True]))
"""A content, an attempt at it, and whether it has the name of an older version of the hash."""
Begun = tuple[DesiredJob, int, bool]


def _run(draw: st.DrawFn, about: Begun, number: int) -> ActualJob:
    job, attempt, is_old = about
    run = run_of(
        job,
        draw(st.sampled_from(State)),
        attempt,
        number=number,
        mark=draw(st.sampled_from(["", "", "", "unknown"])),
        identity=older(job) if is_old else "",
    )
    lost = draw(st.sampled_from([None] * 8 + [SOURCE, KEY, REQUEST_ID, ATTEMPT]))
    labels = {name: value for name, value in run.labels.items() if name != lost}
    if draw(st.integers(0, 9)) == 0:
        labels[SOURCE] = "theirs"
    return replace(run, labels=labels, kind=draw(st.sampled_from(["CustomJob"] * 5 + ["Other"])))


def _claim(draw: st.DrawFn, about: Begun, found: list[ActualJob]) -> Claim:
    """Draw a claim, bound to a run of its name with any labels, or to a missing run."""
    job, attempt, is_old = about
    claim = claim_on(
        job,
        draw(st.sampled_from([ClaimState.BOUND, ClaimState.BOUND, *ClaimState])),
        attempt,
        identity=older(job) if is_old else "",
        ended=draw(st.sampled_from([None, *(state for state in State if state.ended)])),
        request_ids=draw(
            st.sampled_from([(mark_of(job, attempt),)] * 3 + [("x", mark_of(job, attempt)), ("x",)])
        ),
        given_up=draw(st.booleans()),
        on_delete=draw(st.sampled_from(["keep", "cancel"])),
    )
    named = [run.resource for run in found if run.job_name == claim.job_name]
    resource = draw(st.sampled_from([*named, f"{PARENT}/9{claim.id.key}{attempt}"]))
    return replace(claim, resource=resource)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    desired = []
    for name in draw(st.lists(names, unique=True)):
        wishes = {
            "attempts": draw(st.integers(1, 3)),
            "suspend": draw(st.sampled_from([False, False, True])),
            "on_change": draw(st.sampled_from(["keep", "cancel"])),
        }
        job = wanted(name, draw(st.sampled_from(["1", "2", "3"])), **wishes)
        desired.append(replace(job, earlier=draw(st.sampled_from([(), (older(job),)]))))
    about = draw(st.lists(begun, min_size=1, max_size=4, unique_by=lambda a: (a[0].identity, a[1:])))
    numbers = range(1, draw(st.integers(1, 8)))
    found = [_run(draw, draw(st.sampled_from(about)), number) for number in numbers]
    claimed = [one for one in about if draw(st.integers(0, 3))]
    claims = {claim.id: claim for claim in (_claim(draw, one, found) for one in claimed)}
    return World(desired, found, list(claims.values()))


def submissions(found: Plan) -> list[Change]:
    return [change for change in found.changes if change.action in SUBMISSIONS]


def cancels(found: Plan) -> list[ActualJob]:
    return [change.actual for change in found.changes if change.action is Action.CANCEL and change.actual]


@pytest.mark.slow
@given(worlds(), st.integers())
def test_plan_is_same_for_any_order_of_jobs_runs_and_claims(world: World, seed: int) -> None:
    shuffled = World([*world.desired], [*world.runs], [*world.claims])
    for part in (shuffled.desired, shuffled.runs, shuffled.claims):
        random.Random(seed).shuffle(part)
    assert shuffled.plan() == world.plan() == world.plan()


@given(worlds())
def test_plan_has_single_change_per_wanted_job_besides_cancels(world: World) -> None:
    told = [change for change in world.plan().changes if change.action is not Action.CANCEL]
    assert Counter(change.base_name for change in told) == Counter(job.manifest.name for job in world.desired)
    by_name = {job.manifest.name: job for job in world.desired}
    for change in told:
        assert change.desired == by_name[change.base_name]
        assert change.key in keys_of(change.desired)
        assert not change.repair


@given(worlds())
def test_attempt_is_submitted_at_most_once_and_never_when_settled(world: World) -> None:
    found = submissions(world.plan())
    ids = [ClaimId(change.key, change.attempt) for change in found]
    assert len(set(ids)) == len(ids)
    for change, id in zip(found, ids, strict=True):
        claim = world.known.get(id)
        assert claim is None or claim.state is not ClaimState.BOUND
        # A HELD claim is only ever bound to a job that was made by a request of the claim.
        if claim is not None and claim.state is ClaimState.HELD:
            assert change.actual is not None
            assert (
                change.actual.labels[REQUEST_ID] in claim.request_ids
                or change.actual.resource == claim.resource
            )
        assert (change.action is Action.SUBMIT) == (change.attempt == 1)


@given(worlds())
def test_new_attempt_follows_only_bound_attempt_that_failed(world: World) -> None:
    for change in submissions(world.plan()):
        begun = ClaimId(change.key, change.attempt) in world.known
        there = change.actual is not None and attempt_of(change.actual) == change.attempt
        if change.attempt == 1 or begun or there:
            continue
        before = world.known[ClaimId(change.key, change.attempt - 1)]
        run = kept(before, (run for run in world.runs if _is_of(run, before)))
        assert before.state is ClaimState.BOUND
        assert (run.state if run else before.ended) is State.FAILED


def _is_of(run: ActualJob, claim: Claim) -> bool:
    named = (run.labels.get(KEY), attempt_of(run)) == (claim.id.key, claim.id.attempt)
    return run.resource == claim.resource or (named and run.labels.get(SOURCE) == OURS)


@pytest.mark.fault(18, 52)
@given(worlds(), st.booleans())
def test_plan_cancels_only_live_runs_with_own_labels_and_own_claims(world: World, whole: bool) -> None:
    cancelled = cancels(plan(world.desired, world.runs, world.claims, whole=whole))
    assert len({run.resource for run in cancelled}) == len(cancelled)
    for run in cancelled:
        assert not run.state.ended
        assert run.state is not State.CANCELLING
        assert run.labels[SOURCE] == OURS
        claim = world.known[ClaimId(run.labels[KEY], attempt_of(run))]
        assert run.labels[REQUEST_ID] in claim.request_ids
        assert run.kind == claim.kind


@pytest.mark.fault(18)
@given(worlds())
def test_repair_keeps_oldest_successful_run_of_attempt(world: World) -> None:
    found = plan([*world.desired, wanted("always")], world.runs, world.claims)
    repairs = [change for change in found.changes if change.repair]
    for change in repairs:
        assert change.actual
        claim = world.known[ClaimId(change.key, change.attempt)]
        of_claim = [run for run in world.runs if _is_of(run, claim)]
        stays = kept(claim, of_claim)
        assert stays is not None
        assert change.actual != stays
        assert elder([change.actual, stays]) == stays
        vouched = [run for run in of_claim if may_cancel(claim, run)]
        assert len([run for run in vouched if run not in cancels(found)]) <= 1


@pytest.mark.fault(21)
@given(worlds())
def test_plan_has_no_changes_when_no_manifest_exists(world: World) -> None:
    assert plan([], world.runs, world.claims).changes == ()
    assert plan([], world.runs, world.claims, whole=False).drift == ()


def applied(world: World, found: Plan, pass_number: int) -> World:
    """Return the world after an apply without a failure."""
    known, there = world.known, {run.resource: run for run in world.runs}
    for index, change in enumerate(found.changes):
        if change.action is Action.CANCEL and change.actual:
            there[change.actual.resource] = replace(change.actual, state=State.CANCELLED)
        if change.action not in SUBMISSIONS or change.desired is None:
            continue
        identity = next(
            i for i in (change.desired.identity, *change.desired.earlier) if label_of(i) == change.key
        )
        adopted = change.actual if change.actual and attempt_of(change.actual) == change.attempt else None
        run = adopted or run_of(
            change.desired,
            State.RUNNING,
            change.attempt,
            identity=identity,
            number=10 + 10 * pass_number + index,
        )
        there[run.resource] = run
        claim = claim_on(change.desired, attempt=change.attempt, identity=identity, resource=run.resource)
        before = known.get(claim.id)
        ids = (*(before.request_ids if before else ()), run.labels.get(REQUEST_ID, ""))
        known[claim.id] = replace(claim, request_ids=ids)
    return World(world.desired, [*there.values()], [*known.values()])


@given(worlds())
def test_plan_has_no_work_left_after_few_successful_applies(world: World) -> None:
    for number in range(8):
        found = world.plan()
        if all(change.action in (Action.NONE, Action.BLOCKED) for change in found.changes):
            break
        world = applied(world, found, number)
    else:
        pytest.fail(f"there is always something to do: {found}")
    assert world.plan() == found


@given(st.lists(st.builds(wanted, names, st.sampled_from(["1", "2"])), unique_by=lambda j: j.manifest.name))
def test_apply_submits_each_job_once_when_no_run_or_claim_exists(
    desired: list[DesiredJob],
) -> None:
    world = World(desired, [], [])
    found = world.plan()
    assert [change.action for change in found.changes] == [Action.SUBMIT] * len(desired)
    again = applied(world, found, 0).plan()
    assert [change.action for change in again.changes] == [Action.NONE] * len(desired)
    assert again.drift == ()


@given(worlds())
def test_plan_digest_differs_when_submissions_or_target_differ(world: World) -> None:
    found = world.plan()
    more = plan([*world.desired, wanted("z")], world.runs, world.claims)
    assert found.digest != more.digest
    assert found.digest != plan(world.desired, world.runs, world.claims, GOOGLE).digest


@pytest.mark.fault(24)
@given(
    st.lists(st.sampled_from("123456"), min_size=1, max_size=4, unique=True),
    st.sampled_from("123456"),
    st.sampled_from([None, *ClaimState]),
    st.sampled_from([None, *State]),
    st.integers(1, 3),
)
def test_planner_distinguishes_contents_when_hash_digits_clash(
    ran: list[str], content: str, state: ClaimState | None, run_state: State | None, digits: int
) -> None:
    """Names with so few digits clash; the key in label and claim still distinguishes contents."""
    weak = {name: wanted("census", name) for name in "123456"}
    weak = {
        name: replace(job, identity="f" * (16 - digits) + job.identity[:digits] + job.identity[16:])
        for name, job in weak.items()
    }
    weak = {
        name: replace(job, job_name=naming.job_name("census", job.identity)) for name, job in weak.items()
    }
    others = [weak[name] for name in ran if name != content]
    claims = [claim_on(job, state) for job in others] if state else []
    runs = [run_of(job, run_state, number=n) for n, job in enumerate(others, 1)] if run_state else []
    job = weak[content]
    (change,) = (c for c in plan([job], runs, claims).changes if c.action is not Action.CANCEL)
    taken = {other.job_name for other in others if claims or runs}
    assert change.action is (Action.BLOCKED if job.job_name in taken else Action.SUBMIT)
    assert change.key == label_of(job.identity)
    assert change.actual is None
