"""Cloud Logging's entries.list, as far as a training job's log needs it.

A job's entries have the resource type "ml_job", for both training APIs, as in the cloud: its labels `job_id`
and `task_name` name the job and the replica ("service" for the service's own words), the entry's own label
`ml.googleapis.com/trial_id` the trial. Sources: the page "Monitor and debug training with logs", what the
Cloud SDK's `stream-logs` reads, and entries that people published.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import BinaryIO

from reconciler.training_service.http import filters
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.filters import Filter
from reconciler.training_service.http.message import invalid
from reconciler.training_service.http.paging import Pages
from reconciler.training_service.state.records import JobRecord, JsonObject
from reconciler.training_service.state.run_folder import run_folder
from reconciler.training_service.state.store import Store

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
    oldest = None if since is None or offset is not None else _line_order(since)
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
        order = _line_order(datetime.fromisoformat(time))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(each, str) for each in (severity, text, replica)):
        return None
    return Line(file, start, start + len(raw), time, order, severity, text, replica)


def _line_order(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


DEFAULT_PAGE = 50
LARGEST_PAGE = 1000

SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")

_ORDERS = {"": False, "timestamp asc": False, "timestamp desc": True}
# So that a filter that selects little doesn't read a large log in one request: an empty page with a token is
# Cloud Logging's way to say that there is more to look through.
_MAX_SCANNED = 20_000
_PARENT = re.compile(r"projects/([^/]+)")
_SERVICE = "service"
_TRIAL = "ml.googleapis.com/trial_id"


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
        return f"{self.line.file.run:06d}-{self.line.start:016x}"


class LoggingApi:
    """The handler of entries.list."""

    def __init__(self, store: Store, home: Path, pages: Pages) -> None:
        self._store = store
        self._home = home
        self._pages = pages

    def handlers(self) -> dict[str, Handler]:
        """By method id."""
        return {"logging.entries.list": self._list}

    def _list(self, call: Call) -> JsonObject:
        found = filters.parse(call.body.get("filter", ""))
        selects = filters.compiled(found, _field)
        newest_first = _order(call.body.get("orderBy", ""))
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
        page, following = _page(entries, selects, _size(call), place, newest_first)
        answer: JsonObject = {"entries": [_resource(entry) for entry in page]} if page else {}
        if following is not None:
            answer["nextPageToken"] = self._pages.token([*following.items()], query)
        return answer

    def _job(self, parents: list[str], found: Filter) -> JobRecord | None:
        ids = [each.value for each in filters.conjuncts(found) if _is_job_id(each)]
        if len(ids) != 1:
            raise invalid('The filter must name one job: resource.labels.job_id="…"')
        projects = [_PARENT.fullmatch(parent) for parent in parents]
        if not projects or None in projects:
            raise invalid('resourceNames must hold names of the form "projects/PROJECT".')
        jobs = (self._store.newest_named(project[1], ids[0]) for project in projects if project)
        return next((job for job in jobs if job), None)

    def _files(self, job: JobRecord, found: Filter) -> list[LogFile]:
        """The files of the job's runs; of one trial alone, where the filter asks for no other."""
        runs = self._store.runs(job.id)
        files = [LogFile(run.number, run.trial, run_folder(self._home, run.run_id).log) for run in runs]
        wanted = {each.value for each in filters.conjuncts(found) if _is_trial(each)}
        return [file for file in files if wanted <= {_trial(file)}]


def _page(
    entries: Iterator[_Entry],
    selects: filters.Predicate[_Entry],
    size: int,
    place: Place,
    newest_first: bool,
) -> tuple[list[_Entry], Place | None]:
    """The selected entries from a place on, and where to go on; None where all has been looked through."""
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
    """The trial's label, which is empty outside of trials."""
    return str(file.trial) if file.trial else ""


def _is_trial(each: filters.Restriction) -> bool:
    return each.field == ("labels", _TRIAL) and each.comparison == "="


def _is_job_id(each: filters.Restriction) -> bool:
    return each.field == ("resource", "labels", "job_id") and each.comparison == "="


def _since(found: Filter) -> datetime | None:
    """A time that no selected entry is older than."""
    times = [
        filters.moment(each.value)
        for each in filters.conjuncts(found)
        if each.field == ("timestamp",) and each.comparison in (">", ">=")
    ]
    return max(times, default=None)


def _order(text: str) -> bool:
    """Whether newest first is wanted."""
    if text not in _ORDERS:
        raise invalid('orderBy may be "timestamp asc" or "timestamp desc".')
    return _ORDERS[text]


def _size(call: Call) -> int:
    size = int(call.body.get("pageSize", 0))
    if size < 0:
        raise invalid("pageSize must not be negative.")
    return min(size or DEFAULT_PAGE, LARGEST_PAGE)
