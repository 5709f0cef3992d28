"""What follows an apply: updates of claims and commit statuses, and the wait for the ends of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from reconciler.base.errors import InvalidError, NotFoundError, ReconcilerError
from reconciler.google.session import Session
from reconciler.manifests.settings import Config
from reconciler.model.job import ActualJob
from reconciler.model.plan import Plan
from reconciler.model.ports import Ports
from reconciler.operations.apply import Applied
from reconciler.operations.load_desired import Desired
from reconciler.operations.plan import wanted_of
from reconciler.operations.report import (
    denied_sentences,
    post_invalid,
    post_reason,
    post_statuses,
    posts_statuses,
    record_keys,
    unposted_sentences,
)
from reconciler.planning.outcome import Outcome, Status
from reconciler.planning.planner import SUBMISSIONS
from reconciler.reporting.github.statuses import Failed
from reconciler.submission.claims_upkeep import with_reason
from reconciler.submission.look import FULL_AFTER, keep_summary, look
from reconciler.submission.observe import Observed


@dataclass(frozen=True, slots=True)
class FollowUp:
    """State after an apply.

    Attributes:
        observed: Claims and runs; None if the service could not be read.
        problems: Claims and statuses that could not be updated, a sentence for each.
        unposted: The number of commit statuses that could not be posted.
        denied: Those problems whose reason is a permission that the workflow lacks.
    """

    observed: Observed | None
    problems: tuple[str, ...] = ()
    unposted: int = 0
    denied: tuple[str, ...] = ()


def load_or_report(
    config: Config,
    load: Callable[[], Desired],
    open_session: Callable[[], AbstractContextManager[Session]],
    commit_of_files: Callable[[], str | None],
    reported: Callable[[FollowUp], None],
) -> Desired:
    """Load the desired jobs; if statuses are posted, report invalid manifests to their commit.

    Args:
        open_session: Opens the environment, only for a report.
        commit_of_files: Returns the commit that equals the files; None for none.
        reported: Called after a report.

    Raises:
        InvalidError: The manifests, or the settings for GitHub, are invalid.
    """
    # Checked first, so that an invalid setting stops an apply before its first write.
    if not posts_statuses(config):
        return load()
    before = commit_of_files()
    try:
        return load()
    except InvalidError as error:
        with open_session() as session:
            # Files that could not be read completely can't be compared: the commit before and after loading
            # reveals a switch of branches.
            commit = before if before and commit_of_files() == before else ""
            try:
                report = _with_failed(FollowUp(None), post_invalid(session, commit, error))
            except ReconcilerError as other:
                report = FollowUp(None, (other.message,), 1)
        reported(report)
        raise


def _with_failed(report: FollowUp, failed: Sequence[Failed]) -> FollowUp:
    """Add statuses that could not be posted."""
    return replace(
        report,
        problems=(*report.problems, *unposted_sentences(failed)),
        unposted=report.unposted + len(failed),
        denied=(*report.denied, *denied_sentences(failed)),
    )


def follow_up(
    session: Session,
    desired: Desired,
    applied: Applied,
    *,
    full: bool = False,
    full_after: timedelta | None = FULL_AFTER,
) -> FollowUp:
    """Update claims and commit statuses with the observed state; post the reason for a refused plan.

    Errors become problems of the result, since the jobs are not affected; the next pass tries again. `full`
    and `full_after` are those of `look`. A plan that was refused for its checkout's commit leaves everything
    as it is: the claims and statuses are those of the newer commit.
    """
    if applied.is_older:
        return FollowUp(None)
    state = _update(session, desired, applied, full, full_after)
    if applied.refused is None:
        return state
    refused = f"refused: {applied.refused.message}"
    return _with_failed(state, post_reason(session, applied.origin.exact, refused))


def _update(
    session: Session, desired: Desired, applied: Applied, full: bool, full_after: timedelta | None
) -> FollowUp:
    errors = {
        outcome.change.desired.manifest.name: outcome.error
        for outcome in applied.outcomes
        if outcome.change.desired and outcome.error and outcome.status is not Status.APPLIED
    }
    observed = None
    try:
        # Observed again after the changes: a claim must not get a state from before them.
        wanted, also = wanted_of(desired.jobs), record_keys(session)
        seen = look(session.ports, wanted, also, full=full, full_after=full_after)
        observed = seen.observed
        not_updated = applied.applier.upkeep(desired.jobs, observed)
        keep_summary(session.ports, seen, wanted, also, whole=applied.plan.whole)
        # The statuses of a checkout that is behind are those of the newer commit.
        failed = []
        if not applied.tree.is_behind:
            failed = post_statuses(session, desired, observed, applied.origin.exact, errors)
    except ReconcilerError as error:
        return FollowUp(observed, (f"{error.message} ({error.hint})" if error.hint else error.message,))
    return _with_failed(FollowUp(observed, (*not_updated,)), failed)


_READ_ALONE = 10
"""Jobs that a poll reads one by one; for more of them, one listing is cheaper."""

JobsListener = Callable[[tuple[ActualJob, ...]], None]


@dataclass(frozen=True, order=True, slots=True)
class Awaited:
    """Job to wait for, by its resource name: several jobs may share a display name."""

    api_version: str
    kind: str
    resource: str


def awaited(job: ActualJob) -> Awaited:
    """Return the identification of a job for `wait`."""
    return Awaited(job.api_version, job.kind, job.resource)


def unended(plan: Plan, outcomes: Sequence[Outcome]) -> frozenset[Awaited]:
    """Return the submitted and the desired jobs, except those that had ended when the plan was made."""
    ended = {c.actual.resource for c in plan.changes if c.actual and c.actual.state.ended}
    submitted = {
        Awaited(job.manifest.api_version, job.manifest.kind, outcome.resource)
        for outcome in outcomes
        if outcome.status is Status.APPLIED
        and (job := outcome.change.desired)
        and outcome.resource not in ended
    }
    live = {
        awaited(change.actual)
        for change in plan.changes
        # A submission's actual job may be a different one, which it didn't adopt.
        if change.desired and change.actual and change.action not in SUBMISSIONS
        if not change.actual.state.ended
    }
    return frozenset(submitted | live)


def wait(
    ports: Ports, jobs: Collection[Awaited], listener: JobsListener, pause: float
) -> tuple[ActualJob, ...]:
    """Wait until all jobs have ended; return them sorted by name, without deleted jobs.

    After each poll, the listener gets the existing jobs, sorted by name; `pause` is in seconds.

    Raises:
        ServiceError: The service can't be read.
    """
    found: dict[Awaited, ActualJob] = {}
    while True:
        # An ended job is not read again: its state is final.
        ended = {key: job for key, job in found.items() if job.state.ended}
        polled = _poll(ports, set(jobs) - ended.keys())
        found = ended | {key: with_reason(ports, job) if job.state.ended else job for key, job in polled}
        existing = tuple(sorted(found.values(), key=lambda job: (job.job_name, job.resource)))
        listener(existing)
        if all(job.state.ended for job in existing):
            return existing
        ports.clock.sleep(pause)


def _poll(ports: Ports, jobs: Collection[Awaited]) -> Iterator[tuple[Awaited, ActualJob]]:
    """Yield the current state of the jobs that exist."""
    # Of a listing of the live jobs, those that have ended since are missing; each is read once.
    listed = {job.resource: job for job in ports.jobs.live()} if len(jobs) > _READ_ALONE else {}
    for key in sorted(jobs):
        job = listed.get(key.resource)
        # A deleted job's end can't be known.
        with suppress(NotFoundError):
            # A listing may lack a job that was created a moment ago.
            yield key, job or ports.jobs.read(key.api_version, key.kind, key.resource)
