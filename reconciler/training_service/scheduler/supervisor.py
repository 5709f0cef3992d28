"""Which jobs run: admits them, follows them, cancels them, and takes up again what a crash has left.

A supervisor that is killed at any moment is followed by one that finds every job again, in the store and in
the folders of its runs. One job's trouble is not another's: what goes wrong with a job is tried again, and
ends that job alone where it goes wrong again and again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from reconciler.base.state_dir import Home, HomeError
from reconciler.base.state_dir_trust import check
from reconciler.training_service.jobs.launch import demand, max_wait, priority
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.runner.launcher import Runners
from reconciler.training_service.scheduler.jobs import Attempts, Work
from reconciler.training_service.scheduler.recovery import take_over_end, take_over_phase
from reconciler.training_service.scheduler.resources import Allotments
from reconciler.training_service.scheduler.trials import TuningJobs
from reconciler.training_service.state.database import DatabaseError
from reconciler.training_service.state.records import ML_JOBS, Code, JobRecord, JobState
from reconciler.training_service.state.run_folder import CANCELLED, FAILED, Ending
from reconciler.training_service.state.store import Store
from reconciler.training_service.tuning.study import is_tuning


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that hasn't begun; of those with the same priority the lowest `id` is the first."""

    id: int
    priority: int
    demand: Machine


def admitted(whole: Machine, held: Iterable[Machine], waiting: Iterable[Waiting]) -> list[int]:
    """The ids of the jobs that may begin now, the first one first.

    Args:
        whole: What there is.
        held: What the jobs hold that have begun.
        waiting: In any order; none may ask for more than there is, or it waits for ever.
    """
    begin = []
    free = whole
    for taken in held:
        free = _less(free, taken)
    for job in sorted(waiting, key=lambda job: (-job.priority, job.id)):
        free = _less(free, job.demand)
        if min(free.cpus, free.memory, free.gpus) < 0:
            break
        begin.append(job.id)
    return begin


def _less(one: Machine, other: Machine) -> Machine:
    return Machine(one.cpus - other.cpus, one.memory - other.memory, one.gpus - other.gpus)


_TRIES = 100
_WAITED = "The job was cancelled: it waited for longer than scheduling.{}."

_log = logging.getLogger(__name__)


