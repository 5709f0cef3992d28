"""Rows of `status`: all runs, all attempts without a run, and all desired jobs without an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from reconciler.model.cause import cause_of
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.claimed_run import made
from reconciler.model.job import COMMIT, ActualJob, attempt_of
from reconciler.model.manifest import Manifest
from reconciler.model.plan import DesiredJob
from reconciler.model.reason import missing_reason
from reconciler.planning.attempts import Attempt, attempts_by_base, keys_of
from reconciler.planning.outcome import Condition, JobStatus

_ATTENTION = {condition: place for place, condition in enumerate(Condition)}


def job_statuses(
    desired: Sequence[DesiredJob], actual: Iterable[ActualJob], claims: Mapping[ClaimId, Claim]
) -> list[JobStatus]:
    """Return all runs, all attempts without a run, and all desired jobs without an attempt.

    Sort by base name; then deleted runs, runs by age, and attempts of unknown outcome.
    """
    rows: list[JobStatus] = []
    by_base = attempts_by_base(desired, actual, claims)
    for job in desired:
        rows += _of_desired(job, by_base.pop(job.manifest.base_name, []))
    for base, attempts in by_base.items():
        of_base = [row for attempt in attempts for row in _rows(attempt, base)]
        newest = max(of_base, key=_order)
        rows += (replace(row, current=True) if row is newest else row for row in of_base)
    rows.sort(key=_order)
    return rows


def is_shown(row: JobStatus, *, whole: bool) -> bool:
    """Return True for the newest run of a job of the repository, and for all that goes on.

    Args:
        whole: True if all manifests could be read: then an ended run without one is history.
    """
    return row.is_open or (row.current and (row.manifest is not None or not whole))


def by_attention(rows: Iterable[JobStatus]) -> list[JobStatus]:
    """Sort rows by the attention that they need, then the newest first, then by name."""
    return sorted(newest_first(rows), key=lambda row: _ATTENTION[row.condition])


def newest_first(rows: Iterable[JobStatus]) -> list[JobStatus]:
    """Sort rows by the time of their creation, the newest first, then by name."""
    by_name = sorted(rows, key=lambda row: (row.base_name, row.job_name, row.resource))
    return sorted(by_name, key=lambda row: row.create_time, reverse=True)


def _of_desired(job: DesiredJob, attempts: Sequence[Attempt]) -> Iterator[JobStatus]:
    """Yield the rows of a desired job's base name."""
    manifest, keys = job.manifest, keys_of(job)
    own = sorted((one for one in attempts if one.id.key in keys), key=lambda attempt: attempt.id.attempt)
    if not own:
        yield JobStatus(
            job.job_name, manifest.name, manifest.kind, None, "none", current=True, manifest=manifest
        )
    for attempt in attempts:
        yield from _rows(attempt, manifest.name, manifest, current=attempt in own[-1:])


def _rows(
    attempt: Attempt, base_name: str, manifest: Manifest | None = None, *, current: bool = False
) -> Iterator[JobStatus]:
    """Yield the rows of an attempt; the first of them is `current`."""
    claim, run = attempt.claim, attempt.run
    name = claim.base_name if claim and not manifest else base_name
    if run:
        yield _of_run(run, name, claim, manifest, current=current)
    elif claim:
        yield _of_claim(claim, name, manifest, current=current)
    for other in (*attempt.others, *attempt.strangers):
        yield _of_run(other, name, claim, manifest, current=False)


def _of_run(
    run: ActualJob, base_name: str, claim: Claim | None, manifest: Manifest | None, *, current: bool
) -> JobStatus:
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
        error=run.error or (own.reason if own else ""),
        resource=run.resource,
        url=run.url,
        commit=run.labels.get(COMMIT, ""),
        attempt=attempt_of(run),
        cause=cause_of(run, base_name),
        current=current,
        unreadable=run.is_unreadable,
        run_labels=run.labels,
        manifest=manifest,
    )


def _of_claim(claim: Claim, base_name: str, manifest: Manifest | None, *, current: bool) -> JobStatus:
    return JobStatus(
        job_name=claim.job_name,
        base_name=base_name,
        kind=claim.kind,
        state=claim.ended,
        claim=claim.state,
        reason=missing_reason(claim),
        resource=claim.resource,
        commit=claim.commit,
        attempt=claim.id.attempt,
        given_up=claim.given_up,
        current=current,
        manifest=manifest,
    )


def _order(row: JobStatus) -> tuple[str, bool, str, str, str]:
    # A deleted run has no time, which puts it before all others.
    has_no_run = not row.create_time and row.claim != ClaimState.BOUND
    return row.base_name, has_no_run, row.create_time, row.job_name, row.resource
