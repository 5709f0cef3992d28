"""Summary of ended runs beside the claims, so that a short look needn't read the history.

The first full look writes the summary, and each look after an apply updates it by compare-and-swap. It has
copies of the settled claims and runs of the desired contents, and the keys of all contents that may still
change. A content that it doesn't mention is either ended and not desired, or is read by its key.

The summary never permits a submission: a content without a settled copy is read by its key, and a submission
reads its claim and searches for its job as ever. A wrong summary can only hide a job until a full look.
"""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from io import BytesIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reconciler.model.cause import is_set_up
from reconciler.model.claim import Claim, ClaimId, ClaimState, age, made
from reconciler.model.job import KEY, ActualJob, State
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import StoredSummary, Versioned
from reconciler.submission.claims_upkeep import refreshed, runs_by_claim
from reconciler.submission.observe import Observed

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


def encoded(summary: Summary) -> bytes:
    """Return the stored form of a summary: gzip of a line of JSON without attempts, and a line for each."""
    lines = msgspec.json.Encoder().encode_lines([replace(summary, kept=()), *summary.kept])
    return gzip.compress(lines, compresslevel=_COMPRESSION, mtime=0)


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
