"""Raw answers: read as Python's library reads them, or refused."""

from __future__ import annotations

import http.client
import math
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.base.http.wire import Incoming, UnusableAnswerError, read_response


def by_library(data: bytes, method: str) -> tuple[int, bytes] | None:
    """Return status and body as `http.client` reads them; None for an unreadable answer."""
    near, far = socket.socketpair()
    with near, far:
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(near, method=method)
        with response:
            try:
                response.begin()
                return response.status, response.read()
            except (http.client.HTTPException, OSError, ValueError):
                return None


def by_us(data: bytes, method: str, sizes: list[int]) -> tuple[int, bytes, bool] | None:
    """Return status, body and keep-alive, with the bytes arriving in pieces of these sizes."""
    try:
        response, keeps = read_response(Incoming(Pieces(data, sizes), math.inf), method, 1 << 20)
    except UnusableAnswerError:
        return None
    return response.status, response.body, keeps


class Pieces:
    """A fake socket: the bytes come in pieces of these sizes, and then an end."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def recv(self, size: int) -> bytes:
        size = min(size, self._sizes.pop(0) if self._sizes else size)
        piece, self._data = self._data[:size], self._data[size:]
        return piece


HEADS = st.sampled_from(
    [
        b"Content-Length: 2",
        b"content-length:  2 ",
        b"Content-Length: 2, 2",
        b"Content-Length: 02",
        b"Content-Length: +2",
        b"Content-Length: 3",
        b"Content-Length: \xb2",
        b"Content-Length:",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: Chunked",
        b"Transfer-Encoding: identity",
        b"Connection: close",
        b"Connection: Keep-Alive, close",
        b"X-Any: caf\xe9 \t !",
        b": no name",
        b"X\0Y: z",
    ]
)

BODIES = st.sampled_from(
    [
        b"{}",
        b"2\r\n{}\r\n0\r\n\r\n",
        b"1;x=y\r\n{\r\n1\r\n}\r\n0\r\nX-Late: 1\r\n\r\n",
        b"02\r\n{}\r\n00\r\n\r\n",
        b"0x2\r\n{}\r\n0\r\n\r\n",
        b"-1\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}\r\n",
        b"",
        b"{",
    ]
)


@given(
    status=st.sampled_from(
        [b"200 OK", b"200", b"204 No Content", b"304 Not Modified", b"404 \xe9", b"0200 OK"]
    ),
    version=st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2"]),
    heads=st.lists(HEADS, max_size=3),
    body=BODIES,
    stray=st.sampled_from([b"", b"", b"HTTP/1.1 201 OK"]),
    end=st.sampled_from([b"\r\n", b"\n"]),
    method=st.sampled_from(["GET", "POST", "HEAD"]),
    sizes=st.lists(st.integers(1, 9), max_size=100),
    cut=st.integers(0, 3),
)
def test_what_is_read_is_what_the_library_reads_or_nothing(
    status: bytes,
    version: bytes,
    heads: list[bytes],
    body: bytes,
    stray: bytes,
    end: bytes,
    method: str,
    sizes: list[int],
    cut: int,
) -> None:
    whole = end.join([version + b" " + status, *heads, b"", b""]) + body + stray
    data = whole[: len(whole) - cut]
    read = by_us(data, method, sizes)
    if read is None:
        return
    if status[:3] in (b"204", b"304"):
        # This status has no body, despite its headers (RFC 9112, section 6.3); the library reads chunks.
        assert read[:2] == (int(status[:3]), b"")
    else:
        # A repeated length may count once (RFC 9110, section 8.6); the library takes it as missing.
        plain = data.replace(b"Content-Length: 2, 2", b"Content-Length: 2")
        assert read[:2] == by_library(plain, method)
    if read[2]:
        assert version == b"HTTP/1.1"
        assert not any(b"close" in head for head in heads)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_plain_answer_is_read_however_it_comes(size: int) -> None:
    lengthy = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\nx-a: 2\r\n\r\n{}"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    for data in (lengthy, chunked):
        assert by_us(data, "POST", [size] * len(data)) == (200, b"{}", True)
    assert by_us(lengthy + b"x", "POST", []) == (200, b"{}", False)
