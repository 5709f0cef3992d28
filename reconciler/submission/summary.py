"""The summary of ended runs, which spares a look the history, and the announcements of new claims in it.

The summary is one object beside the claims, written by compare-and-swap. It has copies of the settled claims
and runs of the desired contents, and the keys of all contents that may still change. A content that it leaves
out is either ended and not desired, or is read by its key.

The summary never permits a submission: a content without a settled copy is read by its key, and a submission
reads its claim and searches for its job as ever. A wrong summary can only hide a job until a full look.

A new claim would make it untrue, so `submission/announcements.py` announces the claim in the same object
first. An announcement stays until a look has seen the claim, and the summary made of that look is written.

Stored form: a gzip member with the preface, and a second one with the summary: a line of JSON for its facts,
and one for each attempt. So an announcement replaces the first member alone. Everything is bounded while it
is read, because others may write the object.
"""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from io import BytesIO
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from reconciler.model.cause import is_failed_set_up
from reconciler.model.claim import MOST_RETURNS, Claim, ClaimId, ClaimState, checked
from reconciler.model.claimed_run import age, made, may_write_last
from reconciler.model.expectation import RunMetrics
from reconciler.model.job import KEY, ActualJob
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Announcement, Place, StoredSummary, Versioned
from reconciler.model.publication import InPlace
from reconciler.submission.claims_upkeep import refreshed, runs_by_claim
from reconciler.submission.observe import Observed

_FORMAT = 4
_COMPRESSION = 1
_GZIP = zlib.MAX_WBITS | 16

_PACKED = 16 * 1024 * 1024
_PREFACE = 8 * 1024 * 1024
_FACTS = 32 * 1024 * 1024
_LINE = 256 * 1024
_UNPACKED = 64 * 1024 * 1024
"""Limits in bytes: of the object, the preface, the facts, an attempt's line, and all lines together."""
_ATTEMPTS = 50_000
_KEYS = 200_000
_LONGEST = 1000
"""Limits on the number of attempts, on the number of names or keys in a list, and on the length of each."""

_Text = Annotated[str, Meta(max_length=_LONGEST)]
_Texts = Annotated[tuple[_Text, ...], Meta(max_length=_KEYS)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]

OUTDATED = timedelta(days=7)
"""Age from which a full look drops an announcement whose claims it doesn't find: its process has ended."""

Wanted = Mapping[str, DesiredJob]
"""Desired jobs by each of their keys."""


class Preface(Struct, frozen=True, forbid_unknown_fields=True):
    """First part of the stored object.

    Attributes:
        place: The claims that the summary is of.
        genesis: The generation of the store's genesis: a restored store has another.
        announced: The announcements, in the order of `by`.
    """

    place: Place
    genesis: _Number
    announced: Annotated[tuple[Announcement, ...], Meta(max_length=_KEYS)] = ()
    format: int = _FORMAT


class Kept(Struct, frozen=True):
    """Settled attempt: its claim, and its run, None if the service had dropped it.

    Attributes:
        folder: The run's output folder (gs://…), "" for none; None if no look needed it.
        metrics: The run's recorded metrics; None for none.
        in_place: Where its model is in its place; None if it isn't, or the last look didn't find out.
    """

    versioned: Versioned
    run: ActualJob | None
    folder: str | None = None
    metrics: RunMetrics | None = None
    in_place: InPlace | None = None


class Summary(Struct, frozen=True, forbid_unknown_fields=True):
    """Second part of the stored object; without it, every look is full.

    Attributes:
        taken: The beginning of the last full look, by the store's clock.
        size: The number of claims at that look.
        oldest: The creation time (RFC 3339) of the oldest run that the environment submitted; "" for none.
        bases: The base names of the desired jobs, whose newest runs are known.
        former: The other base names that ever had a claim.
        open: The keys of all contents that may still change.
        kept: The settled attempts at contents that looks need.
    """

    taken: datetime
    size: _Number
    oldest: _Text
    bases: _Texts = ()
    former: _Texts = ()
    open: _Texts = ()
    kept: tuple[Kept, ...] = ()


