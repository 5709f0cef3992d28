"""Steps of one apply after loading, for the command and for each pass of `watch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from msgspec.structs import replace as replaced

from reconciler.base.errors import ReconcilerError, RefusedError
from reconciler.manifests.settings import Config
from reconciler.model.applied_tree import NOT_COMPARED, TreeFinding
from reconciler.model.plan import Action, DesiredJob, Plan
from reconciler.model.reason import ReasonCode, because
from reconciler.operations.execute import PATIENCE, Applier, applier_of
from reconciler.operations.lineage import read_lineage
from reconciler.operations.load_desired import Desired
from reconciler.operations.observed_state import state_of
from reconciler.operations.origin import NO_ORIGIN, Origin, origin_of
from reconciler.operations.plan import (
    accelerator_hours,
    plan_of,
    published_by,
    submitted_by,
    wanted_of,
    with_origin,
)
from reconciler.operations.publications import brought_back
from reconciler.operations.publish import PublicationApplier
from reconciler.operations.report import open_record, posts_statuses
from reconciler.operations.session import Session
from reconciler.operations.submissions import Listener as SubmissionListener
from reconciler.operations.tree import OlderTreeError, TreeCheck, tree_check
from reconciler.planning.limits import check_limits
from reconciler.planning.lineage import bringers, brought_since
from reconciler.planning.outcome import Outcome, Status, failed
from reconciler.planning.planner import SUBMISSIONS, with_publications_of
from reconciler.planning.publishing import may_be_replaced
from reconciler.planning.state import TargetState
from reconciler.submission.look import look
from reconciler.submission.observe import Observed

_ORDER = {Action.BLOCKED: 1, Action.CANCEL: 2}


class ApplyListener:
    """Receiver of an apply's progress; a subclass overrides the methods that it needs."""

    def waiting(self, line: str) -> None:
        """Receive a line about a wait."""

    def compared(self, tree: TreeFinding) -> None:
        """Receive the comparison of the checkout with the tree that was applied last."""

    def planned(self, plan: Plan, origin: Origin) -> None:
        """Receive a plan within its limits, before it is carried out."""

    def submitting(self) -> AbstractContextManager[SubmissionListener]:
        """Return a context for the time of carrying out, with a receiver of the submissions' progress."""
        return nullcontext(lambda standing: None)

    def carried_out(self, outcomes: Sequence[Outcome], origin: Origin) -> None:
        """Receive the outcomes, before the state is observed again."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of `apply`.

    Attributes:
        plan: The plan.
        origin: The commit of its jobs.
        applier: Its executor.
        outcomes: The outcomes of its changes.
        refused: The reason for a plan that wasn't carried out.
        tree: The comparison of the checkout with the tree that was applied last.
    """

    plan: Plan
    origin: Origin
    applier: Applier
    outcomes: Sequence[Outcome] = ()
    refused: RefusedError | None = None
    tree: TreeFinding = NOT_COMPARED

    @property
    def is_older(self) -> bool:
        """True if the plan wasn't carried out because of the checkout's commit: nothing is reported then."""
        return isinstance(self.refused, OlderTreeError)


