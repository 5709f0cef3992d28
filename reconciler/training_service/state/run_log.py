"""Log of a run: the programs' output line by line, as JSON lines with time and severity."""

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
    """Refusal of a replica's output because the log has reached its limit."""


class RunLog:
    """Writer of a run's log; each call's lines reach the file together, before it returns.

    Attributes:
        limit: Bytes of the file up to which replicas' lines are added; None for no limit. The service's own
            lines are always added.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._limit = limit
        self._size = os.fstat(self._descriptor).st_size

    def write(self, severity: str, lines: Iterable[str], replica: str = "") -> None:
        """Add lines of a replica, or of the service if `replica` is "".

        Raises:
            LogFullError: A replica's lines would exceed the limit.
            OSError: The write failed, for example on a full disk.
        """
        # The lines share one label, so only their texts are encoded one by one.
        label = {"t": now(), "s": severity, **({"r": replica} if replica else {})}
        start = json.dumps(label).removesuffix("}")
        data = "".join(f'{start}, "m": {encode_basestring_ascii(line)}}}\n' for line in lines).encode()
        if replica and self._limit is not None and self._size + len(data) > self._limit:
            raise LogFullError
        self._size += len(data)
        rest = memoryview(data)  # a write to a nearly full disk may take only a part
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class LineSplitter:
    """Splitter of bytes into lines of at most `LINE_LIMIT` bytes; replaces invalid UTF-8."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        if b"\n" not in data:
            self._rest += data
            return self._overlong()
        first, *others = data.split(b"\n")
        complete = [bytes(self._rest) + first, *others[:-1]]
        self._rest = bytearray(others[-1])
        return [_text(part) for line in complete for part in _cut(line)] + self._overlong()

    def close(self) -> list[str]:
        """Return the last line if it lacks a newline."""
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
    # Cut between characters: bytes 10xxxxxx continue one, which has at most four bytes in UTF-8.
    for end in range(LINE_LIMIT, LINE_LIMIT - 4, -1):
        if line[end] & 0b1100_0000 != 0b1000_0000:
            return end
    return LINE_LIMIT


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
