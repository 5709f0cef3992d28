"""Record of a commit's jobs, kept until all of its statuses have been posted and seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from reconciler.model.claim import checked

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class WantedJob:
    """One job of a commit.

    Attributes:
        keys: Keys of its claims: the label of its identity, then those of older hash versions.
        settled: True if it had ended before the commit was applied: then another commit has its result.
    """

    keys: tuple[str, ...]
    settled: bool = False


@dataclass(frozen=True, slots=True)
class CommitRecord:
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
        seen: Time at which all of its statuses were first seen on it; None before.
        applied: The commits that were applied before it, the last ones, oldest first.
    """

    sha: str
    since: datetime
    number: int = 0
    jobs: Mapping[str, WantedJob] = field(default_factory=dict)
    whole: bool = True
    superseded_by: str = ""
    closed: bool = False
    told: str = ""
    seen: datetime | None = None
    applied: tuple[str, ...] = ()


def record_json(record: CommitRecord) -> dict[str, Any]:
    """Return the record as JSON."""
    return {
        "formatVersion": FORMAT_VERSION,
        "sha": record.sha,
        "since": record.since.isoformat(),
        "number": record.number,
        "jobs": {
            name: {"keys": [*job.keys], "settled": job.settled} for name, job in sorted(record.jobs.items())
        },
        "whole": record.whole,
        "supersededBy": record.superseded_by,
        "closed": record.closed,
        "told": record.told,
        "seen": record.seen.isoformat() if record.seen else None,
        "applied": list(record.applied),
    }


def record_of(said: Any) -> CommitRecord:
    """Return the record that `record_json` wrote.

    Raises:
        ValueError: The JSON is no record, or needs a newer version.
    """
    try:
        if said["formatVersion"] != FORMAT_VERSION:
            raise ValueError(f"it has format version {said['formatVersion']!r}, not {FORMAT_VERSION}")
        return CommitRecord(
            sha=_text(said["sha"]),
            since=checked(datetime.fromisoformat(said["since"])),
            number=_number(said["number"]),
            jobs={_text(name): _job(job) for name, job in said["jobs"].items()},
            whole=said["whole"] is True,
            superseded_by=_text(said["supersededBy"]),
            closed=said["closed"] is True,
            told=_text(said["told"]),
            seen=checked(datetime.fromisoformat(said["seen"])) if said["seen"] else None,
            applied=tuple(_text(sha) for sha in said["applied"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing, or isn't what it should be: {error}") from None


def _job(said: Any) -> WantedJob:
    return WantedJob(tuple(_text(key) for key in said["keys"]), said["settled"] is True)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
