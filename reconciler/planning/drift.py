"""Drift: runs that differ from what the manifests ask for, and the cancels that resolve the differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from reconciler.model.cause import is_cancelled_outside
from reconciler.model.claim import Claim
from reconciler.model.claimed_run import may_cancel
from reconciler.model.job import KEY, SOURCE, ActualJob, State, labels_digest
from reconciler.model.plan import Action, Change, DesiredJob, Drift, DriftKind
from reconciler.model.reason import NotCancelled, Note, NoteCode, Reason, ReasonCode, because
from reconciler.planning.attempts import Attempt, keys_of
from reconciler.planning.state import NameState

_NAMED_FILES = 3

Finding = tuple[Drift, Change | None]
"""A difference, and the cancel that resolves it, if permitted."""


def drift_of_desired(job: DesiredJob, attempt: Attempt) -> Iterator[Drift]:
    """Yield outside changes to an attempt of a desired job."""
    about = attempt.name, job.manifest.name
    # A suspended manifest doesn't want its run back.
    wanted = attempt.bound and not job.manifest.reconcile.suspend
    if wanted and attempt.state is None:
        yield Drift(DriftKind.DELETED_OUTSIDE, *about, Note(NoteCode.DELETED_OUTSIDE))
    if wanted and _is_cancelled_outside(attempt):
        yield Drift(DriftKind.CANCELLED_OUTSIDE, *about, Note(NoteCode.CANCELLED_OUTSIDE))
    if attempt.claim and attempt.run and _is_modified(attempt.claim, attempt.run):
        yield Drift(DriftKind.MODIFIED, *about, Note(NoteCode.LABELS_DIFFER))


def overwritten_result(job: DesiredJob, name: NameState) -> Iterator[Drift]:
    """Yield a finding if a run of other content wrote to the folder of the desired content's run after it."""
    if name.overwriting and not job.manifest.reconcile.suspend:
        last, run = name.last_wanted, name.overwriting.run
        assert last is not None, "only a run of the desired content is overwritten"
        about = {"job_name": run.job_name, "state": run.state, "folder": name.overwriting.folder}
        note = Note(NoteCode.OVERWRITTEN, about)
        yield Drift(DriftKind.OVERWRITTEN, last.name, job.manifest.name, note)


def changed_metrics(job: DesiredJob, attempt: Attempt, files: Iterable[str]) -> Iterator[Drift]:
    """Yield a finding if files that a run was judged on have changed since."""
    if names := ", ".join(files):
        note = Note(NoteCode.FILE_CHANGED, {"files": names})
        yield Drift(DriftKind.MODIFIED, attempt.name, job.manifest.name, note)


def unpublished_model(name: NameState) -> Iterator[Drift]:
    """Yield a finding if the model in place isn't as it was published."""
    publication = name.publication
    if publication and publication.damaged and name.last_wanted:
        names = ", ".join(publication.damaged[:_NAMED_FILES])
        about = {"to": publication.publish.to, "files": names}
        note = Note(NoteCode.NOT_AS_PUBLISHED, about)
        yield Drift(DriftKind.UNPUBLISHED, name.last_wanted.name, name.name, note)


def superseded_runs(job: DesiredJob, attempt: Attempt) -> Iterator[Finding]:
    """Yield a finding, and perhaps a cancel, for a live run of other content under a desired job's name."""
    run, manifest = attempt.run, job.manifest
    if run is None or run.state.ended:
        return
    detail = Note(NoteCode.OLD_CONTENT, {"state": run.state, "path": manifest.path})
    finding = Drift(DriftKind.SUPERSEDED, run.job_name, manifest.name, detail)
    if manifest.reconcile.on_change != "cancel":
        yield finding, None
        return
    reason = because(ReasonCode.SUPERSEDED, by=job.job_name)
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
    detail = Note(NoteCode.NO_MANIFEST, {"state": run.state})
    claim = attempt.claim
    finding = Drift(DriftKind.ORPHANED, run.job_name, claim.base_name if claim else base_name, detail)
    if claim is None or claim.on_delete != "cancel":
        yield finding, None
    else:
        reason = because(ReasonCode.UNWANTED)
        yield _to_cancel(finding, attempt, run, reason, any_wanted=any_wanted)


def duplicate_runs(attempt: Attempt, base_name: str, *, any_wanted: bool) -> Iterator[Finding]:
    """Yield a finding for each surplus run of an attempt, with a cancel if a recorded request made the run.

    `any_wanted`: as in `orphaned_runs`.
    """
    for run in attempt.others:
        assert attempt.run is not None, "other runs exist only beside the run that stays"
        stays = attempt.run.resource
        about = {"state": run.state, "resource": run.resource, "stays": stays}
        detail = Note(NoteCode.SECOND_RUN, about)
        finding = Drift(DriftKind.DUPLICATE, run.job_name, base_name, detail)
        # A copied label is no proof of origin: only a run of a recorded request may be cancelled.
        if not may_cancel(attempt.claim, run):
            yield finding, None
            continue
        reason = because(ReasonCode.DUPLICATE, stays=stays)
        finding, cancel = _to_cancel(finding, attempt, run, reason, any_wanted=any_wanted)
        yield finding, cancel and replace(cancel, base_name=base_name, repair=True)
    for run in attempt.strangers:
        detail = Note(NoteCode.RUN_WITHOUT_REQUEST, {"resource": run.resource, "state": run.state})
        yield Drift(DriftKind.DUPLICATE, run.job_name, base_name, detail), None


def foreign_runs(job: DesiredJob, runs: Iterable[ActualJob]) -> Iterator[Drift]:
    """Yield live runs of the desired content that belong to another repository; they are never cancelled."""
    for run in runs:
        if run.labels.get(KEY) in keys_of(job) and not run.state.ended:
            about = {"resource": run.resource, "state": run.state, "owner": run.labels.get(SOURCE)}
            detail = Note(NoteCode.RUN_OF_OTHERS, about)
            yield Drift(DriftKind.DUPLICATE, run.job_name, job.manifest.name, detail)


def _is_cancelled_outside(attempt: Attempt) -> bool:
    if attempt.run:
        return is_cancelled_outside(attempt.run)
    return attempt.state is State.CANCELLED and not attempt.cancelled


def _is_modified(claim: Claim, run: ActualJob) -> bool:
    is_recorded = claim.labels and claim.resource == run.resource
    return bool(is_recorded) and labels_digest(run.labels) != claim.labels


def _to_cancel(
    finding: Drift, attempt: Attempt, run: ActualJob, reason: Reason, *, any_wanted: bool
) -> Finding:
    """Return the finding with the cancel of its run, or with the reason against a cancel in its detail."""
    claim = attempt.claim
    if claim is None or not may_cancel(claim, run):
        against = NotCancelled.NO_REQUEST if claim else NotCancelled.NO_CLAIM
        # The service already ends a CANCELLING run: no reader asks why it isn't cancelled here.
        if run.state is State.CANCELLING:
            return finding, None
    elif not any_wanted:
        against = NotCancelled.NO_MANIFEST
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
    detail = finding.detail
    return replace(finding, detail=replace(detail, values={**detail.values, "against": against})), None
