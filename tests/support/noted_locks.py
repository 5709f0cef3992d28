"""Locks that say when a thread comes to one that another thread has: without a clock, and without waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import PATIENCE


class Meeting:
    """Two threads: the second begins amid what the first does, and either ends or comes to wait for it."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._on = threading.Event()

    def notes_locks_of(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the locks that the module makes tell who has to wait."""
        made = SimpleNamespace(Lock=lambda: _Lock(self._on), RLock=lambda: _Lock(self._on))
        monkeypatch.setattr(module, "threading", made)

    def pause(self) -> None:
        """Called by the first in its middle: goes on when the second has ended, or waits for a lock."""
        if not self._begun.is_set():
            self._begun.set()
            assert self._on.wait(PATIENCE)

    def hold(self, first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
        """What each gives or raises, the first's before the second's."""
        found: list[Any] = [None, None]

        def run(number: int, call: Callable[[], Any]) -> None:
            try:
                found[number] = call()
            except Exception as error:
                found[number] = error
            finally:
                self._begun.set()

        def late() -> None:
            assert self._begun.wait(PATIENCE)
            run(1, second)
            self._on.set()

        threads = [threading.Thread(target=run, args=(0, first), daemon=True)]
        threads.append(threading.Thread(target=late, daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return found


class _Lock:
    """A lock that its own thread may take again."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock = threading.RLock()
        self._waits = waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
