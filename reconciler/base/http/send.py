"""The transport that the product uses: every request is sent once, whatever the server does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from reconciler import __version__
from reconciler.base.errors import InvalidError
from reconciler.base.http.destination import Destination, destination_of
from reconciler.base.http.message import READ_METHODS, HttpRequest, HttpResponse, NoAnswerError, NotSentError
from reconciler.base.http.recipients import TokenRule
from reconciler.base.http.wire import UnusableAnswerError, is_field_value, is_token, request_bytes

if TYPE_CHECKING:
    import ssl

    from reconciler.base.http.connection import Connection

CONNECT_TIMEOUT = 10.0
MAX_BODY = 64 * 1024 * 1024

_MOST_IDLE = 8  # connections of one origin: as many as threads that use a transport side by side
_SHORT = 8  # characters of what is no credential, or none of use
_TOO_LATE = "it took too long"
# These are not the caller's: where it goes, how a body is framed, and that an answer comes as it is.
_OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "host", "transfer-encoding"})
_CREDENTIALS = ("authorization", "cookie", "proxy-authorization")


class DirectTransport:
    """Sends each request at most once, whatever the server does; safe to use from several threads.

    Reads share kept-alive connections, the one that was used last first. Every other request has a connection
    of its own: a server may close a kept one at any moment, and then nobody knows whether it had taken the
    request.

    Args:
        tokens: The rule for the token that requests carry. Without a rule, and to a destination that it
            doesn't permit, no request with a credential is sent. Redirects are answers: none is followed.
        proxy: `http://[user:password@]host:port`, used for https addresses alone, by CONNECT; by default
            none, whatever the environment says.
        max_body: Bytes of an answer's body; a longer one counts as no answer.
    """

    def __init__(
        self, tokens: TokenRule | None = None, *, proxy: str | None = None, max_body: int = MAX_BODY
    ) -> None:
        self._tokens = tokens
        self._tls: ssl.SSLContext | None = None
        self._proxy = _proxy_address(proxy) if proxy else None
        self._max_body = max_body
        self._idle: dict[str, list[Connection]] = {}
        self._lock = threading.Lock()

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request` at most once, and read the whole answer.

        Raises:
            NotSentError: Not a byte of it was written.
            NoAnswerError: It may have arrived; what the server did with it is unknown.
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
        """Close the connections that are kept alive."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for kept in idle.values():
            for connection in kept:
                connection.close()

    def _check_credentials(self, headers: Mapping[str, str], address: Destination) -> None:
        """Raise NotSentError where a request carries a credential that may not go there."""
        if not any(name in headers for name in _CREDENTIALS):
            return
        if self._tokens is None or not self._tokens.permits(address):
            raise NotSentError(f"the request's token may not be sent to {address.origin}")

    def _connection(self, request: HttpRequest, address: Destination) -> Connection:
        if request.method in READ_METHODS:
            while kept := self._kept(address.origin):
                if kept.is_quiet:
                    return kept
                kept.close()
        return self._connected(address, min(request.timeout, CONNECT_TIMEOUT))

    def _kept(self, origin: str) -> Connection | None:
        with self._lock:
            kept = self._idle.get(origin)
            return kept.pop() if kept else None

    def _connected(self, address: Destination, timeout: float) -> Connection:
        # Here and not above: `validate` and a stopped service's `plan` load this module and never connect.
        from reconciler.base.http.connection import connected

        try:
            return connected(address, time.monotonic() + timeout, self._trusted(address), self._proxy)
        except Exception as error:
            raise NotSentError(f"{address.origin} can't be reached: {_why(error)}") from None

    def _trusted(self, address: Destination) -> ssl.SSLContext | None:
        """What TLS trusts; None where the address is none of TLS."""
        if address.scheme == "http":
            return None
        with self._lock:  # to read all certificates takes long
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
            raise NoAnswerError(f"no whole answer from {origin}: {_why(error)}") from None

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
    """All headers but the body's length."""
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


def _proxy_address(proxy: str) -> SplitResult:
    try:
        address = urlsplit(proxy)
        usable = address.scheme == "http" and address.hostname and address.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidError("the proxy isn't given as http://host:port")
    return address


def _unquoting(response: HttpResponse, headers: Mapping[str, str]) -> HttpResponse:
    """An error without the request's credential: servers and proxies repeat headers, and errors are shown."""
    credential = headers.get("authorization", "").rpartition(" ")[2].encode("latin-1")
    if response.status < 300 or len(credential) < _SHORT:
        return response
    return replace(response, body=response.body.replace(credential, b"***"))


def _why(error: BaseException) -> str:
    """The error in words that can't quote the request: the libraries' own messages may hold a header."""
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
