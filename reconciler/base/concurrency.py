"""Functions that run tasks one after the other or in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import Protocol, TypeVar

Answer = TypeVar("Answer")

MOST = 8
"""Submissions under way at once.

One takes half a dozen requests, each of them less than half a second: three of them under way send the one
create a second that Vertex AI takes, and eight do where answers are slow. The embedded service writes one
thing at a time, so that more would wait there; and what is under way when a process is killed is what the
next one has to look for.
"""


class RunTasks(Protocol):
    """Runs tasks, each once."""

    def __call__(self, tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
        """Yield each task's result as it comes; raise a task's error and begin no task after it."""


def run_in_order(tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
    """Run the tasks one after the other in the caller's thread."""
    for task in tasks:
        yield task()


def run_concurrently(tasks: Sequence[Callable[[], Answer]], most: int = MOST) -> Iterator[Answer]:
    """Run the tasks in threads, begun in the given order, at most `most` at once; yield results as they come.

    Once a task raises, or the caller stops, no other task begins. The tasks that run by then end before the
    error is raised. An interrupted caller waits for none of them, and neither does the end of the process.
    """
    if not tasks:
        return
    # Clients, connections and tokens are made on first use: the first task makes them for all others. A
    # single task needs no thread.
    yield tasks[0]()
    waiting = iter(tasks[1:])
    running = {_start(task) for task in islice(waiting, most)}
    error: BaseException | None = None
    while running:
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        error = error or next(filter(None, (each.exception() for each in ended)), None)
        if error is None:
            # Before the results go out: the caller may take its time with them.
            running |= {_start(task) for task in islice(waiting, len(ended))}
        for each in ended:
            if each.exception() is None:
                yield each.result()
    if error is not None:
        raise error


def call_all(calls: Sequence[Callable[[], Answer]], *, threads: bool) -> list[Answer]:
    """Return each call's result, in order.

    Args:
        calls: Made one after the other without `threads`; with them, each in its own thread. Then all end
            before an error is raised, and it is that of the first call that failed in their order.
    """
    if not threads:
        return [call() for call in calls]
    running = [_start(call) for call in calls]
    wait(running)
    return [each.result() for each in running]


def _start(task: Callable[[], Answer]) -> Future[Answer]:
    # An executor's threads are joined when the process ends; daemon threads are not.
    future: Future[Answer] = Future()
    threading.Thread(target=_run, args=(task, future), daemon=True).start()
    return future


def _run(task: Callable[[], Answer], future: Future[Answer]) -> None:
    try:
        future.set_result(task())
    except BaseException as error:  # the caller raises it
        future.set_exception(error)
