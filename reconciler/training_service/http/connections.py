"""Connections of the HTTP server: each request is authorized as soon as its head has arrived.

Waitress reads a whole request, into memory or a temporary file, before it calls the application, and it
holds as many silent connections as it accepts. Its parser and its channel are extended here in two ways:

- A refused request's body is never stored. The refusal is sent, and the connection closed.
- Connections that have not sent an authorized head are few and short, so that whoever can reach the port
  without a credential neither crowds out clients nor uses up file descriptors.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.task import WSGITask

from reconciler.training_service.http.message import Request, Responder, Response

MAX_HEAD = 64 * 1024
"""The largest head, in bytes: https://cloud.google.com/load-balancing/docs/quotas#https-lb-header-limits."""

PARSER = "reconciler.parser"
"""The key of the WSGI environment that holds the request's `Parser`."""

HEAD_SECONDS = 10.0
"""The time for the first head, from the connection's start. A client sends it at once."""

_DRAIN_SECONDS = 2.0
_DRAIN_BYTES = 1024 * 1024
_DRAIN_PIECE = 64 * 1024

Admit = Callable[[Request], Response | Responder]
"""Function that authorizes a request by its head: returns the refusal, or the whole request's responder."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most connections at once.

    Attributes:
        strangers: Connections that have sent no authorized head yet. A legitimate client sends its head
            before so many others are accepted after it, even if all of them are an attacker's.
        clients: Authorized connections. Each may also have two open files: its request's body and its answer.
    """

    strangers: int
    clients: int

    @classmethod
    def of_process(cls) -> Limits:
        """Return limits that leave file descriptors for the database, logs and jobs."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            files = 1024
        return cls(strangers=max(8, min(128, files // 8)), clients=max(8, min(256, files // 4)))


class Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """Incremental parser of one request.

    Attributes:
        respond: The responder of the whole request; set when the head is admitted.
    """

    respond: Responder

    def __init__(self, channel: Channel, adj: Any) -> None:
        super().__init__(adj)
        self._channel = channel

    def received(self, data: bytes) -> int:
        """Consume bytes of the request, and return how many belong to it."""
        consumed: int = super().received(data)
        if self.error is None:
            return consumed
        self._channel.leave()
        return len(data)  # discards the rest of the body: it must not be parsed as another request's head

    def parse_header(self, header_plus: bytes) -> None:
        """Parse and authorize the head, before the body is read and before `100 Continue` is sent."""
        try:
            super().parse_header(header_plus)
            head = self.request()
        except ValueError as error:  # a URL with "[" without "]", a length of 5,000 digits
            raise ParsingError("The request line or a header is invalid") from error
        found = self._channel.admit(head)
        if not isinstance(found, Response):
            self.respond = found
            return
        self.error = _Refusal(found)
        self.body_rcv = None
        self.expect_continue = False
        self.completed = True

    def request(self) -> Request:
        """Return the request; until its body has arrived, with an empty body."""
        headers = {name.replace("_", "-").lower(): value for name, value in self.headers.items()}
        base = f"http://{headers.get('host', '127.0.0.1')}"
        body = self.get_body_stream() if self.completed else b""
        return Request.of(self.command, self.request_uri, headers, body, base)


class _Refusal:
    """A refusal with the interface of waitress's own errors."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def to_response(self, ident: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return the status line, the headers and the body; `ident` is the server's name."""
        response = self._response
        return status_line(response.status), list(response.headers), response.content


class _Task(WSGITask):  # type: ignore[misc]
    """A task that passes the request's parser, and so its responder, to the application."""

    def get_environment(self) -> dict[str, Any]:
        """Return the WSGI environment."""
        environ: dict[str, Any] = super().get_environment()
        environ[PARSER] = self.request
        return environ


class Channel(HTTPChannel):  # type: ignore[misc]
    """Connection with limits on time, number and unauthorized content.

    Attributes:
        admitted: Whether the connection has sent an authorized head.
    """

    task_class = _Task
    admitted = False
    _leaving = False
    _draining = False
    _drained = 0

    def __init__(self, *args: Any, admit: Admit, limits: Limits, **more: Any) -> None:
        self._admit = admit
        self._limits = limits
        self._deadline = time.monotonic() + HEAD_SECONDS
        super().__init__(*args, **more)
        strangers = self._open(admitted=False)
        # Closing the oldest leaves the new connection, perhaps a client's, its time to send a head.
        if len(strangers) > limits.strangers:
            strangers[0].will_close = True

    def parser_class(self, adj: Any) -> Parser:
        """Return a parser for the next request."""
        return Parser(self, adj)

    def admit(self, head: Request) -> Response | Responder:
        """Authorize a head; the first authorized one makes the connection a client's."""
        found = self._admit(head)
        if isinstance(found, Response) or self.admitted:
            return found
        self.admitted = True
        clients = self._open(admitted=True)
        if len(clients) > self._limits.clients:
            # At least this connection has no request in work yet.
            stalest = min(
                (each for each in clients if not each.requests), key=lambda each: each.last_activity
            )
            stalest.will_close = True
        return found

    def leave(self) -> None:
        """Close the connection after the answer to the request that was just read."""
        self._leaving = True

    def readable(self) -> bool:
        """Return whether to wait for bytes; close the connection if its deadline has passed."""
        # Waitress calls this at least once a second, so it can watch the deadline.
        if not self.admitted and not self.requests and time.monotonic() >= self._deadline:
            self.will_close = True
        return self._draining or super().readable()

    def handle_read(self) -> None:
        """Read the available bytes."""
        if not self._draining:
            super().handle_read()
            return
        self._drained += len(self.recv(_DRAIN_PIECE))  # recv closes the channel if the client has
        if self._drained > _DRAIN_BYTES:
            self.handle_close()

    def handle_write(self) -> None:
        """Send pending output; close the connection if due."""
        if not self._leaving:
            super().handle_write()
            return
        self._flush_exception(self._flush_some_if_lockable)
        if self.will_close:
            self.handle_close()
        elif self.close_when_flushed and self.connected and not self.total_outbufs_len:
            self._drain()

    def handle_expt(self) -> None:
        """Close a connection with urgent data: HTTP has none, and it would wake the server without end."""
        self.will_close = True

    def _drain(self) -> None:
        # Closing a socket with unread bytes resets the connection, and the client might not see the answer.
        self.close_when_flushed = False
        self._draining = True
        self.admitted = False
        self._deadline = time.monotonic() + _DRAIN_SECONDS
        # Some systems refuse this once the client has gone.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def _open(self, *, admitted: bool) -> list[Channel]:
        """Return the open connections that are (not) admitted, oldest first."""
        channels = list(self.server.active_channels.values())  # a copy: other threads close some
        return [each for each in channels if each.admitted is admitted and not each.will_close]


def status_line(status: int) -> str:
    """Return the status and the reason phrase of a response's first line."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        # Python doesn't know 499, Cloud Storage's answer to the cancellation of a resumable upload.
        phrase = "Client Closed Request" if status == 499 else "Unknown"
    return f"{status} {phrase}"
