"""Looks at a target: full ones, which read every claim and run, and short ones, which leave out the history.

A short look reads the summary of ended runs, the live runs, and one by one each content that may still change
or that the summary doesn't know: all its claims, and all its jobs by a search for its key. This search is the
one that a submission rests on, and is checked in the same way as a full listing. The look is full without a
usable summary, if so many contents would be read one by one that listings are cheaper, and for the base name
of a manifest that was removed and comes back.

Only a full look finds what changed in ended runs, such as a deleted record, and claims that an older version
or a person changed. Nothing is submitted for want of it.

The summary is one object beside the claims. The first full look writes it, and each look after an apply
updates it by compare-and-swap. It has copies of the settled claims and runs of the desired contents, and the
keys of all contents that may still change. A content that it doesn't mention is either ended and not desired,
or is read by its key.

The summary never permits a submission: a content without a settled copy is read by its key, and a submission
reads its claim and searches for its job as ever. A wrong summary can only hide a job until a full look.
"""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from io import BytesIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reconciler.model.cause import is_set_up
from reconciler.model.claim import Claim, ClaimId, ClaimState, age, made, time_of
from reconciler.model.job import KEY, SOURCE, ActualJob, State, is_of_other_instance
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Ports, StoredSummary, Versioned
from reconciler.submission.claims_upkeep import refreshed, runs_by_claim
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

_FORMAT = 3
_COMPRESSION = 1

Wanted = Mapping[str, DesiredJob]
"""Desired jobs by each of their keys."""


class Kept(Struct, frozen=True):
    """Settled attempt: its claim, and its run, None if the service had dropped it."""

    versioned: Versioned
    run: ActualJob | None


