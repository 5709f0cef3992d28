"""Records of jobs and runs as frozen values, and the causes of ends."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any

CUSTOM_JOBS = "customJobs"
TUNING_JOBS = "hyperparameterTuningJobs"
ML_JOBS = "jobs"
PIPELINES = "trainingPipelines"

_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_DEFAULT_REGION = "us-central1"  # the SDK's own default

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
    """A job, or a pipeline: it runs nothing itself, and follows its backing job.

    Attributes:
        id: The row's number; grows with time and is never reused.
        collection: `customJobs`, `hyperparameterTuningJobs`, `jobs` (ml), or `trainingPipelines`.
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
        backing: Collection and id of a pipeline's backing job, such as "customJobs/42"; "" for a job.
        model: Resource name of the model version that a pipeline has registered, with its version behind "@";
            "" for none.
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
    backing: str = ""
    model: str = ""

    @property
    def name(self) -> str:
        """Return the name by which people know the job."""
        return str(self.body.get("displayName", self.job_id))

    @property
    def backing_place(self) -> tuple[str, str, str, str]:
        """Return the arguments of `Store.find` for a pipeline's backing job."""
        collection, _, job_id = self.backing.partition("/")
        return collection, self.project, self.location, job_id

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Return the names of the columns that can't be read, for which this record has other values."""
        return ()


@dataclass(frozen=True, slots=True)
class UnreadableJob(JobRecord):
    """A job with columns that can't be read.

    Its body has the name and the labels alone, and an unknown state counts as RUNNING: whatever is unknown of
    the job, it may still be alive.

    Attributes:
        columns: The names of these columns; "labels" too if name and labels can't be read either.
    """

    columns: tuple[str, ...] = ()

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Return the names of the columns that can't be read."""
        return self.columns


def as_unreadable(job: JobRecord, column: str) -> UnreadableJob:
    """Return the job as one of which this column too, or what stands for it, can't be read."""
    values = {each.name: getattr(job, each.name) for each in fields(JobRecord)}
    return UnreadableJob(**values, columns=(*job.unreadable, column))


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


@lru_cache(maxsize=100)
def google_region(location: str) -> str:
    """Return a location as a region of Google's, which the SDK demands: us-central1 for any other name."""
    return location if _REGION.fullmatch(location) else _DEFAULT_REGION


def number_of(project: str) -> str:
    """Return the project's number: 12 digits derived from the id, or the number itself."""
    if project.isascii() and project.isdigit():
        return project
    digest = hashlib.sha256(project.encode()).digest()
    return str(10**11 + int.from_bytes(digest[:8], "big") % (9 * 10**11))


def resource_name(job: JobRecord) -> str:
    """Return the resource name of a job or pipeline of Vertex AI."""
    # Vertex AI answers with the project's number, even if the request named its id.
    return f"projects/{number_of(job.project)}/locations/{job.location}/{job.collection}/{job.job_id}"


class Code(IntEnum):
    """Error codes of google.rpc.Code."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


DOMAIN = "training-service.reconciler"
"""The domain of this service's reasons, as in google.rpc.ErrorInfo."""

SET_UP = "set-up"
UNREADABLE = "UNREADABLE"
"""The reason in place of a job's own if its record can't be read, with the names of the columns."""
_CLASSES = {
    "user-code": ("COMMAND_NOT_RUN", "ENDED_BY_SIGNAL", "INVALID_JOB", "NO_METRIC", "NON_ZERO_EXIT"),
    SET_UP: (
        *("CODE_NOT_STARTED", "ENGINE_FAILED", "ENGINE_MISSING"),
        *("IMAGE_NOT_PULLED", "IMAGE_UNKNOWN"),
        *("INDEX_UNREACHABLE", "INSTALLER_SETTINGS", "PACKAGES_NOT_INSTALLED", "PACKAGES_NOT_RESOLVED"),
        *("PACKAGE_MISSING", "PYTHON_MISSING"),
    ),
    "resources": (
        *("DISK_FULL", "KILLED", "LOG_LIMIT", "NO_TPU", "OUT_OF_MEMORY", "PROCESS_LIMIT"),
        *("TOO_MANY_REPLICAS", "TRIAL_TIME_LIMIT"),
    ),
    "cancelled": ("REQUESTED", "TIME_LIMIT", "WAIT_LIMIT"),
    "model": ("MODEL_NOT_REGISTERED",),
    "service": ("INTERNAL", "MACHINE_FAILED", "RUNNER_LOST", UNREADABLE),
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


def is_failed_set_up(details: Mapping[str, str]) -> bool:
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


_TIMES = ("create_time", "start_time", "end_time", "update_time")


def readable_time(text: str) -> str:
    """Return a time as stored, "" if it is none."""
    try:
        return text if datetime.fromisoformat(text).tzinfo else ""
    except (TypeError, ValueError):
        return ""


def error_of(job: JobRecord) -> tuple[int, str, Mapping[str, str]]:
    """Return the code, message and cause of a job's end, or of a record that can't be read."""
    times = (name for name in _TIMES if getattr(job, name) and not readable_time(getattr(job, name)))
    columns = " ".join((*job.unreadable, *times))
    if not columns:
        return job.error_code, job.error_message, job.error_details
    message = f"The job's record in the service's database can't be read: {columns}."
    said = f"{message}\n{job.error_message}".rstrip()
    return Code.DATA_LOSS, said, details_of(UNREADABLE, columns=columns)
