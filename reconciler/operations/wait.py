"""Wait for jobs to end, with progress reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from reconciler.base.errors import NotFoundError
from reconciler.model.job import ActualJob
from reconciler.model.ports import Ports

Listener = Callable[[tuple[ActualJob, ...]], None]


@dataclass(frozen=True, order=True, slots=True)
class Awaited:
    """Job to wait for, by its resource name: several jobs may share a display name."""

    api_version: str
    kind: str
    resource: str


def awaited(job: ActualJob) -> Awaited:
    """Return the identification of a job for `wait`."""
    return Awaited(job.api_version, job.kind, job.resource)


def wait(ports: Ports, jobs: Collection[Awaited], tell: Listener, pause: float) -> tuple[ActualJob, ...]:
    """Wait until all jobs have ended; return them sorted by name, without deleted jobs.

    Args:
        ports: The target.
        jobs: The jobs to wait for.
        tell: Called after each poll with the existing jobs, sorted by name.
        pause: Seconds between two polls.

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
        tell(_sorted([*ended.values(), *live]))
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
