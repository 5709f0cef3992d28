"""HTTP server: waitress on a socket of loopback, and the conversion from WSGI to requests and responses.

Each request is judged as soon as its head has arrived. Waitress reads a whole request, into memory or a
temporary file, before it calls the application, and it holds as many silent connections as it accepts. Its
parser and its channel are extended here in three ways:

- A request that its head doesn't admit is answered at once by the thread that reads, so that the answer waits
  for no admitted request. Its body is never stored, and its connection is closed.
- Connections that have not sent an admitted head are few and short, so that whoever can reach the port
  without a credential neither crowds out clients nor uses up file descriptors.
- No path gets into a log: it may be a secret.
"""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import waitress
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import BaseWSGIServer
from waitress.task import ErrorTask, WSGITask
from waitress.utilities import find_double_newline

from reconciler.base.listener.message import Admit, Request, Responder, Response

MAX_HEAD = 64 * 1024
"""The largest head, in bytes: https://cloud.google.com/load-balancing/docs/quotas#https-lb-header-limits."""

PARSER = "reconciler.parser"
"""The key of the WSGI environment that holds the request's `RequestParser`."""

HEAD_SECONDS = 10.0
"""The time for the first head, from the connection's start. A client sends it at once."""

_DRAIN_SECONDS = 2.0
_DRAIN_BYTES = 1024 * 1024
_DRAIN_PIECE = 64 * 1024

Headers = tuple[tuple[str, str], ...]
"""Names and values of headers."""

