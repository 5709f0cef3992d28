"""Execution of tasks: in order, in threads, or in worker processes.

Worker processes share pure work; the share of a failed process stays undone. They are forks, so they start
with everything that is read and imported, and cost little: two processors save about a third of the time for
thousands of new manifests. The pools of the standard library add threads to the main process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future


Answer = TypeVar("Answer")

MOST_THREADS = 8
"""Most tasks at once, chosen for submissions.

A submission takes about six requests of less than half a second each. Three concurrent submissions reach the
limit of Vertex AI, one create per second; eight reach it when responses are slow. The embedded service writes
sequentially, so more submissions would only wait there, and every submission that a killed process leaves
unfinished is one that the next process has to look for.
"""


class RunTasks(Protocol):
    """Function that runs each task once."""

    def __call__(self, tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
        """Yield each task's result on completion; raise a task's error and start no task after it."""


def run_in_order(tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
    """Run the tasks sequentially in the caller's thread."""
    for task in tasks:
        yield task()


def run_concurrently(tasks: Sequence[Callable[[], Answer]], most: int = MOST_THREADS) -> Iterator[Answer]:
    """Run the tasks in threads, at most `most` at once; yield the results in order of completion.

    Tasks start in the given order. After a task raises, or the caller stops, no other task starts. The error
    is raised after the running tasks have ended. An interrupted caller and the end of the process wait for
    none.
    """
    from concurrent.futures import FIRST_COMPLETED, wait

    if not tasks:
        return
    # Clients, connections and tokens are created on first use: the first task creates them for all others,
    # and a single task needs no thread.
    yield tasks[0]()
    waiting = iter(tasks[1:])
    running = {_start(task) for task in islice(waiting, most)}
    error: BaseException | None = None
    while running:
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        error = error or next(filter(None, (each.exception() for each in ended)), None)
        if error is None:
            # Start tasks before yielding results: the caller may process each result slowly.
            running |= {_start(task) for task in islice(waiting, len(ended))}
        for each in ended:
            if each.exception() is None:
                yield each.result()
    if error is not None:
        raise error


def call_all(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Return each call's result, in order; each call runs in a thread of its own.

    All calls end before the error of the first failed call, in the given order, is raised.
    """
    from concurrent.futures import wait

    running = [_start(call) for call in calls]
    wait(running)
    return [each.result() for each in running]


def _start(task: Callable[[], Answer]) -> Future[Answer]:
    from concurrent.futures import Future

    # Not an executor: the process would wait for its threads at exit. It does not wait for daemon threads.
    future: Future[Answer] = Future()
    threading.Thread(target=_run, args=(task, future), daemon=True).start()
    return future


def _run(task: Callable[[], Answer], future: Future[Answer]) -> None:
    try:
        future.set_result(task())
    except BaseException as error:  # raised in the caller's thread
        future.set_exception(error)


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


class Workers:
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
