"""What a run is to do: written into its folder before it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

GRACE = 10.0
LOG_LIMIT = 256 * 1024 * 1024
PROCESS_LIMIT = 1000


class Role(StrEnum):
    """What a replica is for; on Vertex AI its pool's place tells, first to last."""

    PRIMARY = "primary"
    WORKER = "worker"
    PARAMETER_SERVER = "ps"
    EVALUATOR = "evaluator"


@dataclass(frozen=True, slots=True)
class PythonTask:
    """A trainer's packages and the module in them that is run.

    Attributes:
        image: The executor image or the runtime.
        override: What `images` says of it, None where it says nothing.
        python: The Python that the job asks for itself, "" for the image's.
        packages: gs:// URIs, in order.
        module, args: `python -m module args…`.
    """

    image: str
    override: dict[str, Any] | None
    python: str
    packages: tuple[str, ...]
    module: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerTask:
    """A container; `command` is over the image's entry point, `args` over its command: empty for its own."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One replica, a process of its own.

    Attributes:
        name: As the cloud's errors call it: `workerpool0-0`, `master 0`.
        task_name: As the cloud's log calls it: `workerpool0-0`, `master-replica-0`.
        env: Variables, over those of every program on this machine.
        cpus, memory: What its machine has, at most what this one has; memory in bytes.
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
    """One run of a job, or of one of its trials: all replicas together.

    Attributes:
        replicas: The primary first: its end is the run's.
        output_buckets: The buckets that the job's output goes to.
        time_limit: Seconds that it may be RUNNING; `time_limit_field` is where that is said.
        grace: Seconds between SIGTERM and SIGKILL.
        warnings: What differs from the cloud.
        trial: The trial's number from 1, 0 for a job without trials.
        metrics: What the primary's reports are taken for, by their tags; none for a job without trials.
        restarts: Whether a replica that is ended by SIGTERM is started again (not `disableRetries`).
        restarts_together: Whether all replicas are then (`restartJobOnWorkerRestart`).
        ports, gpus: What is this run's alone until it is over.
        buckets: What its containers may see below /gcs, "bucket"; and what they may not see in those,
            "bucket/beginning of names".
        log_limit: Bytes of its log, as it lies on the disk; a run that prints more fails.
        process_limit: Processes that all replicas may have together; a run with more of them fails.
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

    @property
    def primary(self) -> ReplicaSpec:
        """The replica whose end is the run's."""
        return self.replicas[0]

    def to_json(self) -> dict[str, Any]:
        """The value as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunSpec:
        """The opposite of `to_json`."""
        names = ("output_buckets", "warnings", "metrics", "ports", "gpus", "buckets")
        lists = {name: tuple(value[name]) for name in names if name in value}
        return cls(**{**value, **lists, "replicas": tuple(map(_replica, value["replicas"]))})


def _replica(value: Mapping[str, Any]) -> ReplicaSpec:
    return ReplicaSpec(**{**value, "role": Role(value["role"]), "task": _task(value["task"])})


def _task(value: Mapping[str, Any]) -> PythonTask | ContainerTask:
    lists = {name: tuple(value[name]) for name in ("packages", "args", "command") if name in value}
    return PythonTask(**{**value, **lists}) if "module" in value else ContainerTask(**{**value, **lists})
