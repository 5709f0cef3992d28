"""Steps of one apply after planning: limits, changes, claims, commit statuses, and the wait for jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from reconciler.base.errors import InvalidError, NotFoundError, ReconcilerError, RefusedError
from reconciler.git.commit import passed_over
from reconciler.google.session import Session
from reconciler.model.job import ActualJob
from reconciler.model.plan import Action, DesiredJob, Plan
from reconciler.model.ports import Ports
from reconciler.operations.execute import Applier
from reconciler.operations.load_desired import Desired
from reconciler.operations.origin import NO_ORIGIN, Origin, origin_of
from reconciler.operations.plan import accelerator_hours
from reconciler.operations.report import open_record, post_reason, post_statuses, unposted_sentences
from reconciler.planning.limits import SUBMISSIONS, check_brakes
from reconciler.planning.outcome import Outcome, Status
from reconciler.reporting.github.settings import github_settings
from reconciler.submission.observe import Observed, observe

JobsListener = Callable[[tuple[ActualJob, ...]], None]

_ORDER = {Action.BLOCKED: 1, Action.CANCEL: 2}


@dataclass(frozen=True, slots=True)
class Settled:
    """State after a pass.

    Attributes:
        observed: Claims and runs; None if the service could not be read.
        problems: Claims and statuses that could not be updated, a sentence for each.
        unposted: The number of commit statuses that could not be posted.
    """

    observed: Observed | None
    problems: tuple[str, ...] = ()
    unposted: int = 0


def check_limits(session: Session, plan: Plan, reviewed: str | None = None) -> None:
    """Raise RefusedError if the plan isn't the reviewed plan, or exceeds the limits."""
    check_brakes(plan, accelerator_hours(plan), session.environment.limits, reviewed)


def origin_for(session: Session, desired: Desired, plan: Plan) -> Origin:
    """Compare jobs with the checked-out commit: the submitted jobs, or all jobs if statuses are posted."""
    submitted = submitted_by(plan)
    posts_statuses = github_settings(session.config.github, os.environ, session.config.root) is not None
    if not submitted and not posts_statuses:
        return NO_ORIGIN
    # Without statuses, only the commit label of new runs depends on the comparison.
    jobs = desired.jobs if posts_statuses else submitted
    return origin_of(session.config, desired, jobs, os.environ, whole=posts_statuses and plan.whole)


def submitted_by(plan: Plan) -> list[DesiredJob]:
    """Return the jobs that a plan submits."""
    return [c.desired for c in plan.changes if c.desired and c.action in SUBMISSIONS]


def carry_out(session: Session, applier: Applier, plan: Plan, origin: Origin) -> list[Outcome]:
    """Carry out a plan; return its outcomes, failures among them, in the plan's order.

    Submissions come first, then blocked jobs, then cancellations.
    """
    if session.is_local:
        # In Google Cloud `reconciler init --claims` does this. If apply did, it would accept a claims bucket
        # that was emptied by mistake, and submit every job again.
        session.ports.claims.prepare()
    config = session.config
    if (origin.exact or origin.made) and github_settings(config.github, os.environ, config.root):
        # The record comes first: after a crash the next pass posts the statuses of what was submitted.
        skipped = partial(passed_over, config.root, origin.commit)
        open_record(session.commits, origin.commit, origin.part(plan), skipped)
    place = {id(change): number for number, change in enumerate(plan.changes)}
    with closing(applier.run(plan)) as outcomes:
        # Submissions run concurrently; the order must not depend on the service's response times.
        return sorted(outcomes, key=lambda o: (_ORDER.get(o.change.action, 0), place[id(o.change)]))


def settle(
    session: Session,
    applier: Applier,
    desired: Desired,
    plan: Plan,
    outcomes: Sequence[Outcome],
    origin: Origin,
) -> Settled:
    """Update claims and commit statuses with the observed state.

    Errors become problems of the result, since the jobs are not affected; the next pass tries again.
    """
    problems = {
        outcome.change.desired.manifest.name: outcome.error
        for outcome in outcomes
        if outcome.change.desired and outcome.error and outcome.status is not Status.APPLIED
    }
    observed = None
    try:
        # Observed again after the changes: a claim must not get a state from before them.
        observed = observe(session.ports)
        not_updated = applier.upkeep(desired.jobs, observed)
        failed = post_statuses(session, desired, observed, origin.exact, plan.whole, problems)
    except ReconcilerError as error:
        return Settled(observed, (f"{error.message} ({error.hint})" if error.hint else error.message,))
    return Settled(observed, (*not_updated, *unposted_sentences(failed)), len(failed))


def refused(
    session: Session, applier: Applier, desired: Desired, plan: Plan, error: RefusedError, origin: Origin
) -> Settled:
    """Update claims and commit statuses after a refused plan, and post the reason to its commit."""
    settled = settle(session, applier, desired, plan, [], origin)
    failed = post_reason(session, origin.exact, f"refused: {error.message}")
    problems = (*settled.problems, *unposted_sentences(failed))
    return replace(settled, problems=problems, unposted=settled.unposted + len(failed))


def invalid(session: Session, commit: str, error: InvalidError) -> list[str]:
    """Update earlier commits' statuses when manifests are invalid, and post the reason to this commit.

    Returns:
        Statuses that could not be posted, a sentence for each.
    """
    files = len({problem.path for problem in error.problems})
    count = f"{len(error.problems)} in {files} files" if files > 1 else f"{len(error.problems)}"
    reason = f"{error.message}: {count}, see `reconciler validate`" if files else error.message
    try:
        failed = post_statuses(session, Desired((), {}), observe(session.ports), "", whole=False)
        return unposted_sentences([*failed, *post_reason(session, commit, reason)])
    except ReconcilerError as other:
        return [other.message]


@dataclass(frozen=True, order=True, slots=True)
class Awaited:
    """Job to wait for, by its resource name: several jobs may share a display name."""

    api_version: str
    kind: str
    resource: str


def awaited(job: ActualJob) -> Awaited:
    """Return the identification of a job for `wait`."""
    return Awaited(job.api_version, job.kind, job.resource)


def wait(ports: Ports, jobs: Collection[Awaited], tell: JobsListener, pause: float) -> tuple[ActualJob, ...]:
    """Wait until all jobs have ended; return them sorted by name, without deleted jobs.

    Args:
        ports: The target.
        jobs: The jobs to wait for.
        tell: Called after each poll with the existing jobs, sorted by name.
        pause: Seconds between two polls.

    Raises:
        ServiceError: The service can't be read.
    """
    ended: dict[Awaited, ActualJob] = {}
    while True:
        live = []
        # An ended job is not read again: its state is final.
        for key, job in _poll(ports, set(jobs) - ended.keys()):
            if job.state.ended:
                ended[key] = job
            else:
                live.append(job)
        tell(_sorted([*ended.values(), *live]))
        if not live:
            return _sorted(ended.values())
        ports.clock.sleep(pause)


def _poll(ports: Ports, jobs: Collection[Awaited]) -> Iterator[tuple[Awaited, ActualJob]]:
    """Yield the current state of the jobs that exist."""
    listed = {job.resource: job for job in ports.jobs.runs()}
    for key in sorted(jobs):
        job = listed.get(key.resource)
        try:
            # A listing may lack a job that was created a moment ago.
            yield key, job or ports.jobs.read(key.api_version, key.kind, key.resource)
        except NotFoundError:
            # A deleted job's end can't be known.
            continue


def _sorted(jobs: Collection[ActualJob]) -> tuple[ActualJob, ...]:
    return tuple(sorted(jobs, key=lambda job: (job.job_name, job.resource)))
