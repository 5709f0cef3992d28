"""Planner: a pure function from desired jobs, claims and actual jobs to a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from reconciler.model.canonical import canonical_json
from reconciler.model.claim import Claim, ClaimId
from reconciler.model.job import SOURCE, ActualJob
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import Action, Change, DesiredJob, Drift, NotDone, Plan, Target, Trigger
from reconciler.model.reason import Reason
from reconciler.planning.attempts import Attempt, attempts_by_base, keys_of
from reconciler.planning.decide import decide
from reconciler.planning.drift import (
    Finding,
    drift_of_desired,
    duplicate_runs,
    foreign_runs,
    orphaned_runs,
    superseded_runs,
)

BodyOf = Callable[[DesiredJob], JsonObject]


def make_plan(
    target: Target,
    desired: Sequence[DesiredJob],
    actual: Iterable[ActualJob],
    claims: Mapping[ClaimId, Claim],
    body_of: BodyOf,
    *,
    whole: bool = True,
    source: str | None = None,
    doubtful: Sequence[ActualJob] = (),
    occasion: Trigger | None = None,
) -> Plan:
    """Return the plan: the changes that apply makes, and the drift that it reports.

    Args:
        target: The plan's target.
        desired: The desired jobs, with unique base names.
        actual: The runs that were listed as this repository's, in any order.
        claims: Every claim of this repository in the target.
        body_of: The request body of a desired job, for the digest; the same for every attempt.
        whole: True if `desired` has all jobs of the repository; only then a run can be orphaned.
        source: The repository's id: runs with another id are reported, but otherwise left out; None if all
            runs are its own.
        doubtful: Live runs that may be the environment's own, from `Observed.doubtful`: their content is not
            submitted while they run.
        occasion: What decides about another try of a failed set-up; None if no person started the command.
    """
    own, foreign = by_owner(actual, claims, source)
    by_base = attempts_by_base(desired, own, claims)
    changes: list[Change] = []
    findings: list[Finding] = []
    for job in desired:
        of_base = by_base.pop(job.manifest.base_name, [])
        change = decide(target, job, of_base, doubtful, occasion or Trigger())
        changes.append(change)
        findings += _of_wanted(job, of_base, change)
        findings += ((found, None) for found in foreign_runs(job, foreign))
    # With only some paths selected, a base name without a manifest may be on another path.
    if whole:
        findings += _of_unwanted(by_base, any_wanted=bool(desired))
    # A claim's run may have another source label by now: then it belongs to another repository. An adopted
    # run has none.
    changes += (
        cancel
        for _, cancel in findings
        if cancel and cancel.actual and source in (None, cancel.actual.labels.get(SOURCE, source))
    )
    ordered = tuple(sorted(changes, key=_order))
    drift = tuple(sorted((found for found, _ in findings), key=_drift_order))
    return Plan(target, ordered, drift, _digest(target, ordered, body_of), whole)


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


def by_owner(
    runs: Iterable[ActualJob], claims: Mapping[ClaimId, Claim], source: str | None
) -> tuple[list[ActualJob], list[ActualJob]]:
    """Split runs into the repository's own and those of others; the arguments are those of `make_plan`."""
    bound = {claim.resource for claim in claims.values()}
    own: list[ActualJob] = []
    foreign: list[ActualJob] = []
    for run in runs:
        # A claim's job stays the repository's own without its label: labels can be edited outside.
        is_own = source is None or run.labels.get(SOURCE) == source or run.resource in bound
        (own if is_own else foreign).append(run)
    return own, foreign


def _of_wanted(job: DesiredJob, of_base: Iterable[Attempt], change: Change) -> Iterator[Finding]:
    keys = keys_of(job)
    for attempt in of_base:
        yield from duplicate_runs(attempt, job.manifest.name, any_wanted=True)
        if attempt.id.key in keys:
            yield from ((found, None) for found in drift_of_desired(job, attempt))
            continue
        for found, cancel in superseded_runs(job, attempt):
            # Never cancel for a successor that can't start.
            yield found, cancel if _replaces(change) else None


def _replaces(change: Change) -> bool:
    """Return True if the desired content runs or ran: only then may it replace a cancelled run."""
    if change.stopped and change.action is Action.NONE:
        return False  # it runs no more, or not yet again
    return change.action is not Action.BLOCKED and change.stuck not in (NotDone.SUSPENDED, NotDone.GIVEN_UP)


def _of_unwanted(by_base: Mapping[str, Iterable[Attempt]], *, any_wanted: bool) -> Iterator[Finding]:
    for base, attempts in by_base.items():
        for attempt in attempts:
            name = attempt.claim.base_name if attempt.claim else base
            yield from duplicate_runs(attempt, name, any_wanted=any_wanted)
            yield from orphaned_runs(attempt, base, any_wanted=any_wanted)


def _order(change: Change) -> tuple[str, str, str, str]:
    resource = change.actual.resource if change.actual else ""
    return change.base_name, change.job_name, change.action, resource


def _drift_order(finding: Drift) -> tuple[str, str, str, list[str], str]:
    # The order of the sentences: a second run's begins with "a", and its values with a state in upper case.
    values = [*map(str, finding.detail.values.values())]
    return finding.kind, finding.job_name, finding.base_name, values, finding.detail.code


def _digest(target: Target, changes: Iterable[Change], body_of: BodyOf) -> str:
    """Return a SHA-256 of the target and every change other than `none`."""
    # Without paths, lines and reasons: a manifest that only moves keeps the digest of its review.
    said: Mapping[str, object] = {
        "target": [target.environment, target.engine, target.project, target.location],
        "changes": [
            [change.action, change.job_name, body_of(change.desired) if change.desired else None]
            for change in changes
            if change.action is not Action.NONE
        ],
    }
    return "sha256:" + hashlib.sha256(canonical_json(said)).hexdigest()


SUBMISSIONS = (Action.SUBMIT, Action.RETRY)
