"""Supervisor of all jobs: admits, follows, cancels and recovers them.

The supervisor may be killed at any moment: its successor finds every job in the store and in the folders of
its runs. A failure in one job's step doesn't affect other jobs: the step is tried again, and repeated
failures end that job alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from reconciler.training_service.jobs.launch import demand, max_wait, priority
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.runner.launcher import Runners
from reconciler.training_service.scheduler.jobs import Reservations, RunStarter, Work
from reconciler.training_service.scheduler.pipelines import PipelineRunner
from reconciler.training_service.scheduler.recovery import take_over_end, take_over_phase
from reconciler.training_service.scheduler.trials import TuningRunner
from reconciler.training_service.state.database import DatabaseError, Store
from reconciler.training_service.state.records import (
    ML_JOBS,
    Code,
    JobRecord,
    JobState,
    Wait,
    details_of,
    error_of,
    readable_time,
)
from reconciler.training_service.state.run_folder import CANCELLED, FAILED, STOPPED, Ending
from reconciler.training_service.tuning.study import is_tuning


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job; among jobs of the same priority the lowest `id` begins first."""

    id: int
    priority: int
    demand: Machine


def jobs_to_begin(whole: Machine, held: Iterable[Machine], waiting: Iterable[QueuedJob]) -> list[int]:
    """Return the ids of the jobs that may begin now, those of the highest priority first.

    Args:
        whole: The capacity of the machine.
        held: The demands of the jobs that have begun.
        waiting: The queued jobs in any order; a job that demands more than `whole` waits for ever, and so
            does each job behind it.
    """
    begin = []
    free = whole
    for taken in held:
        free = _less(free, taken)
    for job in in_order(waiting):
        free = _less(free, job.demand)
        # Stop at the first job that doesn't fit: smaller jobs behind it would keep a large one waiting.
        if min(free.cpus, free.memory, free.gpus) < 0:
            break
        begin.append(job.id)
    return begin