class Supervisor:
    """Runs the jobs of a store.

    Attributes:
        checkout: The checkout that the home lies in, None where it lies outside.
        storage_url: Cloud Storage's API for one job.
        machine: What there is for all jobs together.
        gpus: Its GPUs' ids.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        *,
        checkout: Path | None = None,
        storage_url: Callable[[JobRecord], str],
        machine: Machine,
        gpus: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._machine = machine
        self._home = Home(home.absolute(), checkout)
        self._runners = Runners(self._home)
        self._attempts = Attempts(
            store, home.absolute(), self._runners, Allotments(gpus), machine, storage_url
        )
        self._tuning = TuningJobs(store, self._attempts, machine)
        self._demands: dict[int, Machine] = {}
        self._failures: dict[tuple[int, str], int] = {}
        self._refused = ""

    def recover(self) -> None:
        """Take up what a former supervisor has left: what runs, what has ended, what was lost."""
        self._attempts.recover(self._begun())
        self._follow_all()

    def tick(self) -> bool:
        """Start what may start, notice what has ended, end what is to end; False with nothing left to do."""
        self._follow_all()
        return self._admit()

    def stop(self) -> None:
        """End every run within five seconds, also where the home is gone; their jobs are unfinished then."""
        self._runners.stop()

    def _begun(self) -> list[JobRecord]:
        return [job for job in self._store.unfinished() if job.state is not JobState.QUEUED]

    def _follow_all(self) -> None:
        for job in self._begun():
            self._fenced(job, self._follow)

    def _admit(self) -> bool:
        """Let waiting jobs begin that the machine has room for; False with no job left."""
        jobs = self._store.unfinished()
        waiting = {job.id: job for job in jobs if job.state is JobState.QUEUED}
        self._forget_all_but({job.id for job in jobs})
        for job in waiting.values():
            self._fenced(job, self._look_at_waiting)
        held = [self._demand(job) for job in jobs if job.id not in waiting]
        asking = [Waiting(job.id, priority(job), self._demand(job)) for job in waiting.values()]
        chosen = admitted(self._machine, held, asking)
        for id in chosen if chosen and self._may_use_home() else ():
            self._fenced(waiting[id], self._begin)
        return bool(jobs)

    def _forget_all_but(self, ids: set[int]) -> None:
        self._demands = {id: demand for id, demand in self._demands.items() if id in ids}
        self._failures = {key: count for key, count in self._failures.items() if key[0] in ids}

    def _look_at_waiting(self, job: JobRecord) -> None:
        if self._waited_too_long(job):
            self._end(job, Ending(CANCELLED, Code.CANCELLED, _waited(job)))
        self._demands[job.id] = self._demands.get(job.id) or demand(job, self._machine)

    def _demand(self, job: JobRecord) -> Machine:
        """What the job holds or asks for: everything, where that can't be told."""
        if job.id not in self._demands:
            self._fenced(job, self._look_at_waiting)
        return self._demands.get(job.id, self._machine)

    def _may_use_home(self) -> bool:
        """Return whether jobs may begin; the log tells once why they stay queued."""
        refused = ""
        if self._home.checkout is not None:
            try:
                check(self._home, os.environ)
            except HomeError as error:
                refused = f"{error.message}; {error.hint}"
        if refused and refused != self._refused:
            _log.error("no job begins: %s", refused)
        self._refused = refused
        return not refused

    def _begin(self, job: JobRecord) -> None:
        refusal = self._attempts.refusal(job)
        if refusal is not None:
            self._end(job, refusal)
        elif (begun := self._move(job, JobState.PREPARING)) is not None:
            self._follow(begun)

    def _follow(self, job: JobRecord) -> None:
        """Bring a job that has begun, in the store, to where its runs are, and do what is to be done next."""
        if job.state is JobState.PREPARING and self._waited_too_long(job):
            job = self._move(job, JobState.CANCELLING, _waited(job)) or job
        ending = self._tuning.step(job) if is_tuning(job) else self._step(job)
        if ending is not None:
            self._end(job, ending)

    def _step(self, job: JobRecord) -> Ending | None:
        work = Work(job, cancelled=job.error_message if job.state is JobState.CANCELLING else None)
        ending = self._attempts.step(work)
        folder = self._attempts.folder(work)
        if folder is not None:
            take_over_phase(self._store, job, folder)
        return ending

    def _end(self, job: JobRecord, ending: Ending) -> None:
        take_over_end(self._store, job, ending if ending.time else replace(ending, time=self._store.now()))
        self._tuning.forget(job)

    def _move(self, job: JobRecord, to: JobState, message: str = "") -> JobRecord | None:
        at = self._store.now()
        return self._store.move(job.id, to, only_from={job.state}, at=at, error_message=message)

    def _waited_too_long(self, job: JobRecord) -> bool:
        limit = max_wait(job)
        if limit is None:
            return False
        waited = self._store.clock() - datetime.fromisoformat(job.create_time)
        return waited.total_seconds() > limit

    def _fenced(self, job: JobRecord, step: Callable[[JobRecord], None]) -> None:
        """Do a step of one job; a failure is this job's alone, and its end where it comes again and again."""
        # Each step counts for itself: one that works tells nothing of another.
        key = (job.id, step.__name__)
        try:
            step(job)
        except DatabaseError:
            raise  # no job's trouble, but everybody's
        except Exception as error:
            if all(id != job.id for id, _step in self._failures):
                _log.exception("can't look after job %s", job.job_id)
            self._failures[key] = self._failures.get(key, 0) + 1
            if self._failures[key] >= _TRIES:
                self._give_up(job, error, self._failures[key])
        else:
            self._failures.pop(key, None)

    def _give_up(self, job: JobRecord, error: Exception, times: int) -> None:
        try:
            if self._tuning.abandon(job):
                self._end(job, Ending(FAILED, Code.INTERNAL, f"The service failed the job: {error!r}"))
        except DatabaseError:
            raise
        except Exception:  # it is tried again at each further failure: not each is told
            if times % _TRIES == 0:
                _log.exception("can't end job %s", job.job_id)


def _waited(job: JobRecord) -> str:
    return _WAITED.format("maxWaitTime" if job.collection == ML_JOBS else "maxWaitDuration")
