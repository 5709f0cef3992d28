"""Carries a job, or one trial of it, through its runs to its end.

The intent to run is in the store before anything is started, and what has become of it is in the run's
folder: whoever looks later finds it running, ended, or to be started. A run whose runner died without telling
an end is a machine that crashed: it is started again from the beginning, as a new run, once nothing of the
old one lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from reconciler.training_service.jobs.launch import (
    Here,
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
from reconciler.training_service.scheduler.resources import Allotment, Allotments
from reconciler.training_service.state.records import ML_JOBS, Code, JobRecord, RunRecord, TrialRecord
from reconciler.training_service.state.run_folder import (
    CANCELLED,
    FAILED,
    RUNNING,
    STOPPED,
    Ending,
    RunFolder,
    RunSpec,
    is_locked,
    read_json,
    run_folder,
    sync_folder,
    write_json,
)
from reconciler.training_service.state.run_log import WARNING, RunLog
from reconciler.training_service.state.store import CLAIMS, Store
from reconciler.training_service.storage import files

_RESTARTS = 5
# Those are nobody's fault, but a trainer may end its runner itself, again and again.
_STOPS = 20
_CANCELLED = "The job was cancelled."
_AGAIN = "it starts again from the beginning."


@dataclass(frozen=True, slots=True)
class Work:
    """What is run until it ends: a job, or one trial of it.

    Attributes:
        cancelled: Why it is to end, None where it is to go on.
    """

    job: JobRecord
    trial: TrialRecord | None = None
    cancelled: str | None = None

    @property
    def number(self) -> int:
        """The trial's number, 0 for a job without trials."""
        return self.trial.number if self.trial else 0

    @property
    def lost(self) -> str:
        """What is said when its runner was lost."""
        return f"The process that ran the {self.noun} was lost"

    @property
    def stopped(self) -> str:
        """What is said when its run was stopped to be run again."""
        return f"The {self.noun} was stopped together with the service"

    @property
    def noun(self) -> str:
        """What it is called in messages."""
        return "trial" if self.trial else "job"


