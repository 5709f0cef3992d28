"""Starter of the runs of a job or of a single trial, with the ports and GPUs that no two runs share.

The store records the intent to run before a run starts, and the run's folder records its progress. A later
service therefore finds each run running, ended or still to be started. If a runner died without recording an
end, its run counts as a crashed machine: once all its processes are dead, a new run starts from the
beginning.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from reconciler.training_service.jobs.cluster import pools_of
from reconciler.training_service.jobs.launch import (
    Host,
    Refusal,
    demand,
    launch,
    may_be_retried,
    parallel_trials,
    ports_wanted,
)
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.runner import containers
from reconciler.training_service.runner.launcher import Runners
from reconciler.training_service.state.database import CLAIMS, PUBLIC, REACHABLE, Store
from reconciler.training_service.state.records import (
    ML_JOBS,
    Code,
    JobRecord,
    RunRecord,
    details_of,
    reason_of,
)
from reconciler.training_service.state.run_folder import (
    CANCELLED,
    FAILED,
    RUNNING,
    STOPPED,
    Ending,
    MissingPackageError,
    RunFolder,
    is_locked,
    read_json,
    run_folder,
    sync_folder,
    write_json,
)
from reconciler.training_service.state.run_log import WARNING, RunLog
from reconciler.training_service.state.run_spec import PythonTask, RunSpec
from reconciler.training_service.state.trial_records import TrialRecord
from reconciler.training_service.storage import files

_RESTARTS = 5
# A stopped run isn't a failure. But a trainer may stop its own runner repeatedly, so a limit is needed.
_STOPS = 20
_CANCELLED = "The job was cancelled."
_AGAIN = "it starts again from the beginning."
# Below the ephemeral ports, which systems assign on request (Linux: from 32768; IANA: from 49152).
_FIRST, _END = 20_000, 32_000


@dataclass(frozen=True, slots=True)
class Reservation:
    """Ports and GPU ids reserved for a run."""

    ports: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


class Reservations:
    """Reservations of all unfinished runs; no two share a port or a GPU.

    Attributes:
        gpus: The ids of all GPUs of this machine.
    """

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        self._gpus = tuple(gpus)
        self._held: dict[str, Reservation] = {}
        # A random start, because other homes' services share these ports. The search then goes round, so a
        # port that has just become free comes last: late packets may still be meant for its former user.
        self._next = random.randrange(_FIRST, _END)  # noqa: S311 (a place to begin, no secret)

    def reserve(self, run_id: str, *, ports: int, gpus: int) -> Reservation:
        """Return the run's reservation; make it first if it is missing.

        Fewer than `gpus` GPUs are reserved if fewer are free.

        Raises:
            OSError: Fewer than `ports` ports are free.
        """
        held = self._held.get(run_id)
        if held is None or len(held.ports) != ports:
            self._held.pop(run_id, None)
            held = Reservation(self._free_ports(ports), self._free_gpus(gpus))
            self._held[run_id] = held
        return held

    def adopt(self, run_id: str, held: Reservation) -> None:
        """Add the reservation of a run that a former service started."""
        self._held[run_id] = held

    def release(self, run_id: str) -> None:
        """Free the resources of a finished run."""
        self._held.pop(run_id, None)

    def _free_gpus(self, count: int) -> tuple[str, ...]:
        taken = {gpu for held in self._held.values() for gpu in held.gpus}
        return tuple(gpu for gpu in self._gpus if gpu not in taken)[:count]

    def _free_ports(self, count: int) -> tuple[int, ...]:
        taken = {port for held in self._held.values() for port in held.ports}
        free: list[int] = []
        for port in [*range(self._next, _END), *range(_FIRST, min(self._next, _END))]:
            if len(free) == count:
                break
            self._next = port + 1
            if port not in taken and _is_free(port):
                free.append(port)
        if len(free) < count:
            raise OSError(f"no {count} ports are free between {_FIRST} and {_END - 1}")
        return tuple(free)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Work:
    """Unit that runs until it ends: a job or a trial.

    Attributes:
        cancelled: The reason to cancel it; None while it may go on.
    """

    job: JobRecord
    trial: TrialRecord | None = None
    cancelled: str | None = None

    @property
    def number(self) -> int:
        """Return the trial's number; 0 for a job without trials."""
        return self.trial.number if self.trial else 0

    @property
    def noun(self) -> str:
        """Return "trial" or "job" for use in messages."""
        return "trial" if self.trial else "job"


