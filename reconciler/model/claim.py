"""Claims: the durable record of each submission, written before its first request leaves.

A claim covers an attempt at a content. It is kept for ever: while it exists, the attempt is never submitted
again, even if the service no longer has the job.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import force_setattr

from reconciler.model.job import State
from reconciler.model.manifest import OnLiveRun

_CLAIM_FORMAT = 1
MAX_ERROR = 1000
"""Longest error in a claim, in characters."""
MOST_RETURNS = 3
"""Times that a content whose job apply had cancelled is submitted again without a person."""
BY_COMMAND = "cancelled by `reconciler cancel`"
"""Recorded reason of a person's cancel, which is final."""
# Releases without returns wrote "cancelled: ", also for duplicates: what they cancelled stays cancelled.
_BY_APPLY = "cancelled by apply: "

# A claim is an entry of an object's metadata, which may have 8 KiB in total: texts of free length are cut to
# these numbers of bytes of JSON. 3 KiB are left for the other fields.
_LONGEST = {"path": 2500, "error": 2000, "owner": 400}
_ESCAPE = len(r"\u0000")
_ID = ("key", "attempt")
_Name = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=0, lt=10**9)]
_FIRST_YEAR, _LAST_YEAR = 1900, 9000


class ClaimState(StrEnum):
    """State of a submission."""

    PENDING = "pending"
    """A request may have left; its outcome is unknown."""
    BOUND = "bound"
    """The claim names the job."""
    REJECTED = "rejected"
    """No request made a job; it may be sent again."""
    HELD = "held"
    """A person must decide."""


