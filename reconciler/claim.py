"""Claims: what is durably known of each submission, written before the first request for it leaves.

A claim is about one attempt at one content. It is kept for ever: as long as it is there, nothing submits that
attempt again, whatever the service still knows of the job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import asdict, force_setattr

from reconciler.job import State
from reconciler.manifest import OnLiveRun

FORMAT_VERSION = 1
MAX_ERROR = 1000
"""Characters of an error that a claim keeps."""

# A claim is one entry of an object's metadata, which may have 8 KiB in all: what has no length of its own is
# kept up to so many bytes of JSON. 3 KiB are left for the rest.
_LONGEST = {"path": 2500, "error": 2000, "owner": 400}
_MOST = 10**9
_ESCAPE = len(r"\u0000")
_SURELY_SHORT = min(_LONGEST.values()) // _ESCAPE
"""Characters of a text that is nowhere cut: most are, and a claim is made for every job of every look."""
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

    key: str
    attempt: int = 1


class Claim(Struct, frozen=True, gc=False):
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
    job_name: str
    base_name: str
    api_version: str
    kind: str
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
    refusals: int = 0
    unanswered: int = 0
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
    """The claim that `claim_json` wrote.

    Raises:
        ValueError: It is no claim, or one that only a newer version can read.
    """
    if said.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"it has format version {said.get('format_version')!r}, not {FORMAT_VERSION}")
    _check_types(said)
    rest = {name: value for name, value in said.items() if name not in ("format_version", "key", "attempt")}
    try:
        claim = Claim(
            **{
                **rest,
                "id": ClaimId(said["key"], said["attempt"]),
                "state": ClaimState(said["state"]),
                "tries": tuple(said.get("tries", ())),
                "fence": _time(said.get("fence")),
                "not_before": _time(said.get("not_before")),
                "ended": State(said["ended"]) if "ended" in said else None,
            }
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or unknown: {error}") from None
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


def _time(text: str | None) -> datetime | None:
    return checked(datetime.fromisoformat(text)) if text else None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("key", "state", "job_name", "base_name", "api_version", "kind"), _is_name),
    **dict.fromkeys(("path", "commit", "resource", "rerun", "labels", "odd", "error", "owner"), _is_text),
    **dict.fromkeys(("fence", "not_before", "ended"), _is_name),
    **dict.fromkeys(("gone", "given_up"), _is_bool),
    "attempt": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("refusals", "unanswered"), _is_number),
    "on_delete": lambda value: value in get_args(OnLiveRun),
    "tries": lambda value: isinstance(value, list) and all(map(_is_text, value)),
}


def _check_types(said: Mapping[str, Any]) -> None:
    for name, fits in _TYPES.items():
        if name in said and not fits(said[name]):
            raise ValueError(f'the field "{name}" has a value that it can\'t have')


def _cut(text: str, size: int) -> str:
    """As much of the beginning as takes no more than so many bytes of JSON in UTF-8."""
    if len(text) * _ESCAPE > size:
        for index, char in enumerate(text):
            size -= len(json.dumps(char, ensure_ascii=False).encode("utf-8", "backslashreplace")) - 2
            if size < 0:
                return text[:index]
    return text