def read_summary(stored: StoredSummary | None) -> tuple[Preface | None, Summary | None]:
    """Return both parts of the stored object, each None if it is missing or can't be used.

    Of an object that another version wrote, or that is of other claims, neither part can be used.
    """
    if stored is None or (parts := _parts(stored)) is None:
        return None, None
    preface, rest = parts
    try:
        with gzip.open(BytesIO(rest)) as lines:
            # Line by line: the text of 10,000 attempts takes 15 MB.
            summary = msgspec.json.decode(_line(lines, _FACTS), type=Summary)
            summary = replace(summary, kept=tuple(_attempts(lines, _UNPACKED)))
        # Not of a clock that was ahead: the audit would be due too late.
        return preface, summary if checked(summary.taken) <= stored.now else None
    except (ValueError, RecursionError, OSError, EOFError, zlib.error):
        return preface, None


def read_preface(stored: StoredSummary | None) -> Preface | None:
    """Return the first part of the stored object alone, as `read_summary`."""
    parts = _parts(stored) if stored else None
    return parts[0] if parts else None


def is_spoiled(stored: StoredSummary | None, preface: Preface | None) -> bool:
    """Return True if an object without a usable summary has other content than announcements."""
    if stored is None or not stored.content:
        return False
    return preface is None or with_preface(stored.content, preface) != with_preface(b"", preface)


def _parts(stored: StoredSummary) -> tuple[Preface, bytes] | None:
    """Return the preface, and the bytes after it; None if the preface is missing or can't be used."""
    try:
        return _preface_and_rest(stored)
    except (ValueError, RecursionError, zlib.error):
        return None


def _preface_and_rest(stored: StoredSummary) -> tuple[Preface, bytes]:
    if len(stored.content) > _PACKED:
        raise ValueError("it is too large")
    member = zlib.decompressobj(wbits=_GZIP)
    line = member.decompress(stored.content, _PREFACE)
    if not member.eof:
        raise ValueError("its preface is too large, or is cut off")
    preface = msgspec.json.decode(line, type=Preface)
    if not _is_of(preface, stored):
        raise ValueError("it is of another version, other claims, or a restored store")
    for announcement in preface.announced:
        checked(announcement.at)
    # Whoever writes it again names the present genesis.
    return replace(preface, genesis=stored.genesis), member.unused_data


def _is_of(preface: Preface, stored: StoredSummary) -> bool:
    """Return True if this version wrote a preface for these claims, and the store wasn't restored since."""
    is_of_store = preface.genesis in (stored.genesis, *stored.rewritten)
    return is_of_store and (preface.format, preface.place) == (_FORMAT, stored.place)


def _line(lines: gzip.GzipFile, limit: int) -> bytes:
    """Return the next line, b"" at the end; raise ValueError if it has more bytes than `limit`."""
    line = lines.readline(limit + 1)
    if line and not line.endswith(b"\n"):
        raise ValueError("a line is too long, or is cut off")
    return line


def _attempts(lines: gzip.GzipFile, left: int) -> Iterator[Kept]:
    decode = msgspec.json.Decoder(Kept).decode
    number = 0
    while line := _line(lines, _LINE):
        number, left = number + 1, left - len(line)
        if number > _ATTEMPTS or left < 0:
            raise ValueError("it has too many attempts")
        yield decode(line)


def encoded(preface: Preface, summary: Summary | None) -> bytes:
    """Return the stored form; without the summary if that exceeds a limit, so that each look is full."""
    first = _packed([preface])
    if summary is None or max(map(len, (summary.bases, summary.former, summary.open))) > _KEYS:
        return first
    facts, attempts = _encoder.encode(replace(summary, kept=())), _encoder.encode_lines(summary.kept)
    is_bounded = len(summary.kept) <= _ATTEMPTS and len(facts) <= _FACTS and len(attempts) <= _UNPACKED
    content = first + _compressed(b"%b\n%b" % (facts, attempts))
    return content if is_bounded and len(content) <= _PACKED else first


_encoder = msgspec.json.Encoder()


def _packed(values: Iterable[Struct]) -> bytes:
    return _compressed(_encoder.encode_lines(values))


def _compressed(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=_COMPRESSION, mtime=0)


def with_preface(content: bytes, preface: Preface) -> bytes:
    """Return the stored form `content` with another preface.

    Args:
        content: A form with a valid preface; b"" for none.
    """
    if not content:
        return _packed([preface])
    member = zlib.decompressobj(wbits=_GZIP)
    member.decompress(content)
    return _packed([preface]) + member.unused_data


