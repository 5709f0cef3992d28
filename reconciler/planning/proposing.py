"""Two sets of manifests in, a proposal out: what their difference means, as far as nobody is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from reconciler.diagnostics import Problem
from reconciler.diff import diff
from reconciler.manifest import Manifest, Reconcile
from reconciler.plan import Action, Change, DesiredJob, FieldChange, Target
from reconciler.planning.comparison import why_changed
from reconciler.planning.decision import decide
from reconciler.planning.proposal import Edit, Proposal, ProposedChange

HoursOf = Callable[[DesiredJob], float]
"""The most accelerator-hours that one run of a job can use."""

_RESUMED = "no longer suspended"


def propose(
    target: Target,
    base: str,
    before: Sequence[DesiredJob],
    after: Sequence[DesiredJob],
    hours: HoursOf,
    *,
    whole: bool = True,
    invalid: Collection[str] = (),
    problems: Sequence[Problem] = (),
    base_problems: int = 0,
) -> Proposal:
    """What changes between two sets of jobs, each with unique base names.

    Args:
        target: Where the jobs are for.
        base: The commit of `before`.
        before: The jobs of its valid manifests.
        after: The jobs of the valid manifests as they are now.
        hours: The most accelerator-hours of one run.
        whole: Whether both are all that the repository wants; only then a removed job is cancelled.
        invalid: The base names of manifests that aren't valid as they are now, '-' as '_'.
        problems: What is wrong with them.
        base_problems: How many problems the manifests of `before` have.
    """
    old = {job.manifest.base_name: job for job in before}
    new = {job.manifest.base_name: job for job in after}
    unknown = {*invalid, *_in_files(before, {problem.path for problem in problems})}
    is_known_empty = whole and not new and not problems
    changes: list[ProposedChange] = []
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if now is not None:
            changes.append(_changed(target, was, now, hours) if was else _new(target, now, hours))
        elif name not in unknown:
            changes.append(_removed(old[name], hours, whole=whole, is_empty=is_known_empty))
    return Proposal(target, base, tuple(changes), tuple(problems), base_problems)


def _in_files(jobs: Sequence[DesiredJob], paths: Collection[str]) -> set[str]:
    """The base names of jobs in these files: one that can't be read may hold them still."""
    return {job.manifest.base_name for job in jobs if job.manifest.path in paths}


def _new(target: Target, job: DesiredJob, hours: HoursOf) -> ProposedChange:
    return ProposedChange(Edit.NEW, decide(target, job, []), hours_after=_hours(job, hours))


def _removed(job: DesiredJob, hours: HoursOf, *, whole: bool, is_empty: bool) -> ProposedChange:
    manifest = job.manifest
    cancels = whole and not is_empty and manifest.reconcile.on_delete == "cancel"
    change = Change(
        action=Action.CANCEL if cancels else Action.NONE,
        reason="removed (onDelete: cancel)" if cancels else "removed",
        base_name=manifest.name,
        job_name=job.job_name,
        kind=manifest.kind,
        path=manifest.path,
    )
    if cancels:
        note = "if its run is still live, it is cancelled"
    elif is_empty:
        note = "nothing is cancelled while there is no manifest at all; a live run is told as orphaned"
    elif not whole:
        note = "only the paths that were named are compared: it may be elsewhere now"
    else:
        note = "if its run is still live, it goes on, and is told as orphaned"
    return ProposedChange(Edit.REMOVED, change, (note,), hours_before=_hours(job, hours))


def _changed(target: Target, was: DesiredJob, now: DesiredJob, hours: HoursOf) -> ProposedChange:
    is_other = was.identity != now.identity
    change = _other(target, was, now) if is_other else _same(target, was, now)
    policy = [*_of_earlier_run(now, change)] if is_other else []
    treatment = [*_of_treatment(was.manifest, now.manifest, is_other=is_other)]
    moved = [*_of_place(was.manifest, now.manifest)]
    return ProposedChange(
        Edit.CHANGED if is_other or treatment else Edit.UNCHANGED,
        change,
        (*policy, *treatment, *moved),
        code_changed=was.code != now.code,
        hours_before=_hours(was, hours),
        hours_after=_hours(now, hours),
    )


def _other(target: Target, was: DesiredJob, now: DesiredJob) -> Change:
    """The change of a job whose content is another one."""
    fields = tuple(field for field in diff(was.spec, now.spec) if not _is_only_named(field, was, now))
    change = replace(decide(target, now, []), fields=fields)
    if change.action is not Action.SUBMIT:
        return change
    rerun = was.manifest.reconcile.rerun != now.manifest.reconcile.rerun
    return replace(change, reason=why_changed(len(fields), code=was.code != now.code, rerun=rerun))


def _is_only_named(field: FieldChange, was: DesiredJob, now: DesiredJob) -> bool:
    """Whether a value differs in the job's name alone, as a folder does that is filled in for each job."""
    old = field.before
    return isinstance(old, str) and old.replace(was.job_name, now.job_name) == field.after


def _same(target: Target, was: DesiredJob, now: DesiredJob) -> Change:
    """The change of a job whose content is the same."""
    change = decide(target, now, [])
    if now.manifest.reconcile.suspend:
        return change
    if was.manifest.reconcile.suspend:
        return replace(change, reason=_RESUMED) if change.action is Action.SUBMIT else change
    return replace(change, action=Action.NONE, reason="the same content")


def _of_earlier_run(now: DesiredJob, change: Change) -> Iterator[str]:
    """What becomes of a run of the earlier content."""
    if change.action is not Action.SUBMIT:
        yield "if the run of the earlier content is still live, it goes on"
    elif now.manifest.reconcile.on_change == "cancel":
        yield "if the run of the earlier content is still live, it is cancelled once this one is there"
    else:
        yield "if the run of the earlier content is still live, it goes on beside this one"


def _of_treatment(was: Manifest, now: Manifest, *, is_other: bool) -> Iterator[str]:
    """What differs beside the content, and what that means."""
    old, new = was.reconcile, now.reconcile
    if was.kind != now.kind:
        yield f"kind: {was.kind} → {now.kind}"
    yield from _of_suspension(old, new)
    if old.attempts != new.attempts:
        retried = not is_other and new.attempts > old.attempts
        more = "; if the last attempt failed, there is another one" if retried else ""
        yield f"attempts: {old.attempts} → {new.attempts}{more}"
    if old.on_change != new.on_change:
        yield f"onChange: {old.on_change} → {new.on_change}"
    if old.on_delete != new.on_delete:
        yield f"onDelete: {old.on_delete} → {new.on_delete}"
    if was.labels != now.labels:
        yield "the labels changed" + ("" if is_other else "; a run that is there keeps its own")


def _of_suspension(old: Reconcile, new: Reconcile) -> Iterator[str]:
    if new.suspend and not old.suspend:
        yield "suspended from now on; a live run goes on"
    if old.suspend and not new.suspend:
        yield f"{_RESUMED}; what ran before isn't submitted again"


def _of_place(was: Manifest, now: Manifest) -> Iterator[str]:
    if was.path != now.path:
        yield f"moved from {was.path}"
    if was.name != now.name:
        yield f'it was written "{was.name}"'


def _hours(job: DesiredJob, hours: HoursOf) -> float:
    return 0.0 if job.manifest.reconcile.suspend else hours(job)
