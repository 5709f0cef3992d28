"""Sending again, only what does no harm when it arrives twice."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from reconciler.base.http.message import (
    READ_METHODS,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
)

BUSY_STATUSES = frozenset({429, 500, 502, 503, 504})
FIRST_DELAY = 1.0
LONGEST_DELAY = 64.0


class RetryingReads(Struct, frozen=True):
    """A transport that repeats reads as `send_idempotent` does, and sends everything else once.

    Attributes:
        transport: What sends.
        sleep: Waits for a number of seconds.
        random: Gives a number from 0 to below 1.
        attempts: Requests in all for one read.
    """

    transport: Transport
    sleep: Callable[[float], None]
    random: Callable[[], float]
    attempts: int = 4

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request`; a read possibly several times."""
        if request.method not in READ_METHODS:
            return self.transport.send(request)
        return send_idempotent(
            self.transport, request, attempts=self.attempts, sleep=self.sleep, random=self.random
        )


def send_idempotent(
    transport: Transport,
    request: HttpRequest,
    *,
    attempts: int = 4,
    sleep: Callable[[float], None],
    random: Callable[[], float],
) -> HttpResponse:
    """Send a request that does no harm when it arrives twice, again while the server is away or busy.

    The delay doubles from 1 s, half of it left to chance. `retry-after` is obeyed up to 64 s; an answer that
    asks for more is returned as it is.

    Args:
        attempts: Requests in all, at least 1.
        sleep: Waits for a number of seconds.
        random: Gives a number from 0 to below 1.

    Raises:
        NotSentError, NoAnswerError: What the last attempt ended with.
    """
    for attempt in range(attempts - 1):
        delay = min(FIRST_DELAY * 2**attempt, LONGEST_DELAY) * (0.5 + 0.5 * random())
        try:
            response = transport.send(request)
        except (NotSentError, NoAnswerError):
            sleep(delay)
            continue
        asked = retry_after(response)
        if not _is_busy(response, asked) or (asked or 0) > LONGEST_DELAY:
            return response
        sleep(max(delay, asked or 0))
    return transport.send(request)


def retry_after(response: HttpResponse) -> float | None:
    """The seconds that the answer asks to wait (RFC 9110, section 10.2.3); None where it doesn't ask.

    A time of day there is compared with the answer's own `date`, so that this machine's clock doesn't matter.
    """
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    from email.utils import parsedate_to_datetime

    try:
        until = parsedate_to_datetime(text)
        return max(0.0, (until - parsedate_to_datetime(response.headers.get("date", ""))).total_seconds())
    except (TypeError, ValueError, OverflowError):  # the last for a year that no date can hold
        return None


def _is_busy(response: HttpResponse, asked: float | None) -> bool:
    # GitHub's secondary limit is a 403 that names a time; no other 403 gets better by itself.
    return response.status in BUSY_STATUSES or (response.status == 403 and asked is not None)
