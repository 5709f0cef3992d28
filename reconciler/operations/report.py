"""Commit statuses: recorded as owed before submission, posted, and closed once confirmed."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import InvalidError, ServiceError
from reconciler.manifests.settings import Config
from reconciler.model.commit_record import CommitRecord
from reconciler.model.plan import Plan
from reconciler.model.ports import CommitStore, VersionedRecord
from reconciler.operations.load_desired import Desired
from reconciler.operations.merge_comments import MergeComments, Untold
from reconciler.operations.observed_state import state_of
from reconciler.operations.origin import Origin
from reconciler.operations.plan import plan_of
from reconciler.operations.session import Session
from reconciler.planning.lineage import MOST_APPLIED, Lineage, applied_last, newest_of, newest_whole
from reconciler.planning.planner import SUBMISSIONS
from reconciler.planning.state import TargetState
from reconciler.reporting.commit_record import may_fail, record_for
from reconciler.reporting.github.contexts import contexts_of
from reconciler.reporting.github.settings import GitHubSettings, github_settings
from reconciler.reporting.github.statuses import Failed, GitHubReporter, Outdated, Posted
from reconciler.reporting.new_failures import NewFailures, new_failures
from reconciler.reporting.status import CommitStatus, invalid_text, plain_status
from reconciler.reporting.status_rules import (
    DueStatuses,
    View,
    drift_status,
    due_statuses,
    duplicate_statuses,
    may_turn,
    reopened,
)
from reconciler.submission.look import look
from reconciler.submission.observe import Observed

TRIES = 5
"""Number of attempts to write a record that other writers change at the same time."""

LINGERING = timedelta(days=1)
"""Time for which a record stays open after all its statuses were confirmed.

A slow reporter may still post older statuses over the current ones: GitHub has no compare-and-swap.
"""

SLOWEST = timedelta(minutes=15)
"""Time after which statuses that aren't final are looked at once more.

A reporter that read the commit before they were posted may still have covered them, and have died since. It
posts nothing later than `statuses.FRESH` seconds after it read, and the longest wait for a limit.
"""

PATIENCE = timedelta(days=30)
"""Time for which a commit that GitHub doesn't know may still be pushed."""


class Reported(Struct, frozen=True):
    """Result of a report.

    Attributes:
        failed: The statuses that could not be posted.
        failures: The failed ends that it was the first to post.
        untold: Why pull requests could not be told of ends.
    """

    failed: Sequence[Failed] = ()
    failures: NewFailures = NewFailures()
    untold: Sequence[Untold] = ()


class Reporter(Protocol):
    """Destination of commit statuses."""

    def report(self, sha: str, statuses: Iterable[CommitStatus]) -> list[Posted | Outdated | Failed]:
        """Post the statuses that differ from the commit's current ones; return an outcome for each."""


def open_record(
    store: CommitStore,
    records: Mapping[str, VersionedRecord],
    commit: str,
    plan: Plan,
    lineage: Lineage,
    own_names: Collection[str],
    replaced: str = "",
) -> None:
    """Record the statuses that a commit is owed, before the first submission of its plan.

    Args:
        store: The records.
        records: What was read of them for the lineage: the next apply sees that another one opened its
            record meanwhile.
        commit: The commit.
        plan: Its plan.
        lineage: Where its jobs come from, and the commits that were passed over.
        own_names: The jobs that it brought, by base name with '-' as '_'.
        replaced: The newer commit that a person asked to replace by this one; "" for none.

    Raises:
        ServiceError: The record can't be written, so the jobs' ends could not be reported.
    """
    now = store.now()
    newest = newest_of(versioned.record for versioned in records.values())
    carriers = [sha for sha, passed in lineage.passed_over.items() if passed.jobs]
    last = (*carriers, *applied_last(newest, {sha: versioned.record for sha, versioned in records.items()}))
    applied = (*newest.applied, *last) if newest else ()
    _open_passed_over(store, records, CommitRecord("", now), lineage, commit, plan)
    # A further attempt changes what earlier commits show. Should the write fail, `report` opens them.
    submitted = {change.key for change in plan.changes if change.action in SUBMISSIONS}
    for sha, other in records.items():
        keys = {key for job in other.record.jobs.values() for key in job.keys}
        is_due = other.record.closed and not keys.isdisjoint(submitted)
        if sha != commit and sha == replaced:
            store.write(replace(other.record, closed=False, replaced_by=commit), other.generation)
        elif sha != commit and is_due:
            store.write(replace(other.record, closed=False), other.generation)
    for _ in range(TRIES):
        versioned = records.get(commit)
        others = (other.record.number for sha, other in records.items() if sha != commit)
        # A repeated apply of the newest commit keeps its number.
        number = 1 + max(others, default=0)
        blank = CommitRecord(commit, now, number, applied=applied[-MOST_APPLIED:])
        record = record_for(plan, blank, versioned.record if versioned else None, own_names)
        if versioned and versioned.record == record:
            return
        # The write fails if the record changed since it was read; generation 0 means that it must not exist.
        if store.write(record, versioned.generation if versioned else 0):
            return
        records = store.all()
    raise ServiceError(
        f"the statuses to post for commit {commit[:7]} can't be recorded: other processes keep changing them",
        hint="try again",
    )


