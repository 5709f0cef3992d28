"""Events that end the wait between two passes: a file change, a signal or the timeout."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType

LONGEST_BACKOFF = 300.0
_FIRST_BACKOFF = 2.0

LOOKS = {"local": 2.0, "google": 60.0}
"""Seconds between passes while jobs or submissions are in progress, by engine."""

STILL = 0.3
"""Seconds without a change after which a pass may read the files."""

LONGEST_UNREST = 5.0
"""Maximum number of seconds that continuous changes delay a pass."""

Chance = Callable[[], float]
"""Return a uniformly distributed random number from 0 to 1."""


def backoff(failures: int, chance: Chance) -> float:
    """Return the seconds to wait after `failures` failures in a row, with full jitter.

    The maximum doubles with each failure, up to LONGEST_BACKOFF.
    """
    # The exponent is limited because a float overflows after about 1,000 failures.
    doubled = _FIRST_BACKOFF * 2.0 ** min(failures - 1, 30)
    return chance() * min(LONGEST_BACKOFF, doubled)


def due_after(failures: int, *, live: bool, look: float, resync: float, chance: Chance) -> float:
    """Return the seconds from the end of a pass to the next pass.

    Args:
        failures: The number of failed passes in a row, including this pass.
        live: True if jobs or submissions are in progress.
        look: Seconds between passes while `live`.
        resync: Seconds between passes otherwise.
        chance: Random numbers for the backoff.
    """
    if failures:
        return backoff(failures, chance)
    return min(look, resync) if live else resync


def still_at(first: float, last: float) -> float:
    """Return the time at which files count as stable, given the times of the first and last change."""
    return min(last + STILL, first + LONGEST_UNREST)


class Stopped(Exception):
    """Request to stop, raised in an operation that can be interrupted."""


class Wakes:
    """Queue of events from any thread and from signal handlers.

    Attributes:
        stopping: True once a stop was requested.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        # SimpleQueue is reentrant: a signal handler may call put while this thread is within get.
        self._events: SimpleQueue[float] = SimpleQueue()
        self._monotonic = monotonic
        self._is_interruptible = False
        self.stopping = False

    def change(self) -> None:
        """Record a change of a file."""
        self._events.put(self._monotonic())

    @property
    def has_changed(self) -> bool:
        """True if a file has changed since the last wait."""
        return not self._events.empty()

    def stop(self) -> None:
        """Request a stop; raise Stopped within `left_off_at_stop`."""
        self.stopping = True
        # The event ends a wait that is in progress.
        self._events.put(self._monotonic())
        if self._is_interruptible:
            raise Stopped

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Stop on SIGTERM or SIGINT; a second signal ends the process at once."""
        numbers = (signal.SIGTERM, signal.SIGINT)

        def handle(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            self.stop()

        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def left_off_at_stop(self) -> Iterator[None]:
        """Let `stop` interrupt the body of the `with` statement with Stopped."""
        self._is_interruptible = True
        try:
            # A signal may have arrived before the flag was set.
            if self.stopping:
                raise Stopped
            yield
        finally:
            self._is_interruptible = False

    def wait(self, seconds: float) -> bool:
        """Wait until files changed and became stable, a stop is requested, or `seconds` passed.

        Returns:
            True if files changed.
        """
        end = self._monotonic() + seconds
        first: float | None = None
        while not self.stopping:
            # A due pass waits for stable files too: a half-written manifest would be read otherwise.
            left = end - self._monotonic()
            try:
                last = self._events.get(timeout=left) if left > 0 else self._events.get_nowait()
            except Empty:
                return first is not None
            first = last if first is None else first
            end = still_at(first, last)
        return False
