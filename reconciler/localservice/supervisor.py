"""Which jobs run: starts them, watches them, cancels them, and takes up again what a crash has left.

The intent to run is in the store before anything is started, and what has become of it is in the run's
folder, so a supervisor that is killed at any moment is followed by one that finds every job again: running,
ended, or to be started. A run whose runner died without telling an end is a machine that crashed: the job is
started again from its beginning, as a new run, once nothing of the old one lives.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from reconciler.localservice import bucket_files, process_tree, surroundings
from reconciler.localservice.codes import Code
from reconciler.localservice.launch import Here, Refusal, launch, max_wait, may_be_retried
from reconciler.localservice.records import JobRecord, JobState, RunRecord
from reconciler.localservice.run_folder import (
    CANCELLED,
    FAILED,
    STOPPED,
    Ending,
    RunFolder,
    run_folder,
    sync_folder,
    write_json,
)
from reconciler.localservice.run_log import WARNING, RunLog
from reconciler.localservice.run_spec import RunSpec
from reconciler.localservice.settling import take_over_end, take_over_phase
from reconciler.localservice.store import Store

_RESTARTS = 5
_TO_DIE = 1.0
_STOP_POLL = 0.02
_STOP_GENTLY = 3.0

_CANCELLED = "The job was cancelled."
_WAITED = "The job was cancelled: it waited for longer than scheduling.maxWaitTime."
_LOST = "The process that ran the job was lost"
_STOPPED_WITH_SERVICE = "The job was stopped together with the service"


class Supervisor:
    """Runs the jobs of a store.

    Attributes:
        storage_url: Cloud Storage's API for one job.
        slots: How many jobs run at once; as many as this machine has CPUs by default.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        *,
        storage_url: Callable[[JobRecord], str],
        slots: int | None = None,
    ) -> None:
        self._store = store
        self._home = home.absolute()
        self._storage_url = storage_url
        self._cpus = os.cpu_count() or 1
        self._slots = slots or self._cpus
        self._runners: dict[str, subprocess.Popen[bytes]] = {}
        self._adopted: dict[str, int] = {}

    def recover(self) -> None:
        """Take up what a former supervisor has left: what runs, what has ended, what was lost."""
        self._follow_all()

    def tick(self) -> bool:
        """Start what may start, notice what has ended, end what is to end; False with nothing left to do."""
        self._follow_all()
        return self._start_waiting()

    def stop(self) -> None:
        """End every run within five seconds, also where the home is gone; their jobs are unfinished then."""
        give_up = time.monotonic() + _STOP_GENTLY
        for pid in self._pids().values():
            _signal(pid, signal.SIGTERM)
        while (left := self._pids()) and time.monotonic() < give_up:
            time.sleep(_STOP_POLL)
        for run_id, pid in left.items():
            _signal(pid, signal.SIGKILL)
            _kill_marked(run_id)
            run_folder(self._home, run_id).clean()

    def _follow_all(self) -> None:
        for job in self._store.unfinished():
            if job.state is not JobState.QUEUED:
                self._follow(job)

    def _start_waiting(self) -> bool:
        """Start jobs in the order of their creation, as many as there are slots; False with no job left."""
        jobs = self._store.unfinished()
        free = self._slots - sum(job.state is not JobState.QUEUED for job in jobs)
        for job in (job for job in jobs if job.state is JobState.QUEUED):
            if self._waited_too_long(job):
                self._end(job, _cancelled(_WAITED))
            elif free > 0:
                free -= self._start(job)
        return bool(jobs)

    def _start(self, job: JobRecord, why: str = "") -> bool:
        """Begin a new run of a job; False where it can't run here and has ended, or is no longer to run."""
        spec = self._spec(job)
        if isinstance(spec, Refusal):
            self._end(job, Ending(FAILED, spec.code, spec.message))
            return False
        if job.state is JobState.QUEUED and not self._move(job, JobState.PREPARING):
            return False
        return self._spawn(job, self._folder(self._store.add_run(job.id)), spec, why)

    def _spawn(self, job: JobRecord, folder: RunFolder, spec: RunSpec, why: str = "") -> bool:
        try:
            for bucket in filter(bucket_files.is_bucket_name, spec.output_buckets):
                (self._home / "gcs" / bucket).mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.path.parent)
            write_json(folder.spec, spec.to_json())
            if why:
                _log(folder, why)
            self._runners[folder.run_id] = _start_runner(folder)
        except OSError as error:
            self._end(job, Ending(FAILED, Code.RESOURCE_EXHAUSTED, f"The job could not be started: {error}"))
            return False
        return True

    def _spec(self, job: JobRecord) -> RunSpec | Refusal:
        here = Here(self._storage_url(job), self._home / "gcs", self._cpus, _free_port())
        spec = launch(job, here)
        if isinstance(spec, Refusal) or not job.start_time:
            return spec
        # Started once before: the time it ran then counts.
        return replace(spec, time_limit=max(0.0, spec.time_limit - self._seconds_since(job.start_time)))

    def _follow(self, job: JobRecord) -> None:
        """Bring a job that has begun, in the store, to where its last run is."""
        runs = self._store.runs(job.id)
        if not runs:
            self._never_began(job)
            return
        folder = self._folder(runs[-1])
        take_over_phase(self._store, job, folder)
        if job.state is JobState.CANCELLING and folder.path.exists():
            folder.ask_to_cancel(job.error_message or _CANCELLED)
        elif job.state is JobState.PREPARING and self._waited_too_long(job):
            self._move(job, JobState.CANCELLING, _WAITED)
        if not self._lives(folder):
            self._after(job, runs, folder)

    def _never_began(self, job: JobRecord) -> None:
        if job.state is JobState.CANCELLING:
            self._end(job, _cancelled(job.error_message))
        else:
            self._start(job)

    def _lives(self, folder: RunFolder) -> bool:
        """Whether a runner has the run in hand, or is about to take it."""
        runner = self._runners.get(folder.run_id)
        if runner is not None and runner.poll() is None:
            return True
        if runner is not None:
            del self._runners[folder.run_id]
            if folder.path.exists():
                folder.claim()  # where it never got so far: it counts as lost, not as still to be started
        pid = folder.runner()
        if pid is None:
            self._adopted.pop(folder.run_id, None)
            return False
        self._adopted[folder.run_id] = pid
        return True

    def _after(self, job: JobRecord, runs: Sequence[RunRecord], folder: RunFolder) -> None:
        """What follows when no runner has the run in hand."""
        ending = folder.ending()
        if ending is None and not folder.started():
            self._not_started(job, folder)
            return
        if (ending is None or not folder.over()) and not _silenced(folder):
            return  # something of it lives still: the next tick looks again
        folder.clean()
        if ending is None or ending.state == STOPPED:
            self._again(job, runs, ending)
        else:
            take_over_phase(self._store, job, folder)
            self._end(job, ending)

    def _not_started(self, job: JobRecord, folder: RunFolder) -> None:
        if job.state is JobState.CANCELLING:
            # Marked as started, so that a runner that is late doesn't take it up.
            if not folder.path.exists() or folder.claim():
                self._end(job, _cancelled(job.error_message))
            return
        spec = self._spec(job)
        if isinstance(spec, Refusal):
            self._end(job, Ending(FAILED, spec.code, spec.message))
        else:
            self._spawn(job, folder, spec)

    def _again(self, job: JobRecord, runs: Sequence[RunRecord], ending: Ending | None) -> None:
        """Start a job once more whose run was stopped, or was lost, unless that happened too often."""
        lost = sum(self._folder(run).ending() is None for run in runs)
        if job.state is JobState.CANCELLING:
            self._end(job, _cancelled(job.error_message))
        elif ending is not None:
            self._start(job, f"{_STOPPED_WITH_SERVICE}: it starts again from the beginning.")
        elif not may_be_retried(job):
            self._end(job, Ending(FAILED, Code.INTERNAL, f"{_LOST}, and scheduling.disableRetries is set."))
        elif lost > _RESTARTS:
            told = f"{_LOST}, {lost} times. {_last_complaint(self._folder(runs[-1]))}".rstrip()
            self._end(job, Ending(FAILED, Code.INTERNAL, told))
        else:
            self._start(job, f"{_LOST}: it starts again from the beginning.")

    def _end(self, job: JobRecord, ending: Ending) -> None:
        take_over_end(self._store, job, ending if ending.time else replace(ending, time=self._store.now()))

    def _move(self, job: JobRecord, to: JobState, message: str = "") -> bool:
        at = self._store.now()
        moved = self._store.move(job.id, to, only_from={job.state}, at=at, error_message=message)
        return moved is not None

    def _waited_too_long(self, job: JobRecord) -> bool:
        limit = max_wait(job)
        return limit is not None and self._seconds_since(job.create_time) > limit

    def _seconds_since(self, time: str) -> float:
        return (self._store.clock() - datetime.fromisoformat(time)).total_seconds()

    def _folder(self, run: RunRecord) -> RunFolder:
        return run_folder(self._home, run.run_id)

    def _pids(self) -> dict[str, int]:
        """The runners that live, by run; from memory, because the home may be gone."""
        own = {run_id: runner.pid for run_id, runner in self._runners.items() if runner.poll() is None}
        adopted = {
            run_id: pid for run_id, pid in self._adopted.items() if process_tree.is_runner(pid, run_id)
        }
        return own | adopted


def _cancelled(message: str) -> Ending:
    return Ending(CANCELLED, Code.CANCELLED, message or _CANCELLED)


def _start_runner(folder: RunFolder) -> subprocess.Popen[bytes]:
    """Start a runner that outlives this process and shares nothing with it."""
    with folder.complaints.open("ab") as complaints:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "reconciler.localservice.runner", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=complaints,
            stderr=complaints,
            cwd="/",
            env=surroundings.for_runner(os.environ),
            start_new_session=True,
        )


def _silenced(folder: RunFolder) -> bool:
    """Kill what is left of a run whose runner is dead; whether nothing of it lives."""
    return _kill_marked(folder.run_id) and folder.over()


def _kill_marked(run_id: str) -> bool:
    return process_tree.kill_all(lambda: process_tree.marked(run_id), _TO_DIE)


def _signal(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
