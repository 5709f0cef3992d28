"""Visit of every reachable state of a protocol, with the shortest path to the first violation."""

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
    """Result of a check of all reachable states.

    Attributes:
        states, moves: The numbers visited; states that differ only in the reconcilers' order count once.
        violation: The shortest path to a state that breaks the invariant; empty without such a state.
        dead_end: The shortest path to a state from which no settled state is reachable.
    """

    states: int
    moves: int
    violation: tuple[str, ...] = ()
    dead_end: tuple[str, ...] = ()


def one_job_per_attempt(world: World) -> bool:
    """Return True if no attempt ever had a second job, however the first ended."""
    return all(len(world.jobs(attempt)) <= 1 for attempt in range(len(world.claims)))


def retries_follow_failures(world: World) -> bool:
    """Return True if each retry follows a job that failed or was stopped by an apply."""
    return all(
        not world.jobs(attempt + 1)
        or any(world.tries[one].job in _FAILED for one in world.jobs(attempt))
        or is_stopped(world, attempt)
        for attempt in range(len(world.claims) - 1)
    )


def is_stopped(world: World, attempt: int) -> bool:
    """Return True if an attempt's job was cancelled, and its claim records an apply as the reason."""
    claim = world.claims[attempt]
    return claim.stopped and claim.job >= 0 and world.tries[claim.job].job is Job.CANCELLED


def returns_end(setting: Setting) -> Invariant:
    """Return the invariant that each content returns a bounded number of times."""

    def holds(world: World) -> bool:
        made = [attempt for attempt in range(len(world.claims)) if world.jobs(attempt)]
        returns = sum(is_stopped(world, attempt - 1) for attempt in made if attempt)
        return returns <= setting.returns

    return holds


def no_end(setting: Setting) -> Invariant:
    """Return the invariant that each content is submitted a bounded number of times, with failing set-ups."""

    def holds(world: World) -> bool:
        ends = [world.tries[jobs[0]].job for n in range(len(world.claims)) if (jobs := world.jobs(n))]
        started = [end for end in ends if end is not Job.UNSTARTED]
        tries = (ends[n : n + setting.set_ups] for n in range(len(ends) - setting.set_ups))
        # After a maximal row of failed set-ups, no try may follow.
        return len(started) <= setting.attempts and all(set(row) != {Job.UNSTARTED} for row in tries)

    return holds


def bound_to_our_own(world: World) -> bool:
    """Return True if no claim names a foreign job as its own."""
    return all(claim.job != FOREIGN for claim in world.claims)


def one_job_is_left(world: World) -> bool:
    """Return True if the repair left a job of each attempt."""
    return all(
        not world.jobs(attempt)
        or any(world.tries[one].job is not Job.CANCELLED for one in world.jobs(attempt))
        for attempt in range(len(world.claims))
    )


def safe(world: World) -> bool:
    """Return True if all invariants of a service within its bounds hold."""
    return one_job_per_attempt(world) and retries_follow_failures(world) and bound_to_our_own(world)


def settled(world: World) -> bool:
    """Return True if some attempt has its job, and its claim names it."""
    return any(claim.state is ClaimState.BOUND for claim in world.claims)


def check(protocol: Protocol, invariant: Invariant = safe, *, live: bool = True) -> Finding:
    """Visit all states, breadth first, up to the first violation; then search for dead ends.

    With `live`, a settled claim must be reachable from every state with a try left: without tries, the model
    ends, and not the protocol.
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
    """Yield every reachable state, valid or not."""
    graph = _Graph(protocol.setting.start())
    for key, world in graph.visit():
        yield world
        for what, after in protocol.moves(world):
            graph.add(key, what, after)


class _Graph:
    """Graph of the visited states. Reconcilers are interchangeable: their order doesn't matter."""

    def __init__(self, start: World) -> None:
        self.way: dict[Key, tuple[World, Key, str]] = {_key(start): (start, (), "")}
        self.before: defaultdict[Key, list[Key]] = defaultdict(list)
        self._waiting = deque(self.way)

    def visit(self) -> Iterator[tuple[Key, World]]:
        """Yield each state once, in order of distance; the caller adds moves meanwhile."""
        while self._waiting:
            key = self._waiting.popleft()
            yield key, self.way[key][0]

    def add(self, before: Key, what: str, after: World) -> Key:
        """Add a move; return the key of its end if that is new, else an empty key."""
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
    """Return the first state with a try left from which no settled state is reachable."""
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
