"""Conditions for the end of the service: no request under way, and no work to do."""

from __future__ import annotations

import threading

from reconciler.training_service.http.server import Activity


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def no_work() -> bool:
    return False


def test_idleness_counts_from_the_last_request_or_work() -> None:
    time = Seconds()
    activity = Activity(time)
    time.now += 59
    assert not activity.close_if_idle(60, no_work)
    with activity.request() as taken:
        assert taken
        time.now += 1000
        assert not activity.close_if_idle(60, no_work)
    time.now += 59
    assert not activity.close_if_idle(60, no_work)
    activity.note_work()
    time.now += 59
    assert not activity.close_if_idle(60, no_work)
    time.now += 1
    assert not activity.close_if_idle(60, lambda: True)
    assert activity.close_if_idle(60, no_work)


def test_a_closed_service_takes_no_requests() -> None:
    activity = Activity(Seconds())
    assert activity.close_if_idle(0, no_work)
    with activity.request() as taken:
        assert not taken


def test_closing_waits_for_the_requests_under_way() -> None:
    activity = Activity()
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def request() -> None:
        with activity.request():
            begun.set()
            go_on.wait(10)
        ended.set()

    threading.Thread(target=request).start()
    assert begun.wait(10)
    activity.close(0)  # waits no longer than its argument
    assert not ended.is_set()
    threading.Timer(0.05, go_on.set).start()
    activity.close(10)
    assert go_on.is_set()
    assert ended.wait(10)
