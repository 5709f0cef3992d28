"""Visits every state that a protocol can reach, and tells the shortest way to the first that is wrong."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.protocol_model.protocol import Protocol
from tests.protocol_model.world import FOREIGN, ClaimState, Job, Setting, World

Invariant = Callable[[World], bool]
_FAILED = (Job.FAILED, Job.UNSTARTED)
Key = tuple[object, ...]


@dataclass(frozen=True)
class Finding:
    """What was found in all reachable states.

    Attributes:
        states, moves: How much was looked at; states that differ in which reconciler is which are one.
        violation: The shortest way to a state that must not be; empty where there is none.
        dead_end: The shortest way to a state from which what should come can't come any more.
    """

    states: int
    moves: int
    violation: tuple[str, ...] = ()
    dead_end: tuple[str, ...] = ()


def one_job_per_attempt(world: World) -> bool:
    """However a job ended: a second one for the same attempt must never have been."""
    return all(len(world.jobs(attempt)) <= 1 for attempt in range(len(world.claims)))


def retries_follow_failures(world: World) -> bool:
    """A job of attempt n + 1 is there only after the one of attempt n failed, or was stopped by an apply."""
    return all(
        not world.jobs(attempt + 1)
        or any(world.tries[one].job in _FAILED for one in world.jobs(attempt))
        or is_stopped(world, attempt)
        for attempt in range(len(world.claims) - 1)
    )


def is_stopped(world: World, attempt: int) -> bool:
    """The job of an attempt was cancelled, and its claim says that an apply did it."""
    claim = world.claims[attempt]
    return claim.stopped and claim.job >= 0 and world.tries[claim.job].job is Job.CANCELLED


def returns_end(setting: Setting) -> Invariant:
    """Return the invariant that no content comes back without end."""

    def holds(world: World) -> bool:
        made = [attempt for attempt in range(len(world.claims)) if world.jobs(attempt)]
        returns = sum(is_stopped(world, attempt - 1) for attempt in made if attempt)
        return returns <= setting.returns

    return holds


def no_end(setting: Setting) -> Invariant:
    """Return the invariant that no content is submitted without end, with set-ups that fail."""

    def holds(world: World) -> bool:
        ends = [world.tries[jobs[0]].job for n in range(len(world.claims)) if (jobs := world.jobs(n))]
        started = [end for end in ends if end is not Job.UNSTARTED]
        tries = (ends[n : n + setting.set_ups] for n in range(len(ends) - setting.set_ups))
        # Of each row of tries that all failed in their set-up, none may follow.
        return len(started) <= setting.attempts and all(set(row) != {Job.UNSTARTED} for row in tries)

    return holds


def bound_to_our_own(world: World) -> bool:
    """A claim never counts somebody else's job for what it asked for."""
    return all(claim.job != FOREIGN for claim in world.claims)


def one_job_is_left(world: World) -> bool:
    """The repair never cancels every job of an attempt."""
    return all(
        not world.jobs(attempt)
        or any(world.tries[one].job is not Job.CANCELLED for one in world.jobs(attempt))
        for attempt in range(len(world.claims))
    )


def safe(world: World) -> bool:
    """All that holds as long as the service keeps its bounds."""
    return one_job_per_attempt(world) and retries_follow_failures(world) and bound_to_our_own(world)


def settled(world: World) -> bool:
    """Some attempt has its job, and its claim says so."""
    return any(claim.state is ClaimState.BOUND for claim in world.claims)


def check(protocol: Protocol, invariant: Invariant = safe, *, live: bool = True) -> Finding:
    """Visit all states, breadth first, up to the first that breaks the invariant; then ask whether all go on.

    With `live`, a settled claim must stay within reach of every state in which a try is left: with all of
    them used up, the model ends and not the protocol.
    """
    graph = _Graph(protocol.setting.start())
    moves = 0
    for key, world in graph.visit():
        for what, after in protocol.moves(world):
            moves += 1
            new = graph.add(key, what, after)
            if new and not invariant(after):
                return Finding(len(graph.way), moves, violation=graph.way_to(new))
    stuck = _stuck(protocol, graph) if live else None
    return Finding(len(graph.way), moves, dead_end=graph.way_to(stuck) if stuck else ())


def reachable(protocol: Protocol) -> Iterator[World]:
    """Every state, whatever it is like."""
    graph = _Graph(protocol.setting.start())
    for key, world in graph.visit():
        yield world
        for what, after in protocol.moves(world):
            graph.add(key, what, after)


class _Graph:
    """The states seen so far. The reconcilers are all alike: states that differ in their order are one."""

    def __init__(self, start: World) -> None:
        self.way: dict[Key, tuple[World, Key, str]] = {_key(start): (start, (), "")}
        self.before: defaultdict[Key, list[Key]] = defaultdict(list)
        self._waiting = deque(self.way)

    def visit(self) -> Iterator[tuple[Key, World]]:
        """Each state once, those first that fewer moves lead to; moves are to be added meanwhile."""
        while self._waiting:
            key = self._waiting.popleft()
            yield key, self.way[key][0]

    def add(self, before: Key, what: str, after: World) -> Key:
        """Note a move; the key of its end where that is new, else an empty one."""
        key = _key(after)
        self.before[key].append(before)
        if key in self.way:
            return ()
        self.way[key] = (after, before, what)
        self._waiting.append(key)
        return key

    def way_to(self, key: Key) -> tuple[str, ...]:
        steps = []
        while self.way[key][1]:
            _, key, what = self.way[key]
            steps.append(what)
        return tuple(reversed(steps))


def _key(world: World) -> Key:
    return (*world[:2], tuple(sorted(world.reconcilers)), *world[3:])


def _stuck(protocol: Protocol, graph: _Graph) -> Key | None:
    """The first state with a try left that no settled state can be reached from."""
    can = {key for key, (world, _, _) in graph.way.items() if settled(world)}
    waiting = [*can]
    while waiting:
        for key in graph.before[waiting.pop()]:
            if key not in can:
                can.add(key)
                waiting.append(key)
    for key, (world, _, _) in graph.way.items():
        if key not in can and len(world.tries) < protocol.setting.tries:
            return key
    return None
