"""Log of a run: the programs' output line by line, as JSON lines with time and severity; and its reader.

The reader merges the files of several runs with those of clients' entries, oldest or newest first.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import BinaryIO

from reconciler.training_service.state.records import JsonObject, Wait
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


_BLOCK = 64 * 1024
_SMALL_BLOCK = 4 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Key = tuple[int, int]
Position = Mapping[Key, int]
"""Position in a log: the offset in each file, by the file's key."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """Log file of one run, or of the entries that clients wrote for a project; it may not exist yet.

    Attributes:
        job: The job's row number, 0 for none.
        run: The run's number in the job, or the project's in the request.
        trial: The trial's number, 0 for none.
        wait: Instead of a file, the only line: the reason why the job waits.
    """

    job: int
    run: int
    trial: int
    path: Path
    wait: Wait | None = None

    @property
    def key(self) -> Key:
        """Return the file's key in positions."""
        return self.job, self.run


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log file.

    Attributes:
        start, end: The offsets of the line and of the next line.
        time: RFC 3339.
        order: `time` in microseconds since 1970.
        replica: The replica's task name, "" for the service's own lines.
        entry: The whole entry if a client wrote it.
    """

    file: LogFile
    start: int
    end: int
    time: str
    order: int
    severity: str
    text: str
    replica: str
    entry: JsonObject | None = None


def end_of(files: Sequence[LogFile]) -> dict[Key, int]:
    """Return the position after all lines written so far."""
    sizes = {file.key: file.path.stat().st_size for file in files if file.path.is_file()}
    return sizes | {file.key: 1 for file in files if file.wait is not None}


def forwards(files: Sequence[LogFile], position: Position, since: datetime | None) -> Iterator[Line]:
    """Yield the lines after a position, oldest first.

    A file that the position doesn't name is read from `since` on. Lines of equal time follow the order of
    their jobs and runs.
    """
    return heapq.merge(*(_after(file, position.get(file.key), since) for file in files), key=_by_time)


def backwards(files: Sequence[LogFile], position: Position, since: datetime | None) -> Iterator[Line]:
    """Yield the lines before a position, newest first, per file down to the first older than `since`.

    A file that the position doesn't name has no lines before it.
    """
    sources = (_before(file, position[file.key], since) for file in files if file.key in position)
    return heapq.merge(*sources, key=_by_time, reverse=True)


def last_line_of(file: LogFile) -> Line | None:
    """Return the file's last line."""
    return next(backwards([file], end_of([file]), None), None)


def _line_order(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _waiting(file: LogFile, wait: Wait, since: datetime | None) -> Iterator[Line]:
    moment = datetime.fromisoformat(wait.since)
    if since is None or moment >= since:
        yield Line(file, 0, 1, wait.since, _line_order(moment), INFO, wait.reason, "")


def _by_time(line: Line) -> tuple[int, Key]:
    return line.order, line.file.key


def _after(file: LogFile, offset: int | None, since: datetime | None) -> Iterator[Line]:
    """Yield the lines from the offset on; without an offset, from the first not older than `since`."""
    if file.wait is not None and not offset:
        yield from _waiting(file, file.wait, since)
    if not file.path.is_file():
        return
    oldest = None if since is None or offset is not None else _line_order(since)
    with file.path.open("rb") as opened:
        opened.seek(offset or (0 if oldest is None else _offset_before(opened, file, oldest)))
        lines = _lines(opened, file)
        first = next((line for line in lines if oldest is None or line.order >= oldest), None)
    if first is None:
        return
    # The file is closed until its first line is taken: a merge reads the first line of each file at once, and
    # a job of many trials has many files.
    yield first
    with file.path.open("rb") as opened:
        opened.seek(first.end)
        yield from _lines(opened, file)


def _before(file: LogFile, end: int, since: datetime | None) -> Iterator[Line]:
    """Yield the lines before an offset, last first, down to the first that is older than `since`."""
    if file.wait is not None and end:
        yield from _waiting(file, file.wait, since)
    last = next(_open_before(file, end, since), None)
    if last is not None:
        yield last  # with the file closed, as above
        yield from _open_before(file, last.start, since)


def _open_before(file: LogFile, end: int, since: datetime | None) -> Iterator[Line]:
    if not file.path.is_file():
        return
    oldest = None if since is None else _line_order(since)
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
            return  # the runner is still writing this line
        line = _line(file, start, raw)
        start += len(raw)
        if line:
            yield line


def _raw_backwards(opened: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines before `end` with their offsets, last first."""
    pending = b""  # data that may begin inside a line
    size = _SMALL_BLOCK  # most requests need only the last line
    while end > 0:
        begin = max(0, end - size)
        size = _BLOCK
        opened.seek(begin)
        pending = opened.read(end - begin) + pending
        end = begin
        if begin == 0:
            yield from _whole_lines(0, pending)
        elif b"\n" in pending:
            cut, newline, rest = pending.partition(b"\n")
            yield from _whole_lines(begin + len(cut) + 1, rest)
            pending = cut + newline


def _whole_lines(start: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines of `data`, last first; `start` is its offset."""
    *lines, unfinished = data.split(b"\n")
    offset = start + len(data) - len(unfinished)
    for line in reversed(lines):
        offset -= len(line) + 1
        yield offset, line + b"\n"


def _offset_before(opened: BinaryIO, file: LogFile, oldest: int) -> int:
    # The lines of a file are in the order of time.
    low, high = 0, opened.seek(0, os.SEEK_END)
    while high - low > _SMALL_BLOCK:
        middle = (low + high) // 2
        opened.seek(middle)
        opened.readline()  # skips the rest of a line
        start = opened.tell()
        line = _line(file, start, opened.readline())
        if line is None or line.order >= oldest:
            high = middle
        else:
            low = start
    return low


def _line(file: LogFile, start: int, raw: bytes) -> Line | None:
    """Return the parsed line; None if a crash has left it unreadable."""
    try:
        record = json.loads(raw)
        time, severity, text, replica = record["t"], record["s"], record["m"], record.get("r", "")
        order, entry = _line_order(datetime.fromisoformat(time)), record.get("e")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(value, str) for value in (severity, text, replica)):
        return None
    return Line(file, start, start + len(raw), time, order, severity, text, replica, entry)