def apply(
    session: Session,
    desired: Desired,
    observed: Observed,
    listener: ApplyListener,
    *,
    by_hand: bool = False,
    origin: Origin | None = None,
    reviewed: str | None = None,
    allow_older: bool = False,
    patience: float = PATIENCE,
    go_on: Callable[[], bool] = lambda: True,
) -> Applied:
    """Plan, check the limits and carry out the plan; `follow_up` updates claims and statuses afterwards.

    Args:
        by_hand: True if a person started the command: a failed set-up is tried again then.
        origin: The commit of the jobs; by default, their files are compared with the checked-out commit.
        reviewed: Digest of the reviewed plan; None without a review.
        allow_older: True if a person asked to apply the checkout although a newer one was applied.
        patience: Seconds to wait for unknown outcomes, and for cancelled jobs to end.
        go_on: Called before each submission and each wait, from any thread; False stops further ones.
    """

    def planned(observed: Observed) -> tuple[Plan, TargetState]:
        state = state_of(session, desired, observed)
        plan = plan_of(session, desired, state, by_hand=by_hand)
        return plan if origin is None else with_origin(session, plan, origin), state

    plan, state = planned(observed)
    tree = tree_check(session, desired, allow_older=allow_older)
    replaceable = [name.desired for name in state.names.values() if name.desired and may_be_replaced(name)]
    if origin is None:
        origin = _compare_with_commit(session.config, desired, plan, replaceable)
        plan = with_origin(session, plan, origin)
    applier = applier_of(session, desired, origin.commit_of, patience, listener.waiting, go_on)
    applied = Applied(plan, origin, replace(applier, withheld=tree.withheld))
    # Limits are checked against the whole plan, before anything of it is shown or carried out.
    try:
        listener.compared(tree.check())
        _check_limits(session, plan, reviewed)
    except RefusedError as error:
        return replace(applied, refused=error, tree=tree.finding)
    origin, brought, record = _attributed(session, desired, observed, plan, origin, tree, replaceable)
    plan, state = _with_brought_back(session, desired, plan, state, brought)
    applied = replace(applied, plan=plan, origin=origin)
    listener.planned(plan, origin)
    try:
        with listener.submitting() as progress:
            applier = replace(applied.applier, listener=progress, commit_of=origin.commit_of)
            outcomes = carry_out(session, applier, plan, tree, record)
            is_reviewed = reviewed is not None
            plan, more = _return_ended(session, desired, applier, plan, planned, is_reviewed=is_reviewed)
    except OlderTreeError as error:
        # Another apply has recorded its commit since the comparison.
        return replace(applied, refused=error, tree=tree.finding)
    publisher = PublicationApplier(session, desired, state, origin, brought, tree.withheld, listener.waiting)
    outcomes += [*more, *publisher.run(plan)]
    listener.carried_out(outcomes, origin)
    return replace(applied, plan=plan, outcomes=outcomes, tree=tree.finding)


def _return_ended(
    session: Session,
    desired: Desired,
    applier: Applier,
    plan: Plan,
    planned: Callable[[Observed], tuple[Plan, TargetState]],
    *,
    is_reviewed: bool,
) -> tuple[Plan, list[Outcome]]:
    """Wait for cancelled jobs that are wanted again to end, and submit their contents again.

    Args:
        plan: The plan that was carried out.
        planned: Makes a plan of the same jobs, and the state that it is made of.
        is_reviewed: True if only what was reviewed is carried out: then nothing is submitted here.

    Returns:
        The plan with the later changes of these jobs, and their outcomes.
    """
    awaited = [change for change in plan.changes if change.is_awaited]
    if is_reviewed or not awaited:
        reason = because(ReasonCode.RETURN_NOT_REVIEWED)
        return plan, [Outcome(change, Status.SKIPPED, reason=reason) for change in awaited]
    outcomes = [*applier.await_ends(plan)]
    ended = {outcome.change.base_name for outcome in outcomes if outcome.status is Status.APPLIED}
    unended = [outcome for outcome in outcomes if outcome.status is not Status.APPLIED]
    if not ended:
        return plan, unended
    try:
        again, _ = planned(look(session.ports, wanted_of(desired.jobs)).observed)
    except ReconcilerError as error:
        return plan, [*unended, *(failed(change, error) for change in awaited)]
    later = [change for change in again.changes if change.base_name in ended]
    others = (change for change in plan.changes if change.base_name not in ended)
    merged = replaced(plan, changes=(*others, *later))
    try:
        _check_limits(session, merged)
    except RefusedError as error:
        refused = RefusedError(f"with what this apply has done already, {error.message}", hint="apply again")
        unmade = (change for change in later if change.action in SUBMISSIONS)
        return plan, [*unended, *(failed(change, refused) for change in unmade)]
    # The commit's record has these jobs already, as jobs that haven't ended.
    with closing(applier.run(replaced(plan, changes=tuple(later)))) as submitted:
        return merged, [*unended, *submitted]


def _check_limits(session: Session, plan: Plan, reviewed: str | None = None) -> None:
    limits = session.environment.limits
    check_limits(plan, accelerator_hours(plan, limits), limits, reviewed)


def _compare_with_commit(
    config: Config, desired: Desired, plan: Plan, also: Sequence[DesiredJob] = ()
) -> Origin:
    """Compare jobs with the checked-out commit: the submitted and published ones, or all for statuses.

    Args:
        also: Other jobs to compare.
    """
    compared, posts = [*submitted_by(plan), *published_by(plan), *also], posts_statuses(config)
    if not compared and not posts:
        return NO_ORIGIN
    # Without statuses, only the commits of new runs and of publications depend on the comparison.
    jobs = desired.jobs if posts else compared
    return origin_of(config, desired, jobs, os.environ, whole=posts and plan.whole)


