"""HTTP server: waitress on loopback, and the conversion from WSGI to the service's requests."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import waitress
from waitress import wasyncore
from waitress.server import BaseWSGIServer

from reconciler.training_service.http.connections import (
    MAX_HEAD,
    PARSER,
    Admit,
    Channel,
    Limits,
    Parser,
    status_line,
)
from reconciler.training_service.http.message import ApiError, Response, error_response


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

_log = logging.getLogger(__name__)

Environ = dict[str, Any]


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

    def _answer(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
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
