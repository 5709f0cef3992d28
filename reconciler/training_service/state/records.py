"""Records of jobs, runs and trials as frozen values, the tables of the database, and their rows."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import sqlite3  # commands that read no database import this module too

CUSTOM_JOBS = "customJobs"
TUNING_JOBS = "hyperparameterTuningJobs"
ML_JOBS = "jobs"

Json = Any
JsonObject = dict[str, Any]


class JobState(StrEnum):
    """State of a job; each API derives its own names from these."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Return whether the state is final."""
        return self in ENDED


ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
UNFINISHED = frozenset(JobState) - ENDED


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job.

    Attributes:
        id: The row's number; grows with time and is never reused.
        collection: `customJobs`, `hyperparameterTuningJobs`, or `jobs` (ml).
        project: The project as in the create request: an id, or a number.
        location: "" for ml.
        job_id: The client's jobId (ml), or 19 digits (Vertex AI).
        body: The client's resource: camelCase keys, enum names, int64 as strings, no output-only fields.
        images: The overrides of the image table at creation.
        create_time, start_time, end_time, update_time: RFC 3339 in UTC, "" if not reached.
        error_code: google.rpc.Code; 0 without an error, 1 for a cancelled job.
        error_details: The cause of the end, from `details_of`; empty without an error.
        etag: Changes with the labels (ml).
        gcs_secret: The unguessable part of the job's own storage URL.
    """

    collection: str
    project: str
    location: str
    job_id: str
    body: JsonObject
    gcs_secret: str
    create_time: str
    update_time: str
    id: int = 0
    images: Mapping[str, Json] = field(default_factory=dict)
    state: JobState = JobState.QUEUED
    start_time: str = ""
    end_time: str = ""
    error_code: int = 0
    error_message: str = ""
    error_details: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""

    @property
    def name(self) -> str:
        """Return the name by which people know the job."""
        # A record of another version may have no object here, and the supervisor must go on for other jobs.
        return str(self.body.get("displayName", self.job_id)) if isinstance(self.body, dict) else self.job_id


@dataclass(frozen=True, slots=True)
class Wait:
    """Reason why a queued job waits, and since when (RFC 3339)."""

    reason: str
    since: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One start of a job or of a trial.

    A trial's next run is added only after its previous run is known to be dead.

    Attributes:
        number: The run's number in the job, from 1.
        trial: The trial's number from 1, 0 for a job without trials.
    """

    run_id: str
    job: int
    number: int
    trial: int = 0


