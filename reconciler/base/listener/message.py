"""Requests and responses, independent of any HTTP server."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import parse_qsl, urlsplit

TEXT = (("Content-Type", "text/plain; charset=utf-8"),)
"""Headers of plain text."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request.

    Attributes:
        method: In upper case.
        path: Percent-encoded as sent, because an object's name may contain an encoded "/".
        query: The parameters, decoded, in order; without a name's leading "$" ("$alt").
        headers: Values by lower-case name.
        body: The content, readable once.
        base: Scheme, host and path prefix of the APIs, for links in answers.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: BinaryIO = field(default_factory=io.BytesIO)
    base: str = ""

    @classmethod
    def of(
        cls,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: BinaryIO | bytes = b"",
        base: str = "",
    ) -> Request:
        """Return a request from its target: a URL, or a path with its query."""
        if not target.startswith("/"):
            parts = urlsplit(target)
            target = f"{parts.path or '/'}?{parts.query}"
        path, _, query = target.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        return cls(
            method=method.upper(),
            path=path,
            query=tuple((name.removeprefix("$"), value) for name, value in pairs),
            headers={name.lower(): value for name, value in (headers or {}).items()},
            body=io.BytesIO(body) if isinstance(body, bytes) else body,
            base=base,
        )

    def parameter(self, name: str) -> str:
        """Return the last value of a query parameter, "" if missing."""
        return next((value for key, value in reversed(self.query) if key == name), "")


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response; its body is `content`, or the next `length` bytes of `file` if set."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""
    file: BinaryIO | None = None
    length: int = 0

    def read(self) -> bytes:
        """Return the whole content, and close the file."""
        if self.file is None:
            return self.content
        with self.file as file:
            return file.read(self.length)


Responder = Callable[[Request], Response]
"""Function that answers a complete request."""

Admit = Callable[[Request], Response | Responder]
"""Function that judges a request by its head: returns its responder, or an answer at once.

After an answer at once the connection closes, and nothing of the request's body is kept.
"""
