"""HTTP server: waitress on loopback, and the conversion from WSGI to the service's requests.

Each request is authorized as soon as its head has arrived. Waitress reads a whole request, into memory or a
temporary file, before it calls the application, and it holds as many silent connections as it accepts. Its
parser and its channel are extended here in two ways:

- A refused request's body is never stored. The refusal is sent, and the connection closed.
- Connections that have not sent an authorized head are few and short, so that whoever can reach the port
  without a credential neither crowds out clients nor uses up file descriptors.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import waitress
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import BaseWSGIServer
from waitress.task import WSGITask

from reconciler.training_service.http.message import ApiError, Request, Responder, Response, error_response

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
        strangers = self._open_channels(admitted=False)
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
        clients = self._open_channels(admitted=True)
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

    def _open_channels(self, *, admitted: bool) -> list[Channel]:
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


class Activity:
    """Tracker of requests under way and of idle time; `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._under_way = 0
        self._last = monotonic()
        self._closed = False

    @contextmanager
    def request(self) -> Iterator[bool]:
        """Count a request as under way during the block; yield False if the service is closing."""
        with self._changed:
            taken = not self._closed
            self._under_way += taken
        try:
            yield taken
        finally:
            with self._changed:
                self._under_way -= taken
                self._last = self._monotonic()
                self._changed.notify_all()

    def note_work(self) -> None:
        """Reset the idle timer."""
        with self._changed:
            self._last = self._monotonic()

    def close_if_idle(self, seconds: float, has_work: Callable[[], bool]) -> bool:
        """Stop taking requests if the service was idle for `seconds`; return whether it was.

        Calls `has_work` while no request is under way and none can begin.
        """
        with self._changed:
            if self._under_way or self._monotonic() - self._last < seconds or has_work():
                return False
            self._closed = True
            return True

    def close(self, seconds: float) -> None:
        """Stop taking requests, and wait at most `seconds` for those under way."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._under_way, seconds)


HOST = "127.0.0.1"
THREADS = 8
_MAX_UPLOAD = 5 * 2**40  # Cloud Storage's largest object
_ACCEPTED_AT_ONCE = 8  # far below the limit of strangers: each is read once before it can be closed
_STOPPING = "The service is ending; ask again in a moment."


class Server:
    """HTTP server on a loopback port, from `start` until `close`."""

    def __init__(self, admit: Admit, activity: Activity, port: int = 0) -> None:
        self._activity = activity
        limits = Limits.of_process()
        listener = _bound_socket(port)
        self.port: int = listener.getsockname()[1]
        self._sockets: dict[int, wasyncore.dispatcher] = {}
        self._server: BaseWSGIServer = waitress.create_server(
            self._answer,
            map=self._sockets,
            sockets=[listener],
            threads=THREADS,
            ident="reconciler",
            max_request_body_size=_MAX_UPLOAD,
            max_request_header_size=MAX_HEAD,
            # Above the connections' own limits: at this one waitress would accept no client at all.
            connection_limit=limits.strangers + limits.clients + 16,
            asyncore_use_poll=True,
            clear_untrusted_proxy_headers=True,
        )
        self._server.channel_class = partial(Channel, admit=admit, limits=limits)
        self._accept_one = self._server.handle_accept
        self._server.handle_accept = self._accept_several
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)

    @property
    def url(self) -> str:
        """Return the server's URL."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Start the server's thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop serving, after waiting at most `seconds` for answers still being sent."""
        until = time.monotonic() + seconds
        while self._sending() and time.monotonic() < until:
            time.sleep(0.01)
        self._server.task_dispatcher.shutdown(timeout=max(0.0, until - time.monotonic()))
        wasyncore.close_all(self._sockets)

    def _accept_several(self) -> None:
        # Waitress accepts one connection per turn. In a flood the queue would stay full, and the kernel would
        # drop a client's attempts for seconds.
        for _ in range(_ACCEPTED_AT_ONCE):
            self._accept_one()

    def _sending(self) -> bool:
        channels = list(self._server.active_channels.values())
        return any(channel.requests or channel.total_outbufs_len for channel in channels)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        parser: Parser = environ[PARSER]
        request = parser.request()
        # Includes the handler's work, so that `close` waits for writes under way.
        with self._activity.request() as taken:
            response = (
                parser.respond(request)
                if taken
                else error_response(request, ApiError("UNAVAILABLE", _STOPPING))
            )
        start_response(status_line(response.status), _headers(response))
        if response.file is not None:
            wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](response.file)
            return wrapped
        return [response.content]


def _bound_socket(port: int) -> socket.socket:
    """Return a socket bound to the port, or to a free one if another process uses it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError:
        listener.bind((HOST, 0))
    return listener


def _headers(response: Response) -> list[tuple[str, str]]:
    headers = list(response.headers)
    bodiless = response.status in (204, 304)  # HTTP allows no Content-Length on these
    if response.file is None and not bodiless and not any(name == "Content-Length" for name, _ in headers):
        headers.append(("Content-Length", str(len(response.content))))
    return headers
