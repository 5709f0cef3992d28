"""What the service has: actual jobs and their states."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from reconciler.manifest import JsonObject


class State(StrEnum):
    """The states that the reconciler tells apart, whatever the service's own words are."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Whether the job can't change its state any more."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class ActualJob(Struct, frozen=True, gc=False):
    """One job resource of the service, as last read.

    Attributes:
        resource: The service's full resource name, by which it is asked and cancelled.
        job_name: `displayName` (Vertex AI) or `jobId` (ml).
        kind: The manifest's kind.
        state: The state, in the reconciler's words.
        service_state: The state in the service's word.
        labels: The labels on the resource.
        spec: The part of the resource that a manifest's `spec` stands for, as the service gives it back.
        body: The resource as the service gives it, only in part where it was listed.
        create_time, start_time, end_time: RFC 3339 in UTC, "" where not yet.
        error: The service's error message, "" where none.
        url: A page for people about the job, "" where there is none.
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


class Trials(Struct, frozen=True):
    """The trials of a tuning job.

    Attributes:
        begun: Those that the service has begun to run, by their ids.
        planned: How many there are at most; they are counted from 1.
        goes_on: Whether they are counted on from the last of an earlier job, which they are added to.
    """

    begun: frozenset[str]
    planned: int
    goes_on: bool = False


class LogEntry(Struct, frozen=True):
    """One line of a job's log, as Cloud Logging's `LogEntry` gives it: time (RFC 3339), severity, text.

    Attributes:
        replica: The replica's task name; "service" for the training service's own words.
        trial: The trial's id, "" for none.
    """

    timestamp: str
    severity: str
    text: str
    insert_id: str = ""
    replica: str = ""
    trial: str = ""
