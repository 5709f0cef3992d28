"""Transports: one sends every request at most once, the other retries reads; and connections to servers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from reconciler import __version__
from reconciler.base.http.wire import (
    READ_METHODS,
    Destination,
    HttpRequest,
    HttpResponse,
    Incoming,
    NoAnswerError,
    NotSentError,
    TokenRule,
    Transport,
    UnusableAnswerError,
    destination_of,
    is_field_value,
    is_token,
    read_response,
    request_bytes,
)

if TYPE_CHECKING:
    import socket
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


def open_connection(address: Destination, end: float, tls: ssl.SSLContext | None) -> Connection:
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
    import socket  # here, as most commands that import this module open no connection

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


CONNECT_TIMEOUT = 10.0
MAX_BODY = 64 * 1024 * 1024

_MOST_IDLE = 8  # connections per origin: the number of threads that share a transport
_SHORT = 8  # characters: a shorter text is no usable credential
_TOO_LATE = "it took too long"
# Headers that callers can't set: the destination, the framing of the body, and the encoding of the response.
_OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "host", "transfer-encoding"})
_CREDENTIALS = ("authorization", "cookie", "proxy-authorization")


class DirectTransport:
    """Thread-safe transport that sends each request at most once, follows no redirect and uses no proxy.

    Reads share kept-alive connections, the most recently used first.

    Args:
        tokens: The rule for the token of the requests. A request with a credential is not sent without a
            rule, nor to a destination that the rule doesn't permit.
        max_body: The maximum length of a response's body in bytes; a longer response raises NoAnswerError.
    """

    def __init__(self, tokens: TokenRule | None = None, *, max_body: int = MAX_BODY) -> None:
        self._tokens = tokens
        self._tls: ssl.SSLContext | None = None
        self._max_body = max_body
        self._idle: dict[str, list[Connection]] = {}
        self._lock = threading.Lock()

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request` at most once, and read the complete response.

        Raises:
            NotSentError: No byte of the request was written.
            NoAnswerError: The request may have arrived; its effect is unknown.
        """
        end = time.monotonic() + request.timeout
        address = _address(request.url)
        origin = address.origin
        headers = _headers(request, address)
        self._check_credentials(headers, address)
        written = request_bytes(request.method, address.target, headers, request.body)
        connection = self._connection(request, address)
        reusable = False
        try:
            if time.monotonic() >= end:
                raise NotSentError(f"{origin} can't be reached: {_TOO_LATE}")
            response = _unquoting(self._exchange(connection, request, written, end, origin), headers)
            reusable = request.method in READ_METHODS and connection.is_reusable
            return response
        finally:
            self._leave(connection, origin, reusable)

    def close(self) -> None:
        """Close the kept-alive connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for kept in idle.values():
            for connection in kept:
                connection.close()

    def _check_credentials(self, headers: Mapping[str, str], address: Destination) -> None:
        """Raise NotSentError if a request carries a credential that may not be sent to the address."""
        if not any(name in headers for name in _CREDENTIALS):
            return
        if self._tokens is None or not self._tokens.permits(address):
            raise NotSentError(f"the request's token may not be sent to {address.origin}")

    def _connection(self, request: HttpRequest, address: Destination) -> Connection:
        # Only reads reuse connections: a server may close a kept one at any moment, and then it would be
        # unknown if it took the request.
        if request.method in READ_METHODS:
            while kept := self._kept(address.origin):
                if kept.is_quiet:
                    return kept
                kept.close()
        return self._opened(address, min(request.timeout, CONNECT_TIMEOUT))

    def _kept(self, origin: str) -> Connection | None:
        with self._lock:
            kept = self._idle.get(origin)
            return kept.pop() if kept else None

    def _opened(self, address: Destination, timeout: float) -> Connection:
        try:
            return open_connection(address, time.monotonic() + timeout, self._trusted(address))
        except Exception as error:
            raise NotSentError(f"{address.origin} can't be reached: {_why(error)}") from None

    def _trusted(self, address: Destination) -> ssl.SSLContext | None:
        """Return the TLS context; None for plain http."""
        if address.scheme == "http":
            return None
        with self._lock:  # reading all certificates takes long
            if self._tls is None:
                import ssl

                self._tls = ssl.create_default_context()
            return self._tls

    def _exchange(
        self, connection: Connection, request: HttpRequest, written: bytes, end: float, origin: str
    ) -> HttpResponse:
        try:
            return connection.exchange(request.method, written, end, self._max_body)
        except Exception as error:
            raise NoAnswerError(f"no complete answer from {origin}: {_why(error)}") from None

    def _leave(self, connection: Connection, origin: str, reusable: bool) -> None:
        if reusable:
            with self._lock:
                kept = self._idle.setdefault(origin, [])
                if len(kept) < _MOST_IDLE:
                    kept.append(connection)
                    return
        connection.close()


def _address(url: str) -> Destination:
    try:
        return destination_of(url)
    except ValueError as error:
        raise NotSentError(f"the request's address {error}") from None


def _headers(request: HttpRequest, address: Destination) -> dict[str, str]:
    """Return all headers except content-length."""
    headers = {
        "host": address.netloc,
        "accept-encoding": "identity",
        "user-agent": f"reconciler/{__version__}",
    }
    if not is_token(request.method):
        raise NotSentError("the request has a method that HTTP can't carry")
    for name, value in request.headers.items():
        if not is_token(name):
            raise NotSentError("the request has a header whose name HTTP can't carry")
        if not is_field_value(value):
            raise NotSentError(f"the request's header \"{name}\" has characters that HTTP can't carry")
        if name.lower() not in _OWN_HEADERS:
            headers[name.lower()] = value
    if request.method not in READ_METHODS:
        headers["connection"] = "close"
    return headers


def _unquoting(response: HttpResponse, headers: Mapping[str, str]) -> HttpResponse:
    """Remove the request's credential from the body of an error."""
    # Servers and proxies repeat headers, and users see errors.
    credential = headers.get("authorization", "").rpartition(" ")[2].encode("latin-1")
    if response.status < 300 or len(credential) < _SHORT:
        return response
    return replace(response, body=response.body.replace(credential, b"***"))


def _why(error: BaseException) -> str:
    """Return the reason for an error without quoting the request."""
    # No message of a library: it may contain a header.
    if isinstance(error, UnusableAnswerError):
        return str(error)
    if isinstance(error, TimeoutError):
        return _TOO_LATE
    import socket
    import ssl  # here, as a request to a plain http address needs none of it

    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'})"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its name doesn't resolve"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    if error.__cause__ is not None:
        return _why(error.__cause__)
    return f"the connection ended, or broke the rules of HTTP ({type(error).__name__})"


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
