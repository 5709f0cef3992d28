"""The limits of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from reconciler.base.errors import RefusedError
from reconciler.manifests.settings import Limits
from reconciler.model.plan import Action, Plan
from reconciler.planning.planner import SUBMISSIONS


class ExceededLimitError(RefusedError):
    """Error for a plan that exceeds a limit.

    Attributes:
        name: The limit's name in `reconciler.yaml`.
        needed: The smallest whole number that permits the plan.
    """

    def __init__(self, name: str, planned: float, most: float) -> None:
        self.name, self.needed = name, ceil(planned)
        super().__init__(
            f"the plan has {planned:.10g} {name}, but one apply may do at most {most:.10g}",
            hint=f'raise "limits: {{{name}: {self.needed}}}" in reconciler.yaml if you want that, '
            "or apply some of the jobs: `reconciler apply PATH`",
        )


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
            f"the plan has changed since it was reviewed: its digest is now {plan.digest}",
            hint="review it again with `reconciler plan`, and pass the new digest",
        )
    for refusal in limit_refusals(plan, hours, limits):
        raise refusal


def limit_refusals(plan: Plan, hours: float, limits: Limits) -> Iterator[ExceededLimitError]:
    """Yield an error for each limit that a plan exceeds; the arguments are those of `check_limits`."""
    submissions = sum(change.action in SUBMISSIONS for change in plan.changes)
    # Without a service, every run that the plan would cancel counts as live.
    cancels = sum(change.action is Action.CANCEL or change.cancels_earlier for change in plan.changes)
    yield from _over("submissions", submissions, limits.submissions)
    yield from _over("cancels", cancels, limits.cancels)
    yield from _over("acceleratorHours", hours, limits.accelerator_hours)


def check_limit(name: str, planned: float, most: float | None) -> None:
    """Raise RefusedError if the plan exceeds a limit; None is no limit."""
    for refusal in _over(name, planned, most):
        raise refusal


def _over(name: str, planned: float, most: float | None) -> Iterator[ExceededLimitError]:
    if most is not None and planned > most:
        yield ExceededLimitError(name, planned, most)
