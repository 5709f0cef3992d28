"""Rows of `status`: all runs, all attempts without a run, and all desired jobs without an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from reconciler.model.cause import cause_of
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.claimed_run import made
from reconciler.model.job import COMMIT, ActualJob, attempt_of
from reconciler.model.manifest import Manifest
from reconciler.model.reason import missing_reason
from reconciler.planning.attempts import Attempt
from reconciler.planning.outcome import Condition, JobStatus
from reconciler.planning.state import NameState, TargetState

_ATTENTION = {condition: rank for rank, condition in enumerate(Condition)}


def job_statuses(state: TargetState) -> list[JobStatus]:
    """Return all runs, all attempts without a run, and all desired jobs without an attempt.

    Sort by base name; then deleted runs, runs by age, and attempts of unknown outcome.
    """
    return sorted((row for name in state.names.values() for row in _of_name(name)), key=_order)


def is_shown(row: JobStatus, *, whole: bool) -> bool:
    """Return True for the newest run of a job of the repository, and for all that goes on.

    Args:
        whole: True if all manifests could be read, and there is one: then an ended run of a name without a
            manifest is history.
    """
    return row.is_open or (row.current and (row.manifest is not None or not whole))


def by_attention(rows: Iterable[JobStatus]) -> list[JobStatus]:
    """Sort rows by the attention that they need, then the newest first, then by name."""
    return sorted(newest_first(rows), key=lambda row: _ATTENTION[row.condition])


def newest_first(rows: Iterable[JobStatus]) -> list[JobStatus]:
    """Sort rows by the time of their creation, the newest first, then by name."""
    by_name = sorted(rows, key=lambda row: (row.base_name, row.job_name, row.resource))
    return sorted(by_name, key=lambda row: row.create_time, reverse=True)


def _of_name(name: NameState) -> Iterator[JobStatus]:
    """Yield the rows of a base name, of which one is current."""
    if name.desired is None:
        rows = [row for attempt in name.attempts for row in _rows(attempt, name.base_name)]
        newest = max(rows, key=_order)
        yield from (replace(row, current=True) if row is newest else row for row in rows)
        return
    manifest, last = name.desired.manifest, name.last_wanted
    if last is None:
        job_name = name.desired.job_name
        yield JobStatus(job_name, manifest.name, manifest.kind, None, "none", current=True, manifest=manifest)
    for attempt in name.attempts:
        yield from _rows(attempt, manifest.name, manifest, current=attempt is last)


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
    own_claim = claim if claim and made(claim, run) else None
    return JobStatus(
        job_name=run.job_name,
        base_name=base_name,
        kind=run.kind,
        state=run.state,
        claim=own_claim.state if own_claim else "none",
        service_state=run.service_state,
        create_time=run.create_time,
        start_time=run.start_time,
        end_time=run.end_time,
        error=run.error or (own_claim.reason if own_claim else ""),
        resource=run.resource,
        url=run.url,
        commit=run.labels.get(COMMIT, ""),
        attempt=attempt_of(run),
        cause=cause_of(run, base_name, manifest),
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
