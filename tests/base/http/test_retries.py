"""Repeated reads: their conditions, number and delays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.base.errors import ServiceError
from reconciler.base.http import (
    DirectTransport,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    RetryingReads,
    retry_after,
)
from tests.support.raw_server import RawServer, answer, request_to, reset, send_then_close


def test_reads_are_repeated_until_the_server_is_back(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(503), reset, answer(429, b"", retry_after="7"), answer(200, b"[]"))
    waited: list[float] = []
    reads = RetryingReads(transport, sleep=waited.append, random=lambda: 0.0)
    response = reads.send(request_to(server, "GET"))
    assert (response.status, response.body) == (200, b"[]")
    assert waited == [0.5, 1.0, 7.0]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(
    status: int, transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(status), answer(status), answer(status), answer())
    reads = RetryingReads(transport, sleep=lambda _: None, random=lambda: 0.0)
    assert reads.send(request_to(server, "GET")).status == 200


@pytest.mark.parametrize("status", [200, 304, 400, 401, 403, 404, 409, 501])
def test_an_answer_that_wont_change_is_returned_at_once(
    status: int, transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(status, b""))
    reads = RetryingReads(transport, sleep=pytest.fail, random=lambda: 0.0)
    assert reads.send(request_to(server, "GET")).status == status
    assert len(server.arrived) == 1


def test_a_403_that_names_a_time_is_waited_for(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(403, b"{}", retry_after="60"), answer())
    waited: list[float] = []
    reads = RetryingReads(transport, sleep=waited.append, random=lambda: 0.9)
    assert reads.send(request_to(server, "GET")).status == 200
    assert waited == [60.0]


def test_nobody_waits_for_longer_than_about_a_minute(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(429, b"", retry_after="65"))
    reads = RetryingReads(transport, sleep=pytest.fail, random=lambda: 0.0)
    assert reads.send(request_to(server, "GET")).status == 429


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_writes_are_never_repeated(
    method: str, transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(503, b"", retry_after="1"))
    reads = RetryingReads(transport, sleep=pytest.fail, random=lambda: 0.0)
    assert reads.send(HttpRequest(method, server.url, body=b"{}")).status == 503
    assert len(server.arrived) == 1


def test_the_last_attempt_decides(transport: DirectTransport, serve: Callable[..., RawServer]) -> None:
    server = serve(answer(503), answer(503), send_then_close(b""))
    reads = RetryingReads(transport, sleep=lambda _: None, random=lambda: 0.0, attempts=3)
    with pytest.raises(NoAnswerError):
        reads.send(request_to(server, "GET"))
    assert len(server.arrived) == 3


class Always:
    """A transport that gives the same answer, or error, each time."""

    def __init__(self, given: HttpResponse | ServiceError) -> None:
        self.given, self.sent = given, 0

    def send(self, request: HttpRequest) -> HttpResponse:
        self.sent += 1
        if isinstance(self.given, ServiceError):
            raise self.given
        return self.given


@given(
    attempts=st.integers(1, 12),
    chance=st.floats(0, 1, exclude_max=True),
    given_each=st.sampled_from([NotSentError("x"), NoAnswerError("x"), 429, 500, 503]),
    asked=st.one_of(st.none(), st.integers(0, 64)),
)
def test_the_delays_grow_have_chance_and_an_end(
    attempts: int, chance: float, given_each: ServiceError | int, asked: int | None
) -> None:
    headers = {} if asked is None else {"retry-after": str(asked)}
    busy = HttpResponse(given_each, headers, b"") if isinstance(given_each, int) else given_each
    transport, waited = Always(busy), list[float]()
    reads = RetryingReads(transport, waited.append, lambda: chance, attempts)
    with suppress(ServiceError):
        reads.send(HttpRequest("GET", "http://x/"))
    assert transport.sent == attempts
    assert len(waited) == attempts - 1
    wanted = 0 if isinstance(busy, ServiceError) else asked or 0
    for number, delay in enumerate(waited):
        assert delay >= max(wanted, min(2**number, 64) / 2)
        assert delay <= max(wanted, min(2**number, 64))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": " 120 "}, 120.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "²"}, None),
        ({"retry-after": "soon"}, None),
        (
            {
                "retry-after": "Sat, 21 Nov 99999999999 10:00:30 GMT",
                "date": "Sat, 21 Nov 2026 10:00:00 GMT",
            },
            None,
        ),
        (
            {
                "retry-after": "Sat, 21 Nov 2026 10:00:30 GMT",
                "date": "Sat, 21 Nov 99999999999 10:00:00 GMT",
            },
            None,
        ),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT"}, None),
        (
            {
                "retry-after": "Sat, 21 Nov 2026 10:00:30 GMT",
                "date": "Sat, 21 Nov 2026 10:00:00 GMT",
            },
            30.0,
        ),
        (
            {
                "retry-after": "Sat, 21 Nov 2026 09:00:00 GMT",
                "date": "Sat, 21 Nov 2026 10:00:00 GMT",
            },
            0.0,
        ),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(HttpResponse(429, headers, b"")) == seconds


@given(st.text(), st.text())
def test_retry_after_takes_any_text(wanted: str, date: str) -> None:
    seconds = retry_after(HttpResponse(429, {"retry-after": wanted, "date": date}, b""))
    assert seconds is None or seconds >= 0
