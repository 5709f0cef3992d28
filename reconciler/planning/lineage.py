"""The commit that brought each job: along the first parents from the commit that was applied before."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from reconciler.model.claim import Claim, ClaimId
from reconciler.model.commit_record import CommitRecord, WantedJob
from reconciler.model.expectation import Expectation
from reconciler.model.manifest import Publish
from reconciler.model.plan import DesiredJob, Plan
from reconciler.planning.attempts import keys_of
from reconciler.planning.planner import SUBMISSIONS

MOST_APPLIED = 20
"""Number of applied commits that the newest record lists.

Two branches, for example, each have their own chain of commits.
"""


class WantedContent(Struct, frozen=True):
    """A job as a commit wants it; a suspended job isn't wanted.

    Attributes:
        name: The base name as the manifest writes it.
        keys: The keys of its claims, as in `WantedJob`.
        attempts: The number of submissions that its manifest permits.
        expect: What it expects of the result.
        publish: Where its result is published; None for nowhere.
    """

    name: str
    keys: tuple[str, ...]
    attempts: int = 1
    expect: tuple[Expectation, ...] = ()
    publish: Publish | None = None


class CommitTree(Struct, frozen=True):
    """Jobs of a commit.

    Attributes:
        sha: The commit, 40 hex digits.
        files: The wanted jobs of each manifest, by its path; None for an invalid manifest, whose jobs stay
            those of the commit before.
        problem: Why the commit can't be applied, for people; "" if it can.
        has_verdict: True if it was applied itself: its record tells what it brought.
        joined: The applied commit that it merges, where its first parent doesn't descend from that one.
    """

    sha: str
    files: Mapping[str, tuple[WantedContent, ...] | None]
    problem: str = ""
    has_verdict: bool = False
    joined: CommitTree | None = None


class PassedOver(Struct, frozen=True):
    """A commit between two applied ones.

    Attributes:
        jobs: The jobs that it brought.
        problem: Why it could not have been applied; "" if it could.
        standing: The jobs of earlier commits that it still had.
    """

    jobs: Mapping[str, WantedJob]
    problem: str = ""
    standing: Mapping[str, WantedJob] = {}


class Lineage(Struct, frozen=True):
    """Where the jobs of an applied commit come from.

    Attributes:
        own_names: The base names, with '-' as '_', of the jobs that the commit itself brought; None for
            all of its jobs.
        carriers: By such a base name, the commit from which on the job's content stands, if the commit that
            was applied before lacks it.
        passed_over: The commits that were passed over, oldest first.
        parts: Passed-over commits before these, whose jobs aren't told apart.
    """

    own_names: Collection[str] | None = None
    carriers: Mapping[str, str] = {}
    passed_over: Mapping[str, PassedOver] = {}
    parts: Sequence[str] = ()

    def brought(self, base_name: str) -> bool:
        """Return True if the applied commit itself brought the job."""
        return self.own_names is None or base_name in self.own_names


def lineage_of(trees: Sequence[CommitTree], parts: Sequence[str] = ()) -> Lineage:
    """Return the lineage of the last commit.

    A commit brings a job by a content that the commit before doesn't have, by the end of `suspend`, by more
    `attempts`, by another `expect`, and by another address of its publication. A content that a later one
    replaces is never submitted for the commit that brought it. A commit that can't be applied removes none,
    and a merge brings nothing that the applied commit had.

    Args:
        trees: The commit that was applied before, the passed-over commits, and the applied one.
        parts: See `Lineage`.
    """
    first, *later = trees
    files = {path: contents or () for path, contents in first.files.items()}
    before = _by_base(files)
    carriers: dict[str, str] = {}
    brought: dict[str, dict[str, WantedContent]] = {tree.sha: {} for tree in later}
    wanted: dict[str, dict[str, WantedContent]] = {}
    bringer: dict[str, dict[str, str]] = {}
    replaced: dict[tuple[str, str], str] = {}
    for tree in later:
        files = {
            path: files.get(path, ()) if contents is None else contents
            for path, contents in tree.files.items()
        }
        now = _by_base(files)
        if tree.problem:
            now = {**before, **now}
        for base in [base for base, earlier in before.items() if not _is_same(earlier, now.get(base))]:
            carriers.pop(base, None)
            for sha, contents in brought.items():
                if base in contents:
                    replaced.setdefault((sha, base), tree.sha)
        if tree.joined:
            joined = _by_base({path: contents or () for path, contents in tree.joined.files.items()})
            same = {base: joined[base] for base in now if _is_same(now[base], joined.get(base))}
            before = {**before, **same}
        for base, content in now.items():
            earlier = before.get(base)
            if tree.has_verdict:
                continue
            if not _is_same(content, earlier):
                carriers[base] = tree.sha
            if carriers.get(base) == tree.sha or (earlier and _asks_more(content, earlier)):
                brought[tree.sha][base] = content
        wanted[tree.sha], bringer[tree.sha] = now, dict(carriers)
        before = now
    last = later[-1].sha
    return Lineage(
        own_names=frozenset(brought.pop(last)),
        carriers=carriers,
        passed_over={
            tree.sha: _passed_over(tree, wanted[tree.sha], brought[tree.sha], bringer[tree.sha], replaced)
            for tree in later[:-1]
            if not tree.has_verdict
        },
        parts=parts,
    )


def _passed_over(
    tree: CommitTree,
    wanted: Mapping[str, WantedContent],
    brought: Collection[str],
    bringer: Mapping[str, str],
    replaced: Mapping[tuple[str, str], str],
) -> PassedOver:
    jobs = {
        content.name: WantedJob(
            content.keys,
            expect=content.expect,
            publish=content.publish,
            brought=base in brought,
            replaced_by=replaced.get((tree.sha if base in brought else bringer.get(base, ""), base), ""),
        )
        for base, content in sorted(wanted.items())
    }
    return PassedOver(
        {name: job for name, job in jobs.items() if job.brought},
        tree.problem,
        {name: job for name, job in jobs.items() if not job.brought},
    )


def _by_base(files: Mapping[str, tuple[WantedContent, ...]]) -> dict[str, WantedContent]:
    return {content.name.replace("-", "_"): content for contents in files.values() for content in contents}


def _asks_more(content: WantedContent, earlier: WantedContent) -> bool:
    """Return True if the same content is to be attempted again, to be judged anew, or to be published."""
    if content.attempts > earlier.attempts or set(content.expect) != set(earlier.expect):
        return True
    return content.publish not in (None, earlier.publish)


def _is_same(content: WantedContent, other: WantedContent | None) -> bool:
    return other is not None and not set(content.keys).isdisjoint(other.keys)


def tree_of_record(record: CommitRecord) -> CommitTree:
    """Return the jobs of an applied commit that git can't read; how often each may be tried is unknown."""
    contents = (
        WantedContent(name, job.keys, sys.maxsize, job.expect, job.publish)
        for name, job in record.jobs.items()
    )
    return CommitTree(record.sha, {"": tuple(contents)})


