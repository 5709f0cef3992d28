"""Planner: a pure function from desired jobs, claims and actual jobs to a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from reconciler.model.canonical import canonical_json
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import Action, Change, DesiredJob, Drift, NotDone, Plan, Target, Trigger
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.model.standing import Standing
from reconciler.planning.attempts import keys_of
from reconciler.planning.decide import decide
from reconciler.planning.drift import (
    Finding,
    changed_metrics,
    drift_of_desired,
    duplicate_runs,
    foreign_runs,
    orphaned_runs,
    overwritten_result,
    superseded_runs,
    unpublished_model,
)
from reconciler.planning.state import NameState, TargetState


def make_plan(
    target: Target,
    state: TargetState,
    *,
    whole: bool = True,
    occasion: Trigger | None = None,
) -> Plan:
    """Return the plan without its digest: the changes that apply makes, and the drift that it reports.

    Args:
        target: The plan's target.
        state: The desired jobs, the claims and the runs. Runs of other repositories are reported, and the
            content of doubtful runs is not submitted while they run.
        whole: True if the state has all jobs of the repository; only then a run can be orphaned.
        occasion: What decides about another try of a failed set-up; None if no person started the command.
    """
    changes: list[Change] = []
    findings: list[Finding] = []
    for job, name in state.of_desired:
        change = decide(target, job, name, state.doubtful, occasion or Trigger())
        changes.append(change)
        changes += publications(job, name)
        findings += _of_wanted(job, name, change, state.changed_files)
        findings += ((finding, None) for finding in foreign_runs(job, state.foreign))
    # With only some paths selected, a base name without a manifest may be on another path.
    if whole:
        any_wanted = bool(changes)
        unwanted = (name for name in state.names.values() if name.desired is None)
        findings += (finding for name in unwanted for finding in _of_unwanted(name, any_wanted=any_wanted))
    # A claim's run may have another source label by now: then it belongs to another repository.
    changes += (cancel for _, cancel in findings if cancel and cancel.actual and state.owns(cancel.actual))
    ordered = tuple(sorted(changes, key=_order))
    drift = tuple(sorted((finding for finding, _ in findings), key=_drift_order))
    return Plan(target, ordered, drift, None, whole)


def acting_jobs(plan: Plan) -> list[DesiredJob]:
    """Return the desired jobs whose request bodies are a part of the plan's digest."""
    return [change.desired for change in _acting(plan) if change.desired]


def digest_of(plan: Plan, bodies: Mapping[str, JsonObject]) -> str:
    """Return a SHA-256 of the target and every change other than `none`.

    `bodies` are the request bodies of the first attempts of `acting_jobs`, by job name.
    """
    # Without paths, lines and reasons: a manifest that only moves keeps the digest of its review.
    target = plan.target
    content: Mapping[str, object] = {
        "target": [target.environment, target.engine, target.project, target.location],
        "changes": [
            [change.action, change.job_name, _content_of(change, bodies)] for change in _acting(plan)
        ],
    }
    return "sha256:" + hashlib.sha256(canonical_json(content)).hexdigest()


def _content_of(change: Change, bodies: Mapping[str, JsonObject]) -> object:
    if change.publication:
        return [change.publication.publish.to, change.publication.publish.source]
    return bodies[change.desired.job_name] if change.desired else None


def _acting(plan: Plan) -> list[Change]:
    return [change for change in plan.changes if change.action is not Action.NONE]


def with_blocked(plan: Plan, reasons: Mapping[str, Reason]) -> Plan:
    """Return the plan with the reasons against submissions, by the names of their jobs' first attempts.

    The digest stays: a review is of what the manifests ask for.
    """
    if not reasons:
        return plan
    blocked = {
        change.base_name: reasons[change.desired.job_name]
        for change in plan.changes
        if change.action in SUBMISSIONS and change.desired and change.desired.job_name in reasons
    }
    changes = (
        replace(change, action=Action.BLOCKED, reason=blocked[change.base_name])
        if change.base_name in blocked and change.action in SUBMISSIONS
        else change
        for change in plan.changes
        # Never cancel for a successor that can't start.
        if change.repair or change.action is not Action.CANCEL or change.base_name not in blocked
    )
    return replace(plan, changes=tuple(changes))


