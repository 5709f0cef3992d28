"""Cloud Logging's entries.list and entries.write: the logs of training jobs, and the entries of clients.

As in the cloud, a job's entries have the resource type "ml_job" for both training APIs. The labels `job_id`
and `task_name` name the job and the replica ("service" for the service's own lines), the entry's own label
`ml.googleapis.com/trial_id` the trial. Sources: the page "Monitor and debug training with logs", the fields
that the Cloud SDK's `stream-logs` reads, and published entries.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from reconciler.training_service.http import filters
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.filters import Filter
from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.http.paging import Pages, page_size
from reconciler.training_service.state.database import Store, rfc3339
from reconciler.training_service.state.records import JobRecord, JobState, JsonObject, Wait, number_of
from reconciler.training_service.state.run_folder import run_folder
from reconciler.training_service.state.run_log import (
    Line,
    LogFile,
    Position,
    backwards,
    end_of,
    forwards,
    last_line_of,
)

DEFAULT_PAGE = 50
LARGEST_PAGE = 1000

SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")

_ORDERS = {"": False, "timestamp asc": False, "timestamp desc": True}
# Bounds the work of a selective filter on a large log: an empty page with a token is Cloud Logging's way to
# report more lines to scan.
_MAX_SCANNED = 20_000
_PARENT = re.compile(r"projects/([^/]+)")
_LOG_NAME = re.compile(r"projects/([A-Za-z0-9][A-Za-z0-9.:_-]{0,127})/logs/([A-Za-z0-9_.%-]{1,511})")
_MAX_ENTRY = 256 * 1024  # https://cloud.google.com/logging/quotas#log-limits
_MAX_WRITTEN = 256 * 1024 * 1024
_NO_FILE = Path(os.devnull)
_RESOURCE = "ml_job"
_SERVICE = "service"
_TRIAL = "ml.googleapis.com/trial_id"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Entry of a job's log."""

    job: JobRecord
    line: Line

    @property
    def resource_type(self) -> str:
        return _RESOURCE

    @property
    def time(self) -> str:
        return self.line.time

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

    @property
    def resource(self) -> JsonObject:
        return {
            "insertId": self.insert_id,
            "logName": self.log_name,
            "resource": {"type": self.resource_type, "labels": self.resource_labels},
            "labels": self.labels,
            "timestamp": self.time,
            "receiveTimestamp": self.time,
            "severity": self.severity,
            **self.payload,
        }


@dataclass(frozen=True, slots=True)
class _Written:
    """Entry that a client wrote."""

    line: Line
    resource: JsonObject

    @property
    def resource_type(self) -> str:
        return str(self.resource["resource"]["type"])

    @property
    def time(self) -> str:
        return str(self.resource["timestamp"])

    @property
    def log_name(self) -> str:
        return str(self.resource["logName"])

    @property
    def resource_labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.resource["resource"].get("labels", {})
        return labels

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.resource.get("labels", {})
        return labels

    @property
    def severity(self) -> str:
        return self.line.severity

    @property
    def insert_id(self) -> str:
        return str(self.resource["insertId"])


_AnyEntry = _Entry | _Written


