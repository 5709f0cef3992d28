"""What ends the time between two passes: a change of files, a signal, or that it is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType

RESYNC = 300.0
"""Seconds from one pass to the next where nothing happens, by default."""

LONGEST_BACKOFF = 300.0
_FIRST_BACKOFF = 2.0

LOOKS = {"local": 2.0, "google": 60.0}
"""Seconds from one look to the next while something goes on by itself, by engine."""

STILL = 0.3
"""Seconds without a change after which the files are taken for what they are meant to be."""

LONGEST_UNREST = 5.0
"""Seconds of change after change that a pass is put off at most."""

Chance = Callable[[], float]
"""Gives a number from 0 to 1, each as likely as any other."""


def backoff(failures: int, chance: Chance) -> float:
    """Seconds to wait after so many failures in a row: anything up to a bound that doubles (full jitter)."""
    doubled = _FIRST_BACKOFF * 2.0 ** min(failures - 1, 30)
    return chance() * min(LONGEST_BACKOFF, doubled)


def due_after(failures: int, *, live: bool, look: float, resync: float, chance: Chance) -> float:
    """Seconds from the end of a pass to the next one.

    Args:
        failures: How many passes in a row have failed, this one included.
        live: Whether something goes on that the next pass may see more of.
        look: Seconds from one look to the next meanwhile.
        resync: Seconds to the next pass where nothing does.
        chance: For the backoff.
    """
    if failures:
        return backoff(failures, chance)
    return min(look, resync) if live else resync


def still_at(first: float, last: float) -> float:
    """When the files are taken to be still, after changes of which the first and the last came then."""
    return min(last + STILL, first + LONGEST_UNREST)


class Stopped(Exception):
    """The end was asked for while something went on that can be left off."""


class Wakes:
    """Collects what happens meanwhile, from any thread and from signal handlers.

    Attributes:
        stopping: Whether the end was asked for.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        # Its put may interrupt its own get, in a signal handler.
        self._happened: SimpleQueue[float] = SimpleQueue()
        self._monotonic = monotonic
        self._can_be_left_off = False
        self.stopping = False

    def change(self) -> None:
        """Some file changed."""
        self._happened.put(self._monotonic())

    def stop(self) -> None:
        """Go to the end; raises Stopped inside of `left_off_at_stop`."""
        self.stopping = True
        self._happened.put(self._monotonic())
        if self._can_be_left_off:
            raise Stopped

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for the end; a second one ends the process at once."""
        numbers = (signal.SIGTERM, signal.SIGINT)

        def asked(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            self.stop()

        before = {number: signal.signal(number, asked) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def left_off_at_stop(self) -> Iterator[None]:
        """What goes on within is interrupted by Stopped when the end is asked for."""
        self._can_be_left_off = True
        try:
            if self.stopping:
                raise Stopped
            yield
        finally:
            self._can_be_left_off = False

    def wait(self, seconds: float) -> bool:
        """Wait until files changed and then kept still, the end is asked for, or the time is over.

        Args:
            seconds: How long to wait for a change.

        Returns:
            Whether files changed.
        """
        end = self._monotonic() + seconds
        first: float | None = None
        while not self.stopping:
            left = end - self._monotonic()
            try:
                last = self._happened.get(timeout=left) if left > 0 else self._happened.get_nowait()
            except Empty:
                return first is not None
            first = last if first is None else first
            end = still_at(first, last)
        return False
