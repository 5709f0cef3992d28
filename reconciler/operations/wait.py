"""Wait for the ends of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from reconciler.base.errors import NotFoundError
from reconciler.model.job import ActualJob
from reconciler.model.plan import Plan
from reconciler.model.ports import Ports
from reconciler.planning.limits import SUBMISSIONS
from reconciler.planning.outcome import Outcome, Status

JobsListener = Callable[[tuple[ActualJob, ...]], None]


@dataclass(frozen=True, order=True, slots=True)
class Awaited:
    """Job to wait for, by its resource name: several jobs may share a display name."""

    api_version: str
    kind: str
    resource: str


def awaited(job: ActualJob) -> Awaited:
    """Return the identification of a job for `wait`."""
    return Awaited(job.api_version, job.kind, job.resource)


def unended(plan: Plan, outcomes: Sequence[Outcome]) -> frozenset[Awaited]:
    """Return the submitted and the desired jobs, except those that had ended when the plan was made."""
    ended = {c.actual.resource for c in plan.changes if c.actual and c.actual.state.ended}
    submitted = {
        Awaited(job.manifest.api_version, job.manifest.kind, outcome.resource)
        for outcome in outcomes
        if outcome.status is Status.APPLIED
        and (job := outcome.change.desired)
        and outcome.resource not in ended
    }
    live = {
        awaited(change.actual)
        for change in plan.changes
        # A submission's actual job may be a different one, which it didn't adopt.
        if change.desired and change.actual and change.action not in SUBMISSIONS
        if not change.actual.state.ended
    }
    return frozenset(submitted | live)


def wait(
    ports: Ports, jobs: Collection[Awaited], listener: JobsListener, pause: float
) -> tuple[ActualJob, ...]:
    """Wait until all jobs have ended; return them sorted by name, without deleted jobs.

    After each poll, the listener gets the existing jobs, sorted by name; `pause` is in seconds.

    Raises:
        ServiceError: The service can't be read.
    """
    ended: dict[Awaited, ActualJob] = {}
    while True:
        live = []
        # An ended job is not read again: its state is final.
        for key, job in _poll(ports, set(jobs) - ended.keys()):
            if job.state.ended:
                ended[key] = job
            else:
                live.append(job)
        listener(_sorted([*ended.values(), *live]))
        if not live:
            return _sorted(ended.values())
        ports.clock.sleep(pause)


def _poll(ports: Ports, jobs: Collection[Awaited]) -> Iterator[tuple[Awaited, ActualJob]]:
    """Yield the current state of the jobs that exist."""
    listed = {job.resource: job for job in ports.jobs.runs()}
    for key in sorted(jobs):
        job = listed.get(key.resource)
        try:
            # A listing may lack a job that was created a moment ago.
            yield key, job or ports.jobs.read(key.api_version, key.kind, key.resource)
        except NotFoundError:
            # A deleted job's end can't be known.
            continue


def _sorted(jobs: Collection[ActualJob]) -> tuple[ActualJob, ...]:
    return tuple(sorted(jobs, key=lambda job: (job.job_name, job.resource)))
