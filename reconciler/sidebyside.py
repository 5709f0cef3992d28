"""How several tasks are run: one after the other, or some of them side by side in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

Answer = TypeVar("Answer")

MOST = 8
"""Submissions under way at once.

One takes half a dozen requests, each of them less than half a second: three of them under way send the one
create a second that Vertex AI takes, and eight do where answers are slow. The embedded service writes one
thing at a time, so that more would wait there; and what is under way when a process is killed is what the
next one has to look for.
"""


class Together(Protocol):
    """Runs tasks, each once."""

    def __call__(self, tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
        """What each task gives, as it comes; raises what one of them raises, and begins none after that."""


def in_order(tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
    """What each task gives, one after the other, in this thread."""
    for task in tasks:
        yield task()


@dataclass(frozen=True, slots=True)
class _Ended(Generic[Answer]):
    """What became of a task."""

    answers: tuple[Answer, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Runs tasks in threads, in the order in which they are given, at most so many at once.

    Attributes:
        most: How many, at least 1.
    """

    most: int = MOST

    def __call__(self, tasks: Sequence[Callable[[], Answer]]) -> Iterator[Answer]:
        """What each task gives, as it comes.

        Once one raises anything, or the caller goes no further, none is begun any more. What was begun by
        then is waited for before the error is raised; but a caller that is interrupted waits for nothing, and
        neither does the end of the process.
        """
        if not tasks:
            return
        # The first alone, and here: what is made when it is first used (clients, connections, tokens) is
        # there for all others then, and one task needs no thread.
        yield tasks[0]()
        yield from _in_threads(tasks[1:], self.most)


def _in_threads(tasks: Sequence[Callable[[], Answer]], most: int) -> Iterator[Answer]:
    waiting, taking, stopped = iter(tasks), threading.Lock(), threading.Event()
    ended: SimpleQueue[_Ended[Answer] | None] = SimpleQueue()

    def work() -> None:
        try:
            while not stopped.is_set():
                with taking:
                    task = next(waiting, None)
                if task is None:
                    return
                ended.put(_Ended((task(),)))
        except BaseException as error:  # raised anew by whoever asked for the tasks
            stopped.set()
            ended.put(_Ended(error=error))
        finally:
            ended.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(most, len(tasks)))]
    errors: list[BaseException] = []
    try:
        for thread in threads:
            thread.start()
        at_work = len(threads)
        while at_work:
            one = ended.get()
            if one is None:
                at_work -= 1
            elif one.error is not None:
                errors.append(one.error)
            else:
                yield from one.answers
    finally:
        stopped.set()
    for error in errors:
        raise error
