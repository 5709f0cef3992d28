"""What commits are owed is written down, posted, and crossed off once it has been seen there."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Protocol

from reconciler.base.errors import ServiceError
from reconciler.google.session import Session
from reconciler.model.commit_record import CommitRecord
from reconciler.model.plan import Plan
from reconciler.model.ports import CommitStore, VersionedRecord
from reconciler.operations.load_desired import Desired
from reconciler.operations.origin import Origin
from reconciler.operations.plan import plan_of
from reconciler.reporting.github.settings import contexts_of, github_settings
from reconciler.reporting.github.statuses import Failed, GitHubReporter, Outdated, Posted
from reconciler.reporting.status import CommitStatus, plain_status
from reconciler.reporting.status_rules import (
    Telling,
    View,
    drift_status,
    newest_of,
    record_for,
    reopened,
    submitted_twice,
    telling,
)
from reconciler.submission.observe import Observed

Skipped = Callable[[Collection[str]], Sequence[str]]

TRIES = 5
"""How often a record is written anew where somebody else wrote it meanwhile."""

MOST_APPLIED = 20
"""Applied commits that the newest record keeps: of two branches, say, each with its own way to its head."""

LINGERING = timedelta(days=1)
"""How long a record stays open after all was seen: a reporter that stood still between reading what is there
and posting may still post older news over it, and GitHub has no compare-and-swap."""

PATIENCE = timedelta(days=30)
"""How long a commit that GitHub doesn't know may still be pushed."""


class Reporter(Protocol):
    """Where statuses are posted."""

    def report(self, sha: str, statuses: Iterable[CommitStatus]) -> list[Posted | Outdated | Failed]:
        """Post those that say something new about the commit; no outcome for the others."""


def open_record(store: CommitStore, commit: str, plan: Plan, skipped: Skipped) -> None:
    """Write down what a commit is owed, before anything is submitted for it.

    Args:
        store: The environment's records.
        commit: The commit that is checked out.
        plan: What is about to be carried out.
        skipped: Gives, for commits that are known of, those that were passed over since.

    Raises:
        ServiceError: It can't be written down: then its jobs' ends would be told to nobody.
    """
    records, now = store.all(), store.now()
    newest = newest_of(found.record for found in records.values())
    last = _applied_last(newest, records)
    applied = (*newest.applied, *last) if newest else ()
    known = {*records, *applied}
    # What lies behind the newest alone too: between two that didn't know of each other nobody has looked, nor
    # between an older commit that was applied again and those that were before it.
    passed_over = chain(skipped(known), *(skipped({sha}) for sha in last if known != {sha}))
    for sha in dict.fromkeys(passed_over):
        if sha not in known:
            store.write(CommitRecord(sha, now, superseded_by=commit), 0)
    for _ in range(TRIES):
        found = records.get(commit)
        others = (other.record.number for sha, other in records.items() if sha != commit)
        number = 1 + max(others, default=0)
        blank = CommitRecord(commit, now, number, applied=applied[-MOST_APPLIED:])
        wanted = record_for(plan, blank, found.record if found else None)
        if found and found.record == wanted:
            return
        if store.write(wanted, found.generation if found else 0):
            return
        records = store.all()
    raise ServiceError(
        f"what commit {commit[:7]} is owed can't be written down: others write it all the time",
        hint="try again",
    )


