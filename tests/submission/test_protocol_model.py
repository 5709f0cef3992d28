"""The submission protocol, checked in every state that a small world can reach.

Two reconcilers without end, and each may pause between any two steps and die at any; late requests, lost
answers and acknowledgements, lagging listings. `MODEL=large` adds larger worlds: some
minutes more, and up to 2 GB of memory.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import pytest

from tests.protocol_model.checker import (
    Finding,
    Invariant,
    bound_to_our_own,
    check,
    is_stopped,
    no_end,
    one_job_is_left,
    one_job_per_attempt,
    reachable,
    retries_follow_failures,
    returns_end,
    safe,
    settled,
)
from tests.protocol_model.protocol import Protocol, Rules
from tests.protocol_model.world import Claim, ClaimState, Job, Move, Reconciler, Request, Setting, Try, World

pytestmark = pytest.mark.slow

DESIGN = Rules()
AUDITED = Rules(audit=True)
TWO_TRIES = Setting()
THREE_TRIES = Setting(tries=3)
FOREIGN_JOB = Setting(foreign=True)
RETRIES = Setting(attempts=2, jobs_fail=True)
RETURNS = Setting(returns=1, jobs_fail=True)
SET_UPS = Setting(set_ups=2, jobs_fail=True)
LATE = Setting(really_executes=3)
STALE = Setting(really_visible=3)

WORLDS = {
    "two tries": TWO_TRIES,
    "a foreign job": FOREIGN_JOB,
    "retries": RETRIES,
    "returns": RETURNS,
    "set-ups that fail": SET_UPS,
    "one wrong listing": Setting(wrong_listings=1),
}
LARGE_WORLDS = {
    "three tries": THREE_TRIES,
    "longer times": Setting(lifetime=2, executes=2, visible=2),
    "no execution time": Setting(executes=0, visible=2),
    "three reconcilers": Setting(reconcilers=3),
    "a foreign job, three tries": Setting(foreign=True, tries=3),
    "set-ups that fail, three tries": replace(SET_UPS, tries=3),
    "three tries for two attempts": Setting(attempts=2, jobs_fail=True, tries=3),
}
if os.environ.get("MODEL") == "large":
    WORLDS |= LARGE_WORLDS


@pytest.fixture(autouse=True)
def _disable_collector() -> Iterator[None]:
    """Turn off the collector: its search of hundreds of thousands of tuples takes a third of the time."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def remove_guards(*guards: str) -> Rules:
    """Return the protocol with some guards removed."""
    assert set(guards) <= {field.name for field in fields(Rules)}
    return replace(DESIGN, **dict.fromkeys(guards, False))


def format_finding(finding: Finding) -> str:
    """Return the steps that lead to a finding, a step a line, for a failed test."""
    way = finding.violation or finding.dead_end
    return "\n".join(["", *(f"{number:3} {step}" for number, step in enumerate(way, 1))])


@pytest.mark.fault(2, 7, 8, 9, 12)
@pytest.mark.parametrize("setting", WORLDS.values(), ids=WORLDS)
def test_protocol_makes_no_second_job_and_has_no_dead_end(setting: Setting) -> None:
    finding = check(Protocol(setting, DESIGN))
    assert not finding.violation, format_finding(finding)
    assert not finding.dead_end, format_finding(finding)


# The purpose of each guard: without it, the model finds the failure that it prevents.

