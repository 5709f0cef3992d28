"""Looks at a target: full ones, which read every claim and run, and short ones, which leave out the history.

A short look reads the summary of ended runs, the live runs, and one by one each content that may still change
or that the summary doesn't know: all its claims, and all its jobs by a search for its key. This search is the
one that a submission rests on, and is checked in the same way as a full listing. The look is full without a
usable summary, if so many contents would be read one by one that listings are cheaper, and for the base name
of a manifest that was removed and comes back.

Only a full look finds what changed in ended runs, such as a deleted record, and claims that an older version
or a person changed. Nothing is submitted for want of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from reconciler.model.claim import ClaimId, time_of
from reconciler.model.job import SOURCE, ActualJob, is_of_other_instance
from reconciler.model.ports import Announcement, Ports, StoredSummary, Versioned
from reconciler.submission.observe import (
    Observed,
    check_search,
    doubtful_runs,
    ended_claims,
    missing_claims,
    observe,
    oldest_own,
    split_by_instance,
    unlisted,
    with_reasons,
)
from reconciler.submission.summary import (
    OUTDATED,
    Kept,
    Preface,
    Summary,
    Wanted,
    announced_addresses,
    announced_keys,
    contradictions,
    encoded,
    is_spoiled,
    keys_in,
    may_go_on,
    read_summary,
    settled_by_key,
    summarize,
)

FULL_AFTER = timedelta(days=1)
"""Age of the last full look from which an apply makes a new one."""

_FEW = 8
_READS_OF_ONE = 16
"""Claims whose listing takes as long as one content that is read by itself."""
_WITNESSES = 3


class Observation(Struct, frozen=True):
    """Result of a look.

    Attributes:
        observed: Claims and runs.
        stored: The summary's place in the store before the look, without the content of a usable one; None
            if the store can't have one yet.
        summary: Its content; None for none that may be used.
        full: True if every claim and run was read.
        announced: The announcements beside the summary.
        notes: What the summary said otherwise than a full look found, a sentence for each.
    """

    observed: Observed
    stored: StoredSummary | None
    summary: Summary | None
    full: bool
    announced: tuple[Announcement, ...] = ()
    notes: tuple[str, ...] = ()


def look(
    ports: Ports,
    wanted: Wanted,
    also: Collection[str] = (),
    *,
    full: bool = False,
    full_after: timedelta | None = None,
) -> Observation:
    """Read the claims and runs that matter to the desired jobs.

    Args:
        ports: The target.
        wanted: The desired jobs.
        also: The keys of other contents to read.
        full: True to read the whole history.
        full_after: Age of the last full look from which this one is full; None for any age.

    Raises:
        ServiceError: As by `observe`.
    """
    stored = ports.claims.summary()
    preface, summary = read_summary(stored)
    announced = preface.announced if preface else ()
    if stored and summary:
        # Of 10,000 jobs, 2 MB that aren't needed after decoding.
        stored = replace(stored, content=b"")
    is_old = bool(stored and summary and full_after is not None and stored.now - summary.taken > full_after)
    if summary is not None and not full and not is_old:
        observed = _short(ports, summary, announced, wanted, also)
        if observed is not None:
            return Observation(observed, stored, summary, full=False, announced=announced)
    observed = observe(ports)
    keys = {*wanted, *also, *announced_keys(announced)}
    notes = contradictions(summary, observed, keys) if summary else []
    if summary is None and is_spoiled(stored, preface):
        reason = "belongs to other claims, or can't be read"
        notes.append(f"the summary of ended runs {reason}: apply writes a new one")
    return Observation(observed, stored, summary, full=True, announced=announced, notes=tuple(notes))


def keep_summary(
    ports: Ports, seen: Observation, wanted: Wanted, also: Collection[str] = (), *, whole: bool = True
) -> None:
    """Write the summary after a look; do nothing if another process has written it since, or there is little.

    Args:
        ports: The target.
        seen: The look.
        wanted: The desired jobs.
        also: The keys of other contents that looks need.
        whole: True if these are all desired jobs of the repository. Otherwise what the summary says of the
            others stays, and there is none without them.
    """
    observed, stored = seen.observed, seen.stored
    if stored is None or (seen.summary is None and not whole):
        return
    is_large = len(observed.versions) + len(observed.runs) >= ports.least_history
    # What can't be used has to be replaced, or each look would report it.
    if not (seen.summary or stored.content or is_large):
        return
    genesis = stored.genesis or ports.claims.genesis_generation()
    before = seen.summary
    if before is None or (seen.full and whole):
        oldest = oldest_own(ports, observed.versions, observed.runs)
        before = Summary(stored.now, len(observed.versions), oldest.isoformat() if oldest else "")
    # A base name of others may have its newest run among the announced claims.
    needed = also if whole else {*also, *announced_keys(seen.announced)}
    moved = announced_addresses(seen.announced)
    summary = summarize(observed, before, wanted, needed, whole=whole, moved=moved)
    outdated = stored.now - OUTDATED if seen.full else None
    left = ports.claims.still_announced(seen.announced, observed.versions.keys(), outdated)
    if summary != seen.summary or left != seen.announced:
        content = encoded(Preface(stored.place, genesis, left), summary)
        ports.claims.write_summary(content, stored.generation)


def _short(
    ports: Ports,
    summary: Summary,
    announced: Iterable[Announcement],
    wanted: Wanted,
    also: Collection[str],
) -> Observed | None:
    """Return the result of a short look; None if only a full one is right, or it is cheaper."""
    # The newest run of such a name isn't known.
    if not set(summary.former).isdisjoint(job.manifest.base_name for job in wanted.values()):
        return None
    live = ports.jobs.live()
    kept = settled_by_key(summary, wanted)
    own_runs = [run for run in live if not is_of_other_instance(run, ports.source, ports.instance)]
    open_ = {*summary.open, *announced_keys(announced)}
    copied = {one.versioned.claim.id.key for one in summary.kept}
    reread = _to_read(open_, keys_in(own_runs), copied, kept, wanted, also)
    if len(reread) > _FEW + summary.size // _READS_OF_ONE:
        return None
    versions: dict[ClaimId, Versioned] = {}
    for of_key in ports.together([partial(ports.claims.of_key, key) for key in sorted(reread)]):
        versions |= of_key
    matches = _search(ports, reread, versions, wanted, own_runs)
    listed = tuple({run.resource: run for run in (*live, *matches)}.values())
    missing = missing_claims(versions, listed)
    rest = [attempt for key, attempts in kept.items() if key not in reread for attempt in attempts]
    # As a full look is refused that lists nothing although ended jobs exist.
    if not matches and all(claim.is_adopted for claim in missing):
        missing += ended_claims(ports, versions)
        check_search(ports, _witnesses(ports, rest))
    versions |= {attempt.versioned.claim.id: attempt.versioned for attempt in rest}
    mine, others = split_by_instance(ports, versions, listed)
    remembered = (attempt.run for attempt in rest if attempt.run is not None)
    runs = with_reasons(versions, (*mine, *unlisted(ports, missing), *remembered))
    doubtful = doubtful_runs(ports, versions, runs, others, time_of(summary.oldest))
    folders = {one.run.resource: one.folder for one in rest if one.run and one.folder is not None}
    metrics = {one.metrics.resource: one.metrics for one in rest if one.metrics}
    moved = announced_addresses(announced)
    in_place = {
        one.run.resource: one.in_place
        for one in rest
        if one.run and one.in_place and one.in_place.to not in moved
    }
    return Observed(versions, runs, doubtful, folders, metrics, in_place, is_full=False)


def _to_read(
    open_: Collection[str],
    live: Collection[str],
    copied: Collection[str],
    kept: Mapping[str, list[Kept]],
    wanted: Wanted,
    also: Collection[str],
) -> set[str]:
    """Return the keys of the contents to read one by one.

    Args:
        open_: Keys that may still change.
        live: Keys of live runs: one of a settled content is a duplicate, or a job that appeared late.
        copied: All keys of which the summary has claims.
        kept: The settled ones of these.
        wanted: The desired jobs. A job with keys of earlier versions is settled if all of its copied keys
            are: an applier of an earlier version goes on under its own key.
        also: The keys of other contents that are needed.
    """
    moving = {*open_, *live}
    settled, unsettled = set[str](), set[str]()
    for key, job in wanted.items():
        if key in kept and key not in moving and not may_go_on(job, kept[key]):
            settled.add(job.job_name)
        elif key in copied or key in moving:
            unsettled.add(job.job_name)
    settled -= unsettled
    unsettled_keys = {key for key, job in wanted.items() if job.job_name not in settled}
    return moving | unsettled_keys | (set(also) - kept.keys() - wanted.keys())


def _search(
    ports: Ports,
    keys: Collection[str],
    versions: Mapping[ClaimId, Versioned],
    wanted: Wanted,
    live: Iterable[ActualJob],
) -> list[ActualJob]:
    """Return all runs of contents, the ended ones among them."""
    kinds = {(key, job.manifest.api_version, job.manifest.kind) for key, job in wanted.items()}
    kinds |= {
        (id.key, versioned.claim.api_version, versioned.claim.kind) for id, versioned in versions.items()
    }
    kinds |= {(key, run.api_version, run.kind) for run in live for key in keys_in([run])}
    searches = [
        partial(ports.jobs.with_key, api_version, kind, key)
        for key, api_version, kind in sorted(kinds)
        if key in keys and ports.jobs.lists(api_version)
    ]
    matches = (run for runs in ports.together(searches) for run in runs)
    return [run for run in matches if run.labels.get(SOURCE) == ports.source]


def _witnesses(ports: Ports, kept: Iterable[Kept]) -> list[ActualJob]:
    """Return a few ended runs that a search must find, as long as the service has them."""
    runs = (
        attempt.run for attempt in kept if attempt.run is not None and not attempt.versioned.claim.is_adopted
    )
    named = ports.jobs.named
    witnesses = [run for run in runs if named(run.api_version, run.kind, run.job_name) is None]
    # The oldest jobs are the first that a listing no longer shows.
    return sorted(witnesses, key=lambda run: run.create_time)[:_WITNESSES]
