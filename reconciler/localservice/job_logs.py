"""The log of a job: the lines that its runs have written, merged by their times.

It is read from any place without reading the rest. A run's log.jsonl has one JSON object a line, {"t": time
in RFC 3339, "s": severity, "m": text, "r": the replica's task name, absent for the service's own lines}, in
the order of time. Its last line may be half written. Runs of different trials write at the same time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import BinaryIO

_BLOCK = 64 * 1024
_SMALL_BLOCK = 4 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Place = Mapping[int, int]
"""A place in a job's log: the offset in each run's file, by the run's number."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """The file of one run, which may not be there yet.

    Attributes:
        run: The run's number in the job.
        trial: The trial's, 0 for none.
    """

    run: int
    trial: int
    path: Path


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        start, end: Where in its file it begins, and where the next one does.
        time: RFC 3339.
        order: The same in microseconds since 1970.
        replica: The replica's task name, "" for the service's own lines.
    """

    file: LogFile
    start: int
    end: int
    time: str
    order: int
    severity: str
    text: str
    replica: str


def end_of(files: Sequence[LogFile]) -> dict[int, int]:
    """The place after everything that is written so far."""
    return {file.run: file.path.stat().st_size for file in files if file.path.is_file()}


def forwards(files: Sequence[LogFile], place: Place, since: datetime | None) -> Iterator[Line]:
    """The lines from a place on, oldest first.

    Of a file that the place doesn't name, it has the lines from `since` on. Lines of the same time stand in
    the order of their runs.
    """
    firsts = ((_first(file, place.get(file.run), since), file) for file in files)
    return _merged(((line, _from(file, line.end)) for line, file in firsts if line), 1)


def backwards(files: Sequence[LogFile], place: Place, since: datetime | None) -> Iterator[Line]:
    """The lines before a place, newest first, of each file down to the first that is older than `since`.

    A file that the place doesn't name has no lines before it.
    """
    named = ((file, place[file.run]) for file in files if file.run in place)
    lasts = ((next(_before(file, end, since), None), file) for file, end in named)
    return _merged(((line, _before(file, line.start, since)) for line, file in lasts if line), -1)


def _merged(sources: Iterable[tuple[Line, Iterator[Line]]], direction: int) -> Iterator[Line]:
    """Each source's first line and the lines after it, in the order of time; in the opposite one with -1.

    A source is not asked for more before its first line was taken, so that a job of many trials has the files
    of those open that ran at the same time, and no others.
    """
    heads = [
        (direction * line.order, direction * line.file.run, line, following) for line, following in sources
    ]
    heapify(heads)
    while heads:
        _, run, line, following = heads[0]
        yield line
        after = next(following, None)
        if after is None:
            heappop(heads)
        else:
            heapreplace(heads, (direction * after.order, run, after, following))


def _first(file: LogFile, offset: int | None, since: datetime | None) -> Line | None:
    """The file's first line from the offset on; without one, its first that isn't older than `since`."""
    if not file.path.is_file():
        return None
    oldest = None if since is None or offset is not None else _order(since)
    with file.path.open("rb") as opened:
        opened.seek(offset or (0 if oldest is None else _shortly_before(opened, file, oldest)))
        lines = _lines(opened, file)
        return next((line for line in lines if oldest is None or line.order >= oldest), None)


def _from(file: LogFile, offset: int) -> Iterator[Line]:
    """The file's lines from the offset on."""
    with file.path.open("rb") as opened:
        opened.seek(offset)
        yield from _lines(opened, file)


def _before(file: LogFile, end: int, since: datetime | None) -> Iterator[Line]:
    """The file's lines before an offset, last first, down to the first that is older than `since`."""
    if not file.path.is_file():
        return
    oldest = None if since is None else _order(since)
    with file.path.open("rb") as opened:
        for start, raw in _raw_backwards(opened, end):
            line = _line(file, start, raw)
            if line and oldest is not None and line.order < oldest:
                return
            if line:
                yield line


def _lines(opened: BinaryIO, file: LogFile) -> Iterator[Line]:
    start = opened.tell()
    for raw in opened:
        if not raw.endswith(b"\n"):
            return  # it is being written
        line = _line(file, start, raw)
        start += len(raw)
        if line:
            yield line


def _raw_backwards(opened: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines before `end`, last first, each with its offset."""
    held = b""  # what is read, but may begin inside a line
    size = _SMALL_BLOCK  # mostly the last line alone is wanted
    while end > 0:
        begin = max(0, end - size)
        size = _BLOCK
        opened.seek(begin)
        held = opened.read(end - begin) + held
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


def _shortly_before(opened: BinaryIO, file: LogFile, oldest: int) -> int:
    """An offset shortly before the first line that isn't older; lines are in the order of time."""
    low, high = 0, opened.seek(0, os.SEEK_END)
    while high - low > _SMALL_BLOCK:
        middle = (low + high) // 2
        opened.seek(middle)
        opened.readline()  # the rest of a line
        start = opened.tell()
        line = _line(file, start, opened.readline())
        if line is None or line.order >= oldest:
            high = middle
        else:
            low = start
    return low


def _line(file: LogFile, start: int, raw: bytes) -> Line | None:
    """The line; None for one that a crash has left unreadable."""
    try:
        found = json.loads(raw)
        time, severity, text, replica = found["t"], found["s"], found["m"], found.get("r", "")
        order = _order(datetime.fromisoformat(time))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(each, str) for each in (severity, text, replica)):
        return None
    return Line(file, start, start + len(raw), time, order, severity, text, replica)


def _order(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
