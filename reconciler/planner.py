"""Desired jobs and actual jobs in, a plan out: no input, no output, no clock."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from reconciler.canonical import canonical_json
from reconciler.diff import diff
from reconciler.job import ActualJob, State
from reconciler.labels import ATTEMPT, CODE, KEY
from reconciler.manifest import ML_V1, JsonObject
from reconciler.naming import job_name, label_of
from reconciler.plan import Action, Change, DesiredJob, Drift, DriftKind, FieldChange, Plan, Target

CODE_POINTER = "/package"
_JOB_NAME = re.compile(r"(?P<base>.+)_[0-9a-f]{16}(?:_[0-9]+)?")

_ML_IS_GONE = (
    "Google switched AI Platform Training off on 2025-01-31; "
    "write the job as an aiplatform.googleapis.com/v1 CustomJob"
)

BodyOf = Callable[[DesiredJob], JsonObject]


def make_plan(
    target: Target,
    desired: Sequence[DesiredJob],
    actual: Iterable[ActualJob],
    body_of: BodyOf,
    *,
    whole: bool = True,
) -> Plan:
    """What apply would do, and what it would leave.

    Args:
        target: Where the plan is for.
        desired: The wanted jobs, with unique base names.
        actual: The runs that this repository owns, in any order.
        body_of: The request body of a desired job, for the digest; the same for every attempt.
        whole: Whether `desired` is all that the repository wants; only then a run can be judged orphaned.
    """
    runs = sorted(actual, key=_age)
    changes: list[Change] = []
    drift: list[Drift] = []
    by_base = defaultdict(list)
    for run in runs:
        by_base[base_of(run.job_name)].append(run)
    for job in desired:
        of_base = by_base.pop(job.manifest.base_name, [])
        change = _change(target, job, of_base)
        changes.append(change)
        superseded = list(_superseded(job, of_base))
        if change.action is not Action.BLOCKED:
            changes += (cancel for cancel, _ in superseded if cancel)
        drift += (finding for _, finding in superseded)
        drift += _findings(job, of_base)
    if whole:
        drift += (_orphaned(run) for rest in by_base.values() for run in rest if not run.state.ended)
    ordered = tuple(sorted(changes, key=lambda c: (c.base_name, c.job_name, c.action)))
    return Plan(target, ordered, tuple(sorted(drift)), _digest(target, ordered, body_of))


def base_of(name: str) -> str:
    """The base name that a job name begins with; the whole name where it isn't one of ours."""
    found = _JOB_NAME.fullmatch(name)
    return found["base"] if found else name


def attempt_of(run: ActualJob) -> int:
    """Which attempt a run is, from its label; 1 where the label says nothing."""
    text = run.labels.get(ATTEMPT, "1")
    return int(text) if text.isascii() and text.isdigit() else 1


def runs_of(job: DesiredJob, runs: Iterable[ActualJob]) -> list[ActualJob]:
    """The runs of just this content, by attempt."""
    label = label_of(job.identity)
    return sorted((run for run in runs if run.labels.get(KEY) == label), key=attempt_of)


def predecessors(desired: Iterable[DesiredJob], actual: Iterable[ActualJob]) -> list[ActualJob]:
    """The runs whose specs a plan compares with: the newest of each base name whose content is new."""
    newest: dict[str, ActualJob] = {}
    keys = set()
    for run in sorted(actual, key=_age):
        newest[base_of(run.job_name)] = run
        keys.add(run.labels.get(KEY))
    return [
        newest[job.manifest.base_name]
        for job in desired
        if job.manifest.base_name in newest and label_of(job.identity) not in keys
    ]


def _age(job: ActualJob) -> tuple[str, str]:
    return job.create_time, job.resource


def _change(target: Target, job: DesiredJob, of_base: Sequence[ActualJob]) -> Change:
    mine = runs_of(job, of_base)
    if job.manifest.reconcile.suspend:
        return _none(job, "suspended", mine[-1] if mine else None)
    if not mine:
        return _clash(job, of_base) or _submission(target, job, of_base)
    # A run of this content that didn't fail settles it, whichever attempt it is: nothing runs beside it.
    settled = next((run for run in reversed(mine) if run.state is not State.FAILED), None)
    if settled:
        return _none(job, _why_none(settled), settled)
    newest, attempt = mine[-1], attempt_of(mine[-1])
    if attempt < job.manifest.reconcile.attempts:
        left = job.manifest.reconcile.attempts - attempt
        return _blocked(target, job) or _about(
            job, Action.RETRY, f"attempt {attempt} failed, {left} left", attempt=attempt + 1, actual=newest
        )
    return _none(job, _why_none(newest), newest)


def _clash(job: DesiredJob, of_base: Iterable[ActualJob]) -> Change | None:
    """Two contents may share the 16 digits of a name; the whole identity in the label tells them apart."""
    for run in of_base:
        if run.job_name == job.job_name:
            return _about(job, Action.BLOCKED, f"{run.resource} has this name and other content")
    return None


