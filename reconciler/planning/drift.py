"""Drift: runs that differ from what the manifests ask for, and the cancels that resolve the differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from reconciler.model.cause import is_cancelled_outside
from reconciler.model.claim import Claim
from reconciler.model.claimed_run import may_cancel
from reconciler.model.job import KEY, SOURCE, ActualJob, State, labels_digest
from reconciler.model.plan import Action, Change, DesiredJob, Drift, DriftKind
from reconciler.planning.attempts import Attempt, keys_of

Finding = tuple[Drift, Change | None]
"""A difference, and the cancel that resolves it, if permitted."""


def drift_of_desired(job: DesiredJob, attempt: Attempt) -> Iterator[Drift]:
    """Yield outside changes to an attempt of a desired job."""
    about = Drift(DriftKind.MODIFIED, attempt.name, job.manifest.name, "")
    # A suspended manifest doesn't want its run back.
    wanted = attempt.bound and not job.manifest.reconcile.suspend
    if wanted and attempt.state is None:
        detail = "the service no longer has it, and its final state is unknown"
        yield replace(about, kind=DriftKind.DELETED_OUTSIDE, detail=detail)
    if wanted and _is_cancelled_outside(attempt):
        detail = "cancelled, although a manifest asks for it"
        yield replace(about, kind=DriftKind.CANCELLED_OUTSIDE, detail=detail)
    if attempt.claim and attempt.run and _is_modified(attempt.claim, attempt.run):
        yield replace(about, detail="its labels differ from those it was submitted with")


def superseded_runs(job: DesiredJob, attempt: Attempt) -> Iterator[Finding]:
    """Yield a finding, and perhaps a cancel, for a live run of other content under a desired job's name."""
    run, manifest = attempt.run, job.manifest
    if run is None or run.state.ended:
        return
    detail = f"{run.state.lower()} with content that {manifest.path} no longer has"
    finding = Drift(DriftKind.SUPERSEDED, run.job_name, manifest.name, detail)
    if manifest.reconcile.on_change != "cancel":
        yield finding, None
        return
    reason = f"superseded by {job.job_name} (onChange: cancel)"
    finding, cancel = _to_cancel(finding, attempt, run, reason, any_wanted=True)
    yield finding, cancel and replace(cancel, base_name=manifest.name, path=manifest.path, line=manifest.line)


def orphaned_runs(attempt: Attempt, base_name: str, *, any_wanted: bool) -> Iterator[Finding]:
    """Yield a finding, and a cancel if its claim permits, for a live run of a name without a manifest.

    Args:
        attempt: Its attempt.
        base_name: Its name if it has no claim.
        any_wanted: False if the repository has no manifest at all. Then no run is cancelled: the manifests
            are more likely out of sight than deleted.
    """
    run = attempt.run
    if run is None or run.state.ended:
        return
    detail = f"{run.state.lower()}, but no manifest asks for it"
    claim = attempt.claim
    finding = Drift(DriftKind.ORPHANED, run.job_name, claim.base_name if claim else base_name, detail)
    if claim is None or claim.on_delete != "cancel":
        yield finding, None
    else:
        reason = "no manifest asks for it (onDelete: cancel)"
        yield _to_cancel(finding, attempt, run, reason, any_wanted=any_wanted)


def duplicate_runs(attempt: Attempt, base_name: str, *, any_wanted: bool) -> Iterator[Finding]:
    """Yield a finding for each surplus run of an attempt, with a cancel if a recorded request made the run.

    `any_wanted`: as in `orphaned_runs`.
    """
    for run in attempt.others:
        assert attempt.run is not None, "other runs exist only beside the run that stays"
        stays = attempt.run.resource
        detail = f"a second run of the same attempt ({run.state.lower()}): {run.resource} beside {stays}"
        finding = Drift(DriftKind.DUPLICATE, run.job_name, base_name, detail)
        # A copied label is no proof of origin: only a run of a recorded request may be cancelled.
        if not may_cancel(attempt.claim, run):
            yield finding, None
            continue
        reason = f"a second run of the same attempt; {stays} stays"
        finding, cancel = _to_cancel(finding, attempt, run, reason, any_wanted=any_wanted)
        yield finding, cancel and replace(cancel, base_name=base_name, repair=True)
    for run in attempt.strangers:
        detail = f"{run.resource} ({run.state.lower()}) has its labels, but no recorded request created it"
        yield Drift(DriftKind.DUPLICATE, run.job_name, base_name, detail), None


def foreign_runs(job: DesiredJob, runs: Iterable[ActualJob]) -> Iterator[Drift]:
    """Yield live runs of the desired content that belong to another repository; they are never cancelled."""
    for run in runs:
        if run.labels.get(KEY) in keys_of(job) and not run.state.ended:
            whose = run.labels.get(SOURCE, "nobody")
            detail = f"{run.resource} ({run.state.lower()}) has the same content and belongs to {whose}"
            yield Drift(DriftKind.DUPLICATE, run.job_name, job.manifest.name, detail)


def _is_cancelled_outside(attempt: Attempt) -> bool:
    if attempt.run:
        return is_cancelled_outside(attempt.run)
    return attempt.state is State.CANCELLED and not attempt.cancelled


def _is_modified(claim: Claim, run: ActualJob) -> bool:
    known = claim.labels and claim.resource == run.resource
    return bool(known) and labels_digest(run.labels) != claim.labels


def _to_cancel(finding: Drift, attempt: Attempt, run: ActualJob, reason: str, *, any_wanted: bool) -> Finding:
    """Return the finding with the cancel of its run, or with the reason against a cancel in its detail."""
    claim = attempt.claim
    if claim is None or not may_cancel(claim, run):
        why = "no recorded request created it" if claim else "it has no claim"
        # The service already ends a CANCELLING run: no reader asks why it isn't cancelled here.
        against = "" if run.state is State.CANCELLING else f"; it is not cancelled: {why}"
    elif not any_wanted:
        # Without any manifest, the manifests are more likely out of sight than deleted.
        against = "; nothing is cancelled while there is no manifest at all"
    else:
        return finding, Change(
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
    return replace(finding, detail=f"{finding.detail}{against}"), None
