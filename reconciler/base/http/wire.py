"""Requests and responses, and the HTTP/1.1 writer and strict reader of them (RFC 9112).

A request is written as one sequence of bytes.

`http.client` is unsuitable: its import takes three times as long as the interpreter's start, it writes
headers and body separately, reconnects by itself, and accepts truncated headers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from reconciler.base.errors import ServiceError

_CHUNK = 256 * 1024
_MAX_HEAD = 64 * 1024  # bytes of a status line with all headers, of a chunk's line, of all trailers
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUE = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_HEX = b"0123456789ABCDEFabcdef"
_CONTINUE = 100
_BODYLESS = (204, 304)
# Requests of these methods have no content-length header if they have no body.
_NO_BODY_EXPECTED = ("GET", "HEAD", "DELETE", "OPTIONS", "CONNECT")

Head = tuple[int, bool, dict[str, str]]
"""A response's status, True if its sender keeps the connection, and its headers, names in lower case."""


class UnusableAnswerError(Exception):
    """Error for an invalid response; its text doesn't quote the request."""


def is_token(text: str) -> bool:
    """Return True if the text is valid as a method or as a header's name."""
    return text.isascii() and text != "" and not text.encode().translate(None, _TOKEN)


def is_field_value(text: str) -> bool:
    """Return True if the text is valid as a header's value."""
    try:
        return not text.encode("latin-1").translate(None, _VALUE)
    except UnicodeEncodeError:
        return False


