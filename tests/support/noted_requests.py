"""A session whose requests are noted, and of which a test can have some refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from msgspec.structs import replace

from reconciler.base.http import HttpRequest, HttpResponse, Transport
from reconciler.google.client import Connection
from reconciler.operations.session import Session


@dataclass
class NotedRequests:
    """A transport that notes every request before it sends it.

    Attributes:
        sent: The method and the decoded URL of each request, in their order.
        refused: The status of each refused request, by a part of its decoded URL.
        before: Called with the method and the decoded URL before each request is sent.
    """

    transport: Transport
    sent: list[tuple[str, str]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    before: Callable[[str, str], object] = lambda method, url: None

    def send(self, request: HttpRequest) -> HttpResponse:
        url = unquote(request.url)
        self.sent.append((request.method, url))
        for part, status in self.refused.items():
            if part in url:
                error = {"code": status, "message": f"refused with {status}"}
                return HttpResponse(status, {}, json.dumps({"error": error}).encode())
        self.before(request.method, url)
        return self.transport.send(request)

    def of(self, part: str) -> list[tuple[str, str]]:
        """Return the requests whose decoded URL has this part."""
        return [(method, url) for method, url in self.sent if part in url]


def noting_session(session: Session) -> tuple[Session, NotedRequests]:
    """Return a session with the same environment whose requests are noted, and the notes."""
    endpoint = session.connection.endpoint
    noted = NotedRequests(endpoint.transport)
    connection = Connection(replace(endpoint, transport=noted))
    return Session(session.config, session.environment, connection), noted
