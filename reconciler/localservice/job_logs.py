"""The log of a job: the lines that its runs have written, read from any place without reading the rest.

A run's log.jsonl has one JSON object a line: {"t": time in RFC 3339, "s": severity, "m": text}, in the
order of time. Its last line may be half written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

_BLOCK = 64 * 1024


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A place in a job's log: the run's number, and the offset in its file."""

    run: int
    offset: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        start, end: Where it begins, and where the next one does.
        time: RFC 3339.
    """

    start: Position
    end: Position
    time: str
    severity: str
    text: str


def forwards(runs: Sequence[tuple[int, Path]], start: Position, since: datetime | None) -> Iterator[Line]:
    """The lines from a place on, oldest first, from `since` on; runs are (number, file), in order."""
    for number, path in runs:
        if number < start.run or not path.is_file():
            continue
        with path.open("rb") as file:
            offset = start.offset if number == start.run else 0
            file.seek(max(offset, _first_since(file, since) if since else 0))
            yield from _lines_from(file, number)


def backwards(runs: Sequence[tuple[int, Path]], end: Position, since: datetime | None) -> Iterator[Line]:
    """The lines before a place, newest first, down to the first that is older than `since`."""
    for number, path in reversed(runs):
        if number > end.run or not path.is_file():
            continue
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            limit = min(size, end.offset) if number == end.run else size
            for start, raw in _raw_backwards(file, limit):
                line = _line(number, start, raw)
                if line and since and datetime.fromisoformat(line.time) < since:
                    return
                if line:
                    yield line


def _lines_from(file: BinaryIO, number: int) -> Iterator[Line]:
    start = file.tell()
    for raw in file:
        if not raw.endswith(b"\n"):
            return  # it is being written
        line = _line(number, start, raw)
        start += len(raw)
        if line:
            yield line


def _raw_backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines before `end`, last first, each with its offset."""
    held = b""  # what is read, but may begin inside a line
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        held = file.read(end - begin) + held
        end = begin
        if begin == 0:
            yield from _whole_lines(0, held)
        elif b"\n" in held:
            cut, newline, rest = held.partition(b"\n")
            yield from _whole_lines(begin + len(cut) + 1, rest)
            held = cut + newline


def _whole_lines(start: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of `data`, last first, but for an end that has no newline yet; `start` is its offset."""
    *lines, unfinished = data.split(b"\n")
    place = start + len(data) - len(unfinished)
    for line in reversed(lines):
        place -= len(line) + 1
        yield place, line + b"\n"


def _first_since(file: BinaryIO, since: datetime) -> int:
    """An offset shortly before the first line that isn't older; lines are in the order of time."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _BLOCK:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()  # the rest of a line
        start = file.tell()
        line = _line(0, start, file.readline())
        if line is None or datetime.fromisoformat(line.time) >= since:
            high = middle
        else:
            low = start
    return low


def _line(number: int, start: int, raw: bytes) -> Line | None:
    """The line; None for one that a crash has left unreadable."""
    try:
        found = json.loads(raw)
        datetime.fromisoformat(found["t"])
        end = Position(number, start + len(raw))
        return Line(Position(number, start), end, found["t"], found["s"], found["m"])
    except (ValueError, KeyError, TypeError):
        return None
