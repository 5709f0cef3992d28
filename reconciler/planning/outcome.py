"""Results of applied changes, and the status of each job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reconciler.model.cause import GIVEN_UP, Cause, cause_of, held
from reconciler.model.claim import Claim, ClaimId, ClaimState, made
from reconciler.model.job import COMMIT, ActualJob, State, attempt_of
from reconciler.model.plan import Change, DesiredJob
from reconciler.planning.attempts import Attempt, attempts_by_base, keys_of


class Status(StrEnum):
    """Result of one change."""

    APPLIED = "applied"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one change, with its job.

    Attributes:
        state: The job's last known state; None without a job.
        resource: The job's resource name; "" without a job.
        cause: The cause of the job's end other than SUCCEEDED.
    """

    change: Change
    status: Status
    state: State | None = None
    error: str | None = None
    resource: str = ""
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Row of `status`: a run, an attempt without a run, or a desired job without an attempt.

    `claim` is the state of its claim, or "none"; `cause` is that of an end other than SUCCEEDED.
    """

    job_name: str
    base_name: str
    kind: str
    state: State | None
    claim: str
    service_state: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    error: str = ""
    resource: str = ""
    url: str = ""
    commit: str = ""
    attempt: int = 1
    cause: Cause | None = None


def job_statuses(
    desired: Sequence[DesiredJob], actual: Iterable[ActualJob], claims: Mapping[ClaimId, Claim]
) -> list[JobStatus]:
    """Return all runs, all attempts without a run, and all desired jobs without an attempt.

    Sort by base name; then deleted runs, runs by age, and attempts of unknown outcome.
    """
    rows: list[JobStatus] = []
    by_base = attempts_by_base(desired, actual, claims)
    for job in desired:
        of_base = by_base.pop(job.manifest.base_name, [])
        if not any(attempt.id.key in keys_of(job) for attempt in of_base):
            rows.append(JobStatus(job.job_name, job.manifest.name, job.manifest.kind, None, "none"))
        rows += (row for attempt in of_base for row in _rows(attempt, job.manifest.name))
    for base, attempts in by_base.items():
        for attempt in attempts:
            rows += _rows(attempt, attempt.claim.base_name if attempt.claim else base)
    return sorted(rows, key=_order)


def _rows(attempt: Attempt, base_name: str) -> list[JobStatus]:
    runs = [*([attempt.run] if attempt.run else []), *attempt.others, *attempt.strangers]
    rows = [_of_run(run, base_name, attempt.claim) for run in runs]
    return rows if attempt.run or attempt.claim is None else [_of_claim(attempt.claim, base_name), *rows]


def _of_run(run: ActualJob, base_name: str, claim: Claim | None) -> JobStatus:
    # A stranger only has the attempt's labels: the claim is not about it.
    own = claim if claim and made(claim, run) else None
    return JobStatus(
        job_name=run.job_name,
        base_name=base_name,
        kind=run.kind,
        state=run.state,
        claim=own.state if own else "none",
        service_state=run.service_state,
        create_time=run.create_time,
        start_time=run.start_time,
        end_time=run.end_time,
        error=run.error or (own.error if own else ""),
        resource=run.resource,
        url=run.url,
        commit=run.labels.get(COMMIT, ""),
        attempt=attempt_of(run),
        cause=cause_of(run, base_name),
    )


def _of_claim(claim: Claim, base_name: str) -> JobStatus:
    return JobStatus(
        job_name=claim.job_name,
        base_name=base_name,
        kind=claim.kind,
        state=claim.ended,
        claim=claim.state,
        error=missing_reason(claim),
        resource=claim.resource,
        commit=claim.commit,
        attempt=claim.id.attempt,
    )


def missing_reason(claim: Claim) -> str:
    """Return the reason for an attempt's missing job, and the remedy."""
    if claim.given_up:
        return GIVEN_UP
    if claim.state is ClaimState.HELD:
        return held(claim)
    if claim.state is ClaimState.PENDING:
        return "the next apply looks for its job, and sends it again once no earlier request can make one"
    return claim.error


def _order(row: JobStatus) -> tuple[str, int, str, str, str]:
    there = 1 if row.create_time else 0 if row.claim == ClaimState.BOUND else 2
    return row.base_name, there, row.create_time, row.job_name, row.resource
