"""The plan of a pull request: how its jobs differ from those of the base commit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from reconciler.model.diff import Comparison, FieldChange, diff, shifted
from reconciler.model.manifest import Manifest
from reconciler.model.naming import NAME_AT_APPLY
from reconciler.model.plan import Action, Change, DesiredJob, Edit, Plan, Target
from reconciler.model.reason import Note, NoteCode, ReasonCode, because
from reconciler.planning.comparison import is_only_named, why_changed
from reconciler.planning.decide import decide
from reconciler.planning.state import NameState


def propose(
    target: Target,
    comparison: Comparison,
    before: Sequence[DesiredJob],
    after: Sequence[DesiredJob],
    hours: tuple[Mapping[str, float], Mapping[str, float]],
    *,
    whole: bool = True,
    invalid: Collection[str] = (),
) -> Plan:
    """Return the plan that leads from the base's jobs to the work tree's, each with unique base names.

    Args:
        target: Where the jobs are for.
        comparison: The base, and the problems of both sides.
        before: The jobs of the base's valid manifests.
        after: The jobs of the work tree's valid manifests.
        hours: The most accelerator-hours of one run of each side's jobs, by base name.
        whole: True if both are all that the repository wants; only then a removed job is cancelled.
        invalid: Base names of other manifests of the work tree, '-' as '_'.
    """
    old = {job.manifest.base_name: job for job in before}
    new = {job.manifest.base_name: job for job in after}
    paths = {problem.path for problem in comparison.problems}
    # A file that can't be read may still contain its jobs.
    unknown = {*invalid, *(name for name, job in old.items() if job.manifest.path in paths)}
    is_empty = whole and not new and not paths
    changes = []
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if was and now:
            change = _changed(target, was, now)
        elif now:
            change = replace(_decided(target, now), edit=Edit.NEW)
        elif name in unknown:
            continue
        else:
            change = _removed(old[name], whole=whole, is_empty=is_empty)
        if change.action is Action.SUBMIT:
            change = replace(change, notes=(*change.notes, Note(NoteCode.NOT_ASKED)))
        changes.append(replace(change, hours=(_hours(was, hours[0]), _hours(now, hours[1]))))
    return Plan(target, tuple(changes), (), None, whole, comparison)


def only_of(plan: Plan, jobs: Sequence[DesiredJob]) -> Plan:
    """Return the plan with only the changes of these jobs, found by their base names."""
    names = {job.manifest.base_name for job in jobs}
    changes = tuple(change for change in plan.changes if change.base_name.replace("-", "_") in names)
    return replace(plan, changes=changes, whole=False)


def _hours(job: DesiredJob | None, hours: Mapping[str, float]) -> float:
    return 0.0 if job is None or job.manifest.reconcile.suspend else hours[job.manifest.base_name]


def _removed(job: DesiredJob, *, whole: bool, is_empty: bool) -> Change:
    manifest = job.manifest
    cancels = whole and not is_empty and manifest.reconcile.on_delete == "cancel"
    if cancels:
        note = NoteCode.CANCELLED_IF_LIVE
    elif is_empty:
        note = NoteCode.NOTHING_CANCELLED
    elif not whole:
        note = NoteCode.MAYBE_MOVED
    else:
        note = NoteCode.CONTINUES_ORPHANED
    return Change(
        action=Action.CANCEL if cancels else Action.NONE,
        reason=because(ReasonCode.REMOVED, is_cancelled=cancels),
        base_name=manifest.name,
        # Of a job that was applied, the name isn't known here.
        job_name=job.job_name.removesuffix(f" ({NAME_AT_APPLY})"),
        kind=manifest.kind,
        path=manifest.path,
        edit=Edit.REMOVED,
        notes=(Note(note),),
    )


def _decided(target: Target, job: DesiredJob) -> Change:
    # Without attempts, because a pull request asks no service. The name may be known at apply only.
    return replace(decide(target, job, NameState(job.manifest.base_name)), job_name=job.job_name)


def _changed(target: Target, was: DesiredJob, now: DesiredJob) -> Change:
    old, new = was.manifest.reconcile, now.manifest.reconcile
    is_other, code_changed = was.identity != now.identity, was.code != now.code
    fields: tuple[FieldChange, ...] = ()
    if is_other:
        fields = tuple(
            field
            for field in diff(was.spec, now.spec)
            if not is_only_named(field, was.job_name, now.job_name)
        )
    change = _decided(target, now)
    if not (is_other or old.suspend or new.suspend):
        change = replace(change, action=Action.NONE, reason=because(ReasonCode.SAME_CONTENT))
    elif change.action is Action.SUBMIT:
        why = why_changed(
            len(fields) - shifted(was.spec, now.spec, fields), code=code_changed, rerun=old.rerun != new.rerun
        )
        change = replace(change, reason=why if is_other else because(ReasonCode.NO_LONGER_SUSPENDED))
    treatment = [*_treatment(was.manifest, now.manifest, is_other=is_other)]
    notes = [_earlier_run(now, change), *treatment] if is_other else treatment
    return replace(
        change,
        fields=fields,
        edit=Edit.CHANGED if is_other or treatment else Edit.UNCHANGED,
        notes=(*notes, *_renamed(was.manifest, now.manifest)),
        code_changed=code_changed,
        cancels_earlier=is_other and change.action is Action.SUBMIT and new.on_change == "cancel",
        is_new=False,
    )


def _earlier_run(now: DesiredJob, change: Change) -> Note:
    """Return the effect of new content on a run of the earlier content."""
    if change.action is not Action.SUBMIT:
        return Note(NoteCode.EARLIER_RUN_CONTINUES)
    is_cancelled = now.manifest.reconcile.on_change == "cancel"
    return Note(NoteCode.EARLIER_RUN_CANCELLED if is_cancelled else NoteCode.EARLIER_RUN_ALONGSIDE)


def _treatment(was: Manifest, now: Manifest, *, is_other: bool) -> Iterator[Note]:
    """Yield the differences beside the content."""
    old, new = was.reconcile, now.reconcile
    if was.kind != now.kind:
        yield Note(NoteCode.KIND, {"before": was.kind, "after": now.kind})
    if new.suspend and not old.suspend:
        yield Note(NoteCode.SUSPENDED)
    if old.suspend and not new.suspend:
        yield Note(NoteCode.NO_LONGER_SUSPENDED)
    if old.attempts != new.attempts:
        is_retried = not is_other and new.attempts > old.attempts
        numbers = {"before": old.attempts, "after": new.attempts}
        yield Note(NoteCode.ATTEMPTS, {**numbers, "is_retried": is_retried})
    if old.on_change != new.on_change:
        yield Note(NoteCode.ON_CHANGE, {"before": old.on_change, "after": new.on_change})
    if old.on_delete != new.on_delete:
        yield Note(NoteCode.ON_DELETE, {"before": old.on_delete, "after": new.on_delete})
    if {*was.expect} != {*now.expect}:
        yield Note(NoteCode.EXPECT, {"is_judged": bool(now.expect) and not is_other})
    if was.publish != now.publish:
        yield Note(NoteCode.PUBLISH, {"is_trained": is_other, "is_gone": now.publish is None})
    if was.labels != now.labels:
        yield Note(NoteCode.LABELS, {"has_run": not is_other})


def _renamed(was: Manifest, now: Manifest) -> Iterator[Note]:
    if was.path != now.path:
        yield Note(NoteCode.MOVED, {"path": was.path})
    if was.name != now.name:
        yield Note(NoteCode.RENAMED, {"name": was.name})