NEEDED: dict[str, tuple[Setting, Rules, Invariant]] = {
    "claims": (TWO_TRIES, remove_guards("claims"), one_job_per_attempt),
    "claim before request": (TWO_TRIES, remove_guards("claim_first"), one_job_per_attempt),
    "insert only where there is none": (TWO_TRIES, remove_guards("insert_once"), one_job_per_attempt),
    "compare and swap of a takeover": (THREE_TRIES, remove_guards("swap_takeover"), one_job_per_attempt),
    "compare and swap of an answer": (THREE_TRIES, remove_guards("swap_answer"), one_job_per_attempt),
    "a write of unknown outcome is read back": (TWO_TRIES, remove_guards("read_back"), one_job_per_attempt),
    "fence": (TWO_TRIES, remove_guards("fence"), one_job_per_attempt),
    "settle time for execution": (TWO_TRIES, remove_guards("wait_executes"), one_job_per_attempt),
    "settle time for visibility": (TWO_TRIES, remove_guards("wait_visible"), one_job_per_attempt),
    # Each of these two makes the other unnecessary as long as listings keep their bound.
    "time before the look, or a second look": (
        TWO_TRIES,
        remove_guards("time_before_look", "look_twice"),
        one_job_per_attempt,
    ),
    "second look, when a listing was wrong": (
        Setting(wrong_listings=1),
        remove_guards("look_twice"),
        one_job_per_attempt,
    ),
    "own tries only": (FOREIGN_JOB, remove_guards("own_tries"), bound_to_our_own),
    "resolve waits": (FOREIGN_JOB, remove_guards("resolve_waits"), one_job_per_attempt),
    "retry after FAILED only": (RETRIES, remove_guards("retry_failed_only"), retries_follow_failures),
    "return after an apply's cancel only": (
        RETURNS,
        remove_guards("return_stopped_only"),
        retries_follow_failures,
    ),
    "returns end": (
        replace(RETURNS, tries=3, reconcilers=1),
        remove_guards("returns_end"),
        returns_end(RETURNS),
    ),
    "a retry's own claim": (replace(RETRIES, tries=3), remove_guards("retry_claim"), one_job_per_attempt),
    "set-ups are tried a few times": (
        replace(SET_UPS, tries=3, reconcilers=1),
        remove_guards("set_ups_end"),
        no_end(SET_UPS),
    ),
    "attempts are counted beside set-ups": (SET_UPS, remove_guards("attempts_end"), no_end(SET_UPS)),
    "execution is bounded": (LATE, DESIGN, one_job_per_attempt),
    "visibility is bounded": (STALE, DESIGN, one_job_per_attempt),
    "repair keeps the oldest, not the one the claim names": (
        LATE,
        replace(AUDITED, keep_oldest=False),
        one_job_is_left,
    ),
}


@pytest.mark.fault(59, 60)
@pytest.mark.parametrize("attempts", [1, 2])
def test_stopped_content_returns_limited_number_of_times(attempts: int) -> None:
    setting = replace(RETURNS, tries=3, reconcilers=1, attempts=attempts)
    finding = check(Protocol(setting, DESIGN), returns_end(setting))
    assert not finding.violation, format_finding(finding)
    assert not finding.dead_end, format_finding(finding)
    worlds = [*reachable(Protocol(setting, DESIGN))]
    assert any(is_stopped(world, 0) and world.jobs(1) for world in worlds)
    assert all(safe(world) for world in worlds)


@pytest.mark.fault(53)
def test_failed_set_ups_are_retried_limited_number_of_times() -> None:
    """A single reconciler for three tries, as two take minutes; the counted values are durable anyway."""
    for setting in (SET_UPS, replace(SET_UPS, tries=3, reconcilers=1)):
        finding = check(Protocol(setting, DESIGN), no_end(setting))
        assert not finding.violation, format_finding(finding)
        assert not finding.dead_end, format_finding(finding)


def test_failed_set_up_is_retried_without_use_of_attempt() -> None:
    def makes_second_job(rules: Rules) -> bool:
        return any(world.jobs(1) for world in reachable(Protocol(replace(SET_UPS, reconcilers=1), rules)))

    assert makes_second_job(DESIGN)
    assert not makes_second_job(remove_guards("free_set_ups"))


@pytest.mark.fault(7, 8, 9, 12, 13, 18)
@pytest.mark.parametrize(("setting", "rules", "broken"), NEEDED.values(), ids=NEEDED)
def test_protocol_fails_without_each_guard(setting: Setting, rules: Rules, broken: Invariant) -> None:
    finding = check(Protocol(setting, rules), broken, live=False)
    assert finding.violation, (
        "nothing went wrong without the guard: it isn't needed, or the model doesn't see why"
    )


def test_claim_of_dead_owner_stays_pending_without_takeover() -> None:
    finding = check(Protocol(TWO_TRIES, remove_guards("take_over")))
    assert not finding.violation, format_finding(finding)
    assert finding.dead_end


@pytest.mark.parametrize("guard", ["look_twice", "time_before_look", "look_after_refusal"])
def test_protocol_holds_without_redundant_guard(guard: str) -> None:
    """These guards cost seconds at most, and cover assumptions of the model.

    The second look and the time of the claim's read stand in for each other. The look after a refusal finds
    a job that a refusal denied; the model's service never denies a made job.
    """
    finding = check(Protocol(TWO_TRIES, remove_guards(guard)))
    assert not finding.violation, format_finding(finding)
    assert not finding.dead_end, format_finding(finding)


