"""Repetition of reads that a busy server refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from reconciler.base.http.wire import (
    READ_METHODS,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
)

if TYPE_CHECKING:
    pass


BUSY_STATUSES = frozenset({429, 500, 502, 503, 504})
FIRST_DELAY = 1.0
LONGEST_DELAY = 64.0


class RetryingReads(Struct, frozen=True):
    """Transport that retries reads while the server is unreachable or busy, and sends other requests once.

    The delay doubles from 1 s, with half of it random. `retry-after` is obeyed up to 64 s; a response with a
    longer delay is returned without a retry.

    Attributes:
        transport: The transport of each attempt.
        sleep: Sleeps for a number of seconds.
        random: Returns a number from 0 to below 1.
        attempts: The maximum number of attempts for one read, at least 1.
    """

    transport: Transport
    sleep: Callable[[float], None]
    random: Callable[[], float]
    attempts: int = 4

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request`, a read up to `attempts` times.

        Raises:
            NotSentError, NoAnswerError: The last attempt failed.
        """
        for attempt in range(self.attempts - 1 if request.method in READ_METHODS else 0):
            delay = min(FIRST_DELAY * 2**attempt, LONGEST_DELAY) * (0.5 + 0.5 * self.random())
            try:
                response = self.transport.send(request)
            except (NotSentError, NoAnswerError):
                self.sleep(delay)
                continue
            asked = retry_after(response)
            if not _is_busy(response, asked) or (asked or 0) > LONGEST_DELAY:
                return response
            self.sleep(max(delay, asked or 0))
        return self.transport.send(request)


def retry_after(response: HttpResponse) -> float | None:
    """Return the delay in seconds that a response requests (RFC 9110, section 10.2.3), or None."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    from email.utils import parsedate_to_datetime

    # Compare a time of day with the response's own `date`, as this machine's clock may be wrong.
    try:
        until = parsedate_to_datetime(text)
        return max(0.0, (until - parsedate_to_datetime(response.headers.get("date", ""))).total_seconds())
    except (TypeError, ValueError, OverflowError):  # the last for a year beyond 9999
        return None


def _is_busy(response: HttpResponse, asked: float | None) -> bool:
    # GitHub's secondary rate limit is a 403 with `retry-after`; any other 403 is permanent.
    return response.status in BUSY_STATUSES or (response.status == 403 and asked is not None)
