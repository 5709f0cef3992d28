"""Differences between a desired job and its base name's newest run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from reconciler.manifests.secrets import value_at, without_secrets
from reconciler.model.claim import Claim, rerun_digest
from reconciler.model.diff import FieldChange, diff, is_filled, is_left_out, is_spelling, shifted
from reconciler.model.job import CODE, COMMIT, KEY, ActualJob
from reconciler.model.manifest import JsonObject
from reconciler.model.naming import label_of
from reconciler.model.plan import Change, DesiredJob
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.planning.state import NameState, TargetState

CODE_POINTER = "/package"
_ATTEMPT = re.compile(r"(?<=_[0-9a-f]{16})_[0-9]+\Z")


class Difference(Struct, frozen=True):
    """Difference of a desired job from the previous run of its base name.

    Attributes:
        reason: The reason for a submission.
        fields: The changed fields of its spec and code.
        is_new: True without a previous run.
        commit: The previous run's commit; "" if unknown.
    """

    reason: Reason
    fields: tuple[FieldChange, ...] = ()
    is_new: bool = False
    commit: str = ""


def compared(job: DesiredJob, name: NameState) -> Difference:
    """Return the differences of a desired job from the previous run under its base name."""
    last = name.predecessor
    if last is None or last.run is None:
        return Difference(because(ReasonCode.CHANGED if name.others else ReasonCode.NEW), is_new=True)
    fields = _fields(last.run, job)
    of_spec = [field for field in fields if field.pointer != CODE_POINTER]
    count = len(of_spec) - shifted(last.run.spec, job.spec, of_spec)
    code = len(of_spec) < len(fields)
    reason = why_changed(count, code=code, rerun=_rerun_changed(last.claim, job))
    commit = last.run.labels.get(COMMIT) or (last.claim.commit if last.claim else "")
    return Difference(reason, fields, commit=commit)


def code_changed(change: Change) -> bool:
    """Return True if the staged code differs from that of the earlier run or of the base."""
    return change.code_changed or any(field.pointer == CODE_POINTER for field in change.fields)


def predecessors(state: TargetState) -> list[ActualJob]:
    """Return the runs that a plan compares with: the newest of each base name with new content."""
    # Content with a claim or a run was submitted before: its change needs no comparison.
    last = (name.predecessor for _, name in state.of_desired if not name.wanted)
    return [attempt.run for attempt in last if attempt and attempt.run]


def _fields(before: ActualJob, job: DesiredJob) -> tuple[FieldChange, ...]:
    """Return the changed fields of the spec, and a field for changed code."""
    # A directory has the name of its attempt, or of the content's first attempt.
    old_names = before.job_name, _ATTEMPT.sub("", before.job_name)
    changes = (field for field in diff(before.spec, job.spec) if not _is_no_change(field))
    fields = tuple(
        field for field in changes if not any(is_only_named(field, name, job.job_name) for name in old_names)
    )
    fields = tuple(_without_secrets(before.spec, fields))
    # The label is the only trace of the code. An adopted run has none: only its code may have changed then.
    if KEY not in before.labels and fields:
        return fields
    old, new = before.labels.get(CODE, ""), label_of(job.code) if job.code else ""
    return fields if old == new else (FieldChange(CODE_POINTER, old or None, new or None), *fields)


def _without_secrets(spec: JsonObject, fields: Sequence[FieldChange]) -> Iterator[FieldChange]:
    """Yield the fields without secrets of the earlier spec: today's manifest is refused if it has any."""
    if not fields:
        return
    hidden = without_secrets(spec)
    for field in fields:
        yield replace(field, before=value_at(hidden, field.pointer))


def _is_no_change(field: FieldChange) -> bool:
    return is_spelling(field) or is_filled(field) or is_left_out(field) or _is_of_answer(field)


def _is_of_answer(field: FieldChange) -> bool:
    """Return True if only the service's answer makes the difference: a pipeline's model has its folder there
    once it is registered, and never its container.
    """
    absent = {"/modelToUpload/artifactUri": field.after, "/modelToUpload/containerSpec": field.before}
    return field.pointer in absent and absent[field.pointer] is None


def is_only_named(field: FieldChange, old_name: str, new_name: str) -> bool:
    """Return True if two texts differ only in their job's name, as the derived output directories do."""
    old = field.before
    return isinstance(old, str) and old.replace(old_name, new_name) == field.after


def _rerun_changed(claim: Claim | None, job: DesiredJob) -> bool | None:
    """Return True if `rerun` changed; None if unknown."""
    digest = claim.rerun if claim else ""
    return digest != rerun_digest(job.manifest.reconcile.rerun) if digest else None


def why_changed(count: int, *, code: bool, rerun: bool | None) -> Reason:
    """Return the reason for a job's new identity.

    Args:
        count: Number of changed fields of its spec.
        code: True if its code changed.
        rerun: True if its `rerun` changed; None if unknown.
    """
    # Without another difference, `rerun` must have changed, unless it is known to be the same.
    is_rerun = rerun is None and not (count or code)
    return because(ReasonCode.CHANGED, fields=count, code=code, rerun=bool(rerun) or is_rerun)