def bringers(
    plan: Plan,
    lineage: Lineage,
    head: str,
    records: Iterable[CommitRecord],
    claims: Mapping[ClaimId, Claim],
) -> dict[str, str]:
    """Return the commit that brought each job which the plan submits, by base name with '-' as '_'.

    Args:
        plan: The plan.
        lineage: Where the plan's jobs come from.
        head: The commit that is applied.
        records: The records of applied and passed-over commits.
        claims: The claims.
    """
    # An apply may have ended between a commit's record and the job's claim.
    earlier = {
        key: record.sha
        for record in sorted(records, key=lambda record: record.number)
        for job in record.jobs.values()
        for key in job.keys
        if job.brought
    }
    earlier |= {id.key: claim.commit for id, claim in sorted(claims.items()) if claim.commit}
    commits = {}
    for change in plan.changes:
        job = change.desired
        if job is None or not (change.action in SUBMISSIONS or change.is_awaited):
            continue
        base = job.manifest.base_name
        shas = [earlier[key] for key in keys_of(job) if key in earlier]
        # A content that comes back after a cancel belongs to the commit that brings it back.
        commits[base] = lineage.carriers.get(base) or (shas[0] if shas and not change.stopped else head)
    return commits


def brought_since(lineage: Lineage, records: Iterable[CommitRecord], jobs: Iterable[DesiredJob]) -> set[str]:
    """Return the base names whose content the applied commit, or one that it passed over, brought.

    Args:
        lineage: Where the jobs come from; that of a commit that is applied again lacks passed-over commits.
        records: The records of applied and passed-over commits.
        jobs: The jobs of the applied commit.
    """
    passed = {
        key
        for record in records
        if not record.number
        for job in record.jobs.values()
        if job.brought
        for key in job.keys
    }
    return {
        job.manifest.base_name
        for job in jobs
        if lineage.brought(job.manifest.base_name)
        or job.manifest.base_name in lineage.carriers
        or not passed.isdisjoint(keys_of(job))
    }