def announced_keys(announced: Iterable[Announcement]) -> set[str]:
    """Return the keys of announced claims."""
    return {id.key for announcement in announced for id in announcement.ids}


def announced_addresses(announced: Iterable[Announcement]) -> set[str]:
    """Return the addresses of announced publications: another model may be in the place by now."""
    return {to for announcement in announced for to in announcement.publications}


def settled_by_key(summary: Summary, wanted: Wanted) -> dict[str, list[Kept]]:
    """Return the attempts at contents whose claims, as copied, need no update, by their keys."""
    by_key: dict[str, list[Kept]] = defaultdict(list)
    for kept in summary.kept:
        by_key[kept.versioned.claim.id.key].append(kept)
    # Otherwise an update would write the copy over the claim, and the copy may be old or forged.
    return {
        key: attempts
        for key, attempts in by_key.items()
        if all(
            _is_settled(kept.versioned.claim, wanted.get(key), [kept.run] if kept.run else [])
            for kept in attempts
        )
    }


def may_go_on(job: DesiredJob, kept: Sequence[Kept]) -> bool:
    """Return True if a further attempt at a settled content may be due, or may have been made since."""
    last = max((attempt.versioned.claim for attempt in kept), key=lambda claim: claim.id.attempt)
    if not last.may_be_followed:
        return False
    stopped = sum(attempt.versioned.claim.is_stopped for attempt in kept)
    if last.is_stopped:
        return stopped <= MOST_RETURNS
    # Neither a failed set-up nor a job that apply cancelled uses up an attempt.
    unstarted = any(attempt.run is not None and is_failed_set_up(attempt.run) for attempt in kept)
    return unstarted or last.id.attempt - stopped < job.manifest.reconcile.attempts


def summarize(
    observed: Observed,
    before: Summary,
    wanted: Wanted,
    also: Collection[str] = (),
    *,
    whole: bool = True,
    moved: Collection[str] = (),
) -> Summary:
    """Return the summary after a look.

    Args:
        observed: Claims and runs of the look.
        before: Its time, its size and the oldest run; what the summary before the look said of other jobs.
        wanted: The desired jobs.
        also: The keys of other contents that looks need.
        whole: True if these are all desired jobs of the repository; False leaves what is known of others.
        moved: Addresses whose model isn't known of the others.
    """
    settled, moving = _split(observed, wanted, {kept.versioned.claim.id: kept for kept in before.kept})
    needed = {*wanted, *also, *_predecessors(settled.values(), wanted)} - moving
    needed |= _written_later(observed, needed | moving, wanted) - moving
    bases = {job.manifest.base_name for job in wanted.values()}
    claimed = {_base_of(versioned.claim) for versioned in observed.versions.values()}
    kept = {id: attempt for id, attempt in settled.items() if id.key in needed}
    if not whole:
        others = (attempt for attempt in before.kept if attempt.versioned.claim.id.key not in needed | moving)
        kept |= {attempt.versioned.claim.id: _without_mark(attempt, moved) for attempt in others}
        moving |= set(before.open) - needed
        bases |= set(before.bases)
    return replace(
        before,
        bases=tuple(sorted(bases)),
        former=tuple(sorted({*before.bases, *before.former, *claimed} - bases)),
        open=tuple(sorted(moving)),
        kept=tuple(attempt for _, attempt in sorted(kept.items())),
    )


def _without_mark(kept: Kept, moved: Collection[str]) -> Kept:
    return replace(kept, in_place=None) if kept.in_place and kept.in_place.to in moved else kept


def _split(
    observed: Observed, wanted: Wanted, before: Mapping[ClaimId, Kept]
) -> tuple[dict[ClaimId, Kept], set[str]]:
    """Return the settled attempts, and the keys of the contents that may still change.

    `before` are the copies of the summary before: a run's folder and its recorded metrics never change. Which
    model is in its place does, so that each look says it again.
    """
    runs = runs_by_claim(observed)
    settled, moving = dict[ClaimId, Kept](), set[str]()
    for id, versioned in observed.versions.items():
        of_claim = [run for run in runs.pop(id, []) if run.kind == versioned.claim.kind]
        if _is_settled(versioned.claim, wanted.get(id.key), of_claim):
            run = next(iter(of_claim), None)
            earlier, resource = before.get(id), versioned.claim.resource
            folder = observed.folders.get(resource, earlier.folder if earlier else None)
            metrics = observed.metrics.get(resource, earlier.metrics if earlier else None)
            settled[id] = Kept(versioned, run, folder, metrics, observed.in_place.get(resource))
        else:
            moving.add(id.key)
    # A run without its claim may get it back, and is no history while it has none.
    moving |= {id.key for id in runs if id.key}
    return settled, moving