def in_order(waiting: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Return the queued jobs in the order in which they begin."""
    return sorted(waiting, key=lambda job: (-job.priority, job.id))


def lacking(demand: Machine, free: Machine, holders: Iterable[tuple[str, Machine]]) -> str:
    """Return what a job waits for, and which jobs hold it: "needs 2 CPUs; held by census".

    Args:
        free: The resources that no job holds.
        holders: The names and demands of the jobs that have begun.
    """
    needs, fields = [], []
    if demand.cpus > free.cpus:
        needs.append(_counted(demand.cpus, "CPU"))
        fields.append("cpus")
    if demand.memory > free.memory:
        needs.append(f"{demand.memory / 2**30:.1f} GiB of memory")
        fields.append("memory")
    if demand.gpus > free.gpus:
        needs.append(_counted(demand.gpus, "GPU"))
        fields.append("gpus")
    names = [name for name, held in holders if any(getattr(held, field) for field in fields)]
    more = f" and {_counted(len(names) - _MOST_NAMED, 'other job')}" if len(names) > _MOST_NAMED else ""
    return f"needs {' and '.join(needs)}; held by {', '.join(names[:_MOST_NAMED])}{more}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True, slots=True)
class _Queue:
    """Jobs that wait, in their order.

    Attributes:
        positions: Their positions by id; the first is 0.
        first: The name of the first.
        reason: The reason why the first waits, and with it all others.
        since: The time from which on that holds.
    """

    positions: Mapping[int, int]
    first: str
    reason: str
    since: str


def _less(one: Machine, other: Machine) -> Machine:
    return Machine(one.cpus - other.cpus, one.memory - other.memory, one.gpus - other.gpus)


# Steps come about ten times a second: a job may fail for some ten seconds before it is given up.
_TRIES = 100
_MOST_NAMED = 3
_WAITED = "The job was cancelled: it waited for longer than scheduling.{}."

_log = logging.getLogger(__name__)


class Supervisor:
    """Runner of the jobs in a store.

    Attributes:
        storage_url: Returns a job's URL of Cloud Storage's API.
        machine: The capacity that all jobs share.
        gpus: The ids of the machine's GPUs.
    """

    def __init__(
        self,
        store: Store,
        home: Path,
        *,
        storage_url: Callable[[JobRecord], str],
        machine: Machine,
        gpus: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._machine = machine
        self._runners = Runners(home.absolute())
        self._starter = RunStarter(
            store, home.absolute(), self._runners, Reservations(gpus), machine, storage_url
        )
        self._tuning = TuningRunner(store, self._starter, machine)
        self._pipelines = PipelineRunner(store, home.absolute())
        self._demands: dict[int, Machine] = {}
        self._failures: dict[tuple[int, str], int] = {}
        self._queue: _Queue | None = None

    def wait_of(self, job: JobRecord) -> Wait | None:
        """Return the reason why a queued job waits; None before it is known. Callable from any thread."""
        queue = self._queue
        before = None if queue is None else queue.positions.get(job.id)
        if queue is None or before is None:
            return None
        reason = queue.reason
        if before == 1:
            reason = f"waits behind {queue.first}, which {reason}"
        elif before:
            reason = f"waits behind {before} jobs; the first is {queue.first}, which {reason}"
        return Wait(f"Queued: {reason}", max(queue.since, job.create_time))

    def recover(self) -> None:
        """Take up the jobs of a former supervisor: running, ended or lost."""
        self._starter.recover(self._begun())
        self._follow_begun()

    def tick(self) -> bool:
        """Start, follow and end jobs and pipelines as due; return False if none is unfinished."""
        self._follow_begun()
        jobs, pipelines = self._store.unfinished(), self._store.unfinished_pipelines()
        self._forget_all_but({job.id for job in (*jobs, *pipelines)})
        self._admit(jobs)
        for pipeline in pipelines:
            self._isolated(pipeline, self._pipelines.step)
        return bool(jobs or pipelines)

    def stop(self) -> None:
        """End every run within five seconds, even if the home is gone; the jobs stay unfinished."""
        self._runners.stop()

    def _begun(self) -> list[JobRecord]:
        return [job for job in self._store.unfinished() if not _may_begin(job)]

    def _follow_begun(self) -> None:
        for job in self._begun():
            self._isolated(job, self._follow)

    def _admit(self, jobs: Sequence[JobRecord]) -> None:
        waiting = {job.id: job for job in jobs if _may_begin(job)}
        for job in waiting.values():
            self._isolated(job, self._check_waiting)
        held = [(job.name, self._demand(job)) for job in jobs if job.id not in waiting]
        asking = [QueuedJob(job.id, priority(job), self._demand(job)) for job in waiting.values()]
        chosen = jobs_to_begin(self._machine, (demand for _, demand in held), asking)
        held += [(waiting[id].name, self._demand(waiting[id])) for id in chosen]
        begun = set(chosen)
        left = [waiting[job.id] for job in in_order(asking) if job.id not in begun]
        self._note_queue(left, held)
        for id in chosen:
            self._isolated(waiting[id], self._begin)

    def _note_queue(self, left: Sequence[JobRecord], held: Iterable[tuple[str, Machine]]) -> None:
        """Note why the jobs wait that are left in the queue."""
        if not left:
            self._queue = None
            return
        free = self._machine
        for _, taken in held:
            free = _less(free, taken)
        first = left[0].name
        reason = lacking(self._demand(left[0]), free, held)
        old = self._queue
        same = old is not None and (old.first, old.reason) == (first, reason)
        since = old.since if same and old else self._store.now()
        self._queue = _Queue({job.id: position for position, job in enumerate(left)}, first, reason, since)

    def _forget_all_but(self, ids: set[int]) -> None:
        self._demands = {id: demand for id, demand in self._demands.items() if id in ids}
        self._failures = {key: count for key, count in self._failures.items() if key[0] in ids}

    def _check_waiting(self, job: JobRecord) -> None:
        if self._waited_too_long(job):
            details = details_of("WAIT_LIMIT")
            self._end(job, Ending(CANCELLED, Code.CANCELLED, _waited(job), details=details))
        # A package is looked for once, when the job is new: it has to wait for nothing without it.
        elif job.id not in self._demands and (ending := self._starter.without_package(job)):
            self._end(job, ending)
        self._demands[job.id] = self._demands.get(job.id) or demand(job, self._machine)

    def _demand(self, job: JobRecord) -> Machine:
        if job.id not in self._demands:
            self._isolated(job, self._check_waiting)
        # A job with an unknown demand holds the whole machine: no other job may overload it.
        return self._demands.get(job.id, self._machine)

    def _end_unreadable(self, job: JobRecord) -> None:
        """End a job that can't be read, with all its processes, unless its run has recorded an end."""
        folder = self._starter.folder(Work(job))
        ending = folder.ending() if folder else None
        if not self._tuning.abandon(job):
            return
        if ending is None or ending.state == STOPPED:
            code, message, details = error_of(replace(job, error_message="So the job was ended."))
            state = CANCELLED if job.state is JobState.CANCELLING else FAILED
            ending = Ending(state, code, message, details=details)
        self._end(job, ending)

    def _begin(self, job: JobRecord) -> None:
        refusal = self._starter.refusal(job)
        if refusal is not None:
            self._end(job, refusal)
        elif (begun := self._move(job, JobState.PREPARING)) is not None:
            self._follow(begun)

    def _follow(self, job: JobRecord) -> None:
        if _is_lost(job):
            self._end_unreadable(job)
            return
        if job.state is JobState.PREPARING and self._waited_too_long(job):
            job = self._move(job, JobState.CANCELLING, _waited(job)) or job
        ending = self._tuning.step(job) if is_tuning(job) else self._step(job)
        if ending is not None:
            self._end(job, ending)

    def _step(self, job: JobRecord) -> Ending | None:
        work = Work(job, cancelled=job.error_message if job.state is JobState.CANCELLING else None)
        ending = self._starter.step(work)
        folder = self._starter.folder(work)
        if folder is not None:
            take_over_phase(self._store, job, folder)
        return ending

    def _end(self, job: JobRecord, ending: Ending) -> None:
        take_over_end(self._store, job, ending if ending.time else replace(ending, time=self._store.now()))
        self._tuning.forget(job)

    def _move(self, job: JobRecord, to: JobState, message: str = "") -> JobRecord | None:
        at = self._store.now()
        details = details_of("WAIT_LIMIT") if message else {}
        return self._store.move(
            job.id, to, only_from={job.state}, at=at, error_message=message, error_details=details
        )

    def _waited_too_long(self, job: JobRecord) -> bool:
        limit = max_wait(job)
        created = readable_time(job.create_time)
        if limit is None or not created:
            return False
        waited = self._store.clock() - datetime.fromisoformat(created)
        return waited.total_seconds() > limit

    def _isolated(self, job: JobRecord, step: Callable[[JobRecord], None]) -> None:
        # Count failures for each step: the success of one step says little about another step.
        key = (job.id, step.__name__)
        try:
            step(job)
        except DatabaseError:
            raise  # affects all jobs
        except Exception as error:
            if all(id != job.id for id, _step in self._failures):
                _log.exception("can't supervise job %s", job.job_id)
            self._failures[key] = self._failures.get(key, 0) + 1
            if self._failures[key] >= _TRIES:
                self._give_up(job, error, self._failures[key])
        else:
            self._failures.pop(key, None)

    def _give_up(self, job: JobRecord, error: Exception, times: int) -> None:
        try:
            if self._tuning.abandon(job):
                message = f"The service failed the job: {error!r}"
                self._end(job, Ending(FAILED, Code.INTERNAL, message, details=details_of("INTERNAL")))
        except DatabaseError:
            raise
        except Exception:  # tried again at each further failure; the log has one line for each 100
            if times % _TRIES == 0:
                _log.exception("can't end job %s", job.job_id)


def _is_lost(job: JobRecord) -> bool:
    """Return True if it can't be read any more what the job is to run, and for how long."""
    return not {"body", "images"}.isdisjoint(job.unreadable)


def _may_begin(job: JobRecord) -> bool:
    return job.state is JobState.QUEUED and not _is_lost(job)


def _waited(job: JobRecord) -> str:
    return _WAITED.format("maxWaitTime" if job.collection == ML_JOBS else "maxWaitDuration")
