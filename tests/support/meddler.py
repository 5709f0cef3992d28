"""Somebody who exchanges files while they are read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Meddler:
    """Does something at the very moment when a name is opened: after all checks, before the system call.

    Python tells its audit hooks of each `open` right before it. A hook stays for ever, so there is one.
    """

    def __init__(self) -> None:
        self.name = ""
        self.meddle: Callable[[], None] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and self.meddle is not None and arguments[0] == self.name:
            meddle, self.meddle = self.meddle, None
            meddle()

    @contextmanager
    def at_the_opening_of(self, name: str, meddle: Callable[[], None]) -> Iterator[None]:
        self.name, self.meddle = name, meddle
        try:
            yield
            assert self.meddle is None, f"{name} was never opened"
        finally:
            self.meddle = None
