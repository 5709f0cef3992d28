"""Waiting for the ends of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from reconciler.base.errors import NotFoundError
from reconciler.model.job import ActualJob
from reconciler.model.plan import Plan
from reconciler.model.ports import Ports
from reconciler.planning.outcome import Outcome, Status
from reconciler.planning.planner import SUBMISSIONS
from reconciler.submission.claims_upkeep import with_reason

_READ_ALONE = 10
"""Jobs that a poll reads one by one; for more of them, one listing is cheaper."""

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
    """Return the submitted and the desired jobs, except those that had ended or had an unknown state."""
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
        # One with an unknown state may have ended: nothing but a cancel finds that out.
        if not change.actual.state.ended and not change.actual.has_unknown_state
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
    runs: dict[Awaited, ActualJob] = {}
    while True:
        # An ended job is not read again: its state is final.
        ended = {key: job for key, job in runs.items() if job.state.ended}
        polled = _poll(ports, set(jobs) - ended.keys())
        runs = ended | {key: with_reason(ports, job) if job.state.ended else job for key, job in polled}
        existing = tuple(sorted(runs.values(), key=lambda job: (job.job_name, job.resource)))
        listener(existing)
        if all(job.state.ended for job in existing):
            return existing
        ports.clock.sleep(pause)


def _poll(ports: Ports, jobs: Collection[Awaited]) -> Iterator[tuple[Awaited, ActualJob]]:
    """Yield the current state of the jobs that exist."""
    # Of a listing of the live jobs, those that have ended since are missing; each is read once.
    listed = {job.resource: job for job in ports.jobs.live()} if len(jobs) > _READ_ALONE else {}
    for key in sorted(jobs):
        job = listed.get(key.resource)
        # A deleted job's end can't be known.
        with suppress(NotFoundError):
            # A listing may lack a job that was created a moment ago.
            yield key, job or ports.jobs.read(key.api_version, key.kind, key.resource)
