"""Cloud Logging's entries.list, limited to the logs of training jobs.

As in the cloud, a job's entries have the resource type "ml_job" for both training APIs. The labels `job_id`
and `task_name` name the job and the replica ("service" for the service's own lines), the entry's own label
`ml.googleapis.com/trial_id` the trial. Sources: the page "Monitor and debug training with logs", the fields
that the Cloud SDK's `stream-logs` reads, and published entries.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from reconciler.training_service.http import filters
from reconciler.training_service.http.call import Call, Handler, Pages, page_size
from reconciler.training_service.http.filters import Filter
from reconciler.training_service.http.message import invalid
from reconciler.training_service.state.records import JobRecord, JsonObject
from reconciler.training_service.state.run_folder import run_folder
from reconciler.training_service.state.store import Store

_BLOCK = 64 * 1024
_SMALL_BLOCK = 4 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
DEFAULT_PAGE = 50
LARGEST_PAGE = 1000

SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")

_ORDERS = {"": False, "timestamp asc": False, "timestamp desc": True}
# Bounds the work of a selective filter on a large log: an empty page with a token is Cloud Logging's way to
# report more lines to scan.
_MAX_SCANNED = 20_000
_PARENT = re.compile(r"projects/([^/]+)")
_SERVICE = "service"
_TRIAL = "ml.googleapis.com/trial_id"

Place = Mapping[int, int]
"""Position in a job's log: the offset in each run's file, by the run's number."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """Log file of one run; it may not exist yet.

    Attributes:
        run: The run's number in the job.
        trial: The trial's number, 0 for none.
    """

    run: int
    trial: int
    path: Path


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log file.

    Attributes:
        start, end: The offsets of the line and of the next line.
        time: RFC 3339.
        order: `time` in microseconds since 1970.
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
    """Return the position after all lines written so far."""
    return {file.run: file.path.stat().st_size for file in files if file.path.is_file()}


def forwards(files: Sequence[LogFile], place: Place, since: datetime | None) -> Iterator[Line]:
    """Yield the lines after a position, oldest first.

    A file that the position doesn't name is read from `since` on. Lines of equal time follow the order of
    their runs.
    """
    return heapq.merge(*(_after(file, place.get(file.run), since) for file in files), key=_by_time)


def backwards(files: Sequence[LogFile], place: Place, since: datetime | None) -> Iterator[Line]:
    """Yield the lines before a position, newest first, per file down to the first older than `since`.

    A file that the position doesn't name has no lines before it.
    """
    sources = (_before(file, place[file.run], since) for file in files if file.run in place)
    return heapq.merge(*sources, key=_by_time, reverse=True)


def _by_time(line: Line) -> tuple[int, int]:
    return line.order, line.file.run


def _after(file: LogFile, offset: int | None, since: datetime | None) -> Iterator[Line]:
    """Yield the lines from the offset on; without an offset, from the first not older than `since`."""
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
    place = start + len(data) - len(unfinished)
    for line in reversed(lines):
        place -= len(line) + 1
        yield place, line + b"\n"


def _offset_before(opened: BinaryIO, file: LogFile, oldest: int) -> int:
    # Binary search: the lines of a file are in the order of time.
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
        found = json.loads(raw)
        time, severity, text, replica = found["t"], found["s"], found["m"], found.get("r", "")
        order = _line_order(datetime.fromisoformat(time))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(each, str) for each in (severity, text, replica)):
        return None
    return Line(file, start, start + len(raw), time, order, severity, text, replica)


def _line_order(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class _Entry:
    job: JobRecord
    line: Line

    @property
    def task(self) -> str:
        return self.line.replica or _SERVICE

    @property
    def log_name(self) -> str:
        name = self.line.replica or f"ml.googleapis.com%2F{self.job.job_id}"
        return f"projects/{self.job.project}/logs/{name}"

    @property
    def resource_labels(self) -> dict[str, str]:
        return {"project_id": self.job.project, "job_id": self.job.job_id, "task_name": self.task}

    @property
    def labels(self) -> dict[str, str]:
        return {
            "ml.googleapis.com/job_id": self.job.job_id,
            "ml.googleapis.com/job_id/log_area": "root",
            _TRIAL: _trial(self.line.file),
            "ml.googleapis.com/trial_type": "",
        }

    @property
    def severity(self) -> str:
        return self.line.severity if self.line.severity in SEVERITIES else "DEFAULT"

    @property
    def payload(self) -> JsonObject:
        if not self.line.replica:
            return {"textPayload": self.line.text}
        attrs = {"tag": self.task}
        return {"jsonPayload": {"message": self.line.text, "levelname": self.severity, "attrs": attrs}}

    @property
    def insert_id(self) -> str:
        # Padded, so that ids compare like positions in the log.
        return f"{self.line.file.run:06d}-{self.line.start:016x}"


class LoggingApi:
    """Handler of entries.list."""

    def __init__(self, store: Store, home: Path, pages: Pages) -> None:
        self._store = store
        self._home = home
        self._pages = pages

    def handlers(self) -> dict[str, Handler]:
        """Return the handler by method id."""
        return {"logging.entries.list": self._list}

    def _list(self, call: Call) -> JsonObject:
        found = filters.parse(call.body.get("filter", ""))
        selects = filters.compile_filter(found, _field)
        newest_first = _newest_first(call.body.get("orderBy", ""))
        job = self._job(call.body.get("resourceNames", []), found)
        if job is None:
            return {}
        query = [call.method.id, job.id, call.body.get("filter", ""), newest_first]
        token = call.body.get("pageToken", "")
        files = self._files(job, found)
        place = dict(self._pages.position(token, query)) if token else None
        if newest_first:
            place = end_of(files) if place is None else place
            lines = backwards(files, place, _since(found))
        else:
            place = place or {}
            lines = forwards(files, place, _since(found))
        entries = (_Entry(job, line) for line in lines)
        size = page_size(call.body.get("pageSize"), "pageSize", DEFAULT_PAGE, LARGEST_PAGE)
        page, following = _page(entries, selects, size, place, newest_first)
        answer: JsonObject = {"entries": [_resource(entry) for entry in page]} if page else {}
        if following is not None:
            answer["nextPageToken"] = self._pages.token([*following.items()], query)
        return answer

    def _job(self, parents: list[str], found: Filter) -> JobRecord | None:
        ids = _required_values(found, ("resource", "labels", "job_id"))
        if len(ids) != 1:
            raise invalid('The filter must name one job: resource.labels.job_id="…"')
        projects = [_PARENT.fullmatch(parent) for parent in parents]
        if not projects or None in projects:
            raise invalid('resourceNames must hold names of the form "projects/PROJECT".')
        jobs = (self._store.newest_named(project[1], ids[0]) for project in projects if project)
        return next((job for job in jobs if job), None)

    def _files(self, job: JobRecord, found: Filter) -> list[LogFile]:
        """Return the log files of the job's runs; only one trial's if the filter names it."""
        runs = self._store.runs(job.id)
        files = [LogFile(run.number, run.trial, run_folder(self._home, run.run_id).log) for run in runs]
        trials = set(_required_values(found, ("labels", _TRIAL)))
        return [file for file in files if trials <= {_trial(file)}]


def _page(
    entries: Iterator[_Entry],
    selects: filters.Predicate[_Entry],
    size: int,
    place: Place,
    newest_first: bool,
) -> tuple[list[_Entry], Place | None]:
    """Return the selected entries and the next position; None as position at the log's end."""
    page: list[_Entry] = []
    reached = dict(place)
    for scanned, entry in enumerate(entries):
        if len(page) == size or scanned == _MAX_SCANNED:
            return page, reached
        reached[entry.line.file.run] = entry.line.start if newest_first else entry.line.end
        if selects(entry):
            page.append(entry)
    return page, None