def _submission(target: Target, job: DesiredJob, of_base: Sequence[ActualJob]) -> Change:
    fields = _fields(of_base[-1], job) if of_base else ()
    return _blocked(target, job) or _about(job, Action.SUBMIT, _why_submit(of_base, fields), fields=fields)


def _why_submit(of_base: Sequence[ActualJob], fields: Sequence[FieldChange]) -> str:
    if not of_base:
        return "new"
    code = any(field.pointer == CODE_POINTER for field in fields)
    rest = len(fields) - code
    said = [f"{rest} field{'s' if rest > 1 else ''} changed"] if rest else []
    return " and ".join([*said, *(["the code changed"] if code else [])]) or "rerun changed"


def _why_none(run: ActualJob) -> str:
    if run.state is State.FAILED:
        return 'failed; raise "attempts" or change "rerun" to run it again'
    if run.state is State.CANCELLED:
        return 'cancelled; change "rerun" to run it again'
    return run.state.lower()


def _blocked(target: Target, job: DesiredJob) -> Change | None:
    if target.engine != "google":
        return None
    if job.manifest.api_version == ML_V1:
        return _about(job, Action.BLOCKED, _ML_IS_GONE)
    return None


def _fields(before: ActualJob, job: DesiredJob) -> tuple[FieldChange, ...]:
    """How the wanted job differs from an earlier run: the spec's fields, and whether the code changed."""
    fields = diff(before.spec, job.spec)
    old, new = before.labels.get(CODE, ""), label_of(job.code) if job.code else ""
    return fields if old == new else (FieldChange(CODE_POINTER, old or None, new or None), *fields)


def _superseded(job: DesiredJob, of_base: Iterable[ActualJob]) -> Iterator[tuple[Change | None, Drift]]:
    """Live runs of an older content of the same base name."""
    label = label_of(job.identity)
    for run in of_base:
        if run.state.ended or run.labels.get(KEY) == label:
            continue
        detail = f"{run.state.lower()} with content that {job.manifest.path} no longer holds"
        finding = Drift(DriftKind.SUPERSEDED, run.job_name, job.manifest.base_name, detail)
        cancel = job.manifest.reconcile.on_change == "cancel" and run.state is not State.CANCELLING
        yield (_cancel(job, run) if cancel else None), finding


def _cancel(job: DesiredJob, run: ActualJob) -> Change:
    return Change(
        action=Action.CANCEL,
        reason=f"superseded by {job.job_name} (onChange: cancel)",
        base_name=job.manifest.name,
        job_name=run.job_name,
        kind=run.kind,
        path=job.manifest.path,
        line=job.manifest.line,
        attempt=attempt_of(run),
        actual=run,
    )


def _findings(job: DesiredJob, of_base: Sequence[ActualJob]) -> Iterator[Drift]:
    """A run that somebody cancelled, and two runs of one attempt."""
    by_attempt: dict[int, list[ActualJob]] = defaultdict(list)
    for run in runs_of(job, of_base):
        by_attempt[attempt_of(run)].append(run)
    for same in by_attempt.values():
        elder, *younger = same
        for run in younger:
            detail = f"a second run of one attempt: {run.resource} beside {elder.resource}"
            yield Drift(DriftKind.DUPLICATE, run.job_name, job.manifest.base_name, detail)
        if elder.state is State.CANCELLED and not job.manifest.reconcile.suspend:
            detail = "cancelled, while the manifest still wants it"
            yield Drift(DriftKind.CANCELLED_OUTSIDE, elder.job_name, job.manifest.base_name, detail)


def _orphaned(run: ActualJob) -> Drift:
    detail = f"{run.state.lower()}, and no manifest wants it"
    return Drift(DriftKind.ORPHANED, run.job_name, base_of(run.job_name), detail)


def _none(job: DesiredJob, reason: str, actual: ActualJob | None) -> Change:
    return _about(job, Action.NONE, reason, attempt=attempt_of(actual) if actual else 1, actual=actual)


def _about(
    job: DesiredJob,
    action: Action,
    reason: str,
    *,
    attempt: int = 1,
    fields: tuple[FieldChange, ...] = (),
    actual: ActualJob | None = None,
) -> Change:
    return Change(
        action=action,
        reason=reason,
        base_name=job.manifest.name,
        job_name=job_name(job.manifest.base_name, job.identity, attempt),
        kind=job.manifest.kind,
        path=job.manifest.path,
        line=job.manifest.line,
        attempt=attempt,
        fields=fields,
        desired=job,
        actual=actual,
    )


def _digest(target: Target, changes: Iterable[Change], body_of: BodyOf) -> str:
    """A SHA-256 over the target and every change that isn't `none`."""
    said: Mapping[str, object] = {
        "target": [target.environment, target.engine, target.project, target.location],
        "changes": [
            [change.action, change.job_name, body_of(change.desired) if change.desired else None]
            for change in changes
            if change.action is not Action.NONE
        ],
    }
    return "sha256:" + hashlib.sha256(canonical_json(said)).hexdigest()
