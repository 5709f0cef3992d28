"""Waiting for jobs to end, and telling how they stand meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from reconciler.base.errors import NotFoundError
from reconciler.model.job import ActualJob
from reconciler.model.ports import Ports

Listener = Callable[[tuple[ActualJob, ...]], None]


@dataclass(frozen=True, order=True, slots=True)
class Awaited:
    """A job whose end is waited for, by the name that the service gave it: other jobs may share its own."""

    api_version: str
    kind: str
    resource: str


def awaited(job: ActualJob) -> Awaited:
    """What `wait` waits for where a job is already known."""
    return Awaited(job.api_version, job.kind, job.resource)


def wait(ports: Ports, jobs: Collection[Awaited], tell: Listener, pause: float) -> tuple[ActualJob, ...]:
    """The jobs once all of them have ended, by name; `tell` gets them after every look.

    What a listing leaves out, as it may a young job, is asked for itself. One that is gone is left out of the
    answer: its end was not seen.

    Args:
        ports: The target.
        jobs: What is waited for.
        tell: Gets the jobs that are there, in the same order.
        pause: Seconds between two looks.

    Raises:
        ServiceError: The service can't be asked.
    """
    ended: dict[Awaited, ActualJob] = {}
    while True:
        live = []
        for wanted, job in _look(ports, set(jobs) - ended.keys()):
            if job.state.ended:
                ended[wanted] = job
            else:
                live.append(job)
        tell(_sorted([*ended.values(), *live]))
        if not live:
            return _sorted(ended.values())
        ports.clock.sleep(pause)


def _look(ports: Ports, jobs: Collection[Awaited]) -> Iterator[tuple[Awaited, ActualJob]]:
    """Those of the jobs that are there, as they are now."""
    listed = {job.resource: job for job in ports.jobs.runs()}
    for wanted in sorted(jobs):
        job = listed.get(wanted.resource)
        try:
            yield wanted, job or ports.jobs.read(wanted.api_version, wanted.kind, wanted.resource)
        except NotFoundError:
            continue


def _sorted(jobs: Collection[ActualJob]) -> tuple[ActualJob, ...]:
    return tuple(sorted(jobs, key=lambda job: (job.job_name, job.resource)))
