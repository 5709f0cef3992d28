"""Records of jobs, runs and trials as frozen values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any

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
    etag: str = ""

    @property
    def name(self) -> str:
        """Return the name by which people know the job."""
        return str(self.body.get("displayName", self.job_id))


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


@lru_cache(maxsize=100)
def number_of(project: str) -> str:
    """Return the project's number: 12 digits derived from the id, or the number itself."""
    if project.isascii() and project.isdigit():
        return project
    digest = hashlib.sha256(project.encode()).digest()
    return str(10**11 + int.from_bytes(digest[:8], "big") % (9 * 10**11))


class Code(IntEnum):
    """Error codes of google.rpc.Code."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