class LoggingApi:
    """Handlers of entries.

    Attributes:
        wait_of: Returns the reason why a queued job waits, if it is known.
    """

    def __init__(
        self, store: Store, home: Path, pages: Pages, wait_of: Callable[[JobRecord], Wait | None]
    ) -> None:
        self._wait_of = wait_of
        self._store = store
        self._home = home
        self._pages = pages

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by method id."""
        return {"logging.entries.list": self._list, "logging.entries.write": self._write}

    def _list(self, call: Call) -> JsonObject:
        condition = filters.parse(call.body.get("filter", ""))
        selects = filters.compile_filter(condition, _field)
        newest_first, since = _newest_first(call.body.get("orderBy", "")), _since(condition)
        projects = _projects(call.body.get("resourceNames", []))
        query = [call.method.id, projects, call.body.get("filter", ""), newest_first]
        token = call.body.get("pageToken", "")
        position = self._pages.position(token, query) if token else None
        start = None if position is None else {(job, run): offset for job, run, offset in position}
        jobs = self._jobs(projects, condition)
        files = self._files(projects, jobs, condition, since)
        if newest_first:
            start = end_of(files) if start is None else start
            lines = backwards(files, start, since)
        else:
            start = start or {}
            lines = forwards(files, start, since)
        entries = (_entry(jobs, line) for line in lines)
        size = page_size(call.body.get("pageSize"), "pageSize", DEFAULT_PAGE, LARGEST_PAGE)
        page, following = _page(entries, selects, size, start, newest_first)
        answer: JsonObject = {"entries": [entry.resource for entry in page]} if page else {}
        if following is not None:
            reached = [[*key, offset] for key, offset in following.items()]
            answer["nextPageToken"] = self._pages.token(reached, query)
        return answer

    def _jobs(self, projects: Sequence[str], condition: Filter) -> dict[int, JobRecord]:
        """Return the jobs whose entries the filter may select, by row number."""
        ids = filters.possible_values(condition, ("resource", "labels", "job_id"))
        if ids is None:
            jobs = [job for project in projects for job in self._store.of_project(project)]
        else:
            named = [self._store.newest_named(project, id) for project in projects for id in sorted(ids)]
            jobs = [job for job in named if job]
        return {job.id: job for job in jobs}

    def _files(
        self,
        projects: Sequence[str],
        jobs: Mapping[int, JobRecord],
        condition: Filter,
        since: datetime | None,
    ) -> list[LogFile]:
        """Return the files with entries that the filter may select."""
        trials = filters.possible_values(condition, ("labels", _TRIAL))
        files = [LogFile(0, number, 0, self._written_file(name)) for number, name in enumerate(projects)]
        for job in jobs:
            for run in self._store.runs(job):
                files.append(LogFile(job, run.number, run.trial, run_folder(self._home, run.run_id).log))
        chosen = [file for file in files if trials is None or not file.job or _trial(file) in trials]
        # Of many jobs' files most have ended before the time that a request asks for.
        recent = [file for file in chosen if since is None or _changed_since(file.path, since)]
        queued = [job for job in jobs.values() if job.state is JobState.QUEUED and not job.backing]
        waits = {job.id: self._wait_of(job) for job in queued}
        return recent + [LogFile(id, 0, 0, _NO_FILE, wait) for id, wait in waits.items() if wait]

    def _written_file(self, project: str) -> Path:
        return self._home / "entries" / f"{number_of(project)}.log"

    def _write(self, call: Call) -> JsonObject:
        entries = [self._given_entry(call, given) for given in call.body.get("entries", [])]
        if not call.body.get("dryRun"):
            for project in dict.fromkeys(project for project, _ in entries):
                self._append(project, [entry for of, entry in entries if of == project])
        return {}

    def _given_entry(self, call: Call, given: JsonObject) -> tuple[str, JsonObject]:
        """Return the project and the stored form of a client's entry."""
        name = given.get("logName") or call.body.get("logName", "")
        match = _LOG_NAME.fullmatch(name)
        if match is None:
            raise invalid(f"{name!r} is not a log's name: projects/PROJECT/logs/NAME.")
        call.access.check_logs(match[1])
        resource = given.get("resource") or call.body.get("resource", {})
        labels = {**call.body.get("labels", {}), **given.get("labels", {})}
        if call.access.job_id:
            # A trainer's client names a resource that it guesses; and no job writes into another's log.
            resource = {"type": _RESOURCE, "labels": {"project_id": match[1], "job_id": call.access.job_id}}
            labels["ml.googleapis.com/job_id"] = call.access.job_id
        if not resource.get("type"):
            raise invalid("An entry needs a monitored resource with a type.")
        now = self._store.clock()
        time = min(filters.moment(given.get("timestamp") or rfc3339(now)), now)
        entry = {
            **given,
            "logName": name,
            "resource": resource,
            "labels": labels,
            "insertId": given.get("insertId") or secrets.token_hex(8),
            "severity": given.get("severity", "DEFAULT"),
            "timestamp": rfc3339(time),
            "receiveTimestamp": rfc3339(now),
        }
        if len(json.dumps(entry)) > _MAX_ENTRY:
            raise invalid(f"An entry has at most {_MAX_ENTRY} bytes.")
        return match[1], entry

    def _append(self, project: str, entries: Sequence[JsonObject]) -> None:
        path = self._written_file(project)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_size > _MAX_WRITTEN:
                text = f"The entries of {project} take {_MAX_WRITTEN >> 20} MiB: remove {path}."
                raise ApiError("FAILED_PRECONDITION", text)
            # Readers search by time: a line is never older than the one before it.
            last = last_line_of(LogFile(0, 0, 0, path))
            latest = last.time if last else ""
            for entry in sorted(entries, key=lambda entry: str(entry["timestamp"])):
                latest = max(latest, str(entry["timestamp"]))
                file.write(json.dumps({"t": latest, "s": entry["severity"], "m": "", "e": entry}) + "\n")


