"""Differences between actual and desired jobs, and the cancels that resolve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from reconciler.model.claim import Claim
from reconciler.model.duplicates import may_cancel
from reconciler.model.job import KEY, SOURCE, ActualJob, State, labels_digest
from reconciler.model.plan import Action, Change, DesiredJob, Drift, DriftKind
from reconciler.planning.attempts import Attempt, keys_of

Finding = tuple[Drift, Change | None]
"""A difference, and the cancel that resolves it, if permitted."""


def of_wanted(job: DesiredJob, attempt: Attempt) -> Iterator[Drift]:
    """Yield outside changes to an attempt of a desired job."""
    about = Drift(DriftKind.MODIFIED, attempt.name, job.manifest.name, "")
    wanted = attempt.bound and not job.manifest.reconcile.suspend
    if wanted and attempt.state is None:
        detail = "the service has it no more, and its end was never seen"
        yield replace(about, kind=DriftKind.DELETED_OUTSIDE, detail=detail)
    if wanted and attempt.state is State.CANCELLED:
        detail = "cancelled, while the manifest still wants it"
        yield replace(about, kind=DriftKind.CANCELLED_OUTSIDE, detail=detail)
    if attempt.claim and attempt.run and _is_modified(attempt.claim, attempt.run):
        yield replace(about, detail="its labels are not those that it was submitted with")


def superseded(job: DesiredJob, attempt: Attempt) -> Iterator[Finding]:
    """Yield the live run of other content under a desired job's base name."""
    run = attempt.run
    if run is None or run.state.ended:
        return
    detail = f"{run.state.lower()} with content that {job.manifest.path} no longer holds"
    finding = Drift(DriftKind.SUPERSEDED, run.job_name, job.manifest.name, detail)
    if job.manifest.reconcile.on_change != "cancel":
        yield finding, None
    elif may_cancel(attempt.claim, run):
        reason = f"superseded by {job.job_name} (onChange: cancel)"
        yield finding, _for(job, _cancel(attempt, run, reason))
    else:
        yield replace(finding, detail=f"{detail}{_why_not(attempt.claim, run)}"), None


def orphaned(attempt: Attempt, base_name: str, *, any_wanted: bool) -> Iterator[Finding]:
    """Yield the live run of a base name without a manifest.

    Args:
        attempt: Its attempt.
        base_name: Its name if it has no claim.
        any_wanted: False if the repository has no manifest at all. Then no run is cancelled: the manifests
            are more likely out of sight than deleted.
    """
    run = attempt.run
    if run is None or run.state.ended:
        return
    detail = f"{run.state.lower()}, and no manifest wants it"
    claim = attempt.claim
    finding = Drift(DriftKind.ORPHANED, run.job_name, claim.base_name if claim else base_name, detail)
    if claim is None or claim.on_delete != "cancel":
        yield finding, None
    elif not may_cancel(claim, run):
        yield replace(finding, detail=f"{detail}{_why_not(claim, run)}"), None
    elif any_wanted:
        yield finding, _cancel(attempt, run, "no manifest wants it (onDelete: cancel)")
    else:
        yield replace(finding, detail=f"{detail}{_NO_MANIFEST}"), None


def duplicates(attempt: Attempt, base_name: str, *, any_wanted: bool) -> Iterator[Finding]:
    """Yield the surplus runs of an attempt; runs of its own requests are cancelled."""
    for run in attempt.others:
        assert attempt.run is not None, "others are beside a run that stays"
        stays = attempt.run.resource
        detail = f"a second run of one attempt ({run.state.lower()}): {run.resource} beside {stays}"
        finding = Drift(DriftKind.DUPLICATE, run.job_name, base_name, detail)
        # A copied label is no proof of origin: only a run of a recorded request may be cancelled.
        if not may_cancel(attempt.claim, run):
            yield finding, None
        elif any_wanted:
            reason = f"a second run of one attempt; {stays} stays"
            yield finding, replace(_cancel(attempt, run, reason), base_name=base_name, repair=True)
        else:
            yield replace(finding, detail=f"{detail}{_NO_MANIFEST}"), None
    for run in attempt.strangers:
        detail = f"{run.resource} ({run.state.lower()}) has its labels, and no recorded request made it"
        yield Drift(DriftKind.DUPLICATE, run.job_name, base_name, detail), None


def foreign(job: DesiredJob, runs: Iterable[ActualJob]) -> Iterator[Drift]:
    """Yield live runs of the desired content that belong to another repository; they are never cancelled."""
    for run in runs:
        if run.labels.get(KEY) in keys_of(job) and not run.state.ended:
            whose = run.labels.get(SOURCE, "nobody")
            detail = f"{run.resource} ({run.state.lower()}) has the same content and belongs to {whose}"
            yield Drift(DriftKind.DUPLICATE, run.job_name, job.manifest.name, detail)


_NO_MANIFEST = "; nothing is cancelled while there is no manifest at all"


def _is_modified(claim: Claim, run: ActualJob) -> bool:
    known = claim.labels and claim.resource == run.resource
    return bool(known) and labels_digest(run.labels) != claim.labels


def _why_not(claim: Claim | None, run: ActualJob) -> str:
    if run.state is State.CANCELLING:
        return ""
    return f"; it is not cancelled: {'no recorded request made it' if claim else 'it has no claim'}"


def _cancel(attempt: Attempt, run: ActualJob, reason: str) -> Change:
    claim = attempt.claim
    assert claim is not None, "only what a claim knows is cancelled"
    return Change(
        action=Action.CANCEL,
        reason=reason,
        base_name=claim.base_name,
        job_name=run.job_name,
        kind=run.kind,
        path=claim.path,
        attempt=attempt.id.attempt,
        actual=run,
        key=attempt.id.key,
    )


def _for(job: DesiredJob, change: Change) -> Change:
    return replace(change, base_name=job.manifest.name, path=job.manifest.path, line=job.manifest.line)
