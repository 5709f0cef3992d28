"""Connections to servers, by TLS and through the user's proxy, that send each request once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from reconciler.base.http.destination import Destination
from reconciler.base.http.proxies import Proxy, read_tunnel, unreachable
from reconciler.base.http.wire import HttpResponse, Incoming, UnusableAnswerError, read_response

if TYPE_CHECKING:
    import socket
    import ssl


_TOO_LATE = "it took too long"
_RECORD = 16 * 1024  # bytes that one TLS record holds: RFC 8446, section 5.1
_OTHER_BUNDLE = "REQUESTS_CA_BUNDLE"


def time_since_boot() -> float:
    """Return seconds that also count while the machine sleeps.

    On Linux CLOCK_MONOTONIC stops during sleep; on macOS it goes on, and there is no CLOCK_BOOTTIME.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HttpConnection:
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
        response, keeps = read_response(Incoming(self._sock, end), method, max_body)
        # Inside another TLS, what came unasked may lie unseen in a buffer.
        self.is_reusable = keeps and not hasattr(self._sock, "sslobj")
        return response

    def certificate(self) -> bytes:
        """Return the server's certificate in DER, trusted or not; b"" without TLS."""
        peer: Any = self._sock
        return (peer.getpeercert(binary_form=True) if hasattr(peer, "getpeercert") else None) or b""

    def close(self) -> None:
        """End the connection."""
        self._sock.close()


def write_request(
    sock: socket.socket, request: bytes, seconds: float, clock: Callable[[], float] = time_since_boot
) -> None:
    """Write a request, head and body together, in as few writes as possible.

    TLS takes 16 KiB in one write, a plain socket usually the whole request. The limit of `seconds` is for
    all writes and includes time in which the machine sleeps: `clock` must advance then.

    Raises:
        TimeoutError: The time limit is exceeded; the rest is not sent.
        OSError: The connection broke.
    """
    end = clock() + seconds
    rest = memoryview(request)
    most = _most_at_once(sock) or len(rest)
    while rest:
        # Servers check the credential when the head arrives. A process that was paused after its first write
        # must not send the rest later, so check the time before each write.
        left = end - clock()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        rest = rest[sock.send(rest[:most]) :]


def _most_at_once(sock: Any) -> int:
    """Return the bytes of one write that TLS makes one record of; 0 without TLS, for all.

    A TLS socket's `send` takes any number of bytes, and writes record after record without a look at a clock.
    """
    if hasattr(sock, "sslobj"):  # inside another TLS, whose record holds this one's with its head and its tag
        return _RECORD - 256
    return _RECORD if hasattr(sock, "getpeercert") else 0


def open_connection(
    address: Destination,
    end: float,
    tls: ssl.SSLContext | None,
    proxy: Proxy | None = None,
    proxy_tls: ssl.SSLContext | None = None,
) -> HttpConnection:
    """Open a connection to an address until `end` on the monotonic clock; `tls` is None for plain http.

    Args:
        proxy_tls: The context for the proxy's own certificate; by default `tls`.

    Raises:
        OSError, UnicodeError, UnusableAnswerError: The server can't be reached, or not by TLS.
        ProxyError: The proxy can't be reached, or refuses.
    """
    sock: Any = (
        _tunnel(address, end, proxy_tls or tls, proxy) if proxy else _socket(address.host, address.port, end)
    )
    if tls is None:
        return HttpConnection(sock)
    try:
        sock.settimeout(_left(end))
        return HttpConnection(_secured(sock, address.host.rstrip("."), tls))
    except BaseException:
        sock.close()
        raise


def _tunnel(address: Destination, end: float, tls: ssl.SSLContext | None, proxy: Proxy) -> Any:
    """Return a socket that leads to the address through a proxy; raise ProxyError."""
    sock: Any = None
    try:
        sock = _socket(proxy.host, proxy.port, end)
        if proxy.scheme == "https" and tls is not None:
            sock.settimeout(_left(end))
            sock = tls.wrap_socket(sock, server_hostname=proxy.host.rstrip("."))
        write_request(sock, proxy.request(address), _left(end))
        read_tunnel(Incoming(sock, end), address, proxy)
        return sock
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError | UnicodeError):
            raise unreachable(proxy, why(error)) from None
        raise


def _secured(sock: Any, host: str, tls: ssl.SSLContext) -> Any:
    """Return a socket that speaks TLS over another one."""
    import ssl

    if not isinstance(sock, ssl.SSLSocket):
        return tls.wrap_socket(sock, server_hostname=host)
    # The standard library's sockets don't nest.
    from urllib3.util.ssltransport import SSLTransport

    bounded: Any = _Bounded(sock)
    return SSLTransport(bounded, tls, server_hostname=host)


class _Bounded:
    """Socket whose reads and writes share one limit: TLS inside it makes many of them for one of its own."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._end = time_since_boot() + (sock.gettimeout() or 0.0)

    def settimeout(self, seconds: float) -> None:
        self._end = time_since_boot() + seconds

    def recv(self, most: int) -> bytes:
        self._sock.settimeout(self._left())
        return self._sock.recv(most)

    def sendall(self, data: bytes) -> None:
        write_request(self._sock, data, self._left())

    def _left(self) -> float:
        if (left := self._end - time_since_boot()) <= 0:
            raise TimeoutError
        return left

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


def _socket(host: str, port: int, end: float) -> socket.socket:
    import socket  # here, as most commands that import this module open no connection

    # Bytes, as a str would load the tables of international names; the address is always ASCII.
    name: Any = host.encode("ascii")
    addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    failed: OSError = OSError("no address")
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            # All addresses share the time: the first may be one that never answers.
            sock.settimeout(_left(end) / (len(addresses) - number))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            sock.close()
            failed = error
    raise failed


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class AuthoritiesError(Exception):
    """The authorities that the user trusts can't be read."""


def trusted_authorities(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities, and those that the user's variables name.

    Raises:
        AuthoritiesError: A variable names a file or a folder that is missing or has no certificates.
    """
    import ssl

    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", _OTHER_BUNDLE):
        paths = environ.get(name, "").split(os.pathsep if name == "SSL_CERT_DIR" else "\0")
        if any(paths) and not any(map(os.path.exists, paths)):  # pathlib loads slowly
            raise AuthoritiesError(f"{name} names {environ[name]!r}, which doesn't exist")
    context = ssl.create_default_context()  # OpenSSL reads the first two
    alone = "SSL_CERT_FILE" in environ and not environ.get("SSL_CERT_DIR") and not environ.get(_OTHER_BUNDLE)
    if alone and not context.cert_store_stats()["x509"]:
        named = environ["SSL_CERT_FILE"]
        text = f"names {named!r}, which has no certificates" if named else "is empty"
        raise AuthoritiesError(f"SSL_CERT_FILE {text}")
    if path := environ.get(_OTHER_BUNDLE):
        is_folder = os.path.isdir(path)  # noqa: PTH112 - pathlib loads slowly
        try:
            context.load_verify_locations(**{"capath" if is_folder else "cafile": path})
        except OSError as error:  # SSLError is one
            raise AuthoritiesError(
                f"{_OTHER_BUNDLE} names {path!r}, which can't be read: {why(error)}"
            ) from None
    return context


def why(error: BaseException) -> str:
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
        return why(error.__cause__)
    return f"the connection ended, or broke the rules of HTTP ({type(error).__name__})"
