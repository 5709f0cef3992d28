"""The transport that sends every request at most once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reconciler import __version__
from reconciler.base.http.connections import HttpConnection, open_connection, trusted_authorities, why
from reconciler.base.http.destination import Destination, TokenRule, destination_of
from reconciler.base.http.proxies import Proxy, proxy_for
from reconciler.base.http.wire import (
    READ_METHODS,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    is_field_value,
    is_token,
    request_bytes,
)

if TYPE_CHECKING:
    import ssl


_PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
CONNECT_TIMEOUT = 10.0
MAX_BODY = 64 * 1024 * 1024

_MOST_IDLE = 8  # connections per origin: the number of threads that share a transport
_SHORT = 8  # characters: a shorter text is no usable credential
_TOO_LATE = "it took too long"
# Headers that callers can't set: the destination, the framing of the body, and the encoding of the response.
_OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "host", "transfer-encoding"})
_CREDENTIALS = ("authorization", "cookie", "proxy-authorization")


class DirectTransport:
    """Thread-safe transport that sends each request at most once, and follows no redirect.

    https requests take the user's proxy (`proxies`). Reads share kept-alive connections, the most recently
    used first.

    Args:
        tokens: The rule for the token of the requests. A request with a credential is not sent without a
            rule, nor to a destination that the rule doesn't permit.
        max_body: The maximum length of a response's body in bytes; a longer response raises NoAnswerError.
        environ: The variables that name the proxy and the trusted authorities.
    """

    def __init__(
        self,
        tokens: TokenRule | None = None,
        *,
        max_body: int = MAX_BODY,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._tokens = tokens
        self._environ = environ
        self._tls: ssl.SSLContext | None = None
        self._max_body = max_body
        self._idle: dict[str, list[HttpConnection]] = {}
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

    def _connection(self, request: HttpRequest, address: Destination) -> HttpConnection:
        # Only reads reuse connections: a server may close a kept one at any moment, and then it would be
        # unknown if it took the request.
        if request.method in READ_METHODS:
            while kept := self._kept(address.origin):
                if kept.is_quiet:
                    return kept
                kept.close()
        return self._opened(address, min(request.timeout, CONNECT_TIMEOUT))

    def _kept(self, origin: str) -> HttpConnection | None:
        with self._lock:
            kept = self._idle.get(origin)
            return kept.pop() if kept else None

    def _opened(self, address: Destination, timeout: float) -> HttpConnection:
        end = time.monotonic() + timeout
        proxy = None
        try:
            proxy = self._proxy(address)
            return open_connection(address, end, self._trusted(address), proxy)
        except Exception as error:
            from reconciler.base.http import unreachable  # slow to import, and only needed now

            raise unreachable.explained(address, error, proxy, end, self._tls) from None

    def _proxy(self, address: Destination) -> Proxy | None:
        if address.scheme == "http" or not any(name in self._environ for name in _PROXY_VARIABLES):
            return None
        return proxy_for(address, self._environ)

    def _trusted(self, address: Destination) -> ssl.SSLContext | None:
        """Return the TLS context; None for plain http."""
        if address.scheme == "http":
            return None
        with self._lock:  # reading all certificates takes long
            if self._tls is None:
                self._tls = trusted_authorities(self._environ)
            return self._tls

    def _exchange(
        self, connection: HttpConnection, request: HttpRequest, written: bytes, end: float, origin: str
    ) -> HttpResponse:
        try:
            return connection.exchange(request.method, written, end, self._max_body)
        except Exception as error:
            raise NoAnswerError(f"no complete answer from {origin}: {why(error)}") from None

    def _leave(self, connection: HttpConnection, origin: str, reusable: bool) -> None:
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
