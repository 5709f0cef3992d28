"""What came of a plan, and how the jobs stand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from reconciler.job import ActualJob, State
from reconciler.labels import COMMIT
from reconciler.plan import Change, DesiredJob
from reconciler.planner import attempt_of, base_of, runs_of

Claim = Literal["none", "pending", "bound", "rejected", "held"]


class Status(StrEnum):
    """How far apply came with one change."""

    APPLIED = "applied"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one change; `state` is the job's state as last seen, None where there is no job."""

    change: Change
    status: Status
    state: State | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One line of `status`: a run, or a wanted job that has none yet."""

    job_name: str
    base_name: str
    kind: str
    state: State | None
    claim: Claim
    service_state: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    error: str = ""
    resource: str = ""
    url: str = ""
    commit: str = ""
    attempt: int = 1


def job_statuses(desired: tuple[DesiredJob, ...], actual: tuple[ActualJob, ...]) -> list[JobStatus]:
    """All runs and all wanted jobs without one, by base name, then age."""
    written = {job.manifest.base_name: job.manifest.name for job in desired}
    runs = [_of_run(run, written.get(base_of(run.job_name), base_of(run.job_name))) for run in actual]
    missing = [
        JobStatus(job.job_name, job.manifest.name, job.manifest.kind, None, "none")
        for job in desired
        if not runs_of(job, actual)
    ]
    return sorted([*runs, *missing], key=lambda s: (s.base_name, s.create_time or "~", s.job_name))


def _of_run(run: ActualJob, base_name: str) -> JobStatus:
    return JobStatus(
        job_name=run.job_name,
        base_name=base_name,
        kind=run.kind,
        state=run.state,
        claim="bound",
        service_state=run.service_state,
        create_time=run.create_time,
        start_time=run.start_time,
        end_time=run.end_time,
        error=run.error,
        resource=run.resource,
        url=run.url,
        commit=run.labels.get(COMMIT, ""),
        attempt=attempt_of(run),
    )