# Their messages are about clients, or that all threads are busy. Without a handler, Python would print the
# others among a command's events; the service's log gets them.
logging.getLogger("waitress").addHandler(logging.NullHandler())
logging.getLogger("waitress.queue").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The most connections at once.

    Attributes:
        strangers: Connections that have sent no admitted head yet. A legitimate client sends its head
            before so many others are accepted after it, even if all of them are an attacker's.
        clients: Admitted connections. Each may also have two open files: its request's body and its answer.
    """

    strangers: int
    clients: int

    @classmethod
    def of_process(cls) -> ListenerLimits:
        """Return limits that leave file descriptors for all else that the process does."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            files = 1024
        return cls(strangers=max(8, min(128, files // 8)), clients=max(8, min(256, files // 4)))


class RequestParser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """Incremental parser of one request.

    Attributes:
        respond: The responder of the whole request; set when the head is admitted.
        command: The method; "" until it is known.
    """

    respond: Responder
    command = ""

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
        """Parse and judge the head, before the body is read and before `100 Continue` is sent."""
        try:
            super().parse_header(header_plus)
            head = self.request()
        except ValueError as error:  # a URL with "[" without "]", a length of 5,000 digits
            raise ParsingError("The request line or a header is invalid") from error
        self.path = "/"  # waitress logs it
        answer = self._channel.admit(head)
        if not isinstance(answer, Response):
            self.respond = answer
            return
        self.error = _AtOnce(answer)
        self.body_rcv = None
        self.content_length = 0
        self.expect_continue = False
        self.completed = True

    def request(self) -> Request:
        """Return the request; until its body has arrived, with an empty body."""
        headers = {name.replace("_", "-").lower(): value for name, value in self.headers.items()}
        base = f"http://{headers.get('host', '127.0.0.1')}"
        body = self.get_body_stream() if self.completed else b""
        return Request.of(self.command, self.request_uri, headers, body, base)


class _AtOnce:
    """An answer at once, with the interface of waitress's own errors."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def to_response(self, ident: str) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return the status line, the headers and the body; `ident` is the server's name."""
        response = self._response
        return status_line(response.status), list(response.headers), response.content


class _AtOnceTask(ErrorTask):  # type: ignore[misc]
    """A task that sends an answer at once, or waitress's own refusal of a request that it can't read."""

    def execute(self) -> None:
        """Send the answer, with the listener's headers; without its body for HEAD."""
        status, headers, body = self.request.error.to_response(self.channel.server.adj.ident)
        self.status = status
        self.response_headers += [*headers, *self.channel.headers]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(b"" if self.request.command == "HEAD" else body)


class _Task(WSGITask):  # type: ignore[misc]
    """A task that passes the request's parser, and so its responder, to the application."""

    def get_environment(self) -> dict[str, Any]:
        """Return the WSGI environment."""
        environ: dict[str, Any] = super().get_environment()
        environ[PARSER] = self.request
        return environ


class Channel(HTTPChannel):  # type: ignore[misc]
    """Connection with limits on time, number and content of requests that are not admitted.

    Attributes:
        admitted: Whether the connection has sent an admitted head.
        headers: The headers of every answer at once.
        due: Whether an answer at once waits to be sent.
        draining: Whether the answer was sent, and what the client still sends is thrown away.
    """

    task_class = _Task
    error_task_class = _AtOnceTask
    admitted = False
    due = False
    _leaving = False
    draining = False
    _drained = 0

    def __init__(
        self, *args: Any, admit: Admit, limits: ListenerLimits, headers: Headers, **more: Any
    ) -> None:
        self._admit = admit
        self._limits = limits
        self.headers = headers
        self._deadline = time.monotonic() + HEAD_SECONDS
        super().__init__(*args, **more)

    def parser_class(self, adj: Any) -> RequestParser:
        """Return a parser for the next request."""
        return RequestParser(self, adj)

    def admit(self, head: Request) -> Response | Responder:
        """Judge a head; the first admitted one makes the connection a client's."""
        answer = self._admit(head)
        if isinstance(answer, Response) or self.admitted:
            return answer
        self.admitted = True
        clients = _open_channels(self.server, admitted=True)
        if len(clients) > self._limits.clients:
            # At least this connection has no request in work yet.
            stalest = min(
                (channel for channel in clients if not channel.requests),
                key=lambda channel: channel.last_activity,
            )
            stalest.will_close = True
        return answer

    def leave(self) -> None:
        """Close the connection after the answer to the request that was just read."""
        self._leaving = True

    def readable(self) -> bool:
        """Return whether to wait for bytes; close the connection if its deadline has passed."""
        # Waitress calls this at least once a second, so it can watch the deadline.
        if not self.admitted and not self.requests and time.monotonic() >= self._deadline:
            self.will_close = True
        return self.draining or super().readable()

    def handle_read(self) -> None:
        """Read the available bytes."""
        if not self.draining:
            super().handle_read()
            if self.due:
                self.due = False
                self.service()
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
        self.draining = True
        self.admitted = False
        self._deadline = time.monotonic() + _DRAIN_SECONDS
        # Some systems refuse this once the client has gone.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)


def _open_channels(server: BaseWSGIServer, *, admitted: bool) -> list[Channel]:
    """Return the open connections that are (not) admitted, oldest first."""
    channels = list(server.active_channels.values())  # a copy: other threads close some
    return [channel for channel in channels if channel.admitted is admitted and not channel.will_close]


_Accepted = tuple[socket.socket, Any]
"""A connection and its address."""


def _thin(newest: deque[_Accepted], with_head: list[_Accepted], most: int) -> None:
    """Close the oldest connections above `most`; move those whose head waits."""
    while len(newest) > most:
        oldest = newest.popleft()
        if _has_head(oldest[0]):
            with_head.append(oldest)
        else:
            oldest[0].close()


def _has_head(connection: socket.socket | None) -> bool:
    """Return True if a whole head waits to be read; with a broken or closed connection, False."""
    if connection is None:
        return False
    with suppress(OSError):
        waiting = connection.recv(MAX_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return bool(find_double_newline(waiting) >= 0)
    return False


def status_line(status: int) -> str:
    """Return the status and the reason phrase of a response's first line."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        # Python doesn't know 499, Cloud Storage's answer to the cancellation of a resumable upload.
        phrase = "Client Closed Request" if status == 499 else "Unknown"
    return f"{status} {phrase}"


THREADS = 8
_QUEUE = 4096
"""Connections that the kernel keeps until they are accepted; others try again after a second."""
_PAUSE = 0.05
_ENDS_WITHIN = 5.0


class Listener:
    """HTTP server on a bound socket, from `start` until `close`.

    Args:
        bound: The socket; the listener closes it.
        admit: Judges each request by its head; called by the thread that reads all connections.
        max_body: The number of bytes from which a request's body is refused.
        headers: The headers of every response.
    """

    def __init__(self, bound: socket.socket, admit: Admit, *, max_body: int, headers: Headers = ()) -> None:
        self.port: int = bound.getsockname()[1]
        self._limits = limits = ListenerLimits.of_process()
        self._headers = headers
        self._sockets: dict[int, wasyncore.dispatcher] = {}
        self._server: BaseWSGIServer = waitress.create_server(
            self._answer,
            map=self._sockets,
            sockets=[bound],
            threads=THREADS,
            backlog=_QUEUE,
            ident="reconciler",
            max_request_body_size=max_body,
            max_request_header_size=MAX_HEAD,
            # Above the connections' own limits: at this one waitress would accept no client at all.
            connection_limit=2 * limits.strangers + limits.clients,
            asyncore_use_poll=True,
            clear_untrusted_proxy_headers=True,
        )
        self._server.channel_class = partial(Channel, admit=admit, limits=limits, headers=headers)
        self._server.handle_accept = self._accept
        self._server.add_task = self._add_task
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)

    def start(self) -> None:
        """Start the server's thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop serving, after waiting at most `seconds` for answers still being sent."""
        until = time.monotonic() + seconds
        while self._sending() and time.monotonic() < until:
            time.sleep(0.01)
        self._server.task_dispatcher.shutdown(timeout=max(0.0, until - time.monotonic()))
        # By the thread that uses the sockets.
        self._server.trigger.pull_trigger(self._close_sockets)
        self._thread.join(_ENDS_WITHIN)
        self._server.trigger.close()

    def _close_sockets(self) -> None:
        """Close all sockets, which ends the thread; but not the trigger, to which `close` may be writing."""
        for dispatcher in list(self._sockets.values()):
            with suppress(OSError):
                if dispatcher is self._server:
                    wasyncore.dispatcher.close(dispatcher)  # its own method closes the trigger too
                elif dispatcher is not self._server.trigger:
                    dispatcher.close()
        self._sockets.clear()

    def _accept(self) -> None:
        """Accept the connections that wait; close the oldest of too many that have sent no whole head."""
        # Waitress accepts one connection in a turn. In a flood the queue would stay full, and the kernel
        # would drop a client's attempts for seconds. Most of a flood ends here, where it costs little.
        server, most = self._server, self._limits.strangers
        newest: deque[_Accepted] = deque()
        with_head: list[_Accepted] = []
        missing = accepted = 0
        for accepted in range(_QUEUE):
            try:
                newest.append(server.socket.accept())
            except BlockingIOError:
                break  # the queue is empty
            except OSError:
                # The process has no descriptor left, which is an error before an empty queue is one.
                missing = int(not accepted)
                break
            _thin(newest, with_head, most)
            if len(with_head) > most // 8:
                break
        if accepted > most:
            # In a flood, those that are connected already stay for another turn, in which a head may come.
            _thin(newest, with_head, max(most // 2, most - len(_open_channels(server, admitted=False))))
        for connection, address in (*with_head, *newest):
            # An error that left this method would end the whole server.
            try:
                server.set_socket_options(connection)
                server.channel_class(server, connection, address, server.adj, map=self._sockets)
            except (OSError, MemoryError):
                connection.close()
        self._make_room(most, missing)

    def _make_room(self, most: int, missing: int) -> None:
        """Close the oldest strangers above `most`, `missing` at least, and none whose head waits."""
        strangers = _open_channels(self._server, admitted=False)
        too_many = max(missing, len(strangers) - most)
        if too_many > 0:
            idle = [channel for channel in strangers if channel.draining or not _has_head(channel.socket)]
            for channel in idle[:too_many]:
                channel.will_close = True
        if missing and not strangers:
            time.sleep(_PAUSE)  # the queue stays readable: without a pause, the thread would spin

    def _add_task(self, channel: Channel) -> None:
        """Have a request answered: by the thread that reads, if it has just read one to answer at once."""
        if channel.requests[0].error and threading.current_thread() is self._thread:
            channel.due = True
        else:
            self._server.task_dispatcher.add_task(channel)

    def _sending(self) -> bool:
        channels = list(self._server.active_channels.values())
        return any(channel.requests or channel.total_outbufs_len for channel in channels)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        parser: RequestParser = environ[PARSER]
        response = parser.respond(parser.request())
        start_response(status_line(response.status), [*_headers(response), *self._headers])
        if response.file is not None:
            wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](response.file)
            return wrapped
        return [] if parser.command == "HEAD" else [response.content]


def _headers(response: Response) -> list[tuple[str, str]]:
    headers = list(response.headers)
    bodiless = response.status in (204, 304)  # HTTP allows no Content-Length on these
    if response.file is None and not bodiless and not any(name == "Content-Length" for name, _ in headers):
        headers.append(("Content-Length", str(len(response.content))))
    return headers
