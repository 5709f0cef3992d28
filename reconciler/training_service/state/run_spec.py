"""Specification of a run, in the form of the file in its folder: replicas, tasks and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

GRACE = 10.0
LOG_LIMIT = 256 * 1024 * 1024
PROCESS_LIMIT = 1000


class Role(StrEnum):
    """Role of a replica; on Vertex AI the position of its pool."""

    PRIMARY = "primary"
    WORKER = "worker"
    PARAMETER_SERVER = "ps"
    EVALUATOR = "evaluator"


@dataclass(frozen=True, slots=True)
class PythonTask:
    """A trainer's packages and the module to run.

    Attributes:
        image: The executor image or the runtime.
        override: The entry of `images` for it, None without one.
        python: The Python that the job requests, "" for the image's.
        packages: gs:// URIs, in order.
        module, args: `python -m module args…`; without a module, `python args…`.
    """

    image: str
    override: dict[str, Any] | None
    python: str
    packages: tuple[str, ...]
    module: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerTask:
    """A container.

    Attributes:
        command: Replaces the image's entry point, `args` its command; empty keeps them.
        override: The entry of `images` for the image, None without one.
    """

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    override: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica, run as its own process or container.

    Attributes:
        name: The name in the cloud's errors: `workerpool0-0`, `master 0`.
        task_name: The name in the cloud's logs: `workerpool0-0`, `master-replica-0`.
        env: Variables that override those common to all programs on this machine.
        cpus, memory: Of its machine type, at most this machine's; memory in bytes.
    """

    name: str
    task_name: str
    role: Role
    task: PythonTask | ContainerTask
    env: dict[str, str]
    cpus: int
    memory: int


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run of a job or of a trial: all replicas together.

    Attributes:
        replicas: The primary first; its end is the run's end.
        output_buckets: The buckets that the job's output goes to.
        time_limit: Seconds that it may be RUNNING, as the field `time_limit_field` sets them.
        grace: Seconds between SIGTERM and SIGKILL.
        warnings: Differences from the cloud.
        trial: The trial's number from 1, 0 for a job without trials.
        metrics: Tags of the metrics to read from the primary's reports; empty for a job without trials.
        restarts: Whether a replica that SIGTERM ended is started again (not `disableRetries`).
        restarts_together: Whether all replicas restart then (`restartJobOnWorkerRestart`).
        ports, gpus: Reserved for this run until it has ended.
        buckets: Visible to its containers below /gcs, as "bucket", and hidden parts of those, as
            "bucket/beginning of names".
        log_limit: Bytes of its log on disk; a run that prints more fails.
        process_limit: Processes of all replicas together; a run with more fails.
        storage: The URL of Cloud Storage's API for this job; "" in runs of earlier versions.
    """

    replicas: tuple[ReplicaSpec, ...]
    output_buckets: tuple[str, ...]
    time_limit: float
    time_limit_field: str
    grace: float = GRACE
    warnings: tuple[str, ...] = ()
    trial: int = 0
    metrics: tuple[str, ...] = ()
    restarts: bool = True
    restarts_together: bool = False
    ports: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    log_limit: int = LOG_LIMIT
    process_limit: int = PROCESS_LIMIT
    storage: str = ""

    @property
    def primary(self) -> ReplicaSpec:
        """Return the replica whose end is the run's end."""
        return self.replicas[0]

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunSpec:
        """Return the specification from `to_json`'s result."""
        names = ("output_buckets", "warnings", "metrics", "ports", "gpus", "buckets")
        lists = {name: tuple(value[name]) for name in names if name in value}
        return cls(**{**value, **lists, "replicas": tuple(map(_replica, value["replicas"]))})


def _replica(value: Mapping[str, Any]) -> ReplicaSpec:
    return ReplicaSpec(**{**value, "role": Role(value["role"]), "task": _task(value["task"])})


def _task(value: Mapping[str, Any]) -> PythonTask | ContainerTask:
    lists = {name: tuple(value[name]) for name in ("packages", "args", "command") if name in value}
    return PythonTask(**{**value, **lists}) if "module" in value else ContainerTask(**{**value, **lists})
