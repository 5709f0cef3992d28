"""A run's log: what programs print, line by line, as JSON lines with time and severity."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from pathlib import Path

from reconciler.training_service.state.run_folder import now

INFO = "INFO"
WARNING = "WARNING"
ERROR = "ERROR"

LINE_LIMIT = 64 * 1024


class LogFullError(Exception):
    """The log has reached its limit: what a replica has printed was not added."""


class RunLog:
    """Appends to a run's log; each call's lines reach the file together, before it returns.

    Attributes:
        limit: Bytes that the file may have with what replicas print; None for as many as there are. The
            service's own lines are added in any case.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._limit = limit
        self._size = os.fstat(self._descriptor).st_size

    def write(self, severity: str, lines: Iterable[str], replica: str = "") -> None:
        """Add lines, of a replica or the service's own.

        Raises:
            LogFullError: They would go beyond the limit.
            OSError: The disk is full, say.
        """
        label = {"t": now(), "s": severity, **({"r": replica} if replica else {})}
        start = json.dumps(label).removesuffix("}")
        data = "".join(f'{start}, "m": {encode_basestring_ascii(line)}}}\n' for line in lines).encode()
        if replica and self._limit is not None and self._size + len(data) > self._limit:
            raise LogFullError
        self._size += len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class LineSplitter:
    """Cuts a stream of bytes into lines of text, of `LINE_LIMIT` bytes at most; replaces what isn't UTF-8."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        if b"\n" not in data:
            self._rest += data
            return self._overlong()
        first, *others = data.split(b"\n")
        complete = [bytes(self._rest) + first, *others[:-1]]
        self._rest = bytearray(others[-1])
        return [_text(part) for line in complete for part in _cut(line)] + self._overlong()

    def close(self) -> list[str]:
        """The line that the stream ended in, where it didn't end with a newline."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [_text(part) for part in _cut(rest)] if rest else []

    def _overlong(self) -> list[str]:
        if len(self._rest) <= LINE_LIMIT:
            return []
        *parts, rest = _cut(bytes(self._rest))
        self._rest = bytearray(rest)
        return [_text(part) for part in parts]


def _cut(line: bytes) -> list[bytes]:
    parts = []
    while len(line) > LINE_LIMIT:
        end = _character_boundary(line)
        parts.append(line[:end])
        line = line[end:]
    return [*parts, line]


def _character_boundary(line: bytes) -> int:
    """The last place within the limit that isn't inside a character, which has up to four bytes in UTF-8."""
    for end in range(LINE_LIMIT, LINE_LIMIT - 4, -1):
        if line[end] & 0b1100_0000 != 0b1000_0000:
            return end
    return LINE_LIMIT


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
