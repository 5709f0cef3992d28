"""Record of a commit's jobs, kept until all of its statuses have been posted and seen."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, ValidationError, convert

from reconciler.model.claim import checked

FORMAT_VERSION = 1


class WantedJob(Struct, frozen=True):
    """One job of a commit.

    Attributes:
        keys: Keys of its claims: the label of its identity, then those of older hash versions.
        settled: True if it had ended before the commit was applied: then another commit has its result.
    """

    keys: tuple[str, ...]
    settled: bool = False


class CommitRecord(Struct, frozen=True):
    """Statuses still to be posted on a commit.

    Attributes:
        sha: The commit, 40 hex digits.
        since: Time of its first apply, by the store's clock.
        number: Sequence number of applied commits; 0 if it was not applied.
        jobs: Its desired jobs, by the base name as written in the manifest.
        whole: True if these are all of its jobs: only then an overall status is possible.
        superseded_by: The commit that was applied in its place; "" if it was applied itself.
        closed: True if no status remains to be posted.
        told: A digest of the last posted statuses until they are final; "" for none.
        seen: Time at which all of its final statuses were first seen on it; None before. With `told`: time of
            the last post, until a later look has confirmed it.
        applied: The commits that were applied before it, the last ones, oldest first.
    """

    sha: str
    since: datetime
    number: int = 0
    jobs: Mapping[str, WantedJob] = {}
    whole: bool = True
    superseded_by: str = ""
    closed: bool = False
    told: str = ""
    seen: datetime | None = None
    applied: tuple[str, ...] = ()


_FIELDS = CommitRecord.__struct_fields__
_STORED = {"superseded_by": "supersededBy"}
"""Stored names of the fields that have another one."""


def record_json(record: CommitRecord) -> dict[str, Any]:
    """Return the record as JSON."""
    said = {_STORED.get(name, name): getattr(record, name) for name in _FIELDS}
    jobs = {name: {"keys": [*job.keys], "settled": job.settled} for name, job in sorted(record.jobs.items())}
    times = {"since": record.since.isoformat(), "seen": record.seen.isoformat() if record.seen else None}
    return {"formatVersion": FORMAT_VERSION, **said, "jobs": jobs, **times, "applied": [*record.applied]}


def record_of(said: Any) -> CommitRecord:
    """Return the record that `record_json` wrote.

    Raises:
        ValueError: The JSON is no record, or needs a newer version.
    """
    try:
        if said["formatVersion"] != FORMAT_VERSION:
            raise ValueError(f"it has format version {said['formatVersion']!r}, not {FORMAT_VERSION}")
        # Every field is written, so a missing field is an error, although most have a default.
        found = {name: said[_STORED.get(name, name)] for name in _FIELDS}
        for name in ("since", "seen"):
            found[name] = checked(datetime.fromisoformat(found[name])) if found[name] else None
        return convert(found, CommitRecord)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from None