class TrialState(StrEnum):
    """State of a trial; each API derives its own names from these."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"  # early stopping, or its job is being cancelled
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Return whether the state is final."""
        return self in (TrialState.SUCCEEDED, TrialState.FAILED, TrialState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Metrics that a trial reported at one step.

    Attributes:
        step: The trainer's own count; 0 if it has none.
        elapsed: Seconds since the trial began to run.
        metrics: Values by metric id (Vertex AI) or tag (ml).
    """

    step: int
    elapsed: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial of a tuning job.

    Attributes:
        job: The job's `id`.
        number: From 1.
        parameters: The value of each active hyper-parameter by name, in the order of the specification:
            numbers, or strings for categories.
        create_time, start_time, end_time: RFC 3339 in UTC, "" if not reached.
        measurements: Reported measurements, oldest first.
        final: The measurement that counts, once the trial has ended.
        stopped_early: Whether early stopping ended it; its state is then SUCCEEDED.
        message: Reason for the final state, "" for none.
        error_details: The cause of the final state, from `details_of`.
    """

    job: int
    number: int
    parameters: Mapping[str, float | int | str]
    create_time: str
    state: TrialState = TrialState.QUEUED
    start_time: str = ""
    end_time: str = ""
    measurements: tuple[Measurement, ...] = ()
    final: Measurement | None = None
    stopped_early: bool = False
    message: str = ""
    error_details: Mapping[str, str] = field(default_factory=dict)


TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    collection TEXT NOT NULL,
    project TEXT NOT NULL,
    project_number TEXT NOT NULL,
    location TEXT NOT NULL,
    job_id TEXT NOT NULL,
    body TEXT NOT NULL,
    images TEXT NOT NULL,
    state TEXT NOT NULL,
    create_time TEXT NOT NULL,
    start_time TEXT NOT NULL,
    end_time TEXT NOT NULL,
    update_time TEXT NOT NULL,
    error_code INTEGER NOT NULL,
    error_message TEXT NOT NULL,
    error_details TEXT NOT NULL DEFAULT '{}',
    etag TEXT NOT NULL,
    gcs_secret TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL DEFAULT 0,
    UNIQUE (collection, project_number, location, job_id)
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state);
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY,
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    trial INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job, number)
);
CREATE TABLE IF NOT EXISTS trials (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    parameters TEXT NOT NULL,
    state TEXT NOT NULL,
    create_time TEXT NOT NULL,
    start_time TEXT NOT NULL,
    end_time TEXT NOT NULL,
    measurements TEXT NOT NULL,
    final TEXT NOT NULL,
    stopped_early INTEGER NOT NULL,
    message TEXT NOT NULL,
    error_details TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS buckets (
    name TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    created TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    metageneration INTEGER NOT NULL,
    created TEXT NOT NULL,
    updated TEXT NOT NULL,
    size INTEGER NOT NULL,
    md5 TEXT NOT NULL,
    crc32c TEXT NOT NULL,
    inode INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (bucket, name)
);
CREATE TABLE IF NOT EXISTS announced (
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    inode INTEGER NOT NULL,
    md5 TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (bucket, name, inode)
) WITHOUT ROWID;
"""
"""Tables of the database; those of jobs, runs and trials have the fields of the records above."""


def row_of(record: JobRecord | RunRecord | TrialRecord) -> dict[str, object]:
    """Return the record's columns."""
    return {name: column_of(value) for name, value in asdict(record).items()}


def column_of(value: object) -> object:
    """Return a value as SQLite stores it: JSON unless it is a text or a number."""
    return value if isinstance(value, str | int) else json.dumps(value)


def trial_of(row: sqlite3.Row) -> TrialRecord:
    """Return the trial of a row."""
    decoded = {
        name: json.loads(row[name]) for name in ("parameters", "measurements", "final", "error_details")
    }
    # SQLite has no booleans.
    values = {**dict(row), **decoded, "stopped_early": bool(row["stopped_early"])}
    return msgspec.convert(values, TrialRecord)


def job_of(row: sqlite3.Row) -> JobRecord:
    """Return the job of a row."""
    decoded = {name: _json(row[name]) for name in ("body", "images", "error_details")}
    return JobRecord(**{**dict(row), **decoded, "state": JobState(row["state"])})


def _json(text: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # msgspec refuses an unpaired surrogate


@lru_cache(maxsize=100)
def number_of(project: str) -> str:
    """Return the project's number: 12 digits derived from the id, or the number itself."""
    if project.isascii() and project.isdigit():
        return project
    digest = hashlib.sha256(project.encode()).digest()
    return str(10**11 + int.from_bytes(digest[:8], "big") % (9 * 10**11))


class Code(IntEnum):
    """Error codes of google.rpc.Code."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


DOMAIN = "training-service.reconciler"
"""The domain of this service's reasons, as in google.rpc.ErrorInfo."""

SET_UP = "set-up"
_CLASSES = {
    "user-code": ("COMMAND_NOT_RUN", "ENDED_BY_SIGNAL", "INVALID_JOB", "NO_METRIC", "NON_ZERO_EXIT"),
    SET_UP: (
        *("CODE_NOT_STARTED", "ENGINE_FAILED", "ENGINE_MISSING", "HOME_NOT_TRUSTED"),
        *("IMAGE_NOT_PULLED", "IMAGE_UNKNOWN"),
        *("INDEX_UNREACHABLE", "INSTALLER_SETTINGS", "PACKAGES_NOT_INSTALLED", "PACKAGES_NOT_RESOLVED"),
        *("PACKAGE_MISSING", "PYTHON_MISSING"),
    ),
    "resources": (
        *("DISK_FULL", "KILLED", "LOG_LIMIT", "NO_TPU", "OUT_OF_MEMORY", "PROCESS_LIMIT"),
        *("TOO_MANY_REPLICAS", "TRIAL_TIME_LIMIT"),
    ),
    "cancelled": ("REQUESTED", "TIME_LIMIT", "WAIT_LIMIT"),
    "service": ("INTERNAL", "MACHINE_FAILED", "RUNNER_LOST"),
}
_CLASS_OF = {reason: name for name, reasons in _CLASSES.items() for reason in reasons}
MOST_OF_VALUE = 500
"""Most characters of a value in the cause of an end."""


def details_of(reason: str, **metadata: str) -> dict[str, str]:
    """Return the cause of a job's end, which `error_status` shows to clients.

    Args:
        reason: A reason that `_CLASSES` lists.
        metadata: What the reason is about, such as the image; long values are cut.
    """
    cut = {name: value[:MOST_OF_VALUE] for name, value in metadata.items() if value}
    return {"reason": reason, "class": _CLASS_OF[reason], **cut}


def reason_of(error: OSError) -> str:
    """Return the reason for an end by an error of the machine."""
    return "DISK_FULL" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "MACHINE_FAILED"


def is_set_up(details: Mapping[str, str]) -> bool:
    """Return True if the set-up failed, so that no trainer was started."""
    return details.get("class") == SET_UP


def error_status(code: int, message: str, details: Mapping[str, str]) -> JsonObject:
    """Return a google.rpc.Status with the cause as its google.rpc.ErrorInfo."""
    if not details:
        return {"code": code, "message": message}
    metadata = {name: value for name, value in details.items() if name != "reason"}
    info = {"reason": details["reason"], "domain": DOMAIN, "metadata": metadata}
    return {
        "code": code,
        "message": message,
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **info}],
    }