def _applied_last(newest: CommitRecord | None, records: Mapping[str, VersionedRecord]) -> tuple[str, ...]:
    """The commit that was applied last; several where neither was known of when the other was opened."""
    if newest is None:
        return ()
    # Of the commits before it, the newest doesn't name those of long ago.
    since = max(0, newest.number - MOST_APPLIED // 2)
    apart = {newest.sha, *newest.applied}
    beside = (sha for sha, found in records.items() if found.record.number > since and sha not in apart)
    return (*beside, newest.sha)


def report(store: CommitStore, reporter: Reporter, view: View) -> list[Failed]:
    """Post what is news to every commit that something is owed to; what couldn't be posted.

    A record is closed by a look that finds every status of it as it has to be, a day after the first one that
    did: what a slower reporter with older news posts over it is so put right by the next one. Of the closed
    records only the newest stays, by which it is known what was applied last.

    Raises:
        ServiceError: The records can't be read or written.
    """
    records = _reopened(store, view)
    newest = newest_of(found.record for found in records.values())
    owed = [
        (found, told)
        for found in _in_turn(records.values())
        if not found.record.closed
        for told in [telling(view, found.record, newest)]
        # What goes on as it was needs no look: it was told, and its end will be looked for.
        if told.final or told.digest != found.record.told
    ]
    failed, unsettled = _post(reporter, _by_commit(view, [told for _, told in owed]))
    missing = {one.sha for one in failed}
    for found, told in owed:
        in_place = unsettled.isdisjoint(told.by_commit)
        written = True
        if told.final:
            written = _cross_off(store, found, in_place=in_place)
        elif missing.isdisjoint(told.by_commit):
            written = store.write(replace(found.record, told=told.digest), found.generation)
        if not (written or in_place):
            _look_again(store, found.record.sha)
    _tidy(store, {one.sha for one in failed if one.unknown_commit})
    return failed


def _cross_off(store: CommitStore, found: VersionedRecord, *, in_place: bool) -> bool:
    """Close a record once all of it has been in place for long enough; False where somebody else wrote it."""
    record, now = found.record, store.now()
    if in_place and record.seen and now - record.seen > LINGERING:
        return store.write(replace(record, closed=True, told="", seen=None), found.generation)
    if in_place != (record.seen is not None):
        return store.write(replace(record, told="", seen=now if in_place else None), found.generation)
    return True


def _look_again(store: CommitStore, sha: str) -> None:
    """Have the next pass look at a commit: who wrote its record meanwhile may know more than was posted."""
    for _ in range(TRIES):
        found = store.all().get(sha)
        if found is None:
            return
        wanted = replace(found.record, closed=False, told="", seen=None)
        if found.record == wanted or store.write(wanted, found.generation):
            return


def _in_turn(records: Iterable[VersionedRecord]) -> list[VersionedRecord]:
    """The newest first: where GitHub takes only some statuses, those that people look at."""
    return sorted(records, key=lambda found: (-found.record.number, found.record.sha))


def _reopened(store: CommitStore, view: View) -> Mapping[str, VersionedRecord]:
    """The records, of which the newest is opened again where what it told of turns out otherwise."""
    records = store.all()
    newest = newest_of(found.record for found in records.values())
    if newest is not None and (again := reopened(view, newest)) != newest:
        store.write(again, records[newest.sha].generation)
        return store.all()
    return records


def _by_commit(view: View, tellings: Iterable[Telling]) -> dict[str, list[CommitStatus]]:
    """Each status once, however many commits want its job."""
    found: dict[str, dict[str, CommitStatus]] = defaultdict(dict)
    for sha, statuses in submitted_twice(view).items():
        found[sha] |= {status.context: status for status in statuses}
    for told in tellings:
        for sha, owed in told.by_commit.items():
            found[sha] |= {status.context: status for status in owed}
    if view.commit and view.plan.whole:
        drift = drift_status(view.contexts, view.plan.drift)
        found[view.commit][drift.context] = drift
    return {sha: list(by_context.values()) for sha, by_context in found.items()}


def _post(
    reporter: Reporter, by_commit: Mapping[str, Sequence[CommitStatus]]
) -> tuple[list[Failed], set[str]]:
    """What couldn't be posted, and the commits that didn't have everything already."""
    failed: list[Failed] = []
    unsettled: set[str] = set()
    for sha, statuses in by_commit.items():
        outcomes = reporter.report(sha, statuses)
        failed += (outcome for outcome in outcomes if isinstance(outcome, Failed))
        if outcomes:
            unsettled.add(sha)
    return failed, unsettled


def _tidy(store: CommitStore, unknown: set[str]) -> None:
    """Remove the records that nobody needs: closed ones but the newest, and those of commits long gone."""
    records = store.all()
    newest = newest_of(found.record for found in records.values())
    now = store.now() if unknown else None
    for sha, found in records.items():
        record = found.record
        gone = sha in unknown and now is not None and now - record.since > PATIENCE
        if (record.closed and record != newest) or gone:
            store.remove(sha, found.generation)


def untold(session: Session, origin: Origin) -> list[str]:
    """Return why no commit gets a verdict; nothing if one does, or if no commits are told."""
    if origin.exact or github_settings(session.config.github, os.environ, session.config.root) is None:
        return []
    if not origin.commit:
        return [f"no commit gets statuses: {origin.reason or 'the work tree is no checkout of one'}"]
    first, *others = [*dict.fromkeys(origin.differences.values()), *origin.elsewhere]
    more = f" (and {len(others)} more)" if others else ""
    return [f"{first}{more}: the commit gets no overall status and no drift report"]


def tell_stop(session: Session, commit: str, said: str) -> list[Failed]:
    """Tell a commit that it isn't applied, and why; what couldn't be posted."""
    settings = github_settings(session.config.github, os.environ, session.config.root)
    if settings is None or not commit:
        return []
    context = contexts_of(session.config, session.environment.name).roll_up
    outcomes = GitHubReporter(settings.transport(), settings).report(
        commit, [plain_status("error", context, said)]
    )
    return [outcome for outcome in outcomes if isinstance(outcome, Failed)]


def tell_commits(
    session: Session,
    desired: Desired,
    observed: Observed,
    commit: str,
    whole: bool = True,
    problems: Mapping[str, str] | None = None,
) -> list[Failed]:
    """Tell the commits how their jobs stand, where GitHub is configured; what couldn't be posted.

    Args:
        session: The environment.
        desired: The wanted jobs.
        observed: What there is.
        commit: The commit whose jobs are exactly the wanted ones, "" for none.
        whole: Whether `desired` is all that the repository wants.
        problems: By base name, why a job wasn't submitted.

    Raises:
        ServiceError: The service can't be asked any more.
    """
    github = session.config.github
    settings = github_settings(github, os.environ, session.config.root)
    if settings is None:
        return []
    view = View(
        contexts=contexts_of(session.config, session.environment.name),
        commit=commit,
        observed=observed,
        plan=plan_of(session, desired, observed, whole=whole),
        problems=problems or {},
        each=settings.each,
    )
    return report(session.commits, GitHubReporter(settings.transport(), settings), view)


def unposted(failed: Sequence[Failed]) -> list[str]:
    """Which commit statuses couldn't be posted, in sentences; those of one reason in one."""
    lines = []
    for message in sorted({one.message for one in failed}):
        contexts = [one.status.context for one in failed if one.message == message]
        more = f" and {len(contexts) - 1} more" if len(contexts) > 1 else ""
        lines.append(f'the status "{contexts[0]}"{more} was not posted: {message}')
    return lines
