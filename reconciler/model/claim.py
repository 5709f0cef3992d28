"""Claims: what is durably known of each submission, written before the first request for it leaves.

A claim is about one attempt at one content. It is kept for ever: as long as it is there, nothing submits that
attempt again, whatever the service still knows of the job.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict, force_setattr

from reconciler.model.job import State
from reconciler.model.manifest import OnLiveRun

FORMAT_VERSION = 1
MAX_ERROR = 1000
"""Characters of an error that a claim keeps."""

# A claim is one entry of an object's metadata, which may have 8 KiB in all: what has no length of its own is
# kept up to so many bytes of JSON. 3 KiB are left for the rest.
_LONGEST = {"path": 2500, "error": 2000, "owner": 400}
_ESCAPE = len(r"\u0000")
_SURELY_SHORT = min(_LONGEST.values()) // _ESCAPE
"""Characters of a text that is nowhere cut: most are, and a claim is made for every job of every look."""
_ID = ("key", "attempt")
_Name = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=0, lt=10**9)]
_FIRST_YEAR, _LAST_YEAR = 1900, 9000


class ClaimState(StrEnum):
    """How far one submission has come."""

    PENDING = "pending"
    """It may have been sent, and its outcome isn't known."""
    BOUND = "bound"
    """It is known which job it became."""
    REJECTED = "rejected"
    """It certainly made no job; it may be sent again."""
    HELD = "held"
    """It goes on only when a person says how."""


class ClaimId(Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """What a claim is about.

    Attributes:
        key: The job's whole identity as its label has it, 52 characters of base32.
        attempt: From 1.
    """

    key: _Name
    attempt: Annotated[int, Meta(ge=1, lt=10**9)] = 1


class Claim(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What is known of one submission.

    Attributes:
        id: What it is about.
        state: How far it has come.
        job_name: The run's name, with its attempt.
        base_name: As the manifest writes it.
        api_version, kind: The manifest's.
        path: The manifest's file, relative to the repository's root, when it was last applied.
        on_delete: What happens to a live run when the manifest is gone; as last applied.
        commit: The commit that was checked out at the first submission; "" for none.
        tries: The random marks of all requests that were ever about to be sent for this attempt, newest last;
            the job that one made has it in its labels.
        fence: When the newest request's credential expires, by the service's clock.
        resource: BOUND: the job's resource name.
        ended: BOUND: how the job ended, None while no end was seen.
        gone: BOUND: it was seen that the service has the job no more, before an end of it was seen.
        rerun: A digest of the manifest's `rerun`, by which a plan can tell that it changed; "" where it isn't
            known.
        labels: BOUND: a digest of the labels that the job was given; "" where it isn't known.
        odd: HELD: the job that was found and isn't taken for its own; "" for none.
        error: REJECTED, HELD: why, in one line.
        not_before: REJECTED: when it may be sent again, by the service's clock; None for at once.
        refusals: How often in a row the service refused.
        unanswered: How many requests in a row stayed without a known outcome.
        given_up: HELD: a person decided that it is not to be sent any more.
        owner: Who wrote it, for people to read.
    """

    id: ClaimId
    state: ClaimState
    job_name: _Name
    base_name: _Name
    api_version: _Name
    kind: _Name
    path: str = ""
    on_delete: OnLiveRun = "keep"
    commit: str = ""
    tries: tuple[str, ...] = ()
    fence: datetime | None = None
    resource: str = ""
    ended: State | None = None
    gone: bool = False
    rerun: str = ""
    labels: str = ""
    odd: str = ""
    error: str = ""
    not_before: datetime | None = None
    refusals: _Count = 0
    unanswered: _Count = 0
    given_up: bool = False
    owner: str = ""

    def __post_init__(self) -> None:
        # Here and not where it is written: a claim is compared with what is read back.
        if (
            len(self.path) > _SURELY_SHORT
            or len(self.error) > _SURELY_SHORT
            or len(self.owner) > _SURELY_SHORT
        ):
            for name, size in _LONGEST.items():
                force_setattr(self, name, _cut(getattr(self, name), size))


def rerun_digest(rerun: str) -> str:
    """16 hex digits that change with the text of `rerun`."""
    return hashlib.sha256(rerun.encode()).hexdigest()[:16]


def claim_json(claim: Claim) -> dict[str, Any]:
    """The claim as JSON, without the fields that say nothing."""
    said = {
        **asdict(claim),
        **asdict(claim.id),
        "tries": list(claim.tries),
        "fence": _text(claim.fence),
        "not_before": _text(claim.not_before),
    }
    del said["id"]
    return {"format_version": FORMAT_VERSION, **{name: value for name, value in said.items() if value}}


def claim_of(said: Mapping[str, Any]) -> Claim:
    """Return the claim that `claim_json` wrote.

    Raises:
        ValueError: It is no claim, or one that only a newer version can read.
    """
    if said.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"it has format version {said.get('format_version')!r}, not {FORMAT_VERSION}")
    # A field without a value is left out when a claim is written: null is never a value.
    empty = next((name for name, value in said.items() if value is None), None)
    if empty is not None:
        raise _odd_field(empty)
    missing = next((name for name in _ID if name not in said), None)
    if missing is not None:
        raise ValueError(f"a field is missing or unknown: {missing!r}")
    fields = {name: value for name, value in said.items() if name not in ("format_version", *_ID)}
    fields["id"] = {name: said[name] for name in _ID}
    for name in ("fence", "not_before"):
        if isinstance(said.get(name), str) and said[name]:
            fields[name] = checked(datetime.fromisoformat(said[name]))
    try:
        claim = convert(fields, Claim)
    except ValidationError as error:
        raise _unreadable(str(error), said) from None
    if claim.state is ClaimState.PENDING and not (claim.fence and claim.tries):
        raise ValueError("it is pending and names no request")
    if claim.state is ClaimState.BOUND and not claim.resource:
        raise ValueError("it is bound and names no job")
    return claim


def checked(time: datetime) -> datetime:
    """The time in UTC.

    Raises:
        ValueError: It has no zone, or is so far away that a sum with it may be no time any more.
    """
    if time.tzinfo is None:
        raise ValueError(f"the time '{time.isoformat()}' has no zone")
    if not _FIRST_YEAR < time.year < _LAST_YEAR:
        raise ValueError(f"the time '{time.isoformat()}' is none of our days")
    return time.astimezone(UTC)


def _text(time: datetime | None) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z") if time else ""


def _unreadable(error: str, said: Mapping[str, Any]) -> ValueError:
    """Return the error that names the field that msgspec could not read."""
    if field := re.search(r"field `(.*?)`", error):
        return ValueError(f"a field is missing or unknown: {field[1]!r}")
    place = re.search(r"`\$\.(?:id\.)?(\w+)", error)
    name = place[1] if place else ""
    kind = {"state": ClaimState, "ended": State}.get(name)
    if kind and isinstance(said[name], str) and said[name]:
        return ValueError(f"{said[name]!r} is not a valid {kind.__name__}")
    return _odd_field(name)


def _odd_field(name: str) -> ValueError:
    return ValueError(f'the field "{name}" has a value that it can\'t have')


def _cut(text: str, size: int) -> str:
    """As much of the beginning as takes no more than so many bytes of JSON in UTF-8."""
    if len(text) * _ESCAPE > size:
        for index, char in enumerate(text):
            size -= len(json.dumps(char, ensure_ascii=False).encode("utf-8", "backslashreplace")) - 2
            if size < 0:
                return text[:index]
    return text
