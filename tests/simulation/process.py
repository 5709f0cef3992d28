"""Reconcilers as greenlets: each gives way before and after everything it does to the world outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from .world import World

Answer = TypeVar("Answer")

_TICK = 1e-6
"""Seconds that any sleep takes: a real clock never stands still, as one with a rounding error may."""


@dataclass(slots=True)
class _Thread:
    """One of the things that a reconciler does side by side, and when it goes on."""

    greenlet: greenlet
    wakes: float
    until: Callable[[], bool] | None = None
    doing: str = ""

    def ready(self, now: float) -> bool:
        """Whether it can go on now."""
        return now >= self.wakes or (self.until is not None and self.until())


class Process:
    """One reconciler; what it remembers goes with it when it is killed.

    Attributes:
        name: For the trace.
        wakes: The service's time before which it doesn't go on.
        passes: How many passes it ended, well or not.
        ended: Whether it has nothing more to do.
        looks: Whether it looks at the target, which it doesn't when it announces a claim.
    """

    def __init__(self, name: str, world: World, body: Callable[[Process], None]) -> None:
        self.name = name
        self.wakes = world.now
        self.passes = 0
        self.ended = False
        self.looks = False
        self.doing = ""
        self._world = world
        self._offset = world.rng.uniform(0.0, 1e6)
        self._until: Callable[[], bool] | None = None
        self._killed = False
        self._greenlet = greenlet(lambda: body(self))

    def ready(self) -> bool:
        """Whether it can go on now."""
        if self._world.now >= self.wakes:
            return True
        return self._until is not None and self._until()

    def resume(self) -> None:
        """Let it go on until it gives way again."""
        self._until = None
        self._greenlet.switch()
        self.ended = self._greenlet.dead

    def kill(self) -> None:
        """SIGKILL: nothing of its code runs any more that could reach the world."""
        self._killed = True
        self._greenlet.throw(GreenletExit)
        self.ended = True

    def pause(self, seconds: float, *, clock_stands: bool = False) -> None:
        """Stop it for a while, with its clock where its machine is suspended."""
        self.wakes = max(self.wakes, self._world.now) + seconds
        self._until = None
        if clock_stands:
            self._offset -= seconds

    def jump(self, seconds: float) -> None:
        """Its clock jumps."""
        self._offset += seconds

    # What its own code calls.

    def turn(self, doing: str) -> None:
        """Give way; `doing` is what comes next, or what was just done."""
        if self._killed:
            raise GreenletExit
        self.doing = doing
        self._world.trace(self.name, doing)
        self._give_way()

    def _give_way(self) -> None:
        if self._killed:
            raise GreenletExit
        parent = getcurrent().parent
        assert parent is not None, "a reconciler runs in a greenlet of its own"
        parent.switch()

    def await_(self, done: Callable[[], bool], timeout: float, doing: str) -> bool:
        """Wait until `done`, at most `timeout` seconds; whether it is done."""
        self.wakes = self._world.now + timeout
        self._until = done
        self.turn(doing)
        self.wakes = min(self.wakes, self._world.now)
        return done()

    def together(self, most: int, tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
        """What each task gives, as it comes: at most so many under way at once, and any may go on next."""
        waiting, answers, threads = list(tasks), list[Answer](), list[_Thread]()
        try:
            while waiting or threads:
                while waiting and len(threads) < most:
                    threads.append(_Thread(greenlet(_putting(waiting.pop(0), answers)), self._world.now))
                ready = [thread for thread in threads if thread.ready(self._world.now)]
                if ready:
                    self._step(self._world.rng.choice(ready))
                    threads = [thread for thread in threads if not thread.greenlet.dead]
                yield from answers
                answers.clear()
                if threads:
                    self._wait_for(threads)
        finally:
            for thread in threads:
                thread.greenlet.throw(GreenletExit)

    def _step(self, thread: _Thread) -> None:
        """Let one of several go on until it gives way."""
        self.wakes, self._until = self._world.now, None
        thread.greenlet.switch()
        # What it waits for is its own; the others go on meanwhile.
        thread.wakes, thread.until, thread.doing = self.wakes, self._until, self.doing

    def _wait_for(self, threads: Sequence[_Thread]) -> None:
        """Give way until one of several can go on."""
        self.wakes = min(thread.wakes for thread in threads)
        self._until = lambda: any(thread.until is not None and thread.until() for thread in threads)
        self._give_way()
        self.wakes = min(self.wakes, self._world.now)

    def monotonic(self) -> float:
        """Its own clock."""
        return self._world.now + self._offset

    def time_since_boot(self) -> float:
        """Return the time by its machine's other clock, which goes on while the machine is suspended."""
        return self._world.now

    def sleep(self, seconds: float) -> None:
        """Wait, by its own clock."""
        self.wakes = self._world.now + max(_TICK, seconds)
        self.turn(f"sleeps {seconds:.1f} s")


def _putting(task: Callable[[], Answer], answers: list[Answer]) -> Callable[[], None]:
    return lambda: answers.append(task())
