"""Folder of one run: the files through which the supervisor and the runner communicate.

Two locks show liveness, because the kernel drops them at death: the runner alone holds `runner.lock`; the
runner and every process that it starts hold `lock`. A run has ended when both are free. The runner's first
act is to create `started` exclusively, so that no run is ever carried out twice.
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
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reconciler.training_service.state.records import Code, details_of
from reconciler.training_service.state.trial_records import Measurement, UnusableReports

PREPARING = "PREPARING"
RUNNING = "RUNNING"

SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class Ending:
    """Final state of a run.

    Attributes:
        state: SUCCEEDED, FAILED, CANCELLED; or STOPPED: the service or the machine ended it, to be run again.
        code: google.rpc.Code, 0 for no error.
        message: For people, "" for no error.
        time: RFC 3339 in UTC.
        details: The cause, from `details_of`; empty for no error.
    """

    state: str
    code: int = 0
    message: str = ""
    time: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a run, PREPARING or RUNNING, and its start (RFC 3339 in UTC)."""

    phase: str
    time: str


class RunError(Exception):
    """A run can't start, or its failure has a known reason.

    Attributes:
        code: The google.rpc.Code.
        details: The cause, from `details_of`.
    """

    def __init__(self, code: int, message: str, reason: str, **metadata: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details_of(reason, **metadata)

    @property
    def ending(self) -> Ending:
        """Return the ending of the run."""
        return Ending(FAILED, self.code, self.message, details=self.details)


class MissingPackageError(RunError):
    """A package of the job is in no bucket."""

    def __init__(self, uri: str) -> None:
        super().__init__(Code.NOT_FOUND, f"The package {uri} doesn't exist.", "PACKAGE_MISSING", package=uri)


class RunFolder:
    """Paths and protocol of one run's files.

    Attributes:
        run_id: The folder's name.
        service_home: The service's home, shared by all runs.
        spec: The `RunSpec`, written before any process starts.
        runner_lock: The lock that the runner alone holds while it lives.
        lock: The lock that the runner and all processes that inherit its descriptor hold.
        sessions: The folder of notes on the process sessions that the runner started.
        log: JSON lines of `t` time, `s` severity, `r` replica (if any), `m` text.
        measurements: The primary replica's reports, written by `write_measurements`.
        complaints: The runner's own stderr: empty unless the runner has a bug.
        packages: The folder of the trainer's package archives and their builds.
        environment: The folder of the job's own Python environment.
        certificates: The key and the certificates of the run's proxy.
        work: The folder of working folders, one per replica task name.
        home: The folder of home folders, one per replica task name; empty at start as in the cloud.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.service_home = path.parent.parent
        self.spec = path / "run.json"
        self.runner_lock = path / "runner.lock"
        self.lock = path / "lock"
        self.sessions = path / "sessions"
        self.log = path / "log.jsonl"
        self.measurements = path / "measurements.json"
        self.complaints = path / "runner.err"
        self.packages = path / "packages"
        self.environment = path / "environment"
        self.certificates = path / "certificates.pem"
        self.work = path / "work"
        self.home = path / "home"
        self._started = path / "started"
        self._phase = path / "phase"
        self._cancel = path / "cancel"
        self._exit = path / "exit.json"

    def claim(self) -> bool:
        """Mark the run as started; return False if another runner has: the caller must not run it then."""
        try:
            # O_EXCL makes exactly one runner succeed, even with two started at once.
            descriptor = os.open(self._started, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(str(os.getpid()))
            file.flush()
            os.fsync(descriptor)  # a claim lost in a power failure would let the run start twice
        return True

    def started(self) -> bool:
        """Return whether a runner has claimed the run."""
        return self._started.exists()

    def runner(self) -> int | None:
        """Return the runner's process id; None unless it lives."""
        if not self.started() or not is_locked(self.runner_lock):
            return None
        with suppress(OSError, ValueError):
            return int(self._started.read_text())
        return None

    def over(self) -> bool:
        """Return whether all processes of a started run are dead."""
        return not is_locked(self.runner_lock) and not is_locked(self.lock)

    def set_phase(self, phase: str) -> None:
        """Record the run's new phase."""
        write_json(self._phase, asdict(Phase(phase, now())))

    def phase(self) -> Phase | None:
        """Return the run's phase; None before the first."""
        record = read_json(self._phase)
        return None if record is None else Phase(**record)

    def ask_to_cancel(self, message: str) -> None:
        """Ask the runner to end all processes; `message` becomes the job's error."""
        if not self._cancel.exists():
            write_json(self._cancel, {"message": message})

    def cancel_asked(self) -> str | None:
        """Return the message of the request to cancel; None without a request."""
        record = read_json(self._cancel)
        return None if record is None else str(record["message"])

    def end(self, ending: Ending) -> None:
        """Record the run's final state."""
        write_json(self._exit, asdict(ending))

    def ending(self) -> Ending | None:
        """Return the run's final state; None if unknown."""
        record = read_json(self._exit)
        return None if record is None else Ending(**record)

    def measurements_version(self) -> tuple[str, int, int] | None:
        """Return a value that differs after each change of the measurements; None before the first."""
        try:
            status = self.measurements.stat()
        except FileNotFoundError:
            return None
        return self.run_id, status.st_ino, status.st_mtime_ns

    def temp(self) -> Path:
        """Return the run's folder for temporary files, created if missing.

        Below the system's temporary folder, because programs create sockets in it and a socket's path has at
        most 107 bytes.
        """
        for path in self._temps():
            if stat.S_IMODE(path.lstat().st_mode) & 0o777 == 0o700:
                return path
        return Path(tempfile.mkdtemp(prefix=self._temp_prefix))

    def clean(self) -> None:
        """Remove all files but the record (spec, log, final state); skip files that can't be removed."""
        for path in (self.packages, self.environment, self.work, self.home, self.certificates):
            remove(path)
        with suppress(OSError):
            for path in self._temps():
                remove(path)

    @property
    def _temp_prefix(self) -> str:
        return f"reconciler-{self.run_id}-"

    def _temps(self) -> Iterator[Path]:
        for path in Path(tempfile.gettempdir()).glob(f"{self._temp_prefix}*"):
            # `mkdtemp` adds no dash: with one, it is of a run whose id only begins like this one's.
            if "-" in path.name.removeprefix(self._temp_prefix):
                continue
            # Any user may create a folder of such a name there: only this user's own count.
            with suppress(OSError):
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                    yield path


def write_measurements(
    folder: RunFolder, measurements: Sequence[Measurement], unusable: UnusableReports
) -> None:
    """Replace the trial's reported measurements (oldest first) and its unusable reports atomically."""
    reported = [asdict(measurement) for measurement in measurements]
    write_json(folder.measurements, {"measurements": reported, "unusable": asdict(unusable)})


def read_measurements(folder: RunFolder) -> tuple[Measurement, ...]:
    """Return the trial's reported measurements; empty if none."""
    record = read_json(folder.measurements) or {"measurements": []}
    return tuple(Measurement(**measurement) for measurement in record["measurements"])


def read_unusable_reports(folder: RunFolder) -> UnusableReports:
    """Return the trial's reports that give no measurement; empty if none, or of an earlier version."""
    fields = (read_json(folder.measurements) or {}).get("unusable", {})
    return UnusableReports(**{name: tuple(tags) for name, tags in fields.items()})


def run_folder(home: Path, run_id: str) -> RunFolder:
    """Return the folder of a run below the service's home."""
    return RunFolder(home / "runs" / run_id)


def now() -> str:
    """Return the system's time: RFC 3339 in UTC, six decimal places."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock until the block ends and every process that inherited the descriptor is dead.

    Raises:
        BlockingIOError: Another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock."""
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
    """Return the JSON object in this file; None without a file."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    content: dict[str, Any] = json.loads(text)
    return content


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace the file atomically; it is on disk when this returns."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush the folder's entries to disk: without it a rename may be lost in a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a folder with its contents, including folders that a program made unwritable.

    Skips folders of another user and too deep ones. Doesn't follow links.
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
