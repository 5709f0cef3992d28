"""A claim as its object's metadata holds it, read at the speed that thousands of them need.

Only what is plainly a claim is read here; whatever has any other form is left to `claim_of`, whose word and
message count.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from reconciler.claim import Claim, ClaimId, ClaimState, checked, claim_of
from reconciler.job import State
from reconciler.manifest import JsonObject, OnLiveRun

ENTRY = "claim"
"""What the entry of an object's metadata is called that holds a claim."""

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]


class _Said(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What `claim_json` writes."""

    format_version: Literal[1]
    key: _Name
    attempt: Annotated[int, msgspec.Meta(ge=1, lt=10**9)]
    state: ClaimState
    job_name: _Name
    base_name: _Name
    api_version: _Name
    kind: _Name
    path: str = ""
    on_delete: OnLiveRun = "keep"
    commit: str = ""
    tries: tuple[str, ...] = ()
    fence: _Name = ""
    resource: str = ""
    ended: State | msgspec.UnsetType = msgspec.UNSET
    gone: bool = False
    rerun: str = ""
    labels: str = ""
    odd: str = ""
    error: str = ""
    not_before: _Name = ""
    refusals: _Number = 0
    unanswered: _Number = 0
    given_up: bool = False
    owner: str = ""


def claim_in(text: str) -> Claim:
    """The claim that a text says; raises ValueError as `claim_of` does."""
    try:
        said = _decode(text)
        if _is_whole(said):
            return _claim(said)
    except (ValueError, RecursionError):
        pass
    return claim_of(object_in(text, ENTRY))


def object_in(text: str, entry: str) -> JsonObject:
    """The JSON object that the entry of an object's metadata says, or its content; raises ValueError."""
    try:
        said = json.loads(text)
    except RecursionError:
        said = None
    if not isinstance(said, dict):
        raise ValueError(f'neither the entry "{entry}" of its metadata nor its content is a JSON object')
    return said


def _is_whole(said: _Said) -> bool:
    """Whether it names what its state is about."""
    if said.state is ClaimState.BOUND:
        return said.resource != ""
    return said.state is not ClaimState.PENDING or bool(said.fence and said.tries)


def _claim(said: _Said) -> Claim:
    return Claim(
        ClaimId(said.key, said.attempt),
        said.state,
        said.job_name,
        said.base_name,
        said.api_version,
        said.kind,
        said.path,
        said.on_delete,
        said.commit,
        said.tries,
        _time(said.fence) if said.fence else None,
        said.resource,
        said.ended or None,
        said.gone,
        said.rerun,
        said.labels,
        said.odd,
        said.error,
        _time(said.not_before) if said.not_before else None,
        said.refusals,
        said.unanswered,
        said.given_up,
        said.owner,
    )


def _time(text: str) -> datetime:
    return checked(datetime.fromisoformat(text))


_decode = msgspec.json.Decoder(_Said).decode