def test_reported_violation_can_be_replayed() -> None:
    protocol = Protocol(TWO_TRIES, remove_guards("fence"))
    world = TWO_TRIES.start()
    way = check(protocol, one_job_per_attempt).violation
    for step in way:
        assert one_job_per_attempt(world)
        world = next(move.world for move in protocol.moves(world) if move.what == step)
    assert not one_job_per_attempt(world)
    assert way[-1] in {"the service makes the job of try 1", "the service makes the job of try 2"}


# Refusals, and requests that never left


def can_settle(protocol: Protocol, start: World, may: Callable[[Move], bool]) -> bool:
    """Return True if a claim can become BOUND by the moves that may happen."""
    seen, waiting = {start}, [start]
    while waiting:
        for move in protocol.moves(waiting.pop()):
            if may(move) and move.world not in seen:
                seen.add(move.world)
                waiting.append(move.world)
    return any(map(settled, seen))


def takes_no_time(move: Move) -> bool:
    return move.what != "time passes"


@pytest.mark.parametrize("request_was", [Request.NOT_SENT, Request.REFUSED])
def test_protocol_sends_refused_or_unsent_request_again_without_wait(request_was: Request) -> None:
    before = Try(0, clock=-1, request=request_was)
    rejected = Claim(ClaimState.REJECTED, 2, (0,))
    pending = Claim(ClaimState.PENDING, 1, (0,))
    start = World((rejected,), (before,), (Reconciler(),))
    assert can_settle(Protocol(TWO_TRIES, DESIGN), start, takes_no_time)
    assert not can_settle(Protocol(TWO_TRIES, DESIGN), start._replace(claims=(pending,)), takes_no_time)


# Beyond the bounds: two jobs, and their audit


@pytest.mark.fault(13, 18)
@pytest.mark.parametrize("setting", [LATE, STALE], ids=["late execution", "stale listings"])
def test_parallel_auditors_never_cancel_every_job(setting: Setting) -> None:
    finding = check(Protocol(setting, AUDITED), one_job_is_left, live=False)
    assert not finding.violation, format_finding(finding)


def list_live_jobs(world: World) -> list[int]:
    return [number for number in world.jobs(0) if world.tries[number].job is Job.LIVE]


def list_every_job(world: World, setting: Setting) -> World:
    """Return the same world after every job has appeared in the listings."""
    tries = (one._replace(job_age=setting.longest_hidden if one.job_rank else 0) for one in world.tries)
    return world._replace(tries=tuple(tries))


def run_audit(protocol: Protocol, world: World) -> World:
    """Return the world after a new reconciler's audit, with all others asleep."""
    world = world.with_reconciler(0, Reconciler())
    move = next(move for move in protocol.moves_of(world, 0) if move.what.endswith("audits"))
    while move.world.reconcilers[0] != Reconciler():
        move = next(iter(protocol.moves_of(move.world, 0)))
    return move.world


@pytest.mark.fault(13)
@pytest.mark.parametrize("audit", [True, False], ids=["audit", "no audit"])
def test_audit_leaves_single_live_job(audit: bool) -> None:
    """This holds for every pending step of the reconcilers; without the audit, both jobs go on."""
    protocol = Protocol(LATE, replace(DESIGN, audit=audit))
    doubled = [
        list_every_job(world, LATE) for world in reachable(protocol) if len(list_live_jobs(world)) == 2
    ]
    assert doubled
    for world in doubled:
        if audit:
            repaired = run_audit(protocol, world)
            assert list_live_jobs(repaired) == world.jobs(0)[:1]
            assert repaired.claims[0].state is ClaimState.BOUND
            assert repaired.claims[0].job == world.jobs(0)[0]
        else:
            assert all(len(list_live_jobs(move.world)) == 2 for move in protocol.moves(world))


@pytest.mark.fault(18)
def test_repair_cancels_neither_oldest_nor_foreign_job() -> None:
    setting = replace(LATE, foreign=True, reconcilers=1)
    for world in reachable(Protocol(setting, AUDITED)):
        jobs = world.jobs(0)
        assert not jobs or world.tries[jobs[0]].job is not Job.CANCELLED
        assert all(set(one.cancels) <= set(jobs[1:]) for one in world.reconcilers)
