"""One request, one answer, and the two ways in which there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from reconciler.base.errors import ServiceError

READ_METHODS = frozenset({"GET", "HEAD"})


class NotSentError(ServiceError):
    """The request certainly never left: no such host, refused, no TLS, or nothing that HTTP can carry."""


class NoAnswerError(ServiceError):
    """The request may have arrived: time ran out, the connection broke, or the answer wasn't a whole one."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request.

    Attributes:
        method: In capitals.
        url: Absolute and percent-encoded; sent as it is.
        headers: Left out of the text form, as they hold the token.
        body: Left out of the text form, as it may hold a manifest's environment variables.
        timeout: Seconds for the whole exchange, from the connection to the last byte of the answer.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One whole answer, whatever its status; header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Transport(Protocol):
    """Whatever sends a request at most once."""

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request` once; raises `NotSentError` or `NoAnswerError`, and nothing because of a status."""
        ...
