"""Correctness of the fault proxy, on which the tests behind it depend."""

from __future__ import annotations

from collections import Counter

import pytest

from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse, NoAnswerError
from tests.support.fault_proxy import Fault, FaultProxy, Rule
from tests.support.raw_server import RawServer, send_then_close

ARRIVES = {
    Fault.PASS,
    Fault.UNANSWERED,
    Fault.RESET,
    Fault.HALVED,
    Fault.LATE,
    Fault.PAGE_AFTER,
    Fault.DRIPPED,
}
ANSWER = send_then_close(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n" + b"{}" * 500)
STATUSES = {
    Fault.PASS: 201,
    Fault.DRIPPED: 201,
    Fault.PAGE: 502,
    Fault.PAGE_AFTER: 502,
    Fault.BUSY: 503,
    Fault.QUOTA: 429,
    Fault.DENIED: 403,
}


def outcome(proxy: FaultProxy, method: str = "POST", path: str = "/v1/jobs") -> HttpResponse | None:
    try:
        return DirectTransport().send(HttpRequest(method, proxy.url + path, body=b'{"a": 1}'))
    except NoAnswerError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("fault", Fault)
def test_each_fault_is_what_it_is_called(fault: Fault) -> None:
    with RawServer([ANSWER]).running() as server:
        with FaultProxy(server.url, rules=[Rule("POST", "", {fault: 1.0})]).running() as proxy:
            response = outcome(proxy)
            proxy.settle()
        assert (response.status if response else None) == STATUSES.get(fault)
        assert [request.body for request in server.arrived] == [b'{"a": 1}'] * (fault in ARRIVES)
        assert [(post.fault, post.forwarded) for post in proxy.posts] == [(fault, fault in ARRIVES)]
        assert proxy.counts == {fault: 1}
        assert fault in proxy.report()
        if response and response.status == 201:
            assert response.body == b"{}" * 500


def test_the_same_seed_does_the_same_and_another_does_not() -> None:
    def fates(seed: int) -> list[Fault]:
        chances = dict.fromkeys((Fault.DROPPED, Fault.BUSY, Fault.HALVED), 0.25)
        with (
            RawServer([ANSWER]).running() as server,
            FaultProxy(server.url, seed, [Rule("POST", "/v1/", chances)]).running() as proxy,
        ):
            for _ in range(20):
                outcome(proxy)
            return [post.fault for post in proxy.posts]

    assert fates(1) == fates(1) != fates(2)
    assert len(Counter(fates(1))) == 4


def test_a_rule_is_about_its_requests_and_ends_when_the_proxy_calms() -> None:
    with (
        RawServer([ANSWER]).running() as server,
        FaultProxy(server.url, rules=[Rule("POST", "/jobs$", {Fault.PAGE: 1.0})]).running() as proxy,
    ):
        statuses = [outcome(proxy, *asked) for asked in (("POST", "/jobs"), ("GET", "/jobs"), ("POST", "/b"))]
        assert [told.status for told in statuses if told] == [502, 201, 201]
        proxy.calm()
        told = outcome(proxy, "POST", "/jobs")
        assert told is not None
        assert told.status == 201


def test_acts_come_at_their_moment_and_before_what_follows() -> None:
    with RawServer([ANSWER]).running() as server, FaultProxy(server.url).running() as proxy:
        arrived: list[tuple[int, int]] = []
        for moment in (1, 2, 3, 4):
            proxy.after(moment, lambda: arrived.append((proxy.moments, len(server.arrived))))
        outcome(proxy)
        outcome(proxy)
        assert arrived == [(1, 0), (2, 1), (3, 1), (4, 2)]


def test_without_a_service_the_connection_ends() -> None:
    with RawServer([ANSWER]).running() as server:
        gone = server.url
    with FaultProxy(gone).running() as proxy:
        assert outcome(proxy) is None