def _open_passed_over(
    store: CommitStore,
    records: Mapping[str, VersionedRecord],
    blank: CommitRecord,
    lineage: Lineage,
    commit: str,
    plan: Plan,
) -> None:
    """Record the statuses of commits that were passed over; an apply that ended here is done again."""
    for sha in lineage.parts:
        if sha not in records:
            store.write(replace(blank, sha=sha, superseded_by=commit), 0)
    for sha, passed in lineage.passed_over.items():
        versioned = records.get(sha)
        if versioned is None:
            jobs = {**passed.jobs, **may_fail(passed.standing, plan)}
            opened = replace(blank, sha=sha, jobs=jobs, problem=passed.problem, told_apart=True)
            store.write(opened, 0)
            continue
        if versioned.record.number and versioned.record.whole:
            continue
        # Of an applied commit, a person may have applied some jobs only; of another one, an apply before this
        # one may have recorded the jobs of earlier commits.
        kept_jobs = {
            n: job for n, job in versioned.record.jobs.items() if versioned.record.number or not job.brought
        }
        jobs = {
            **passed.jobs,
            **{
                name: replace(job, brought=job.brought or name in passed.jobs)
                for name, job in kept_jobs.items()
            },
        }
        again = replace(
            versioned.record, jobs=jobs, problem=passed.problem, superseded_by="", told_apart=True
        )
        if again != versioned.record:
            store.write(replace(again, closed=False, told="", seen=None), versioned.generation)


def report(
    store: CommitStore, reporter: Reporter, view: View, teller: MergeComments | None = None
) -> Reported:
    """Post the new statuses of every commit with an open record; tell its pull request how its jobs ended.

    A record is closed once its final statuses are confirmed again a day after their first confirmation. Of
    the closed records the newest is kept, which lists the commits that were applied last, and those with a
    failed job that may be attempted again.

    Raises:
        ServiceError: The records can't be read or written.
    """
    records = _reopened(store, view)
    newest = newest_of(versioned.record for versioned in records.values())
    open_ = [versioned for versioned in records.values() if not versioned.record.closed]
    # The store's clock costs a request: only statuses that were posted and not yet confirmed need it.
    now = store.now() if any(versioned.record.told and versioned.record.seen for versioned in open_) else None
    # Newest first: if GitHub accepts only some statuses, those of the commits that people look at are posted.
    by_age = sorted(open_, key=lambda versioned: (-versioned.record.number, versioned.record.sha))
    all_due = [(versioned, due_statuses(view, versioned.record, newest)) for versioned in by_age]
    owed = [
        (versioned, due)
        for versioned, due in all_due
        # Unchanged statuses that aren't final were posted by an earlier pass.
        if due.final or due.digest != versioned.record.told or _is_to_be_confirmed(versioned.record, now)
    ]
    outcomes = _post(reporter, _by_commit(view, [due for _, due in owed]))
    failed = [one for of_commit in outcomes.values() for one in of_commit if isinstance(one, Failed)]
    changed = {sha for sha, of_commit in outcomes.items() if of_commit}
    failures = new_failures(
        ((versioned.record.sha, due) for versioned, due in owed), outcomes, view.contexts.overall
    )
    incomplete = {failure.sha for failure in failed}
    for versioned, due in owed:
        confirmed = changed.isdisjoint(due.by_commit)
        written = True
        if due.final:
            written = _close(store, versioned, confirmed=confirmed)
        elif incomplete.isdisjoint(due.by_commit):
            is_settled = confirmed and due.digest == versioned.record.told
            record = replace(versioned.record, told=due.digest, seen=None if is_settled else store.now())
            written = store.write(record, versioned.generation)
        # A concurrent writer may have newer facts than the statuses posted here.
        if not (written or confirmed):
            _post_again(store, versioned.record.sha)
    due_by_sha = {versioned.record.sha: due for versioned, due in all_due}
    untold = _tell(store, teller, due_by_sha) if teller else ()
    _tidy(store, view, {failure.sha for failure in failed if failure.unknown_commit})
    return Reported(failed, failures, untold)