def _is_settled(claim: Claim, job: DesiredJob | None, runs: Sequence[ActualJob]) -> bool:
    """Return True if nothing but a person's deletion can change an attempt's claim and runs."""
    if claim.state is not ClaimState.BOUND or len(runs) > 1:
        return False
    # A bound claim without an end needs an update, unless its run is live.
    return _have_ended(claim, runs) and refreshed(claim, job, runs) == claim


def _have_ended(claim: Claim, runs: Iterable[ActualJob]) -> bool:
    """Return True if a claim's requests made all of its runs, and each has ended."""
    return all(run.state.ended and made(claim, run) for run in runs)


def _predecessors(settled: Iterable[Kept], wanted: Wanted) -> Iterator[str]:
    """Yield for each desired base name the key of the newest run with other content."""
    bases = {job.manifest.base_name for job in wanted.values()}
    runs = ((age(kept.run), kept.versioned.claim) for kept in settled if kept.run is not None)
    by_age = sorted((at, claim.id.key, _base_of(claim)) for at, claim in runs)
    yield from {base: key for _, key, base in by_age if base in bases and key not in wanted}.values()


def _written_later(observed: Observed, known: Collection[str], wanted: Wanted) -> set[str]:
    """Return the keys whose runs may have written after a run of a known content of the same base name.

    They may have overwritten its result, and a known content may be desired again.
    """
    bases = {job.manifest.base_name for job in wanted.values()}
    claims = {versioned.claim.resource: versioned.claim for versioned in observed.versions.values()}
    by_base: dict[str, list[tuple[str, ActualJob]]] = defaultdict(list)
    for run in observed.runs:
        claim = claims.get(run.resource)
        if claim and (base := _base_of(claim)) in bases and run.start_time:
            by_base[base].append((claim.id.key, run))
    later = set[str]()
    for runs in by_base.values():
        known_runs = [run for key, run in runs if key in known]
        later |= {key for key, run in runs if any(may_write_last(run, other) for other in known_runs)}
    return later


def _base_of(claim: Claim) -> str:
    """Return the claim's base name as manifests and names of jobs have it."""
    return claim.base_name.replace("-", "_")


def contradictions(summary: Summary, observed: Observed, keys: Collection[str]) -> list[str]:
    """Return what a full look found otherwise than the summary says, a sentence for each.

    Args:
        summary: The summary before the look.
        observed: Claims and runs of the look.
        keys: The keys of desired and announced contents, which a short look would have read.
    """
    states = {run.resource: run.state for run in observed.runs}
    said = []
    for kept in summary.kept:
        claim, current = kept.versioned.claim, observed.claims.get(kept.versioned.claim.id)
        if current is None:
            said.append(f"{claim.job_name} has no claim any more")
        elif (current.resource, current.ended, current.gone) != (claim.resource, claim.ended, claim.gone):
            said.append(
                f"{claim.job_name} is {current.ended or current.state}, not {claim.ended or claim.state}"
            )
        elif kept.run is not None and states.get(kept.run.resource, kept.run.state) is not kept.run.state:
            said.append(f"{claim.job_name} is {states[kept.run.resource]}, not {kept.run.state}")
    mentioned = {*summary.open, *keys, *(kept.versioned.claim.id.key for kept in summary.kept)}
    said += (
        f"{claim.job_name} is {claim.state} and wasn't listed as open"
        for id, claim in observed.claims.items()
        if id.key not in mentioned and not (claim.ended or claim.gone)
    )
    remedy = "`reconciler apply --full` corrects it"
    return [f"the summary of ended runs was wrong ({remedy}): {sentence}" for sentence in sorted(said)]


def keys_in(runs: Iterable[ActualJob]) -> set[str]:
    """Return the keys in the labels of runs."""
    return {run.labels[KEY] for run in runs if run.labels.get(KEY)}
