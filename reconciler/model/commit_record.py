"""What one commit wants, remembered until every status that it is owed has been seen on it."""

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
        keys: What its claims can be called: the label of its identity, then those of older hash versions.
        settled: Whether it had ended before the commit was applied: then another commit was told its end.
    """

    keys: tuple[str, ...]
    settled: bool = False


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What is owed to one commit.

    Attributes:
        sha: The commit, 40 hex digits.
        since: When it was first applied, by the store's clock.
        number: Grows from one applied commit to the next; 0 where it wasn't applied.
        jobs: The jobs that it wants, by the base name as the manifest writes it.
        whole: Whether these are all of its jobs: only then a verdict over all of them can be given.
        superseded_by: The commit that was applied in its place; "" where it was applied itself.
        closed: Whether nothing is owed to it any more.
        told: A digest of what it was told last, as long as that isn't final; "" for nothing.
        seen: Since when all that it is owed was seen on it; None where it wasn't.
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
    """The record as JSON."""
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
    """The record that `record_json` wrote.

    Raises:
        ValueError: It is none, or one that only a newer version can read.
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