def _resource(entry: _Entry) -> JsonObject:
    return {
        "insertId": entry.insert_id,
        "logName": entry.log_name,
        "resource": {"type": "ml_job", "labels": entry.resource_labels},
        "labels": entry.labels,
        "timestamp": entry.line.time,
        "receiveTimestamp": entry.line.time,
        "severity": entry.severity,
        **entry.payload,
    }


def _field(path: tuple[str, ...]) -> filters.Field[_Entry] | None:
    match path:
        case ("resource", "type"):
            return filters.text_field(lambda _: "ml_job", "=", "!=")
        case ("resource", "labels", key):
            return filters.map_field(lambda entry: entry.resource_labels, key)
        case ("labels", key):
            return filters.map_field(lambda entry: entry.labels, key)
        case ("logName",):
            return filters.text_field(lambda entry: entry.log_name, "=", "!=", ":")
        case ("insertId",):
            return filters.ordered_field(lambda entry: entry.insert_id, str)
        case ("timestamp",):
            return filters.ordered_field(lambda entry: filters.moment(entry.line.time), filters.moment)
        case ("severity",):
            return filters.ordered_field(lambda entry: _rank(entry.line.severity), _rank_named)
    return None


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


def _rank_named(severity: str) -> int:
    if severity.upper() not in SEVERITIES:
        raise ValueError("is no severity.")
    return SEVERITIES.index(severity.upper())


def _trial(file: LogFile) -> str:
    return str(file.trial) if file.trial else ""  # outside of trials the label is present but empty


def _required_values(found: Filter, field: tuple[str, ...]) -> list[str]:
    return [each.value for each in filters.conjuncts(found) if (each.field, each.comparison) == (field, "=")]


def _since(found: Filter) -> datetime | None:
    """Return a lower bound of the selected entries' times."""
    times = [
        filters.moment(each.value)
        for each in filters.conjuncts(found)
        if each.field == ("timestamp",) and each.comparison in (">", ">=")
    ]
    return max(times, default=None)


def _newest_first(text: str) -> bool:
    """Return whether the newest entries come first."""
    if text not in _ORDERS:
        raise invalid('orderBy may be "timestamp asc" or "timestamp desc".')
    return _ORDERS[text]
