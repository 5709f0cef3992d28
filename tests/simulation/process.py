"""Reconcilers as greenlets: each yields before and after every action on the outside world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from .world import World

Answer = TypeVar("Answer")

_TICK = 1e-6
"""Minimum seconds of a sleep: a real clock never stands still, unlike a clock with a rounding error."""


@dataclass(slots=True)
class _Thread:
    """Concurrent task of a reconciler, and the time at which it continues."""

    greenlet: greenlet
    wakes: float
    until: Callable[[], bool] | None = None
    doing: str = ""

    def ready(self, now: float) -> bool:
        """Return True if the task can continue now."""
        return now >= self.wakes or (self.until is not None and self.until())


class Process:
    """A reconciler process; a kill loses its memory.

    Attributes:
        name: Its name in the trace.
        wakes: The service's time at which it continues.
        passes: The number of finished passes, successful or not.
        ended: True once it has finished.
        looks: True while it looks at the target, False while it announces a claim.
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
        """Return True if the process can continue now."""
        if self._world.now >= self.wakes:
            return True
        return self._until is not None and self._until()

    def resume(self) -> None:
        """Run the process until it yields again."""
        self._until = None
        self._greenlet.switch()
        self.ended = self._greenlet.dead

    def kill(self) -> None:
        """Kill the process (SIGKILL): its code no longer reaches the world."""
        self._killed = True
        self._greenlet.throw(GreenletExit)
        self.ended = True

    def pause(self, seconds: float, *, clock_stands: bool = False) -> None:
        """Pause the process for a while; with `clock_stands`, its suspended machine's clock stops too."""
        self.wakes = max(self.wakes, self._world.now) + seconds
        self._until = None
        if clock_stands:
            self._offset -= seconds

    def jump(self, seconds: float) -> None:
        """Move the process's clock."""
        self._offset += seconds

    # Methods that the reconciler's own code calls.

    def turn(self, doing: str) -> None:
        """Yield; `doing` describes the next action, or the last action."""
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
        """Wait until `done`, at most `timeout` seconds; return the final result of `done`."""
        self.wakes = self._world.now + timeout
        self._until = done
        self.turn(doing)
        self.wakes = min(self.wakes, self._world.now)
        return done()

    def together(self, most: int, tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
        """Yield each task's result as it arrives: at most `most` tasks run at once, in random order."""
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
        """Run a randomly chosen task until it yields."""
        self.wakes, self._until = self._world.now, None
        thread.greenlet.switch()
        # Each task waits on its own; the others continue meanwhile.
        thread.wakes, thread.until, thread.doing = self.wakes, self._until, self.doing

    def _wait_for(self, threads: Sequence[_Thread]) -> None:
        """Yield until any of the tasks can continue."""
        self.wakes = min(thread.wakes for thread in threads)
        self._until = lambda: any(thread.until is not None and thread.until() for thread in threads)
        self._give_way()
        self.wakes = min(self.wakes, self._world.now)

    def monotonic(self) -> float:
        """Return the process's own clock."""
        return self._world.now + self._offset

    def time_since_boot(self) -> float:
        """Return the time since its machine's boot; this clock continues during a suspension."""
        return self._world.now

    def sleep(self, seconds: float) -> None:
        """Sleep by the process's own clock."""
        self.wakes = self._world.now + max(_TICK, seconds)
        self.turn(f"sleeps {seconds:.1f} s")


def _putting(task: Callable[[], Answer], answers: list[Answer]) -> Callable[[], None]:
    return lambda: answers.append(task())
