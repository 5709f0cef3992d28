"""Actual jobs of the service, their states and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from reconciler.model.manifest import JsonObject


class State(StrEnum):
    """Job states common to all services."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """True if the state is final."""
        # Not CANCELLING: a cancel may come too late, and the job still succeed or fail.
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


def service_word(state: State, service_state: str) -> str:
    """Return the service's own word for a state if it says more than ours, such as "PAUSED"; else ""."""
    word = service_state.removeprefix("JOB_STATE_").removeprefix("PIPELINE_STATE_")
    usual = (str(state), "PENDING") if state is State.PREPARING else (str(state),)
    return "" if word in usual else word


class ErrorInfo(Struct, frozen=True, gc=False):
    """Cause of a job's end as the embedded service gives it: google.rpc.ErrorInfo without its domain."""

    reason: str
    metadata: Mapping[str, str] = {}


UNREADABLE = "UNREADABLE"
"""The embedded service's reason in place of a job's own if it can't read the job's record."""


class ActualJob(Struct, frozen=True, gc=False):
    """One job resource of the service, as last read.

    Attributes:
        resource: The service's full resource name, used to read and cancel it.
        job_name: `displayName` (Vertex AI) or `jobId` (ml).
        kind: The manifest's kind.
        state: The state, common to all services.
        service_state: The service's own word for the state.
        labels: The labels on the resource.
        spec: The part of the resource that a manifest's `spec` describes, as returned by the service.
        body: The resource as returned by the service; only parts of it from a listing.
        create_time, start_time, end_time: RFC 3339 in UTC, "" until known.
        error: The service's error message, "" for none.
        error_code: The google.rpc.Code of the error; 0 for none.
        info: The embedded service's cause of the end; None from other services.
        url: The job's web page, "" for none.
        cancelled: CANCELLED: the reason that its claim records for this tool's cancel, "" for none; None if
            no claim was read.
        on_runner: True if a runner of GitHub Actions ran it, which keeps nothing.
        buckets: The folder of the embedded service's buckets; "" at Google.
        backing: The resource name of the custom or tuning job that trains for a pipeline; "" for other jobs,
            and before the service has made it.
        backing_body: That job's resource as returned by the service; empty from a listing, and without it.
    """

    resource: str
    job_name: str
    api_version: str
    kind: str
    state: State
    service_state: str
    labels: Mapping[str, str] = {}
    spec: JsonObject = {}
    body: JsonObject = {}
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    error: str = ""
    url: str = ""
    error_code: int = 0
    info: ErrorInfo | None = None
    cancelled: str | None = None
    on_runner: bool = False
    buckets: str = ""
    backing: str = ""
    backing_body: JsonObject = {}

    @property
    def is_unreadable(self) -> bool:
        """True if the embedded service can't read a part of the job's record."""
        return self.info is not None and self.info.reason == UNREADABLE

    @property
    def has_unknown_state(self) -> bool:
        """True if the state is a part of the record that the embedded service can't read."""
        return self.is_unreadable and self.service_state.endswith("STATE_UNSPECIFIED")


class Trials(Struct, frozen=True):
    """The trials of a tuning job.

    Attributes:
        begun: Ids of the trials that the service has started.
        planned: Largest number of trials; ids count from 1.
        goes_on: True if the ids continue from the last trial of an earlier job.
    """

    begun: frozenset[str]
    planned: int
    goes_on: bool = False


class LogEntry(Struct, frozen=True):
    """One line of a job's log, from Cloud Logging's `LogEntry`: time (RFC 3339), severity, text.

    Attributes:
        replica: The replica's task name, or `SERVICE`.
        trial: The trial's id, "" for none.
    """

    timestamp: str
    severity: str
    text: str
    insert_id: str = ""
    replica: str = ""
    trial: str = ""

    @property
    def shown_severity(self) -> str:
        """The severity for readers, with a blank; "" if it says nothing about the line.

        Both services give ERROR to all that a replica prints to its standard error, where most libraries log.
        """
        is_stderr = self.severity == "ERROR" and self.replica not in ("", SERVICE)
        return "" if is_stderr or self.severity in ("INFO", "DEFAULT") else f"{self.severity} "


SERVICE = "service"
"""The replica of the training service's own lines."""
PREFIX = "reconciler-"
SOURCE = PREFIX + "source"
"""The id of the repository that owns the job."""
KEY = PREFIX + "key"
"""The whole identity, base32."""
ATTEMPT = PREFIX + "attempt"
"""The run's attempt, from 1."""
CODE = PREFIX + "code"
"""The digest of the source tree, base32; absent without a package."""
COMMIT = PREFIX + "commit"
"""The commit that asked for the job, 40 hex digits; absent if the work tree wasn't a clean checkout."""
REQUEST_ID = PREFIX + "try"
"""The random id of the request that made the job."""
INSTANCE = PREFIX + "instance"
"""The environment's `instance` in reconciler.yaml; absent without one."""

_SERVICES_OWN = "goog-"
"""Prefix of the labels that Google's services add by themselves."""
_DIGITS = 9  # of an attempt: a claim's is below 10**9 too


def attempt_of(run: ActualJob) -> int:
    """Return a run's attempt from its label; 1 without a valid label."""
    text = run.labels.get(ATTEMPT, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    return number or 1


def is_of_other_instance(run: ActualJob, source: str, instance: str) -> bool:
    """Return True if a run belongs to another instance of the same repository in this project and location.

    Args:
        run: The run, with its labels.
        source: The repository's id.
        instance: The own environment's; "" for none.
    """
    return run.labels.get(SOURCE) == source and run.labels.get(INSTANCE, "") != instance


def labels_digest(labels: Mapping[str, str]) -> str:
    """Return 16 hex digits of a hash of a job's labels, without those that Google adds."""
    lines = [f"{name}={labels[name]}\n" for name in sorted(labels) if not name.startswith(_SERVICES_OWN)]
    text = "".join(lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
