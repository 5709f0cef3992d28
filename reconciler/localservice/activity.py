"""Counts the requests under way, so that an end never cuts one off, and tells how long there was none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Activity:
    """The service's requests; `monotonic` gives seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._under_way = 0
        self._last = monotonic()
        self._closed = False

    @contextmanager
    def request(self) -> Iterator[bool]:
        """Held while a request is answered; False: too late, no more are taken."""
        with self._changed:
            taken = not self._closed
            self._under_way += taken
        try:
            yield taken
        finally:
            with self._changed:
                self._under_way -= taken
                self._last = self._monotonic()
                self._changed.notify_all()

    def note_work(self) -> None:
        """There is something to do, though nobody asks: the time without begins anew."""
        with self._changed:
            self._last = self._monotonic()

    def close_if_idle(self, seconds: float, has_work: Callable[[], bool]) -> bool:
        """Take no more requests, if there was nothing to do for so long; False, and go on, if there was.

        `has_work` is asked while no request is under way, and none can begin.
        """
        with self._changed:
            if self._under_way or self._monotonic() - self._last < seconds or has_work():
                return False
            self._closed = True
            return True

    def close(self, seconds: float) -> None:
        """Take no more requests, and wait at most so long for those under way."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._under_way, seconds)
