"""Processes that share work that is pure: each takes the next piece, and what one leaves undone isn't done.

They are forks, so that they begin with all that is read and imported, and cost little. The standard library's
pools start threads beside the work, after which no process may fork any more.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

MOST = 4
"""How many there are at most: reading the results is the main process's work, and isn't shared."""

_NUMBER = struct.Struct("<I")
_HEAD = struct.Struct("<II")
_MOST_PIECES = 10_000
"""So many numbers surely fit into a pipe (64 KiB on Linux) before anybody reads them."""
_READ = 1 << 20


def count_of_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether a fork is safe here: no other thread may hold a lock, and macOS's libraries don't take it."""
    return hasattr(os, "fork") and sys.platform != "darwin" and threading.active_count() == 1


class Workers:
    """Processes at work from here on; leaving the context ends them.

    Args:
        pieces: How many pieces of work there are, numbered from 0.
        work: Does one piece and gives its result. It runs in the workers, and what it raises ends the worker.
        count: How many processes; those that can't be started are left out.
    """

    def __init__(self, pieces: int, work: Callable[[int], bytes], count: int) -> None:
        self._pids: dict[int, int] = {}  # by the descriptor that the process's results come from
        if pieces > _MOST_PIECES:
            raise ValueError(f"{pieces} pieces are too many")
        todo, numbers = os.pipe()
        try:
            os.write(numbers, b"".join(map(_NUMBER.pack, range(pieces))))
            for _ in range(count):
                with suppress(OSError):  # no more processes, or no more descriptors
                    self._start(work, todo, numbers)
        finally:
            os.close(todo)
            os.close(numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of those that may still be at work."""
        return tuple(self._pids.values())

    def results(self) -> Iterator[tuple[int, bytes]]:
        """The number of each piece that got done, and its result, as they come."""
        with selectors.DefaultSelector() as selector:
            for descriptor in self._pids:
                selector.register(descriptor, selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, _READ)
                    if not data:
                        selector.unregister(key.fd)
                        self._reap(key.fd)
                        continue
                    key.data.extend(data)
                    yield from _whole(key.data)

    def end(self) -> None:
        """End what is still at work; nothing of it is of use any more."""
        for descriptor, pid in [*self._pids.items()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._reap(descriptor)

    def _start(self, work: Callable[[int], bytes], todo: int, numbers: int) -> None:
        results, out = os.pipe()
        if sys.platform == "linux":
            with suppress(OSError):  # more than this user may have
                fcntl.fcntl(results, fcntl.F_SETPIPE_SZ, _READ)
        try:
            pid = os.fork()
        except OSError:
            os.close(results)
            os.close(out)
            raise
        if pid == 0:
            # Its own ends only: a pipe that a worker holds for others would never end.
            for descriptor in (*self._pids, results, numbers):
                os.close(descriptor)
            _work(work, todo, out)
        os.close(out)
        self._pids[results] = pid

    def _reap(self, descriptor: int) -> None:
        pid = self._pids.pop(descriptor)
        os.close(descriptor)
        with suppress(ChildProcessError):  # somebody else waits for all children
            os.waitpid(pid, 0)


def _work(work: Callable[[int], bytes], todo: int, out: int) -> NoReturn:
    """A worker's life. It never returns to what the process did before, whose clean-up is not its own."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # Who takes a number takes all of it: reads from a pipe don't mix.
        while piece := os.read(todo, _NUMBER.size):
            (number,) = _NUMBER.unpack(piece)
            result = work(number)
            _write(out, _HEAD.pack(number, len(result)) + result)
        status = 0
    finally:
        os._exit(status)


def _write(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


def _whole(data: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take the results that are there as a whole."""
    start, whole = 0, memoryview(data)
    while len(data) - start >= _HEAD.size:
        number, length = _HEAD.unpack_from(data, start)
        end = start + _HEAD.size + length
        if len(data) < end:
            break
        yield number, bytes(whole[start + _HEAD.size : end])
        start = end
    whole.release()
    del data[:start]
