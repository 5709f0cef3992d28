"""One pass over an environment: decided, carried out, and told to the commits that asked for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from reconciler.base.errors import InvalidError, ReconcilerError, RefusedError
from reconciler.git.commit import passed_over
from reconciler.google.session import Session
from reconciler.model.plan import Action, DesiredJob, Plan
from reconciler.operations.execute import Applier
from reconciler.operations.load_desired import Desired
from reconciler.operations.origin import NO_ORIGIN, Origin, origin_of
from reconciler.operations.plan import accelerator_hours
from reconciler.operations.report import open_record, tell_commits, tell_stop, unposted
from reconciler.planning.limits import SUBMISSIONS, check_brakes
from reconciler.planning.outcome import Outcome, Status
from reconciler.reporting.github.settings import github_settings
from reconciler.submission.observe import Observed, observe

_ORDER = {Action.BLOCKED: 1, Action.CANCEL: 2}


@dataclass(frozen=True, slots=True)
class Settled:
    """How a pass left things.

    Attributes:
        observed: What there is now; None where the service can't be asked.
        problems: What couldn't be kept or told, a sentence for each.
        unposted: How many commit statuses couldn't be posted.
    """

    observed: Observed | None
    problems: tuple[str, ...] = ()
    unposted: int = 0


def brake(session: Session, plan: Plan, reviewed: str | None = None) -> None:
    """Raise RefusedError where the plan isn't the reviewed one, or does more than the limits allow."""
    check_brakes(plan, accelerator_hours(plan), session.environment.limits, reviewed)


def origin_for(session: Session, desired: Desired, plan: Plan) -> Origin:
    """Compare jobs with the checked-out commit: those that the plan submits, or all if commits are told."""
    submitted = submitted_by(plan)
    is_told = github_settings(session.config.github, os.environ, session.config.root) is not None
    if not submitted and not is_told:
        return NO_ORIGIN
    jobs = desired.jobs if is_told else submitted
    return origin_of(session.config, desired, jobs, os.environ, whole=is_told and plan.whole)


def submitted_by(plan: Plan) -> list[DesiredJob]:
    """Return the jobs that a plan submits."""
    return [c.desired for c in plan.changes if c.desired and c.action in SUBMISSIONS]


def carry_out(session: Session, applier: Applier, plan: Plan, origin: Origin) -> list[Outcome]:
    """Do what the plan says; what failed is among the outcomes.

    The commit of `origin` is owed the ends of the jobs that are made of its files. The outcomes come in an
    order that doesn't depend on who answered first: what was submitted, what couldn't be, and what was
    cancelled, each in the plan's order.
    """
    if session.is_local:
        # Elsewhere a person prepares it: one that is missing by now was emptied a moment ago.
        session.ports.claims.found()
    config = session.config
    if (origin.exact or origin.made) and github_settings(config.github, os.environ, config.root):
        skipped = partial(passed_over, config.root, origin.commit)
        open_record(session.commits, origin.commit, origin.part(plan), skipped)
    place = {id(change): number for number, change in enumerate(plan.changes)}
    with closing(applier.run(plan)) as outcomes:
        return sorted(outcomes, key=lambda one: (_ORDER.get(one.change.action, 0), place[id(one.change)]))


def settle(
    session: Session,
    applier: Applier,
    desired: Desired,
    plan: Plan,
    outcomes: Sequence[Outcome],
    origin: Origin,
) -> Settled:
    """Keep what is seen now, in claims and on the commits; that it can't be kept is no failure of the jobs.

    What isn't kept now is kept by the next pass.
    """
    problems = {
        outcome.change.desired.manifest.name: outcome.error
        for outcome in outcomes
        if outcome.change.desired and outcome.error and outcome.status is not Status.APPLIED
    }
    observed = None
    try:
        observed = observe(session.ports)
        not_kept = applier.upkeep(desired.jobs, observed)
        failed = tell_commits(session, desired, observed, origin.exact, plan.whole, problems)
    except ReconcilerError as error:
        return Settled(observed, (f"{error.message} ({error.hint})" if error.hint else error.message,))
    return Settled(observed, (*not_kept, *unposted(failed)), len(failed))


def refused(
    session: Session, applier: Applier, desired: Desired, plan: Plan, error: RefusedError, origin: Origin
) -> Settled:
    """What a pass does that a brake stops: all but what the plan says, and its commit is told why."""
    settled = settle(session, applier, desired, plan, [], origin)
    failed = tell_stop(session, origin.exact, f"refused: {error.message}")
    problems = (*settled.problems, *unposted(failed))
    return replace(settled, problems=problems, unposted=settled.unposted + len(failed))


def invalid(session: Session, commit: str, error: InvalidError) -> list[str]:
    """What is told where the manifests can't be used: how earlier commits' jobs stand, and to this one why.

    Returns:
        What couldn't be told, a sentence for each.
    """
    files = len({problem.path for problem in error.problems})
    count = f"{len(error.problems)} in {files} files" if files > 1 else f"{len(error.problems)}"
    said = f"{error.message}: {count}, see `reconciler validate`" if files else error.message
    try:
        failed = tell_commits(session, Desired((), {}), observe(session.ports), "", whole=False)
        return unposted([*failed, *tell_stop(session, commit, said)])
    except ReconcilerError as other:
        return [other.message]
