"""Connections to a server: plain or by TLS."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from reconciler.base.http.recipients import Destination
from reconciler.base.http.wire import HttpResponse, Incoming, read_response

if TYPE_CHECKING:
    import ssl


def time_since_boot() -> float:
    """Return seconds that also count while the machine sleeps.

    On Linux CLOCK_MONOTONIC stops during sleep; on macOS it goes on, and there is no CLOCK_BOOTTIME.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Connection:
    """Connection to a server that never reconnects by itself.

    Attributes:
        is_reusable: True if another request may follow the last one.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.is_reusable = False

    @property
    def is_quiet(self) -> bool:
        """Return True if no unrequested data and no end of the connection has arrived."""
        look = poll()
        look.register(self._sock, POLLIN)
        return not look.poll(0)

    def exchange(self, method: str, request: bytes, end: float, max_body: int) -> HttpResponse:
        """Send a request once with `write_request`, and read the response with a body of at most `max_body`.

        `end` is the deadline on the monotonic clock.

        Raises:
            TimeoutError: The deadline passed.
            OSError: The connection broke.
            UnusableAnswerError: The response is incomplete or invalid.
        """
        self.is_reusable = False
        # A server may reject a request, and stop reading, before the end of the body: read its response.
        with suppress(ConnectionError):
            write_request(self._sock, request, _left(end))
        response, self.is_reusable = read_response(Incoming(self._sock, end), method, max_body)
        return response

    def close(self) -> None:
        """End the connection."""
        self._sock.close()


def write_request(
    sock: socket.socket, request: bytes, seconds: float, clock: Callable[[], float] = time_since_boot
) -> None:
    """Write a request, head and body together, in as few writes as possible.

    TLS takes 16 KiB in one write, and a plain socket usually the whole request. The limit of `seconds` is for
    all writes and includes time in which the machine sleeps: `clock` must advance then.

    Raises:
        TimeoutError: The time limit is exceeded; the rest is not sent.
        OSError: The connection broke.
    """
    end = clock() + seconds
    rest = memoryview(request)
    while rest:
        # Servers check the credential when the head arrives. A process that was paused after its first write
        # must not send the rest later, so check the time before each write.
        left = end - clock()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        rest = rest[sock.send(rest) :]


def connected(address: Destination, end: float, tls: ssl.SSLContext | None) -> Connection:
    """Open a connection to an address until `end` on the monotonic clock; `tls` is None for plain http.

    Raises:
        OSError, UnicodeError, UnusableAnswerError: The server can't be reached, or not by TLS.
    """
    sock = _socket(address.host, address.port, end)
    if tls is None:
        return Connection(sock)
    try:
        sock.settimeout(_left(end))
        return Connection(tls.wrap_socket(sock, server_hostname=address.host.rstrip(".")))
    except BaseException:
        sock.close()
        raise


def _socket(host: str, port: int, end: float) -> socket.socket:
    # Bytes, as a str would load the tables of international names; the address is always ASCII.
    name: Any = host.encode("ascii")
    sock = socket.create_connection((name, port), _left(end))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
