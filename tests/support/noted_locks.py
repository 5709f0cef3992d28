"""Locks that signal when a thread waits for another thread's lock, without a clock and without waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import PATIENCE


class Meeting:
    """Two threads: the second starts in the middle of the first, and either ends or waits for its lock."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._on = threading.Event()

    def notes_locks_of(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the module's locks by locks that signal a waiting thread."""
        made = SimpleNamespace(Lock=lambda: _Lock(self._on), RLock=lambda: _Lock(self._on))
        monkeypatch.setattr(module, "threading", made)

    def pause(self) -> None:
        """Pause the first thread until the second has ended or waits for a lock."""
        if not self._begun.is_set():
            self._begun.set()
            assert self._on.wait(PATIENCE)

    def hold(self, first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
        """Return the result or exception of each, the first's before the second's."""
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
