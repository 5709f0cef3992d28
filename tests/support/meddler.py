"""A concurrent process that replaces files while they are read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Meddler:
    """An action at the very moment when a name is opened: after all checks, before the system call.

    Python calls its audit hooks right before each `open`. A hook can't be removed, so there is only one.
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
