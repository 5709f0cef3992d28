"""Processes that share pure work: each takes the next piece; pieces of a failed process stay undone.

Forks start with everything that is read and imported, and cost little. The pools of the standard library
start threads in the main process, after which forking is unsafe.
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
from typing import NoReturn, Self

MOST = 4
"""Most processes: decoding the results is the main process's work, and isn't shared."""

_NUMBER = struct.Struct("<I")
_HEAD = struct.Struct("<II")
# The numbers of all pieces have to fit into a pipe (64 KiB on Linux) before a worker reads any.
_MAX_PIECES = 10_000
_READ = 1 << 20


def count_of_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Return True if a fork is safe: with no other thread, which may hold a lock, and not on macOS."""
    return hasattr(os, "fork") and sys.platform != "darwin" and threading.active_count() == 1


class Workers:
    """Worker processes, started at once; leaving the context ends them.

    Args:
        pieces: Number of pieces of work, numbered from 0.
        work: Does one piece and returns its result. It runs in the workers; an exception ends the worker.
        count: Number of processes; those that can't be started are left out.
    """

    def __init__(self, pieces: int, work: Callable[[int], bytes], count: int) -> None:
        self._pids: dict[int, int] = {}  # by the descriptor of the process's results
        if pieces > _MAX_PIECES:
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

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes that may still be running."""
        return tuple(self._pids.values())

    def results(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number and result of each finished piece, as they arrive."""
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
                    yield from _complete_results(key.data)

    def end(self) -> None:
        """Kill the running processes and drop their results."""
        for descriptor, pid in [*self._pids.items()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._reap(descriptor)

    def _start(self, work: Callable[[int], bytes], todo: int, numbers: int) -> None:
        results, out = os.pipe()
        if sys.platform == "linux":
            with suppress(OSError):  # above the user's limit for pipes: slower, but enough
                fcntl.fcntl(results, fcntl.F_SETPIPE_SZ, _READ)
        try:
            pid = os.fork()
        except OSError:
            os.close(results)
            os.close(out)
            raise
        if pid == 0:
            # A worker that kept another worker's pipe open would hide that worker's end from the reader.
            for descriptor in (*self._pids, results, numbers):
                os.close(descriptor)
            _run_worker(work, todo, out)
        os.close(out)
        self._pids[results] = pid

    def _reap(self, descriptor: int) -> None:
        pid = self._pids.pop(descriptor)
        os.close(descriptor)
        with suppress(ChildProcessError):  # a caller that waits for all children was faster
            os.waitpid(pid, 0)


def _run_worker(work: Callable[[int], bytes], todo: int, out: int) -> NoReturn:
    """Run a worker; never return to the caller, whose clean-up belongs to the main process."""
    status = 1
    try:
        # The main process's handlers and wake-up descriptor must not act in a worker.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # All workers share this pipe; reads of a few bytes are atomic, so that each takes a whole number.
        while piece := os.read(todo, _NUMBER.size):
            (number,) = _NUMBER.unpack(piece)
            result = work(number)
            _write_all(out, _HEAD.pack(number, len(result)) + result)
        status = 0
    finally:
        os._exit(status)


def _write_all(out: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


def _complete_results(data: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take the complete results out of the buffer."""
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