class RunStarter:
    """Starter and restarter of runs.

    Attributes:
        machine: The capacity of this machine.
        storage_url: Returns a job's URL of Cloud Storage's API.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        runners: Runners,
        reservations: Reservations,
        machine: Machine,
        storage_url: Callable[[JobRecord], str],
    ) -> None:
        self._store = store
        self._home = home
        self._runners = runners
        self._reservations = reservations
        self._machine = machine
        self._storage_url = storage_url

    def recover(self, jobs: Sequence[JobRecord]) -> None:
        """Reserve the ports and GPUs of runs that a former service started."""
        for folder in (self._folder(run) for job in jobs for run in self._store.runs(job.id)):
            if folder.started() and folder.over():
                continue
            with suppress(OSError, ValueError):  # the job's own step meets the same error and reports it
                stored = read_json(folder.spec) or {}
                # Older versions stored neither ports nor GPUs.
                reservation = Reservation(tuple(stored.get("ports", ())), tuple(stored.get("gpus", ())))
                self._reservations.adopt(folder.run_id, reservation)

    def refusal(self, job: JobRecord) -> Ending | None:
        """Return the ending of a job that can't run at all; None if it can run."""
        host = self._host(job, Reservation(ports=(0,) * ports_wanted(job)))
        spec = launch(job, host)
        return _refused(spec) if isinstance(spec, Refusal) else None

    def without_package(self, job: JobRecord) -> Ending | None:
        """Return the ending of a job with a package that no bucket has; None if all are there."""
        tasks = (pool.task for pool in pools_of(job))
        uris = [uri for task in tasks if isinstance(task, PythonTask) for uri in task.packages]
        missing = next((uri for uri in uris if not files.has_object(self._home / "gcs", uri)), None)
        return MissingPackageError(missing).ending if missing else None

    def folder(self, work: Work) -> RunFolder | None:
        """Return the folder of the last run; None before the first run."""
        runs = self._runs(work)
        return self._folder(runs[-1]) if runs else None

    def step(self, work: Work) -> Ending | None:
        """Take the next step; return the ending once all processes are dead, and None before."""
        runs = self._runs(work)
        if not runs:
            return self._ending(work) or self._start(work)
        folder = self._folder(runs[-1])
        if work.cancelled is not None and folder.path.exists():
            folder.ask_to_cancel(work.cancelled or _CANCELLED)
        if self._runners.lives(folder):
            return None
        return self._after(work, runs, folder)

    def abandon(self, job: JobRecord) -> bool:
        """Kill all processes of a job; return True once all are dead."""
        folders = [self._folder(run) for run in self._store.runs(job.id)]
        for folder in folders:
            if folder.path.exists():
                folder.claim()  # a runner that starts late must not take up the run
        # A list, not a generator: every run is to be killed, even after one that isn't dead yet.
        dead = [self._runners.kill(folder) for folder in folders]
        for folder in folders:
            folder.clean()
            self._reservations.release(folder.run_id)
        return all(dead)

    def _ending(self, work: Work) -> Ending | None:
        if work.cancelled is None:
            return None
        message = work.cancelled or _CANCELLED
        return Ending(CANCELLED, Code.CANCELLED, message, details=details_of("REQUESTED"))

    def _start(self, work: Work, why: str = "") -> Ending | None:
        return self._spawn(work, self._folder(self._store.add_run(work.job.id, work.number)), why)

    def _spawn(self, work: Work, folder: RunFolder, why: str = "") -> Ending | None:
        try:
            spec = self._spec(work, folder)
            if isinstance(spec, Refusal):
                return self._not_to_start(folder, _refused(spec))
            for bucket in filter(files.is_bucket_name, spec.output_buckets):
                (self._home / "gcs" / bucket).mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.path.parent)
            # The runner reads the file as soon as it starts.
            write_json(folder.spec, spec.to_json())
            if why:
                _log(folder, why)
            self._runners.start(folder)
        except OSError as error:
            message = f"The job could not be started: {error}"
            details = details_of(reason_of(error))
            return self._not_to_start(
                folder, Ending(FAILED, Code.RESOURCE_EXHAUSTED, message, details=details)
            )
        return None

    def _not_to_start(self, folder: RunFolder, ending: Ending) -> Ending | None:
        # A former service may have started a runner that is late. A claimed run isn't taken up by it; a run
        # that it has claimed already goes on.
        with suppress(OSError):  # no runner can take up a run without a folder
            if not folder.claim():
                return None
        self._reservations.release(folder.run_id)
        return ending

    def _spec(self, work: Work, folder: RunFolder) -> RunSpec | Refusal:
        job = work.job
        gpus = demand(job, self._machine).gpus // parallel_trials(job, self._machine)
        reservation = self._reservations.reserve(folder.run_id, ports=ports_wanted(job), gpus=gpus)
        spec = launch(job, self._host(job, reservation), work.trial)
        if isinstance(spec, Refusal):
            return spec
        left = max(0.0, spec.time_limit - self._seconds_run(work))
        # The first run writes the warnings into the job's log, so that they are there once.
        warnings = spec.warnings if work.number <= 1 and len(self._runs(work)) <= 1 else ()
        return replace(
            spec, time_limit=left, ports=reservation.ports, gpus=reservation.gpus, warnings=warnings
        )

    def _seconds_run(self, work: Work) -> float:
        # AI Platform's time limit is the whole job's. Vertex AI makes each trial a job with its own limit.
        trial = None if work.job.collection == ML_JOBS else work.number
        runs = self._store.runs(work.job.id, trial)
        return _covered(span for run in runs if (span := self._span(self._folder(run))))

    def _span(self, folder: RunFolder) -> tuple[datetime, datetime] | None:
        """Return the start and end of a run's RUNNING phase."""
        phase = folder.phase()
        if phase is None or phase.phase != RUNNING:
            return None
        ending = folder.ending()
        if ending is not None:
            end = datetime.fromisoformat(ending.time)
        elif is_locked(folder.runner_lock):
            end = self._store.clock()
        else:
            # A lost run ran at least until its last write. The time until now may include hours in which the
            # machine was off, and must not count.
            times = [path.stat().st_mtime for path in (folder.log, folder.measurements) if path.exists()]
            end = datetime.fromtimestamp(max(times, default=0.0), UTC)
        return datetime.fromisoformat(phase.time), end

    def _host(self, job: JobRecord, reservation: Reservation) -> Host:
        reserved, reachable, public = (
            tuple(self._store.setting(name) or ()) for name in (CLAIMS, REACHABLE, PUBLIC)
        )
        reserved += public  # as files: a trainer's would come before Google's, for all jobs
        buckets = self._home / "gcs"
        url = self._storage_url(job)
        return Host(url, buckets, self._machine, reservation.ports, reservation.gpus, reserved, reachable)

    def _after(self, work: Work, runs: Sequence[RunRecord], folder: RunFolder) -> Ending | None:
        ending = folder.ending()
        if ending is None and not folder.started():
            return self._not_started(work, folder)
        dead = ending is not None and folder.over() and not containers.has_containers(folder)
        # A new run must not start beside processes of the old one: the next step checks again.
        if not dead and not self._runners.kill_remains(folder):
            return None
        folder.clean()
        self._reservations.release(folder.run_id)
        if ending is None or ending.state == STOPPED:
            return self._again(work, runs, ending)
        return ending

    def _not_started(self, work: Work, folder: RunFolder) -> Ending | None:
        if work.cancelled is None:
            return self._spawn(work, folder)
        # The claim keeps a runner that starts late from taking up the run.
        if folder.path.exists() and not folder.claim():
            return None
        self._reservations.release(folder.run_id)
        return self._ending(work)

    def _again(self, work: Work, runs: Sequence[RunRecord], ending: Ending | None) -> Ending | None:
        """Start a stopped or lost run again, up to a limit of restarts."""
        if work.cancelled is not None:
            return self._ending(work)
        endings = [self._folder(run).ending() for run in runs]
        lost, stopped = endings.count(None), len(endings) - endings.count(None)
        if ending is not None and stopped > _STOPS:
            message = f"The process that ran the {work.noun} was ended by a signal, {stopped} times."
            return _lost(message)
        if ending is not None:
            return self._start(work, f"The {work.noun} was stopped together with the service: {_AGAIN}")
        reason = f"The process that ran the {work.noun} was lost"
        if not may_be_retried(work.job):
            return _lost(f"{reason}, and scheduling.disableRetries is set.")
        if lost > _RESTARTS:
            message = f"{reason}, {lost} times. {_last_error(self._folder(runs[-1]))}".rstrip()
            return _lost(message)
        return self._start(work, f"{reason}: {_AGAIN}")

    def _runs(self, work: Work) -> list[RunRecord]:
        return self._store.runs(work.job.id, work.number)

    def _folder(self, run: RunRecord) -> RunFolder:
        return run_folder(self._home, run.run_id)


def _refused(refusal: Refusal) -> Ending:
    return Ending(FAILED, refusal.code, refusal.message, details=refusal.details)


def _lost(message: str) -> Ending:
    return Ending(FAILED, Code.INTERNAL, message, details=details_of("RUNNER_LOST"))


def _covered(spans: Iterable[tuple[datetime, datetime]]) -> float:
    """Return the seconds that at least one of the spans covers."""
    seconds, until = 0.0, datetime.min.replace(tzinfo=UTC)
    for begin, end in sorted(spans):
        seconds += max(0.0, (end - max(begin, until)).total_seconds())
        until = max(until, end)
    return seconds


def _last_error(folder: RunFolder) -> str:
    with suppress(OSError):
        return folder.complaints.read_text("utf-8", "replace").strip().rpartition("\n")[2]
    return ""


def _log(folder: RunFolder, text: str) -> None:
    log = RunLog(folder.log)
    try:
        log.write(WARNING, [text])
    finally:
        log.close()