def _tell(store: CommitStore, teller: MergeComments, due: Mapping[str, DueStatuses]) -> list[Untold]:
    """Tell the pull requests of commits with new ends; return why some could not be told."""
    news = {sha: digest for sha, statuses in due.items() if (digest := statuses.digest_of_ends)}
    if not news:
        return []
    reasons = set[Untold]()
    # Posting has written some records.
    for sha, versioned in store.all().items():
        digest = news.get(sha, "")
        if digest in ("", versioned.record.commented):
            continue
        if reason := teller.tell(sha, due[sha]):
            reasons.add(reason)
        else:
            # Where another process writes it meanwhile, the next pass finds the comment as it should be.
            store.write(replace(versioned.record, commented=digest), versioned.generation)
    return sorted(reasons)


def _is_to_be_confirmed(record: CommitRecord, now: datetime | None) -> bool:
    return bool(now and record.told and record.seen and now - record.seen > SLOWEST)


def _close(store: CommitStore, versioned: VersionedRecord, *, confirmed: bool) -> bool:
    """Close a record once its statuses were confirmed for LINGERING; return False on a concurrent write."""
    record, now = versioned.record, store.now()
    # Of statuses that weren't final it is another time.
    seen = None if record.told else record.seen
    if confirmed and seen and now - seen > LINGERING:
        return store.write(replace(record, closed=True, told="", seen=None), versioned.generation)
    # A status that had to be posted again restarts the time.
    if confirmed != (seen is not None):
        return store.write(replace(record, told="", seen=now if confirmed else None), versioned.generation)
    return True


def _post_again(store: CommitStore, sha: str) -> None:
    """Have the next pass post a commit's statuses again."""
    for _ in range(TRIES):
        versioned = store.all().get(sha)
        if versioned is None:
            return
        record = replace(versioned.record, closed=False, told="", seen=None)
        if versioned.record == record or store.write(record, versioned.generation):
            return


def _reopened(store: CommitStore, view: View) -> Mapping[str, VersionedRecord]:
    """Return the records; reopen closed ones if a job's reported result has changed, or will."""
    records = store.all()
    newest = newest_of(versioned.record for versioned in records.values())
    changed = False
    for versioned in records.values():
        record = versioned.record
        again = reopened(view, record, newest) if newest and (record.closed or record == newest) else record
        if again != record:
            store.write(again, versioned.generation)
            changed = True
    return store.all() if changed else records


def _by_commit(view: View, due: Iterable[DueStatuses]) -> dict[str, list[CommitStatus]]:
    """Return the statuses by commit; a status that several records owe appears once."""
    by_commit: dict[str, dict[str, CommitStatus]] = defaultdict(dict)
    for sha, statuses in duplicate_statuses(view).items():
        by_commit[sha] |= {status.context: status for status in statuses}
    # Keyed by context, so that GitHub gets each status once, however many records owe it.
    for record_statuses in due:
        for sha, owed in record_statuses.by_commit.items():
            by_commit[sha] |= {status.context: status for status in owed}
    if view.commit and view.plan.whole:
        drift = drift_status(view.contexts, view.plan.drift)
        by_commit[view.commit][drift.context] = drift
    return {sha: list(by_context.values()) for sha, by_context in by_commit.items()}


def _post(
    reporter: Reporter, by_commit: Mapping[str, Sequence[CommitStatus]]
) -> dict[str, list[Posted | Outdated | Failed]]:
    """Post statuses; return an outcome for each that a commit lacked, by commit."""
    return {sha: reporter.report(sha, statuses) for sha, statuses in by_commit.items()}


def _tidy(store: CommitStore, view: View, unknown: set[str]) -> None:
    """Remove closed records, and the records of commits that were never pushed.

    Keep the newest, and some whose overall status a further attempt may turn.
    """
    records = store.all()
    newest = newest_of(versioned.record for versioned in records.values())
    closed = [versioned.record for versioned in records.values() if versioned.record.closed]
    red = [record for record in closed if newest and may_turn(view, record, newest)]
    red = sorted(red, key=lambda record: -record.number)[:MOST_APPLIED]
    # The next apply of all jobs begins at the last one, and gives those in between their verdict.
    since = newest_whole(versioned.record for versioned in records.values())
    parts = [record for record in closed if not since or record.number >= since.number]
    kept = {record.sha for record in (newest, *red, *parts) if record}
    # The store's clock costs a request, and is needed for unknown commits only.
    now = store.now() if unknown else None
    for sha, versioned in records.items():
        record = versioned.record
        gone = sha in unknown and now is not None and now - record.since > PATIENCE
        if (record.closed and sha not in kept) or gone:
            store.remove(sha, versioned.generation)


def record_keys(session: Session) -> frozenset[str]:
    """Return the keys of the jobs whose statuses commits may still be owed; none without statuses.

    Raises:
        ServiceError: The records can't be read.
    """
    if not posts_statuses(session.config):
        return frozenset()
    records = session.commits.all().values()
    return frozenset(
        key for versioned in records for job in versioned.record.jobs.values() for key in job.keys
    )


