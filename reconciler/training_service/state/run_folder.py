"""The folder of one run: all that the supervisor and the runner tell each other, in files.

Two locks say who lives, because the kernel drops them at death, whatever kills: `runner.lock` is held by the
runner alone, `lock` by the runner and by what it starts. A run is over when both are free. `started` is made
exclusively, as the runner's first act: a run is never carried out twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from reconciler.training_service.state.records import Measurement

PREPARING = "PREPARING"
RUNNING = "RUNNING"

SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        state: SUCCEEDED, FAILED, CANCELLED; or STOPPED: ended with the service or the machine, to be run
        again. code: google.rpc.Code, 0 for no error. message: For people, "" for no error. time: RFC 3339 in
        UTC.
    """

    state: str
    code: int = 0
    message: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a run is at, PREPARING or RUNNING, and since when (RFC 3339 in UTC)."""

    phase: str
    time: str


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run, by name."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id, which is the folder's name."""
        return self.path.name

    @property
    def service_home(self) -> Path:
        """The service's home, which all runs share."""
        return self.path.parent.parent

    @property
    def spec(self) -> Path:
        """What is to be run; written before anything is started."""
        return self.path / "run.json"

    @property
    def runner_lock(self) -> Path:
        """Held while the runner lives, by nobody else."""
        return self.path / "runner.lock"

    @property
    def lock(self) -> Path:
        """Held while anything lives that has inherited it from the runner."""
        return self.path / "lock"

    @property
    def sessions(self) -> Path:
        """Notes on the sessions that the runner's programs have begun."""
        return self.path / "sessions"

    @property
    def log(self) -> Path:
        """JSON lines: `t` the time, `s` the severity, `r` the replica that has printed it, `m` the text."""
        return self.path / "log.jsonl"

    @property
    def measurements(self) -> Path:
        """What the trial's primary has reported so far, by `write_measurements`."""
        return self.path / "measurements.json"

    @property
    def complaints(self) -> Path:
        """What the runner itself has printed: nothing, but for a fault of its own."""
        return self.path / "runner.err"

    @property
    def packages(self) -> Path:
        """The trainer's package archives and what is built from them."""
        return self.path / "packages"

    @property
    def environment(self) -> Path:
        """The job's own Python environment."""
        return self.path / "environment"

    @property
    def work(self) -> Path:
        """The replicas' working folders, each with its task's name."""
        return self.path / "work"

    @property
    def home(self) -> Path:
        """The replicas' home folders, each with its task's name: as fresh as the cloud's."""
        return self.path / "home"

    def claim(self) -> bool:
        """Mark the run as started; False where somebody else has: then this run must not be carried out."""
        try:
            descriptor = os.open(self._started, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(str(os.getpid()))
            file.flush()
            os.fsync(descriptor)
        return True

    def started(self) -> bool:
        """Whether a runner has begun to carry the run out."""
        return self._started.exists()

    def runner(self) -> int | None:
        """The runner's process id, as long as it lives."""
        if not self.started() or not is_locked(self.runner_lock):
            return None
        with suppress(OSError, ValueError):
            return int(self._started.read_text())
        return None

    def over(self) -> bool:
        """Whether everything of a started run is dead."""
        return not is_locked(self.runner_lock) and not is_locked(self.lock)

    def set_phase(self, phase: str) -> None:
        """Tell what the run is at from now on."""
        write_json(self._phase, asdict(Phase(phase, now())))

    def phase(self) -> Phase | None:
        """What the run is at."""
        found = read_json(self._phase)
        return None if found is None else Phase(**found)

    def ask_to_cancel(self, message: str) -> None:
        """Ask the runner to end everything; `message` becomes the job's error."""
        if not self._cancel.exists():
            write_json(self._cancel, {"message": message})

    def cancel_asked(self) -> str | None:
        """The message of a request to cancel, None without one."""
        found = read_json(self._cancel)
        return None if found is None else str(found["message"])

    def end(self, ending: Ending) -> None:
        """Record how the run ended."""
        write_json(self._exit, asdict(ending))

    def ending(self) -> Ending | None:
        """How the run ended, None where that isn't known."""
        found = read_json(self._exit)
        return None if found is None else Ending(**found)

    def temp(self) -> Path:
        """The run's folder for temporary files, made where it isn't there.

        In the system's folder, not in this one: sockets are made in it, and their paths may be 107 bytes
        long.
        """
        for path in self._temps():
            if stat.S_IMODE(path.lstat().st_mode) & 0o777 == 0o700:
                return path
        return Path(tempfile.mkdtemp(prefix=self._temp_prefix))

    def clean(self) -> None:
        """Remove all but the record: the spec, the log, the end; what can't be removed stays."""
        for path in (self.packages, self.environment, self.work, self.home):
            remove(path)
        with suppress(OSError):
            for path in self._temps():
                remove(path)

    @property
    def _started(self) -> Path:
        return self.path / "started"

    @property
    def _phase(self) -> Path:
        return self.path / "phase"

    @property
    def _cancel(self) -> Path:
        return self.path / "cancel"

    @property
    def _exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def _temp_prefix(self) -> str:
        return f"reconciler-{self.run_id}-"

    def _temps(self) -> Iterator[Path]:
        """This user's folders alone: anybody may put something of such a name there."""
        for path in Path(tempfile.gettempdir()).glob(f"{self._temp_prefix}*"):
            with suppress(OSError):
                found = path.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                    yield path


def write_measurements(folder: RunFolder, measurements: Sequence[Measurement]) -> None:
    """Replace, as one act, what the trial has reported so far; oldest first."""
    write_json(folder.measurements, {"measurements": [asdict(held) for held in measurements]})


def read_measurements(folder: RunFolder) -> tuple[Measurement, ...]:
    """What the trial has reported so far; nothing where it has reported nothing."""
    found = read_json(folder.measurements) or {"measurements": []}
    return tuple(Measurement(**held) for held in found["measurements"])


def run_folder(home: Path, run_id: str) -> RunFolder:
    """The folder of a run below the service's home."""
    return RunFolder(home / "runs" / run_id)


def now() -> str:
    """The system's time: RFC 3339 in UTC, six decimal places."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock as long as the block runs, or whoever inherits the descriptor lives.

    Raises:
        BlockingIOError: Somebody else holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in this file, None where there is no file."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace the file as one act; on the disk before this returns."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the folder's entries to the disk: a rename alone may be lost with the power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a folder and all that is in it, also where a program has made folders unwritable.

    What can't be removed stays: folders of another user, or too deep ones. Links aren't followed.
    """
    with suppress(OSError, RecursionError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        shutil.rmtree(path, ignore_errors=True)
        _make_removable(path)
        shutil.rmtree(path, ignore_errors=True)


def _make_removable(path: Path) -> None:
    with suppress(OSError):
        path.chmod(0o700)
    for folder, below, _files in os.walk(path):
        for name in below:
            with suppress(OSError):
                if not (Path(folder) / name).is_symlink():
                    (Path(folder) / name).chmod(0o700)


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
