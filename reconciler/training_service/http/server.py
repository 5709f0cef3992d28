"""The training service's listener: on a port of its own, until the service is idle or ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reconciler.base.listener.message import Admit, Request, Responder, Response
from reconciler.base.listener.server import Listener
from reconciler.training_service.http.message import ApiError, error_response


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
_MAX_UPLOAD = 5 * 2**40  # Cloud Storage's largest object
_STOPPING = "The service is ending; ask again in a moment."


class Server(Listener):
    """HTTP server on a loopback port, whose requests count as activity."""

    def __init__(self, admit: Admit, activity: Activity, port: int = 0) -> None:
        def admitted(head: Request) -> Response | Responder:
            admission = admit(head)
            return (
                admission if isinstance(admission, Response) else lambda request: tracked(admission, request)
            )

        def tracked(respond: Responder, request: Request) -> Response:
            # Includes the handler's work, so that `close` waits for writes under way.
            with activity.request() as taken:
                if taken:
                    return respond(request)
                return error_response(request, ApiError("UNAVAILABLE", _STOPPING))

        super().__init__(_bound_socket(port), admitted, max_body=_MAX_UPLOAD)

    @property
    def url(self) -> str:
        """Return the server's URL."""
        return f"http://{HOST}:{self.port}"


def _bound_socket(port: int) -> socket.socket:
    """Return a socket bound to the port, or to a free one if another process uses it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError:
        listener.bind((HOST, 0))
    return listener