def newest_of(records: Iterable[CommitRecord]) -> CommitRecord | None:
    """Return the record of the commit that was applied last; None if no commit was applied."""
    return max((r for r in records if r.number), key=lambda r: (r.number, r.since, r.sha), default=None)


def applied_last(newest: CommitRecord | None, records: Mapping[str, CommitRecord]) -> tuple[str, ...]:
    """Return the commit that was applied last; several if concurrent reporters opened records."""
    if newest is None:
        return ()
    # The newest record lists a limited number of commits: an old record that it lacks isn't concurrent.
    since = max(0, newest.number - MOST_APPLIED // 2)
    ordered = {newest.sha, *newest.applied}
    concurrent = (sha for sha, record in records.items() if record.number > since and sha not in ordered)
    return (*concurrent, newest.sha)


def newest_whole(records: Iterable[CommitRecord]) -> CommitRecord | None:
    """Return the record of the commit all of whose jobs were applied last; None if there is none."""
    return newest_of(record for record in records if record.whole)


def applied_before(records: Mapping[str, CommitRecord], head: str) -> tuple[str, ...]:
    """Return the last commit before `head` whose jobs were all applied; several, of concurrent processes.

    Where no apply had all jobs, these are all commits some of whose jobs were applied.
    """
    head_record = records.get(head)
    if head_record and head_record.whole and head_record is newest_of(records.values()):
        return head_record.applied[-1:]
    others = {sha: record for sha, record in records.items() if record.number and sha != head}
    whole = {sha: record for sha, record in others.items() if record.whole}
    if not whole:
        return tuple(sorted(others, key=lambda sha: others[sha].number))
    return applied_last(newest_of(whole.values()), whole)


def with_verdicts(records: Mapping[str, CommitRecord]) -> set[str]:
    """Return the commits all of whose jobs were applied, those without a record included."""
    newest = newest_of(records.values())
    applied = {*(newest.applied if newest else ()), *(sha for sha, r in records.items() if r.number)}
    return applied - {sha for sha, record in records.items() if not record.has_verdict}


def known_lineage(
    records: Mapping[str, CommitRecord], head: str, jobs: Iterable[DesiredJob]
) -> Lineage | None:
    """Return the lineage of a commit that is applied again; None if its record lacks it.

    Args:
        records: The records of commits, by commit.
        head: The commit.
        jobs: Its jobs.
    """
    head_record = records.get(head)
    if head_record is None or not head_record.whole or head_record is not newest_of(records.values()):
        return None
    keys = {key for job in head_record.jobs.values() for key in job.keys}
    if any(keys.isdisjoint(keys_of(job)) for job in jobs if not job.manifest.reconcile.suspend):
        return None
    return Lineage(
        own_names=frozenset(name.replace("-", "_") for name, job in head_record.jobs.items() if job.brought)
    )
