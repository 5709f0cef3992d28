"""What ends the time between two passes: a change of files, a signal, or that it is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType

from reconciler.watching.timing import still_at


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

    def wait(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until files changed and then kept still, the end is asked for, or the time is over.

        Args:
            seconds: How long to wait for a change.
            meanwhile: Called at the first change: what needn't wait for files to be still.

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
            if first is None:
                first = last
                if not self.stopping:
                    meanwhile()
            end = still_at(first, last)
        return False
