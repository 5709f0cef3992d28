"""Objects' contents as HTTP has them: downloads with ranges, and the two parts of a multipart upload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import quote

from reconciler.localservice.message import ApiError, Response, invalid
from reconciler.localservice.objects import Content
from reconciler.localservice.storage_resources import DEFAULT_TYPE, etag_of

_CHUNK = 256 * 1024
_MAX_HEADER = 64 * 1024
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,200})"|'([^']{1,200})'|([^\s;"']{1,200}))""", re.IGNORECASE)


def download(content: Content, wanted: str) -> Response:
    """An object's content, or the part that a Range header wants ("" for all).

    Raises:
        ApiError: 416: no such part.
    """
    stored = content.object
    span = _range(wanted, stored.size)
    first, last = span or (0, stored.size - 1)
    headers = [
        ("Content-Type", stored.body.get("contentType", DEFAULT_TYPE)),
        ("Content-Length", str(last - first + 1)),
        ("Accept-Ranges", "bytes"),
        ("ETag", f'"{etag_of(stored)}"'),
        ("X-Goog-Generation", str(stored.generation)),
        ("X-Goog-Metageneration", str(stored.metageneration)),
        ("X-Goog-Hash", f"crc32c={stored.crc32c},md5={stored.md5}"),
        ("X-Goog-Stored-Content-Length", str(stored.size)),
        ("X-Goog-Stored-Content-Encoding", stored.body.get("contentEncoding", "identity")),
    ]
    for name in ("Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control"):
        value = stored.body.get(name[0].lower() + name[1:].replace("-", ""))
        headers += [(name, value)] if value else []
    if span:
        headers.append(("Content-Range", f"bytes {first}-{last}/{stored.size}"))
    content.file.seek(first)
    safe = tuple((name, _header_value(value)) for name, value in headers)
    return Response(206 if span else 200, safe, file=content.file, length=last - first + 1)


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """A request's content, piece by piece."""
    while chunk := stream.read(_CHUNK):
        yield chunk


def boundary_of(content_type: str) -> bytes:
    """The boundary that a multipart Content-Type tells.

    Raises:
        ApiError: INVALID_ARGUMENT: it tells none.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise invalid("A multipart request's Content-Type must name its boundary.")
    return next(group for group in found.groups() if group).encode("latin-1", "replace")


class Multipart:
    """Reads a multipart body part by part; line ends may be CRLF or LF, as clients send both."""

    def __init__(self, stream: BinaryIO, boundary: bytes) -> None:
        self._stream = stream
        self._boundary = b"--" + boundary
        self._left = b"\n"  # so that the first boundary is found like the others, after a line end
        self._mark = b"\n" + self._boundary
        for _ in self._until_mark():
            pass

    def part(self) -> tuple[dict[str, str], Iterator[bytes]]:
        """The next part: its headers by lower-case name, and its content, to be read before the next part.

        Raises:
            ApiError: INVALID_ARGUMENT: there is none.
        """
        head = b""
        while not (end := re.search(rb"\r?\n\r?\n", head)):
            more = self._read()
            if not more or len(head) > _MAX_HEADER or head.startswith(b"--"):
                raise invalid("The multipart body ends too early.")
            head += more
        # The line end before a boundary belongs to the boundary, and what it is shows at the first.
        self._mark = (b"\r\n" if head.startswith(b"\r") else b"\n") + self._boundary
        self._left = head[end.end() :]
        lines = head[: end.start()].decode("utf-8", "replace").splitlines()
        pairs = [line.partition(":") for line in lines if ":" in line]
        return {name.strip().lower(): value.strip() for name, _, value in pairs}, self._until_mark()

    def _until_mark(self) -> Iterator[bytes]:
        keep = len(self._mark)  # the end of a piece may cut a mark
        held = b""
        while True:
            more = self._read()
            held += more
            place = held.find(self._mark)
            if place >= 0:
                self._left = held[place + len(self._mark) :]
                yield held[:place]
                return
            if not more:
                raise invalid("The multipart body ends too early.")
            yield held[:-keep]
            held = held[-keep:]

    def _read(self) -> bytes:
        left, self._left = self._left, b""
        return left or self._stream.read(_CHUNK)


def _range(wanted: str, size: int) -> tuple[int, int] | None:
    """The first and the last byte; None for all: as HTTP has it, a range that can't be read is no range."""
    found = _RANGE.fullmatch(wanted.strip())
    if found is None or found.groups() == ("", ""):
        return None
    begin, end = found.groups()
    first = int(begin) if begin else max(0, size - int(end))
    last = min(int(end), size - 1) if begin and end else size - 1
    if first >= size or (begin and end and int(end) < first):
        raise ApiError("OUT_OF_RANGE", "Request range not satisfiable", http=416)
    return first, last


def _header_value(text: str) -> str:
    """The text as a header may hold it: what a client stored there must not begin a header of its own."""
    return text if text.isascii() and text.isprintable() else quote(text)