def request_bytes(method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Return the bytes of a request, headers and body together; the headers lack only `content-length`."""
    # A process that was stopped between two writes would send the body on continuing, long after the server
    # checked the headers and their credential.
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None or method not in _NO_BODY_EXPECTED:
        lines.append(f"content-length: {len(body or b'')}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Stream(Protocol):
    """Receiving side of a socket."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Set the longest wait of `recv`."""

    def recv(self, most: int, /) -> bytes:
        """Return some received bytes, at most `most`; b"" at the end."""


class Incoming:
    """Buffered reader of a socket, with a deadline on the monotonic clock.

    Raises from its methods:
        TimeoutError: The deadline passed.
        OSError: The connection is broken.
        UnusableAnswerError: The response ended too early or isn't HTTP.
    """

    def __init__(self, sock: Stream, end: float) -> None:
        self._sock = sock
        self._end = end
        self._began = False
        self._held = bytearray()

    @property
    def is_empty(self) -> bool:
        """Return True if the buffer is empty."""
        return not self._held

    def line(self, limit: int = _MAX_HEAD) -> bytes:
        """Read the next line of at most `limit` bytes; return it without its end."""
        searched = 0
        while (at := self._held.find(b"\n", searched)) < 0:
            searched = len(self._held)
            if searched > limit:
                raise UnusableAnswerError("its headers are too long")
            self._held += self._received(_CHUNK)
        if at > limit:
            raise UnusableAnswerError("its headers are too long")
        line = bytes(self._held[:at])
        del self._held[: at + 1]
        return line.removesuffix(b"\r")

    def exactly(self, count: int) -> bytes:
        """Read the next `count` bytes."""
        parts = [bytes(self._held[:count])]
        del self._held[:count]
        missing = count - len(parts[0])
        while missing:
            parts.append(self._received(min(missing, _CHUNK)))
            missing -= len(parts[-1])
        return b"".join(parts)

    def _received(self, most: int) -> bytes:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # Set the rest of the time before each read: a socket's own timeout restarts with each byte, so a
        # server that drips bytes could hold the process for ever.
        self._sock.settimeout(left)
        data = self._sock.recv(most)
        if not data:
            raise UnusableAnswerError("it was cut off" if self._began else "the connection ended")
        self._began = True
        return data


def read_head(incoming: Incoming) -> Head:
    """Read the status and headers of a final response; 100 (Continue) is skipped.

    Raises:
        UnusableAnswerError: The response is invalid, or has another status that isn't final.
    """
    while True:
        version, _, rest = incoming.line().partition(b" ")
        code = rest.partition(b" ")[0]
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit():
            raise UnusableAnswerError("it is not HTTP/1.1")
        status = int(code)
        headers = _fields(incoming)
        if status != _CONTINUE:
            break
    if status < 200:
        raise UnusableAnswerError(f"its status {status} is not a final one")
    ends = "close" in _words(headers.get("connection", ""))
    return status, version == b"HTTP/1.1" and not ends, headers


def read_response(incoming: Incoming, method: str, max_body: int) -> tuple[HttpResponse, bool]:
    """Read the complete response to a request of this method, with a body of at most `max_body` bytes.

    Return True with it if another request may follow on its connection.

    Raises:
        UnusableAnswerError: The response is incomplete, has no length, is encoded, or is too long.
    """
    status, keeps, headers = read_head(incoming)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnusableAnswerError("it is encoded, although that was not requested")
    if method == "HEAD" or status in _BODYLESS:
        body = b""
    elif "transfer-encoding" in headers:
        if _words(headers["transfer-encoding"]) != ["chunked"]:
            raise UnusableAnswerError("it is encoded, although that was not requested")
        # A length beside the chunks may be a smuggled response (RFC 9112, section 6.3): close the connection.
        keeps = keeps and "content-length" not in headers
        body = _chunked(incoming, max_body)
    else:
        length = _length(headers)
        if length > max_body:
            raise _too_long(max_body)
        body = incoming.exactly(length)
    return HttpResponse(status, headers, body), keeps and incoming.is_empty


def _fields(incoming: Incoming) -> dict[str, str]:
    """Read header or trailer fields up to the empty line; join the values of a repeated field by commas."""
    fields: dict[str, str] = {}
    left = _MAX_HEAD
    while line := incoming.line(left):
        left -= len(line)
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not name or not colon or name.translate(None, _TOKEN) or value.translate(None, _VALUE):
            raise UnusableAnswerError("one of its headers is malformed")
        key, text = name.decode("ascii").lower(), value.decode("latin-1")
        fields[key] = f"{fields[key]}, {text}" if key in fields else text
    return fields


def _length(headers: Mapping[str, str]) -> int:
    # A body that ends with the connection is an error: a complete one would look like a truncated one.
    named = {word.strip() for word in headers.get("content-length", "").split(",")}
    text = named.pop()
    if named or not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UnusableAnswerError("it doesn't state its length")
    return int(text)


def _chunked(incoming: Incoming, max_body: int) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while True:
        size = incoming.line().partition(b";")[0].strip(b" \t")
        if not 0 < len(size) <= 16 or size.translate(None, _HEX):
            raise UnusableAnswerError("one of its chunks has no length")
        count = int(size, 16)
        if count == 0:
            _fields(incoming)
            return b"".join(chunks)
        total += count
        if total > max_body:
            raise _too_long(max_body)
        chunks.append(incoming.exactly(count))
        if incoming.line():
            raise UnusableAnswerError("one of its chunks is longer than it says")


def _too_long(max_body: int) -> UnusableAnswerError:
    return UnusableAnswerError(f"it is longer than {max_body} bytes")


def _words(value: str) -> list[str]:
    return [word.strip().lower() for word in value.split(",")]


READ_METHODS = frozenset({"GET", "HEAD"})


class NotSentError(ServiceError):
    """Error for a request that was certainly not sent: unknown host, refused, no TLS, or invalid in HTTP."""


class NoAnswerError(ServiceError):
    """Error for a request that may have arrived: timeout, broken connection, or incomplete response."""


class HttpRequest(Struct, frozen=True):
    """HTTP request.

    Attributes:
        method: In capitals.
        url: Absolute and percent-encoded; sent unchanged.
        headers: Omitted from `repr`, as they contain the token.
        body: Omitted from `repr`, as it may contain a manifest's environment variables.
        timeout: Seconds for the whole exchange, from the connection to the last byte of the response.
    """

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    timeout: float = 60.0

    def __repr__(self) -> str:
        return f"HttpRequest({self.method!r}, {self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("method", self.method), ("url", self.url)]


class HttpResponse(Struct, frozen=True):
    """Complete response of any status; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"HttpResponse({self.status})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("status", self.status)]


class Transport(Protocol):
    """Sender of requests, each at most once."""

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send `request` once; raises NotSentError or NoAnswerError, but no error for any status."""
        ...