class ClaimId(Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """Content and attempt of a claim.

    Attributes:
        key: The job's whole identity as in its label, 52 characters of base32.
        attempt: From 1.
    """

    key: _Name
    attempt: Annotated[int, Meta(ge=1, lt=10**9)] = 1


class Claim(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Record of a submission.

    Attributes:
        id: Its content and attempt.
        state: Its state.
        job_name: The run's name, with its attempt.
        base_name: The base name as written in the manifest.
        api_version, kind: The manifest's.
        path: The manifest's file, relative to the repository's root, when it was last applied.
        on_delete: The last applied policy for a live run after the manifest's removal.
        commit: The commit that was checked out at the first submission; "" for none.
        request_ids: Random ids of the attempt's requests, newest last, each recorded before it is sent. A job
            has the id of its request in its labels. Stored as `tries`.
        credential_expiry: When the newest request's credential expires, by the service's clock. Stored as
            `fence`.
        resource: BOUND: the job's resource name.
        ended: BOUND: the job's final state; None until it is seen.
        gone: BOUND: the service no longer had the job before a final state was seen.
        rerun: A digest of the manifest's `rerun`, to detect a change; "" if unknown.
        labels: BOUND: a digest of the job's labels at submission; "" if unknown.
        odd: HELD: resource name of the job that was found but can't be bound; "" for none.
        error: REJECTED, HELD: the reason, in one line. BOUND: the reason of this tool's cancel of the job,
            from `by_apply` for a cancel after which the content may come back.
        not_before: REJECTED: when it may be sent again, by the service's clock; None for at once.
        refusals: Number of consecutive refusals by the service.
        unanswered: Number of consecutive requests without a known outcome.
        given_up: HELD: a person decided against further requests.
        owner: The writing process, for people to read.
    """

    # A field that this version doesn't know may change the meaning of the others, hence no unknown fields.
    id: ClaimId
    state: ClaimState
    job_name: _Name
    base_name: _Name
    api_version: _Name
    kind: _Name
    path: str = ""
    on_delete: OnLiveRun = "keep"
    commit: str = ""
    request_ids: tuple[str, ...] = field(default=(), name="tries")
    credential_expiry: datetime | None = field(default=None, name="fence")
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
        # Cut here and not on write: a claim is compared with its stored form after each write.
        for name, size in _LONGEST.items():
            text = getattr(self, name)
            if len(text) * _ESCAPE > size:
                force_setattr(self, name, _cut(text, size))

    @property
    def is_adopted(self) -> bool:
        """True if it was bound to a job that none of its requests made, such as by `import --adopt`."""
        return self.state is ClaimState.BOUND and not self.request_ids

    @property
    def reason(self) -> str:
        """The error; that of a bound claim is about a cancel, and counts once its job is CANCELLED."""
        return "" if self.state is ClaimState.BOUND and self.ended is not State.CANCELLED else self.error

    @property
    def is_stopped(self) -> bool:
        """True if its job ended because apply cancelled it by a manifest's policy."""
        return self.state is ClaimState.BOUND and is_by_apply(self.reason)

    @property
    def may_be_followed(self) -> bool:
        """True if the next attempt at the content may be made: its job failed or was stopped."""
        return self.is_stopped or (self.state is ClaimState.BOUND and self.ended is State.FAILED)


def by_apply(reason: str) -> str:
    """Return the reason to record for a cancel by a manifest's policy; the content may come back after it.

    The reason of a duplicate's cancel has another form: the run that stayed may have succeeded.
    """
    return f"{_BY_APPLY}{reason}"


def is_by_apply(reason: str | None) -> bool:
    """Return True if a recorded reason is one of `by_apply`."""
    return reason is not None and reason.startswith(_BY_APPLY)


def rerun_digest(rerun: str) -> str:
    """Return 16 hex digits of a hash of `rerun`."""
    return hashlib.sha256(rerun.encode()).hexdigest()[:16]


def claim_json(claim: Claim) -> dict[str, Any]:
    """Return the claim as JSON, without empty fields."""
    said = to_builtins(claim)
    times = {"fence": _text(claim.credential_expiry), "not_before": _text(claim.not_before)}
    said |= {**said.pop("id"), **times, "tries": [*claim.request_ids]}
    return {"format_version": _CLAIM_FORMAT, **{name: value for name, value in said.items() if value}}


def claim_of(said: Mapping[str, Any]) -> Claim:
    """Return the claim that `claim_json` wrote.

    Raises:
        ValueError: The JSON is no claim, or needs a newer version.
    """
    if said.get("format_version") != _CLAIM_FORMAT:
        raise ValueError(f"it has format version {said.get('format_version')!r}, not {_CLAIM_FORMAT}")
    # A field without a value is left out when a claim is written: null is never a value.
    if None in said.values():
        raise _odd_field(next(name for name, value in said.items() if value is None))
    missing = next((name for name in _ID if name not in said), None)
    if missing is not None:
        raise ValueError(f"a field is missing or unknown: {missing!r}")
    fields = {**said}
    del fields["format_version"]
    fields["id"] = {name: fields.pop(name) for name in _ID}
    for name in ("fence", "not_before"):
        if isinstance(said.get(name), str) and said[name]:
            fields[name] = checked(datetime.fromisoformat(said[name]))
    try:
        claim = convert(fields, Claim)
    except ValidationError as error:
        raise _unreadable(str(error), said) from None
    # Without an expiry, the protocol could not know how long to wait before it sends again.
    if claim.state is ClaimState.PENDING and not (claim.credential_expiry and claim.request_ids):
        raise ValueError("it is pending and names no request")
    if claim.state is ClaimState.BOUND and not claim.resource:
        raise ValueError("it is bound and names no job")
    return claim


def checked(time: datetime) -> datetime:
    """Return the time in UTC.

    Raises:
        ValueError: The time has no zone, or is so far away that a sum with it may overflow.
    """
    if time.tzinfo is None:
        raise ValueError(f"the time '{time.isoformat()}' has no zone")
    if not _FIRST_YEAR < time.year < _LAST_YEAR:
        raise ValueError(f"the time '{time.isoformat()}' is out of range")
    return time.astimezone(UTC)


def time_of(text: str) -> datetime | None:
    """Return a time (RFC 3339) in UTC; None if it can't be read."""
    try:
        return checked(datetime.fromisoformat(text))
    except ValueError:
        return None


def _text(time: datetime | None) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z") if time else ""


def _unreadable(error: str, said: Mapping[str, Any]) -> ValueError:
    """Return the error that names the field that msgspec could not read."""
    if field := re.search(r"field `(.*?)`", error, re.DOTALL):
        return ValueError(f"a field is missing or unknown: {field[1]!r}")
    # msgspec ends with the place, such as "`$.id.key`".
    name = re.split(r"\W", error.rpartition("`$.")[2].removeprefix("id."))[0]
    kind = {"state": ClaimState, "ended": State}.get(name)
    if kind and isinstance(said[name], str) and said[name]:
        return ValueError(f"{said[name]!r} is not a valid {kind.__name__}")
    return _odd_field(name)


def _odd_field(name: str) -> ValueError:
    return ValueError(f'the field "{name}" has an impossible value')


def _cut(text: str, size: int) -> str:
    """Return the longest prefix that takes at most `size` bytes of JSON in UTF-8."""
    for index, char in enumerate(text):
        size -= len(json.dumps(char, ensure_ascii=False).encode("utf-8", "backslashreplace")) - 2
        if size < 0:
            return text[:index]
    return text