def _settings(config: Config) -> GitHubSettings | None:
    return github_settings(config.github, os.environ, config.root)


def posts_statuses(config: Config) -> bool:
    """Return True if statuses are posted to GitHub; raise InvalidError for invalid settings."""
    return _settings(config) is not None


def missing_status_reasons(config: Config, origin: Origin) -> list[str]:
    """Return the reasons why no commit gets an overall status; empty if a commit does or none are posted."""
    if origin.exact or not posts_statuses(config):
        return []
    if not origin.commit:
        return [
            f"no commit statuses are posted: {origin.reason or 'the work tree is not a checkout of a commit'}"
        ]
    first, *others = [*dict.fromkeys(origin.differences.values()), *origin.elsewhere]
    more = f" (and {len(others)} more)" if others else ""
    return [f"{first}{more}: the commit gets no overall status and no drift report"]


def post_reason(session: Session, commit: str, reason: str) -> list[Failed]:
    """Post to a commit why its jobs aren't applied; return the statuses that failed."""
    settings = _settings(session.config)
    if settings is None or not commit:
        return []
    context = contexts_of(session.config, session.environment.name).overall
    outcomes = GitHubReporter(settings.transport(), settings).report(
        commit, [plain_status("error", context, reason)]
    )
    return [outcome for outcome in outcomes if isinstance(outcome, Failed)]


def post_statuses(
    session: Session,
    desired: Desired,
    state: TargetState,
    commit: str,
    problems: Mapping[str, str] | None = None,
    *,
    comments: bool = False,
) -> Reported:
    """Post the jobs' statuses to their commits if GitHub is configured.

    Args:
        state: From `recorded_state`.
        commit: The commit with exactly the desired jobs; "" for none.
        problems: The reason why a job wasn't submitted, by base name.
        comments: True to tell merged pull requests how the jobs of their commits ended.

    Raises:
        ServiceError: The service can't be read.
    """
    settings = _settings(session.config)
    if settings is None:
        return Reported()
    view = View(
        contexts=contexts_of(session.config, session.environment.name),
        commit=commit,
        state=state,
        plan=plan_of(session, desired, state),
        problems=problems or {},
        per_job=settings.per_job,
    )
    transport = settings.transport()
    teller = MergeComments(transport, settings, view) if comments else None
    return report(session.commits, GitHubReporter(transport, settings), view, teller)


def recorded_state(session: Session, desired: Desired, observed: Observed) -> TargetState:
    """Return what exists under each base name; record the metrics that manifests and commits expect.

    Raises:
        ServiceError: The service can't be read.
    """
    asked = _asked(session.commits) if posts_statuses(session.config) else None
    return state_of(session, desired, observed, asked=asked, may_record=True)


def _asked(store: CommitStore) -> dict[str, set[str]]:
    """Return the names of the metrics that commits with open records expect, by the keys of their jobs."""
    names: dict[str, set[str]] = defaultdict(set)
    for versioned in store.all().values():
        for job in () if versioned.record.closed else versioned.record.jobs.values():
            for key in job.keys if job.expect else ():
                names[key] |= {expectation.metric for expectation in job.expect}
    return names


def post_invalid(session: Session, commit: str, error: InvalidError) -> Reported:
    """Update earlier commits' statuses, and post to this commit that its manifests are invalid.

    Raises:
        ServiceError: The service can't be read.
    """
    reason = invalid_text(error.message, error.problems)
    seen = look(session.ports, {}, record_keys(session))
    nothing = Desired((), {}, whole=False)
    reported = post_statuses(session, nothing, recorded_state(session, nothing, seen.observed), "")
    return replace(reported, failed=[*reported.failed, *post_reason(session, commit, reason)])


def unposted_sentences(failed: Sequence[Failed]) -> list[str]:
    """Return a sentence for each reason why commit statuses could not be posted."""
    lines = []
    for message in sorted({failure.message for failure in failed}):
        contexts = [failure.status.context for failure in failed if failure.message == message]
        more = f" and {len(contexts) - 1} more" if len(contexts) > 1 else ""
        lines.append(f'the status "{contexts[0]}"{more} was not posted: {message}')
    return lines


def report_problems(reported: Reported) -> tuple[list[str], list[str]]:
    """Return a sentence for each thing that could not be reported, and those that a permission lacks for."""
    untold = [*dict.fromkeys(untold.reason for untold in reported.untold)]
    denied = [*dict.fromkeys(untold.reason for untold in reported.untold if untold.is_denied)]
    return [*unposted_sentences(reported.failed), *untold], [*denied_sentences(reported.failed), *denied]


def denied_sentences(failed: Sequence[Failed]) -> list[str]:
    """Return those sentences whose reason is a permission that the workflow lacks."""
    return unposted_sentences([failure for failure in failed if failure.read_only])