class Attempts:
    """Starts runs, and starts them again.

    Attributes:
        machine: What this machine has.
        storage_url: Cloud Storage's API for one job.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        runners: Runners,
        allotments: Allotments,
        machine: Machine,
        storage_url: Callable[[JobRecord], str],
    ) -> None:
        self._store = store
        self._home = home
        self._runners = runners
        self._allotments = allotments
        self._machine = machine
        self._storage_url = storage_url

    def recover(self, jobs: Sequence[JobRecord]) -> None:
        """Learn which ports and GPUs are in the hands of runs that a former service has started."""
        for folder in (self._folder(run) for job in jobs for run in self._store.runs(job.id)):
            if folder.started() and folder.over():
                continue
            with suppress(OSError, ValueError):  # that job's own steps meet it again
                found = read_json(folder.spec) or {}
                # An older version wrote none.
                own = Allotment(tuple(found.get("ports", ())), tuple(found.get("gpus", ())))
                self._allotments.note(folder.run_id, own)

    def refusal(self, job: JobRecord) -> Ending | None:
        """Why nothing can be run for this job, None where something can."""
        here = self._here(job, Allotment(ports=(0,) * ports_wanted(job)))
        return _refused(launch(job, here))

    def folder(self, work: Work) -> RunFolder | None:
        """The folder of the last run, None before there is one."""
        runs = self._runs(work)
        return self._folder(runs[-1]) if runs else None

    def step(self, work: Work) -> Ending | None:
        """Do what is to be done next; how it ended, once nothing of it lives, or None before."""
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
        """Kill whatever runs for a job; whether nothing does any more."""
        folders = [self._folder(run) for run in self._store.runs(job.id)]
        for folder in folders:
            if folder.path.exists():
                folder.claim()  # so that no runner takes it up that is late
        silent = [self._runners.kill(folder) for folder in folders]
        for folder in folders:
            folder.clean()
            self._allotments.release(folder.run_id)
        return all(silent)

    def _ending(self, work: Work) -> Ending | None:
        if work.cancelled is None:
            return None
        return Ending(CANCELLED, Code.CANCELLED, work.cancelled or _CANCELLED)

    def _start(self, work: Work, why: str = "") -> Ending | None:
        return self._spawn(work, self._folder(self._store.add_run(work.job.id, work.number)), why)

    def _spawn(self, work: Work, folder: RunFolder, why: str = "") -> Ending | None:
        try:
            spec = self._spec(work, folder)
            if isinstance(spec, Refusal):
                return self._not_to_start(folder, Ending(FAILED, spec.code, spec.message))
            for bucket in filter(files.is_bucket_name, spec.output_buckets):
                (self._home / "gcs" / bucket).mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.path.parent)
            write_json(folder.spec, spec.to_json())
            if why:
                _log(folder, why)
            self._runners.start(folder)
        except OSError as error:
            message = f"The job could not be started: {error}"
            return self._not_to_start(folder, Ending(FAILED, Code.RESOURCE_EXHAUSTED, message))
        return None

    def _not_to_start(self, folder: RunFolder, ending: Ending) -> Ending | None:
        """The end of what hasn't been started, None where a runner has it in hand after all.

        A former service may have started one that is late: it doesn't take up what is marked as started.
        """
        with suppress(OSError):  # where there is no folder, no runner can take it up
            if not folder.claim():
                return None
        self._allotments.release(folder.run_id)
        return ending

    def _spec(self, work: Work, folder: RunFolder) -> RunSpec | Refusal:
        job = work.job
        gpus = demand(job, self._machine).gpus // parallel_trials(job, self._machine)
        own = self._allotments.of(folder.run_id, ports=ports_wanted(job), gpus=gpus)
        spec = launch(job, self._here(job, own), work.trial)
        if isinstance(spec, Refusal):
            return spec
        left = max(0.0, spec.time_limit - self._seconds_run(work))
        return replace(spec, time_limit=left, ports=own.ports, gpus=own.gpus)

    def _seconds_run(self, work: Work) -> float:
        """How long it ran before, in former runs; while nothing ran, the machine being off, no time counts.

        AI Platform's limit is the whole job's; Vertex AI makes each trial a job with a limit of its own.
        """
        trial = None if work.job.collection == ML_JOBS else work.number
        runs = self._store.runs(work.job.id, trial)
        return _covered(span for run in runs if (span := self._span(self._folder(run))))

    def _span(self, folder: RunFolder) -> tuple[datetime, datetime] | None:
        """From when to when a run was RUNNING; a lost one until it last wrote anything that is kept."""
        phase = folder.phase()
        if phase is None or phase.phase != RUNNING:
            return None
        ending = folder.ending()
        if ending is not None:
            end = datetime.fromisoformat(ending.time)
        elif is_locked(folder.runner_lock):
            end = self._store.clock()
        else:
            written = [path.stat().st_mtime for path in (folder.log, folder.measurements) if path.exists()]
            end = datetime.fromtimestamp(max(written, default=0.0), UTC)
        return datetime.fromisoformat(phase.time), end

    def _here(self, job: JobRecord, own: Allotment) -> Here:
        reserved = tuple(self._store.setting(CLAIMS) or ())
        buckets = self._home / "gcs"
        return Here(self._storage_url(job), buckets, self._machine, own.ports, own.gpus, reserved)

    def _after(self, work: Work, runs: Sequence[RunRecord], folder: RunFolder) -> Ending | None:
        """What follows when no runner has the run in hand."""
        ending = folder.ending()
        if ending is None and not folder.started():
            return self._not_started(work, folder)
        silent = ending is not None and folder.over() and not containers.has_containers(folder)
        if not silent and not self._runners.silence(folder):
            return None  # something of it lives still: the next step looks again
        folder.clean()
        self._allotments.release(folder.run_id)
        if ending is None or ending.state == STOPPED:
            return self._again(work, runs, ending)
        return ending

    def _not_started(self, work: Work, folder: RunFolder) -> Ending | None:
        if work.cancelled is None:
            return self._spawn(work, folder)
        # Marked as started, so that a runner that is late doesn't take it up.
        if folder.path.exists() and not folder.claim():
            return None
        self._allotments.release(folder.run_id)
        return self._ending(work)

    def _again(self, work: Work, runs: Sequence[RunRecord], ending: Ending | None) -> Ending | None:
        """Start once more what was stopped, or was lost, unless that happened too often."""
        if work.cancelled is not None:
            return self._ending(work)
        endings = [self._folder(run).ending() for run in runs]
        lost, stopped = endings.count(None), len(endings) - endings.count(None)
        if ending is not None and stopped > _STOPS:
            told = f"The process that ran the {work.noun} was ended by a signal, {stopped} times."
            return Ending(FAILED, Code.INTERNAL, told)
        if ending is not None:
            return self._start(work, f"{work.stopped}: {_AGAIN}")
        if not may_be_retried(work.job):
            return Ending(FAILED, Code.INTERNAL, f"{work.lost}, and scheduling.disableRetries is set.")
        if lost > _RESTARTS:
            told = f"{work.lost}, {lost} times. {_last_complaint(self._folder(runs[-1]))}".rstrip()
            return Ending(FAILED, Code.INTERNAL, told)
        return self._start(work, f"{work.lost}: {_AGAIN}")

    def _runs(self, work: Work) -> list[RunRecord]:
        return self._store.runs(work.job.id, work.number)

    def _folder(self, run: RunRecord) -> RunFolder:
        return run_folder(self._home, run.run_id)


def _covered(spans: Iterable[tuple[datetime, datetime]]) -> float:
    """The seconds in which there was at least one of these spans of time."""
    found, until = 0.0, datetime.min.replace(tzinfo=UTC)
    for begin, end in sorted(spans):
        found += max(0.0, (end - max(begin, until)).total_seconds())
        until = max(until, end)
    return found


def _refused(spec: RunSpec | Refusal) -> Ending | None:
    return Ending(FAILED, spec.code, spec.message) if isinstance(spec, Refusal) else None


def _last_complaint(folder: RunFolder) -> str:
    with suppress(OSError):
        return folder.complaints.read_text("utf-8", "replace").strip().rpartition("\n")[2]
    return ""


def _log(folder: RunFolder, text: str) -> None:
    log = RunLog(folder.log)
    try:
        log.write(WARNING, [text])
    finally:
        log.close()
