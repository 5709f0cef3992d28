"""The transport that the product uses: urllib3's connections, without its retries, redirects and pools."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from reconciler import __version__
from reconciler.errors import InvalidError
from reconciler.transport.message import READ_METHODS, HttpRequest, HttpResponse, NoAnswerError, NotSentError

if TYPE_CHECKING:
    import socket

    from urllib3.connection import HTTPConnection
    from urllib3.response import HTTPResponse

CONNECT_TIMEOUT = 10.0
MAX_BODY = 64 * 1024 * 1024

_CHUNK = 64 * 1024
_SHORT = 8  # characters of what is no credential, or none of use
_TOO_LATE = "it took too long"
_ADDRESS = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")
# These are not the caller's: how a body is framed, and that an answer comes as it is (http.client says so).
_OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "transfer-encoding"})


class UrllibTransport:
    """Sends each request at most once, whatever the server does; safe to use from several threads.

    Reads share a kept-alive connection. Every other request has a connection of its own: a server may close a
    kept one at any moment, and then nobody knows whether it had taken the request.

    Args:
        proxy: `http://[user:password@]host:port`, used for https addresses alone, by CONNECT; by default
            none, whatever the environment says.
        max_body: Bytes of an answer's body; a longer one counts as no answer.
    """

    def __init__(self, *, proxy: str | None = None, max_body: int = MAX_BODY) -> None:
        # Here and not above: `--help` and `validate` load this module and never send.
        import ssl

        import urllib3.connection

        self._connections = urllib3.connection
        self._tls = ssl.create_default_context()
        self._proxy = _proxy_address(proxy) if proxy else None
        self._max_body = max_body
        self._idle: dict[str, HTTPConnection] = {}
        self._lock = threading.Lock()

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request` at most once, and read the whole answer.

        Raises:
            NotSentError: Not a byte of it was written.
            NoAnswerError: It may have arrived; what the server did with it is unknown.
        """
        end = time.monotonic() + request.timeout
        address = _address(request.url)
        headers = _headers(request)
        connection = self._connection(request, address)
        reusable = False
        try:
            left = end - time.monotonic()
            if left <= 0:
                raise NotSentError(f"{_origin(address)} can't be reached: {_TOO_LATE}")
            response = self._exchange(connection, request, headers, left)
            reusable = request.method in READ_METHODS and not connection.is_closed
            return response
        finally:
            self._leave(connection, _origin(address), reusable)

    def close(self) -> None:
        """Close the connections that are kept alive."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in idle.values():
            connection.close()

    def _connection(self, request: HttpRequest, address: SplitResult) -> HTTPConnection:
        if request.method in READ_METHODS:
            with self._lock:
                kept = self._idle.pop(_origin(address), None)
            if kept is not None and kept.is_connected:
                return kept
            if kept is not None:
                kept.close()
        return self._connected(address, min(request.timeout, CONNECT_TIMEOUT))

    def _connected(self, address: SplitResult, timeout: float) -> HTTPConnection:
        connection = self._unconnected(address, timeout)
        # Otherwise http.client would connect anew by itself in the middle of a request.
        connection.auto_open = 0
        try:
            connection.connect()
        except Exception as error:
            connection.close()
            raise NotSentError(f"{_origin(address)} can't be reached: {_why(error)}") from None
        return connection

    def _unconnected(self, address: SplitResult, timeout: float) -> HTTPConnection:
        host, port = str(address.hostname), address.port
        if address.scheme == "http":
            return self._connections.HTTPConnection(host, port, timeout=timeout)
        if self._proxy is None:
            return self._connections.HTTPSConnection(host, port, timeout=timeout, ssl_context=self._tls)
        tunnel = self._connections.HTTPSConnection(
            str(self._proxy.hostname), self._proxy.port or 80, timeout=timeout, ssl_context=self._tls
        )
        tunnel.set_tunnel(host, port or 443, _proxy_headers(self._proxy))
        return tunnel

    def _exchange(
        self, connection: HTTPConnection, request: HttpRequest, headers: Mapping[str, str], left: float
    ) -> HttpResponse:
        connection.timeout = left
        expired = threading.Event()
        try:
            with _shut_after(left, connection.sock, expired):
                _write(connection, request, headers)
                response = _unquoting(_read(connection.getresponse(), self._max_body), headers)
        except Exception as error:
            why = _TOO_LATE if expired.is_set() else _why(error)
            raise NoAnswerError(f"no whole answer from {_origin(urlsplit(request.url))}: {why}") from None
        return response

    def _leave(self, connection: HTTPConnection, origin: str, reusable: bool) -> None:
        with self._lock:
            keep = reusable and origin not in self._idle
            if keep:
                self._idle[origin] = connection
        if not keep:
            connection.close()


class _UnusableAnswerError(Exception):
    """An answer that we won't read; its text quotes nothing of the request."""


