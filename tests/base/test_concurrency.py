"""Parallel tasks in threads: their number, the effect of an error, and the effect of an interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from reconciler.base.concurrency import MOST_THREADS, RunTasks, run_ahead, run_concurrently, run_in_order
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize(
    "run",
    [run_in_order, run_concurrently, partial(run_concurrently, most=1), partial(run_concurrently, most=3)],
)
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_each_task_is_run_once(run: RunTasks, count: int) -> None:
    assert sorted(run([lambda number=number: number for number in range(count)])) == [*range(count)]


def test_so_many_are_under_way_and_no_more() -> None:
    met = threading.Barrier(4)
    lock, now, most = threading.Lock(), 0, 0

    def task() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        met.wait(PATIENCE)
        with lock:
            now -= 1

    # The first task runs alone, because it makes the shared resources of the others.
    assert len([*run_concurrently([lambda: None, *[task] * 12], most=4)]) == 13
    assert most == 4
    assert MOST_THREADS > 4


def test_the_first_is_run_here_and_before_all_others() -> None:
    threads: list[threading.Thread] = []
    list(run_concurrently([lambda: threads.append(threading.current_thread())] * 6, most=3))
    assert threads[0] is threading.current_thread()
    assert threads[0] not in threads[1:]


def test_after_an_error_what_was_begun_ends_and_nothing_else_begins() -> None:
    failing, failed, ended = threading.Event(), list[threading.Thread](), list[str]()

    def slow() -> None:
        failing.wait(PATIENCE)
        failed[0].join(PATIENCE)
        ended.append("slow")

    def fails() -> None:
        failed.append(threading.current_thread())
        failing.set()
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        list(run_concurrently([lambda: None, slow, fails, *[lambda: ended.append("later")] * 50], most=2))
    assert ended == ["slow"]


def test_who_goes_no_further_begins_no_other() -> None:
    begun, held = list[int](), threading.Event()

    def task(number: int) -> Callable[[], int]:
        def run() -> int:
            begun.append(number)
            if number == 2:
                held.wait(PATIENCE)
            return number

        return run

    before = threading.active_count()
    answers = run_concurrently([task(number) for number in range(9)], most=1)
    assert [next(answers), next(answers)] == [0, 1]
    answers.close()  # type: ignore[attr-defined]  # it is a generator
    held.set()
    for thread in threading.enumerate()[before:]:
        thread.join(PATIENCE)
    assert begun in ([0, 1], [0, 1, 2])


def test_an_interrupt_is_raised_at_once_and_begins_no_other() -> None:
    begun, held = list[int](), threading.Event()

    def holds(number: int) -> int:
        begun.append(number)
        if len(begun) == 5:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        held.wait(PATIENCE)
        return number

    before = set(threading.enumerate())
    tasks: list[Callable[[], int]] = [lambda: 0, *[lambda number=n: holds(number) for n in range(1, 40)]]
    with pytest.raises(KeyboardInterrupt):
        list(run_concurrently(tasks, most=5))
    mine = [thread for thread in threading.enumerate() if thread not in before]
    assert len(mine) == 5
    assert all(thread.daemon for thread in mine), "the process's end would wait for them"
    held.set()
    for thread in mine:
        thread.join(PATIENCE)
    assert len(begun) == 5


@pytest.mark.parametrize("most", [1, 3, 100])
def test_results_are_yielded_in_order_when_tasks_run_ahead(most: int) -> None:
    ended = [threading.Event() for _ in range(min(most, 20))]

    def task(number: int) -> int:
        # Of those that run together at first, the last one ends first.
        if number + 1 < len(ended):
            assert ended[number + 1].wait(PATIENCE)
        if number < len(ended):
            ended[number].set()
        return number

    assert [*run_ahead((partial(task, number) for number in range(20)), most)] == [*range(20)]
    assert [*run_ahead(iter(()), most)] == []


def test_no_more_than_so_many_tasks_run_ahead_of_the_caller() -> None:
    begun: list[int] = []
    answers = run_ahead((partial(begun.append, number) for number in range(20)), 4)
    for number in range(3):
        next(answers)
        assert len(begun) <= number + 1 + 4


def test_no_task_begins_after_one_that_failed() -> None:
    begun: list[int] = []

    def task(number: int) -> int:
        begun.append(number)
        if number == 2:
            raise ValueError("second")
        return number

    answers = run_ahead((partial(task, number) for number in range(20)), 2)
    assert [next(answers), next(answers)] == [0, 1]
    with pytest.raises(ValueError, match="second"):
        next(answers)
    assert max(begun) <= 3
