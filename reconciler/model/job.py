"""What the service has: actual jobs and their states."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter

from msgspec import Struct

from reconciler.model.manifest import JsonObject


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


PREFIX = "reconciler-"
SOURCE = PREFIX + "source"
"""The id of the repository that owns the job."""
KEY = PREFIX + "key"
"""The whole identity, base32."""
ATTEMPT = PREFIX + "attempt"
"""Which attempt the run is, from 1."""
CODE = PREFIX + "code"
"""The digest of the source tree, base32; absent without a package."""
COMMIT = PREFIX + "commit"
"""The commit that asked for the job, 40 hex digits; absent where the work tree wasn't a clean checkout."""
TRY = PREFIX + "try"
"""The random mark of the one request that made the job."""
INSTANCE = PREFIX + "instance"
"""The environment's `instance` in reconciler.yaml; absent without one."""

_SERVICES_OWN = "goog-"
"""What Google's services begin the labels with that they add by themselves."""
_DIGITS = 9


def attempt_of(run: ActualJob) -> int:
    """Which attempt a run is, from its label; 1 where the label says nothing."""
    text = run.labels.get(ATTEMPT, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    return number or 1


def is_of_other_instance(run: ActualJob, source: str, instance: str) -> bool:
    """Return whether a run belongs to another instance of the same repository in this project and location.

    Args:
        run: The run, with its labels.
        source: The repository's id.
        instance: The own environment's; "" for none.
    """
    return run.labels.get(SOURCE) == source and run.labels.get(INSTANCE, "") != instance


def labels_digest(labels: Mapping[str, str]) -> str:
    """16 hex digits that change when somebody changes a job's labels; those of Google's own don't count."""
    text, values = _text_of(tuple(labels))
    return hashlib.sha256((text % values(labels)).encode()).hexdigest()[:16]


@lru_cache(maxsize=1000)
def _text_of(names: tuple[str, ...]) -> tuple[str, Callable[[Mapping[str, str]], tuple[str, ...]]]:
    """What is hashed of labels of these names, "%s" for each value, and what gives the values.

    Most jobs have labels of the same names, in the same order.
    """
    own = sorted(name for name in names if not name.startswith(_SERVICES_OWN))
    text = "".join([name.replace("%", "%%") + "=%s\n" for name in own])
    if len(own) > 1:
        return text, itemgetter(*own)
    return text, lambda labels: tuple([labels[name] for name in own])
