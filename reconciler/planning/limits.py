"""The brakes on one apply: the reviewed plan, and the most it may submit, cancel and cost."""

from __future__ import annotations

from math import ceil

from reconciler.base.errors import RefusedError
from reconciler.manifests.settings import Limits
from reconciler.model.plan import Action, Plan

SUBMISSIONS = (Action.SUBMIT, Action.RETRY)


def check_brakes(plan: Plan, hours: float, limits: Limits, reviewed: str | None) -> None:
    """Raise RefusedError where the plan isn't the reviewed one, or does more than the limits allow.

    Args:
        plan: What is about to be applied.
        hours: The most accelerator-hours that its submissions can use.
        limits: The environment's.
        reviewed: The digest of the plan that was looked at; None where none was.
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
    """Raise RefusedError where more is planned than one apply may do; None is no limit."""
    if most is not None and planned > most:
        raise RefusedError(
            f"the plan holds {planned:.10g} {name}, and one apply may do {most:.10g}",
            hint=f'raise "limits: {{{name}: {ceil(planned)}}}" in reconciler.yaml if that is meant, '
            "or apply some of the jobs: `reconciler apply PATH`",
        )
