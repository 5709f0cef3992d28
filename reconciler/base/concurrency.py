"""Execution of tasks, in order or in threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

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
        error = error or next(filter(None, (future.exception() for future in ended)), None)
        if error is None:
            # Start tasks before yielding results: the caller may process each result slowly.
            running |= {_start(task) for task in islice(waiting, len(ended))}
        for future in ended:
            if future.exception() is None:
                yield future.result()
    if error is not None:
        raise error


def run_ahead(tasks: Iterable[Callable[[], Answer]], most: int = MOST_THREADS) -> Iterator[Answer]:
    """Run the tasks in threads, at most `most` at once, and yield their results in the given order.

    No more than `most` results wait for the caller. Tasks start in the given order; after a task raises, or
    the caller stops, no other task starts.
    """
    waiting = iter(tasks)
    running = deque(_start(task) for task in islice(waiting, most))
    while running:
        answer = running.popleft().result()
        running.extend(_start(task) for task in islice(waiting, 1))
        yield answer


def call_all(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Return each call's result, in order; each call runs in a thread of its own.

    All calls end before the error of the first failed call, in the given order, is raised.
    """
    from concurrent.futures import wait

    running = [_start(call) for call in calls]
    wait(running)
    return [future.result() for future in running]


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