def _address(url: str) -> SplitResult:
    try:
        address = urlsplit(url if _ADDRESS.fullmatch(url) else "")
        usable = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise NotSentError("the request's address is no http or https address")
    if address.username is not None:
        raise NotSentError("the request's address holds a user name")
    return address


def _origin(address: SplitResult) -> str:
    return f"{address.scheme}://{address.netloc}"


def _headers(request: HttpRequest) -> dict[str, str]:
    headers = {"user-agent": f"reconciler/{__version__}"}
    for name, value in request.headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise NotSentError("the request has a header whose name HTTP can't carry")
        if not _HEADER_VALUE.fullmatch(value):
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


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    from urllib3.util import make_headers

    if proxy.username is None:
        return {}
    return dict(make_headers(proxy_basic_auth=f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"))


@contextmanager
def _shut_after(seconds: float, sock: socket.socket, expired: threading.Event) -> Iterator[None]:
    """End the connection when the time is up.

    A socket's own timeout begins anew with each byte, so a server that sends one now and then could hold us
    for ever.
    """

    def shut() -> None:
        import socket

        expired.set()
        # The plain socket's method: the TLS one takes its state away from under the thread that reads.
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _write(connection: HTTPConnection, request: HttpRequest, headers: Mapping[str, str]) -> None:
    address = urlsplit(request.url)
    target = (address.path or "/") + (f"?{address.query}" if address.query else "")
    # urllib3 writes the headers, and then the body. A process that is stopped between the two would send the
    # body whenever it goes on, long after the server has judged the headers; so both leave in one call.
    pieces: list[bytes] = []
    connection.send = pieces.append  # type: ignore[assignment,method-assign]  # for this call
    try:
        connection.request(request.method, target, request.body, headers, preload_content=False)
    finally:
        del connection.send
    # A server that stops reading may have refused before the end of the body, and said so: its answer counts.
    with suppress(ConnectionError):
        connection.send(b"".join(pieces))


def _read(response: HTTPResponse, max_body: int) -> HttpResponse:
    with closing(response):
        if response.status < 200:
            raise _UnusableAnswerError(f"its status {response.status} is no final one")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise _UnusableAnswerError("it is encoded, against what was asked")
        # http.client takes headers that break off for whole ones; then nothing says where the body ends.
        if response.length_remaining is None and not response.chunked:
            raise _UnusableAnswerError("it broke off, or doesn't say where it ends")
        body = bytearray()
        while chunk := response.read(_CHUNK, decode_content=False):
            body += chunk
            if len(body) > max_body:
                raise _UnusableAnswerError(f"it is longer than {max_body} bytes")
    # By name, as a header that comes several times (Cloud Storage's x-goog-hash) is joined only then.
    headers = {name.lower(): response.headers[name] for name in response.headers}
    return HttpResponse(response.status, headers, bytes(body))


def _unquoting(response: HttpResponse, headers: Mapping[str, str]) -> HttpResponse:
    """An error without the request's credential: servers and proxies repeat headers, and errors are shown."""
    credential = headers.get("authorization", "").rpartition(" ")[2].encode("latin-1")
    if response.status < 300 or len(credential) < _SHORT:
        return response
    return replace(response, body=response.body.replace(credential, b"***"))


def _why(error: BaseException) -> str:
    """The error in words that can't quote the request: the libraries' own messages may hold a header."""
    import socket
    import ssl

    if isinstance(error, _UnusableAnswerError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'})"
    if isinstance(error, socket.gaierror):
        return "its name doesn't resolve"
    if isinstance(error, TimeoutError):
        return _TOO_LATE
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    if error.__cause__ is not None:
        return _why(error.__cause__)
    return f"the connection ended, or broke the rules of HTTP ({type(error).__name__})"
