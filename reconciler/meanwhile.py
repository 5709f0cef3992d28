"""A call beside the rest: what waits for a service goes on while something else is worked out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Meanwhile(Generic[Answer]):
    """A call that is made in a thread of its own; the end of the process doesn't wait for it."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        self._call = call
        self._answers: list[Answer] = []
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Make the call from here on."""
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until the call is over, whatever came of it; for nothing where it wasn't begun."""
        if self._thread is not None:
            self._thread.join()

    def result(self) -> Answer:
        """What the call, which was begun, gave once it is over; raises what it raised."""
        self.end()
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def _make(self) -> None:
        try:
            self._answers.append(self._call())
        except Exception as error:  # raised anew where it is asked for
            self._error = error
