"""The record of a commit, from the plan that is about to be carried out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from reconciler.model.commit_record import CommitRecord, WantedJob
from reconciler.model.job import State
from reconciler.model.plan import Action, Change, Plan
from reconciler.planning.attempts import keys_of
from reconciler.reporting.status_rules import changes_of, is_suspended


def record_for(
    plan: Plan, blank: CommitRecord, earlier: CommitRecord | None, brought: Collection[str]
) -> CommitRecord:
    """Return the record of a commit whose plan is about to be executed.

    Args:
        plan: The plan.
        blank: A record without jobs that names the commit and its time.
        earlier: The record of an earlier apply, or of one that passed the commit over.
        brought: The jobs that the commit brought, by base name with '-' as '_'.
    """
    before = earlier or replace(blank, whole=False)
    number = max(before.number, blank.number)
    jobs = {
        name: replace(_recorded(change), brought=change.base_name.replace("-", "_") in brought)
        for name, change in changes_of(plan).items()
        if not is_suspended(change)
    }
    is_known = before.number == number and _keys(before.jobs) == _keys(jobs)
    if before.closed and is_known and all(job.settled for job in jobs.values()):
        return before
    jobs = {name: _kept(before, name, job) for name, job in jobs.items()}
    if not plan.whole:
        jobs = {**before.jobs, **jobs}
    # The record of a commit that was passed over doesn't have all of its jobs.
    whole = plan.whole or (before.whole and before.number > 0)
    applied = before.applied if before.number == number else blank.applied
    return replace(
        before,
        number=number,
        jobs=jobs,
        whole=whole,
        superseded_by="",
        closed=False,
        told="" if before.closed else before.told,
        seen=None if before.closed else before.seen,
        applied=applied,
        replaced_by="",
        problem="",
    )


def may_fail(jobs: Mapping[str, WantedJob], plan: Plan) -> dict[str, WantedJob]:
    """Return the jobs whose runs, as far as the plan shows, haven't succeeded: the others need no record."""
    changes = changes_of(plan)
    open_jobs = {}
    for name, job in jobs.items():
        change = changes.get(name)
        if change is None or change.desired is None or set(job.keys).isdisjoint(keys_of(change.desired)):
            open_jobs[name] = job
        elif change.actual is None or change.actual.state is not State.SUCCEEDED:
            open_jobs[name] = replace(job, settled=_recorded(change).settled)
    return open_jobs


def _kept(before: CommitRecord, name: str, job: WantedJob) -> WantedJob:
    """Return a job with what an earlier record says of it."""
    earlier = before.jobs.get(name)
    if earlier is None or earlier.keys != job.keys:
        return job
    # A job that ended since the earlier apply still needs its status, unless its record was closed.
    settled = job.settled if before.closed else earlier.settled
    return replace(job, settled=settled, brought=job.brought or earlier.brought)


def _keys(jobs: Mapping[str, WantedJob]) -> dict[str, tuple[str, ...]]:
    return {name: job.keys for name, job in jobs.items()}


def _recorded(change: Change) -> WantedJob:
    assert change.desired is not None, "only wanted jobs are recorded"
    is_live = change.actual is not None and not change.actual.state.ended
    settled = change.action is Action.NONE and not is_live
    job = change.desired
    return WantedJob(keys_of(job), settled=settled, expect=job.manifest.expect, publish=job.publish)
