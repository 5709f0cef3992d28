"""Request, response, and the errors of a request without a response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from reconciler.base.errors import ServiceError

READ_METHODS = frozenset({"GET", "HEAD"})


class NotSentError(ServiceError):
    """Error for a request that was certainly not sent: unknown host, refused, no TLS, or invalid in HTTP."""


class NoAnswerError(ServiceError):
    """Error for a request that may have arrived: timeout, broken connection, or incomplete response."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """HTTP request.

    Attributes:
        method: In capitals.
        url: Absolute and percent-encoded; sent unchanged.
        headers: Omitted from `repr`, as they contain the token.
        body: Omitted from `repr`, as it may contain a manifest's environment variables.
        timeout: Seconds for the whole exchange, from the connection to the last byte of the response.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Complete response of any status; header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Transport(Protocol):
    """Sender of requests, each at most once."""

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request` once; raises NotSentError or NoAnswerError, but no error for any status."""
        ...