def _projects(parents: list[str]) -> list[str]:
    matches = [_PARENT.fullmatch(parent) for parent in parents]
    if not matches or None in matches:
        raise invalid('resourceNames must hold names of the form "projects/PROJECT".')
    return [match[1] for match in matches if match]


def _changed_since(path: Path, since: datetime) -> bool:
    try:
        return path.stat().st_mtime >= since.timestamp()
    except OSError:
        return False


def _entry(jobs: Mapping[int, JobRecord], line: Line) -> _AnyEntry:
    return _Entry(jobs[line.file.job], line) if line.entry is None else _Written(line, line.entry)


def _page(
    entries: Iterator[_AnyEntry],
    selects: filters.Predicate[_AnyEntry],
    size: int,
    start: Position,
    newest_first: bool,
) -> tuple[list[_AnyEntry], Position | None]:
    """Return the selected entries and the next position; None as position at the log's end."""
    page: list[_AnyEntry] = []
    reached = dict(start)
    for scanned, entry in enumerate(entries):
        if len(page) == size or scanned == _MAX_SCANNED:
            return page, reached
        reached[entry.line.file.key] = entry.line.start if newest_first else entry.line.end
        if selects(entry):
            page.append(entry)
    return page, None


def _field(path: tuple[str, ...]) -> filters.Field[_AnyEntry] | None:
    match path:
        case ("resource", "type"):
            return filters.text_field(lambda entry: entry.resource_type, "=", "!=")
        case ("resource", "labels", key):
            return filters.map_field(lambda entry: entry.resource_labels, key)
        case ("labels", key):
            return filters.map_field(lambda entry: entry.labels, key)
        case ("logName",):
            return filters.text_field(lambda entry: entry.log_name, "=", "!=", ":")
        case ("insertId",):
            return filters.ordered_field(lambda entry: entry.insert_id, str)
        case ("timestamp",):
            return filters.ordered_field(lambda entry: filters.moment(entry.time), filters.moment)
        case ("severity",):
            return filters.ordered_field(lambda entry: _rank(entry.severity), _rank_named)
    return None


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


def _rank_named(severity: str) -> int:
    if severity.upper() not in SEVERITIES:
        raise ValueError("is no severity.")
    return SEVERITIES.index(severity.upper())


def _trial(file: LogFile) -> str:
    return str(file.trial) if file.trial else ""  # outside of trials the label is present but empty


def _since(condition: Filter) -> datetime | None:
    """Return a lower bound of the selected entries' times."""
    times = [
        filters.moment(restriction.value)
        for restriction in filters.conjuncts(condition)
        if restriction.field == ("timestamp",) and restriction.comparison in (">", ">=")
    ]
    return max(times, default=None)


def _newest_first(text: str) -> bool:
    """Return whether the newest entries come first."""
    if text not in _ORDERS:
        raise invalid('orderBy may be "timestamp asc" or "timestamp desc".')
    return _ORDERS[text]
