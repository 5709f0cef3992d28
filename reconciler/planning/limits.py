"""Limits on an apply: the reviewed plan, and the most that it may submit, cancel and cost."""

from __future__ import annotations

from math import ceil

from reconciler.base.errors import RefusedError
from reconciler.manifests.settings import Limits
from reconciler.model.plan import Action, Plan

SUBMISSIONS = (Action.SUBMIT, Action.RETRY)


def check_limits(plan: Plan, hours: float, limits: Limits, reviewed: str | None) -> None:
    """Raise RefusedError if the plan differs from the reviewed plan or exceeds a limit.

    Args:
        plan: The plan to apply.
        hours: The most accelerator-hours that its submissions can use.
        limits: The environment's limits.
        reviewed: Digest of the reviewed plan; None without a review.
    """
    if reviewed is not None and reviewed != plan.digest:
        raise RefusedError(
            f"the plan is no longer the reviewed one: its digest is {plan.digest}",
            hint="look at the plan again with `reconciler plan`, and pass the digest that it then shows",
        )
    submitted = [change for change in plan.changes if change.action in SUBMISSIONS]
    cancelled = [change for change in plan.changes if change.action is Action.CANCEL]
    check_limit("submissions", len(submitted), limits.submissions)
    check_limit("cancels", len(cancelled), limits.cancels)
    check_limit("acceleratorHours", hours, limits.accelerator_hours)


def check_limit(name: str, planned: float, most: float | None) -> None:
    """Raise RefusedError if the plan exceeds a limit; None is no limit."""
    if most is not None and planned > most:
        raise RefusedError(
            f"the plan holds {planned:.10g} {name}, and one apply may do {most:.10g}",
            hint=f'raise "limits: {{{name}: {ceil(planned)}}}" in reconciler.yaml if that is meant, '
            "or apply some of the jobs: `reconciler apply PATH`",
        )
