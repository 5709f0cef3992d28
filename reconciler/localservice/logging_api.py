"""Cloud Logging's entries.list, as far as a training job's log needs it.

A job's entries have the resource type "ml_job", for both training APIs, as in the cloud: its labels `job_id`
and `task_name` name the job and the replica ("service" for the service's own words), the entry's own label
`ml.googleapis.com/trial_id` the trial. Sources: the page "Monitor and debug training with logs", what the
Cloud SDK's `stream-logs` reads, and entries that people published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from reconciler.localservice import filters, job_logs
from reconciler.localservice.calls import Call, Handler
from reconciler.localservice.filters import Filter
from reconciler.localservice.job_logs import Line, LogFile
from reconciler.localservice.message import invalid
from reconciler.localservice.paging import Pages
from reconciler.localservice.records import JobRecord, JsonObject
from reconciler.localservice.run_folder import run_folder
from reconciler.localservice.store import Store

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
            place = job_logs.end_of(files) if place is None else place
            lines = job_logs.backwards(files, place, _since(found))
        else:
            place = place or {}
            lines = job_logs.forwards(files, place, _since(found))
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
    place: job_logs.Place,
    newest_first: bool,
) -> tuple[list[_Entry], job_logs.Place | None]:
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