def _attributed(
    session: Session,
    desired: Desired,
    observed: Observed,
    plan: Plan,
    origin: Origin,
    tree: TreeCheck,
    replaceable: Sequence[DesiredJob],
) -> tuple[Origin, Collection[str], Callable[[], None]]:
    """Return the origin with the commits that brought the jobs, and a function that records owed statuses.

    Between them are the base names whose content the checked-out commit brought, or one that it passed over,
    as far as they are known.

    Args:
        replaceable: The jobs with a model in its place that another commit's apply may replace: with those
            that this commit brought back, it is recorded again.
    """
    posts = posts_statuses(session.config) and not tree.finding.is_behind
    # The first apply of a commit has found that out.
    again = bool(replaceable and tree.applied and tree.applied.commit != origin.commit)
    if not (origin.exact or origin.made) or not (posts or submitted_by(plan) or again):
        return origin, (), lambda: None
    versions = session.commits.all() if posts else {}
    records = {sha: versioned.record for sha, versioned in versions.items()}
    lineage = read_lineage(
        session.config,
        session.environment,
        desired,
        origin,
        records,
        tree.applied,
        os.environ,
        goes_back=bool(tree.replaced),
    )
    brought_by = bringers(plan, lineage, origin.commit, records.values(), observed.claims)
    origin = replaced(origin, brought_by=brought_by)
    names = {c.desired.manifest.base_name for c in plan.changes if c.desired}
    own_names = {name for name in names if lineage.brought(name) or brought_by.get(name) == origin.commit}
    jobs = [c.desired for c in plan.changes if c.desired]
    brought = own_names | brought_since(lineage, records.values(), jobs)
    if not posts:
        return origin, brought if again else (), lambda: None
    part = origin.part(plan)
    # Statuses of passed-over commits need all jobs of the commit.
    owed_lineage = lineage if part.whole else replaced(lineage, passed_over={}, parts=())
    record = partial(
        open_record, session.commits, versions, origin.commit, part, owed_lineage, own_names, tree.replaced
    )
    return origin, brought, record


def _with_brought_back(
    session: Session, desired: Desired, plan: Plan, state: TargetState, brought: Collection[str]
) -> tuple[Plan, TargetState]:
    """Return plan and state with the publications that the commit has to record again as its own."""
    again = brought_back(session, desired, state, brought)
    changed = [name for base, name in again.names.items() if name is not state.names[base]]
    return (with_publications_of(plan, changed) if changed else plan), again


def publish_ended(session: Session, desired: Desired, applied: Applied, listener: ApplyListener) -> Applied:
    """Publish the models of runs that have succeeded since; return the result of both.

    Raises:
        ServiceError: The service can't be read.
    """
    observed = look(session.ports, wanted_of(desired.jobs)).observed
    state = state_of(session, desired, observed)
    plan = plan_of(session, desired, state)
    origin = applied.origin
    if not session.is_exported:
        origin = _compare_with_commit(session.config, desired, plan)
    plan = with_origin(session, plan, origin)
    done = {outcome.change.base_name for outcome in applied.outcomes if outcome.change.publication}
    changes = tuple(c for c in plan.changes if c.publication and c.base_name not in done)
    publisher = PublicationApplier(
        session, desired, state, origin, (), applied.applier.withheld, listener.waiting
    )
    blocked = (Outcome(c, Status.SKIPPED, reason=c.reason) for c in changes if c.action is Action.BLOCKED)
    outcomes = (*applied.outcomes, *blocked, *publisher.run(replaced(plan, changes=changes)))
    merged = replaced(applied.plan, changes=(*applied.plan.changes, *changes))
    return replace(applied, plan=merged, outcomes=outcomes)


def carry_out(
    session: Session,
    applier: Applier,
    plan: Plan,
    tree: TreeCheck | None = None,
    record: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Carry out a plan; return its outcomes, failures among them, in the plan's order.

    Submissions come first, then blocked jobs, then cancellations. Before them, `tree` records the commit, and
    `record` the statuses that are owed.

    Raises:
        OlderTreeError: Since the comparison, another apply has recorded a commit that forbids this one.
    """
    if session.is_local:
        # In Google Cloud `reconciler init --claims` does this. If apply did, it would accept a claims bucket
        # that was emptied by mistake, and submit every job again.
        session.ports.claims.prepare()
    if tree:
        tree.record()
    # The record comes first: after a crash the next pass posts the statuses of what was submitted.
    record()
    rank = {id(change): number for number, change in enumerate(plan.changes)}
    with closing(applier.run(plan)) as outcomes:
        # Submissions run concurrently; the order must not depend on the service's response times.
        return sorted(outcomes, key=lambda o: (_ORDER.get(o.change.action, 0), rank[id(o.change)]))
