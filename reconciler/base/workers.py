"""Worker processes share pure work; the share of a failed process stays undone.

They are forks, so they start with everything that is read and imported, and cost little: two processors save
about a third of the time for thousands of new manifests. The pools of the standard library add threads to the
main process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    pass


MOST_PROCESSES = 4
"""Most processes, with the main one: decoding the results is the main process's work, and isn't shared."""


def process_count() -> int:
    """Return the number of processes that may share work, the main one included."""
    return min(count_of_processors(), MOST_PROCESSES) if can_fork() else 1


def count_of_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Return True if a fork is safe: with no other thread, which may hold a lock, and not on macOS."""
    return hasattr(os, "fork") and sys.platform != "darwin" and threading.active_count() == 1


class WorkerProcesses:
    """Worker processes, started at once; leaving the context ends them.

    Args:
        work: Does one share of the work and returns its result. It runs in the workers; an exception ends the
            worker.
        shares: The numbers of the shares, each for a worker of its own. Those whose worker can't be started
            are left out.
    """

    def __init__(self, work: Callable[[int], bytes], shares: Iterable[int]) -> None:
        self._started: dict[int, tuple[int, int]] = {}  # share -> process id, descriptor of its result
        for share in shares:
            with suppress(OSError):  # no more processes, or no more descriptors
                self._started[share] = _fork(work, share)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for share, (pid, _descriptor) in [*self._started.items()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._reap(share)

    def results(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and result of each finished share."""
        for share, (_pid, descriptor) in [*self._started.items()]:
            with open(descriptor, "rb", closefd=False) as result:
                data = result.read()
            if self._reap(share) == 0:
                yield share, data

    def _reap(self, share: int) -> int | None:
        """Return the exit status of a worker; None if it is unknown."""
        pid, descriptor = self._started.pop(share)
        os.close(descriptor)
        with suppress(ChildProcessError):  # a caller that waits for all children was faster
            return os.waitpid(pid, 0)[1]
        return None


def _fork(work: Callable[[int], bytes], share: int) -> tuple[int, int]:
    result, out = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _run_worker(work, share, out)
    except OSError:
        os.close(result)
        raise
    finally:
        # A later worker that kept this pipe open would hide the end of this worker from the reader.
        os.close(out)
    return pid, result


def _run_worker(work: Callable[[int], bytes], share: int, out: int) -> NoReturn:
    """Run a worker; never return to the caller, whose clean-up belongs to the main process."""
    status = 1
    try:
        # The main process's handlers and wake-up descriptor must not act in a worker.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        with open(out, "wb", closefd=False) as file:
            file.write(work(share))
        status = 0
    finally:
        os._exit(status)
