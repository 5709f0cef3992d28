"""Refusal of gRPC calls, as a server that implements none of the methods that it is asked for.

Clients end a call at once after UNIMPLEMENTED, but ask again for minutes where no server answers.

Sources: RFC 9113, sections 3.4, 4.1 and 6; RFC 7541, sections 5 and 6; PROTOCOL-HTTP2.md of gRPC.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import quote

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = 9  # bytes of a frame before its payload
_HEADERS, _SETTINGS, _PING, _GOAWAY = 1, 4, 6, 7
_LARGEST = 16_384  # bytes of a payload, until a server allows more
_ACK = _END_OF_STREAM = 1
_END_OF_HEADERS = 4
_UNIMPLEMENTED = "12"  # google/rpc/code.proto


def refuse(connection: socket.socket, reason: str) -> None:
    """Answer each call of a gRPC client with UNIMPLEMENTED and a sentence, until the client ends."""
    with connection.makefile("rb") as incoming:
        if incoming.read(len(_PREFACE)) != _PREFACE:
            return
        connection.sendall(_frame(_SETTINGS, 0, 0))
        for kind, flags, stream, payload in _frames(incoming):
            if kind == _GOAWAY:
                return
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                connection.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _HEADERS:
                connection.sendall(
                    _frame(_HEADERS, _END_OF_HEADERS | _END_OF_STREAM, stream, _answer(reason))
                )


def _frames(incoming: BinaryIO) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield each frame's type, flags, stream and payload, to the connection's end."""
    while len(head := incoming.read(_HEAD)) == _HEAD:
        length = int.from_bytes(head[:3], "big")
        if length > _LARGEST:
            return
        yield head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFF_FFFF, incoming.read(length)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _answer(reason: str) -> bytes:
    """Return the header block of an answer that has trailers only."""
    status_200 = b"\x88"  # an entry of HPACK's static table
    fields = {
        "content-type": "application/grpc",
        "grpc-status": _UNIMPLEMENTED,
        "grpc-message": quote(reason, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~"),
    }
    return status_200 + b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    """Return a string literal without Huffman coding."""
    raw = text.encode("ascii")
    if len(raw) < 0x7F:
        return bytes([len(raw)]) + raw
    rest, length = len(raw) - 0x7F, bytearray([0x7F])
    while rest >= 0x80:
        length.append(0x80 | rest & 0x7F)
        rest >>= 7
    return bytes([*length, rest]) + raw