def _of_wanted(
    job: DesiredJob, name: NameState, change: Change, changed_files: Mapping[str, tuple[str, ...]]
) -> Iterator[Finding]:
    keys = keys_of(job)
    yield from ((drift, None) for drift in (*overwritten_result(job, name), *unpublished_model(name)))
    for attempt in name.attempts:
        yield from duplicate_runs(attempt, job.manifest.name, any_wanted=True)
        if attempt.id.key in keys:
            changed = changed_metrics(job, attempt, changed_files.get(attempt.resource, ()))
            yield from ((drift, None) for drift in (*drift_of_desired(job, attempt), *changed))
            continue
        for drift, cancel in superseded_runs(job, attempt):
            # Never cancel for a successor that can't start.
            yield drift, cancel if _replaces(change) else None


def publications(job: DesiredJob, name: NameState) -> Iterator[Change]:
    """Yield the publication that a job needs, blocked if it may not be made; none in its place."""
    publication, last = name.publication, name.last_wanted
    if publication is None or publication.reason is None or last is None:
        return
    is_due = publication.standing is Standing.DUE
    yield Change(
        action=Action.PUBLISH if is_due else Action.BLOCKED,
        reason=publication.reason,
        base_name=job.manifest.name,
        job_name=last.name,
        kind=job.manifest.kind,
        path=job.manifest.path,
        line=job.manifest.line,
        attempt=last.id.attempt,
        actual=last.run,
        key=last.id.key,
        publication=publication,
    )


def with_publications_of(plan: Plan, names: Iterable[NameState]) -> Plan:
    """Return the plan with the publications that these base names need by now, besides its own."""
    new = (change for name in names if name.desired for change in publications(name.desired, name))
    return replace(plan, changes=tuple(sorted((*plan.changes, *new), key=_order)))


def with_blocked_publications(plan: Plan, reasons: Mapping[str, Reason]) -> Plan:
    """Return the plan with the reasons against publications, by base name as written.

    The digest stays, as in `with_blocked`.
    """
    changes = (
        replace(change, action=Action.BLOCKED, reason=reasons[change.base_name])
        if change.action is Action.PUBLISH and change.base_name in reasons
        else change
        for change in plan.changes
    )
    return replace(plan, changes=tuple(changes)) if reasons else plan


def with_limited_publications(plan: Plan, most: int | None) -> Plan:
    """Return the plan with all publications blocked if it has more than the limit; None is no limit."""
    publications = [change for change in plan.changes if change.action is Action.PUBLISH]
    if most is None or len(publications) <= most:
        return plan
    reason = because(ReasonCode.TOO_MANY_PUBLICATIONS, planned=len(publications), most=most)
    return with_blocked_publications(plan, dict.fromkeys((c.base_name for c in publications), reason))


def _replaces(change: Change) -> bool:
    """Return True if the desired content runs or ran: only then may it replace a cancelled run."""
    if change.stopped and change.action is Action.NONE:
        return False  # it runs no more, or not yet again
    return change.action is not Action.BLOCKED and change.stuck not in (NotDone.SUSPENDED, NotDone.GIVEN_UP)


def _of_unwanted(name: NameState, *, any_wanted: bool) -> Iterator[Finding]:
    for attempt in name.attempts:
        base_name = attempt.claim.base_name if attempt.claim else name.base_name
        yield from duplicate_runs(attempt, base_name, any_wanted=any_wanted)
        yield from orphaned_runs(attempt, name.base_name, any_wanted=any_wanted)


def _order(change: Change) -> tuple[str, str, str, str]:
    resource = change.actual.resource if change.actual else ""
    return change.base_name, change.job_name, change.action, resource


def _drift_order(finding: Drift) -> tuple[str, str, list[str]]:
    # The order of the sentences: a second run's begins with "a", and its values with a state in upper case.
    values = [*map(str, finding.detail.values.values())]
    return finding.kind, finding.job_name, values


SUBMISSIONS = (Action.SUBMIT, Action.RETRY)