class Summary(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the summary.

    Attributes:
        taken: The beginning of the last full look, by the store's clock.
        genesis: The generation of the store's genesis: a restored store has another.
        size: The number of claims at that look.
        oldest: The creation time (RFC 3339) of the oldest run that the environment submitted; "" for none.
        bases: The base names of the desired jobs, whose newest runs are known.
        former: The other base names that ever had a claim.
        open: The keys of all contents that may still change.
        kept: The settled attempts at contents that looks need.
    """

    taken: datetime
    genesis: int
    size: int
    oldest: str
    bases: tuple[str, ...] = ()
    former: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    format: int = _FORMAT


def summary_of(stored: StoredSummary | None) -> Summary | None:
    """Return the stored summary; None without one that this store and this version may have written."""
    if stored is None:
        return None
    try:
        with gzip.open(BytesIO(stored.content)) as lines:
            # Line by line: the text of 10,000 attempts takes 15 MB.
            summary = msgspec.json.decode(next(lines, b""), type=Summary)
            kept = tuple(map(msgspec.json.Decoder(Kept).decode, lines))
    except (ValueError, RecursionError, OSError, EOFError, zlib.error):
        return None
    # Not of a restored store, nor of a clock that was ahead: the audit would be due too late.
    is_own = summary.format == _FORMAT and summary.genesis == stored.genesis
    is_dated = summary.taken.tzinfo is not None and summary.taken <= stored.now
    return replace(summary, kept=kept) if is_own and is_dated else None


def encoded(summary: Summary) -> bytes:
    """Return the stored form of a summary: gzip of a line of JSON without attempts, and a line for each."""
    lines = msgspec.json.Encoder().encode_lines([replace(summary, kept=()), *summary.kept])
    return gzip.compress(lines, compresslevel=_COMPRESSION, mtime=0)


def settled_by_key(summary: Summary, wanted: Wanted) -> dict[str, list[Kept]]:
    """Return the attempts at contents whose claims, as copied, need no update, by their keys."""
    found: dict[str, list[Kept]] = defaultdict(list)
    for each in summary.kept:
        found[each.versioned.claim.id.key].append(each)
    # Otherwise an update would write the copy over the claim, and the copy may be old or forged.
    return {
        key: attempts
        for key, attempts in found.items()
        if all(
            _is_settled(each.versioned.claim, wanted.get(key), [each.run] if each.run else [])
            for each in attempts
        )
    }


def may_go_on(job: DesiredJob, kept: Sequence[Kept]) -> bool:
    """Return True if a further attempt at a settled content may be due, or may have been made since."""
    last = max((each.versioned.claim for each in kept), key=lambda claim: claim.id.attempt)
    if last.ended is not State.FAILED:
        return False
    # A failed set-up uses up no attempt.
    is_free = any(each.run is not None and is_set_up(each.run) for each in kept)
    return is_free or last.id.attempt < job.manifest.reconcile.attempts


def summarize(observed: Observed, before: Summary, wanted: Wanted, also: Collection[str]) -> Summary:
    """Return the summary after a look.

    Args:
        observed: Claims and runs of the look.
        before: Its time, its size and the oldest run.
        wanted: All desired jobs of the repository.
        also: The keys of other contents that looks need.
    """
    runs = runs_by_claim(observed)
    settled, moving = dict[ClaimId, Kept](), set[str]()
    for id, versioned in observed.versions.items():
        of_claim = [run for run in runs.pop(id, []) if run.kind == versioned.claim.kind]
        if _is_settled(versioned.claim, wanted.get(id.key), of_claim):
            settled[id] = Kept(versioned, next(iter(of_claim), None))
        else:
            moving.add(id.key)
    # A run without its claim may get it back, and is no history while it has none.
    moving |= {id.key for id in runs if id.key}
    needed = {*wanted, *also, *_predecessors(settled.values(), wanted)} - moving
    bases = {job.manifest.base_name for job in wanted.values()}
    claimed = {_base_of(found.claim) for found in observed.versions.values()}
    return replace(
        before,
        bases=tuple(sorted(bases)),
        former=tuple(sorted({*before.bases, *before.former, *claimed} - bases)),
        open=tuple(sorted(moving)),
        kept=tuple(each for id, each in sorted(settled.items()) if id.key in needed),
    )


def _is_settled(claim: Claim, job: DesiredJob | None, runs: Sequence[ActualJob]) -> bool:
    """Return True if nothing but a person's deletion can change an attempt's claim and runs."""
    if claim.state is not ClaimState.BOUND or len(runs) > 1:
        return False
    ended = all(run.state.ended and made(claim, run) for run in runs)
    # A bound claim without an end needs an update, unless its run is live.
    return ended and refreshed(claim, job, runs) == claim


def _predecessors(settled: Iterable[Kept], wanted: Wanted) -> Iterator[str]:
    """Yield for each desired base name the key of the newest run with other content."""
    bases = {job.manifest.base_name for job in wanted.values()}
    runs = ((age(each.run), each.versioned.claim) for each in settled if each.run is not None)
    by_age = sorted((at, claim.id.key, _base_of(claim)) for at, claim in runs)
    yield from {base: key for _, key, base in by_age if base in bases and key not in wanted}.values()


def _base_of(claim: Claim) -> str:
    """Return the claim's base name as manifests and names of jobs have it."""
    return claim.base_name.replace("-", "_")


def contradictions(summary: Summary, observed: Observed, wanted: Wanted) -> list[str]:
    """Return what a full look found otherwise than the summary says, a sentence for each."""
    states = {run.resource: run.state for run in observed.runs}
    said = []
    for each in summary.kept:
        claim, found = each.versioned.claim, observed.claims.get(each.versioned.claim.id)
        if found is None:
            said.append(f"{claim.job_name} has no claim any more")
        elif (found.resource, found.ended, found.gone) != (claim.resource, claim.ended, claim.gone):
            said.append(f"{claim.job_name} is {found.ended or found.state}, not {claim.ended or claim.state}")
        elif each.run is not None and states.get(each.run.resource, each.run.state) is not each.run.state:
            said.append(f"{claim.job_name} is {states[each.run.resource]}, not {each.run.state}")
    known = {*summary.open, *wanted, *(each.versioned.claim.id.key for each in summary.kept)}
    said += (
        f"{claim.job_name} is {claim.state} and wasn't listed as open"
        for id, claim in observed.claims.items()
        if id.key not in known and not (claim.ended or claim.gone)
    )
    remedy = "`reconciler apply --full` corrects it"
    return [f"the summary of ended runs was wrong ({remedy}): {each}" for each in sorted(said)]


def keys_in(runs: Iterable[ActualJob]) -> set[str]:
    """Return the keys in the labels of runs."""
    return {run.labels[KEY] for run in runs if run.labels.get(KEY)}


FULL_AFTER = timedelta(days=1)
"""Age of the last full look from which an apply makes a new one."""

_FEW = 8
_READS_OF_ONE = 16
"""Claims whose listing takes as long as one content that is read by itself."""
_WITNESSES = 3


class Look(Struct, frozen=True):
    """Result of a look.

    Attributes:
        observed: Claims and runs.
        stored: The summary's place in the store before the look, without the content of a usable one; None
            if the store can't have one yet.
        summary: Its content; None for none that may be used.
        full: True if every claim and run was read.
        notes: What the summary said otherwise than a full look found, a sentence for each.
    """

    observed: Observed
    stored: StoredSummary | None
    summary: Summary | None
    full: bool
    notes: tuple[str, ...] = ()


def look(
    ports: Ports,
    wanted: Wanted,
    also: Collection[str] = (),
    *,
    full: bool = False,
    full_after: timedelta | None = None,
) -> Look:
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
    summary = summary_of(stored)
    if stored and summary:
        # Of 10,000 jobs, 2 MB that aren't needed after decoding.
        stored = replace(stored, content=b"")
    is_old = bool(stored and summary and full_after is not None and stored.now - summary.taken > full_after)
    if summary is not None and not full and not is_old:
        observed = _short(ports, summary, wanted, also)
        if observed is not None:
            return Look(observed, stored, summary, full=False)
    observed = observe(ports)
    notes = contradictions(summary, observed, wanted) if summary else []
    if stored and stored.content and summary is None:
        notes.append("the summary of ended runs isn't of this store, or can't be read: apply makes it anew")
    return Look(observed, stored, summary, full=True, notes=tuple(notes))


def keep_summary(ports: Ports, seen: Look, wanted: Wanted, also: Collection[str] = ()) -> None:
    """Write the summary after a look; do nothing if another process has written it since, or there is little.

    Args:
        ports: The target.
        seen: The look.
        wanted: All desired jobs of the repository.
        also: The keys of other contents that looks need.
    """
    observed, stored = seen.observed, seen.stored
    is_worth = seen.summary or len(observed.versions) + len(observed.runs) >= ports.least_history
    if stored is None or not is_worth:
        return
    oldest = oldest_own(ports, observed.versions, observed.runs)
    before = None if seen.full else seen.summary
    if before is None:
        first = oldest.isoformat() if oldest else ""
        genesis = stored.genesis or ports.claims.genesis_generation()
        before = Summary(stored.now, genesis, len(observed.versions), first)
    summary = summarize(observed, before, wanted, also)
    if summary != seen.summary:
        ports.claims.write_summary(encoded(summary), stored.generation)


def _short(ports: Ports, summary: Summary, wanted: Wanted, also: Collection[str]) -> Observed | None:
    """Return the result of a short look; None if only a full one is right, or it is cheaper."""
    # The newest run of such a name isn't known.
    if not set(summary.former).isdisjoint(job.manifest.base_name for job in wanted.values()):
        return None
    live = ports.jobs.live()
    kept = settled_by_key(summary, wanted)
    own = [run for run in live if not is_of_other_instance(run, ports.source, ports.instance)]
    reread = _to_read(summary, kept, keys_in(own), wanted, also)
    if len(reread) > _FEW + summary.size // _READS_OF_ONE:
        return None
    versions: dict[ClaimId, Versioned] = {}
    for of_key in ports.together([partial(ports.claims.of_key, key) for key in sorted(reread)]):
        versions |= of_key
    found = _search(ports, reread, versions, wanted, own)
    listed = tuple({run.resource: run for run in (*live, *found)}.values())
    missing = missing_claims(versions, listed)
    rest = [each for key, attempts in kept.items() if key not in reread for each in attempts]
    # As a full look is refused that lists nothing although ended jobs exist.
    if not found and all(claim.is_adopted for claim in missing):
        missing += ended_claims(ports, versions)
        check_search(ports, _witnesses(ports, rest))
    versions |= {each.versioned.claim.id: each.versioned for each in rest}
    mine, others = split_by_instance(ports, versions, listed)
    remembered = (each.run for each in rest if each.run is not None)
    runs = with_reasons(versions, (*mine, *unlisted(ports, missing), *remembered))
    return Observed(versions, runs, doubtful_runs(ports, versions, runs, others, time_of(summary.oldest)))


def _to_read(
    summary: Summary,
    kept: Mapping[str, list[Kept]],
    live: Collection[str],
    wanted: Wanted,
    also: Collection[str],
) -> set[str]:
    """Return the keys of the contents to read one by one."""
    # A live run of a settled content is a duplicate, or a job that appeared late.
    moving = {*summary.open, *live}
    settled = {
        job.job_name
        for key, job in wanted.items()
        if key in kept and key not in moving and not may_go_on(job, kept[key])
    }
    unsettled = {key for key, job in wanted.items() if job.job_name not in settled}
    return moving | unsettled | (set(also) - kept.keys() - wanted.keys())


def _search(
    ports: Ports,
    keys: Collection[str],
    versions: Mapping[ClaimId, Versioned],
    wanted: Wanted,
    live: Iterable[ActualJob],
) -> list[ActualJob]:
    """Return all runs of contents, the ended ones among them."""
    kinds = {(key, job.manifest.api_version, job.manifest.kind) for key, job in wanted.items()}
    kinds |= {(id.key, found.claim.api_version, found.claim.kind) for id, found in versions.items()}
    kinds |= {(key, run.api_version, run.kind) for run in live for key in keys_in([run])}
    searches = [
        partial(ports.jobs.with_key, api_version, kind, key)
        for key, api_version, kind in sorted(kinds)
        if key in keys and ports.jobs.lists(api_version)
    ]
    found = (run for runs in ports.together(searches) for run in runs)
    return [run for run in found if run.labels.get(SOURCE) == ports.source]


def _witnesses(ports: Ports, kept: Iterable[Kept]) -> list[ActualJob]:
    """Return a few ended runs that a search must find, as long as the service has them."""
    runs = (each.run for each in kept if each.run is not None and not each.versioned.claim.is_adopted)
    named = ports.jobs.named
    found = [run for run in runs if named(run.api_version, run.kind, run.job_name) is None]
    # The oldest jobs are the first that a listing no longer shows.
    return sorted(found, key=lambda run: run.create_time)[:_WITNESSES]
