"""The record of a commit whose statuses are owed, in its stored form.

It stands beside the claims until all of the commit's statuses have been posted and seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, ValidationError, convert, field, to_builtins

from reconciler.model.claim import checked
from reconciler.model.expectation import Expectation
from reconciler.model.manifest import Publish

_RECORD_FORMAT = 1
_FIELDS_OF_BOUNDS = 3
"""Number of the fields of `Expectation` that every version has."""


class WantedJob(Struct, frozen=True):
    """One job of a commit.

    Attributes:
        keys: Keys of its claims: the label of its identity, then those of older hash versions.
        settled: True if it had ended before the commit was applied: then another commit has its result.
        brought: True if the commit brought it, see `planning.lineage.lineage_of`.
            Records of earlier versions don't tell, and count every job.
        replaced_by: The passed-over or applied commit that replaced it before it was submitted; "" for none.
        expect: What its manifest expects of the result in this commit.
        publish: Where its result is published in this commit; None for nowhere.
    """

    keys: tuple[str, ...]
    settled: bool = False
    brought: bool = True
    replaced_by: str = field(default="", name="replacedBy")
    expect: tuple[Expectation, ...] = ()
    publish: Publish | None = None


class CommitRecord(Struct, frozen=True):
    """Statuses still to be posted on a commit.

    Attributes:
        sha: The commit, 40 hex digits.
        since: Time of its first apply, by the store's clock.
        number: Sequence number of applied commits; 0 if it was passed over.
        jobs: Its desired jobs, by the base name as written in the manifest; of a passed-over commit those
            that it brought.
        whole: True if these are all of its jobs: only then an overall status is possible.
        superseded_by: The commit that was applied in its place, where the jobs that it brought aren't told
            apart; "" for none.
        closed: True if no status remains to be posted.
        told: A digest of the last posted statuses until they are final; "" for none.
        seen: Time at which all of its final statuses were first seen on it; None before. With `told`: time of
            the last post, until a later look has confirmed it.
        applied: The commits that were applied before it, the last ones, oldest first.
        replaced_by: The older commit that a person applied over it by `--allow-older`; "" for none.
        problem: Why a passed-over commit could not have been applied; "" if it could.
        told_apart: True if it was passed over, so that all jobs that it brought are known.
        commented: A digest of the ends that its pull request was told; "" for none.
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
    replaced_by: str = ""
    problem: str = ""
    told_apart: bool = False
    commented: str = ""

    @property
    def has_verdict(self) -> bool:
        """True if all jobs that it brought are known."""
        return self.whole or self.told_apart


_RECORD_FIELDS = CommitRecord.__struct_fields__
_RECORD_NAMES = {"superseded_by": "supersededBy", "replaced_by": "replacedBy", "told_apart": "toldApart"}
"""Stored names of the fields that have another one."""
_RECORD_LATER = {"replacedBy": "", "problem": "", "toldApart": False, "commented": ""}
"""Fields that earlier versions don't write, with their defaults."""


def record_json(record: CommitRecord) -> dict[str, Any]:
    """Return the record as JSON."""
    said = {_RECORD_NAMES.get(name, name): getattr(record, name) for name in _RECORD_FIELDS}
    jobs = {name: _wanted_json(job) for name, job in sorted(record.jobs.items())}
    times = {"since": record.since.isoformat(), "seen": record.seen.isoformat() if record.seen else None}
    for name in (name for name in _RECORD_LATER if not said[name]):
        del said[name]
    return {"formatVersion": _RECORD_FORMAT, **said, "jobs": jobs, **times, "applied": [*record.applied]}


def _wanted_json(job: WantedJob) -> dict[str, Any]:
    said: dict[str, Any] = {"keys": [*job.keys], "settled": job.settled}
    # Earlier versions neither write nor read the rest.
    if not job.brought:
        said["brought"] = False
    if job.replaced_by:
        said["replacedBy"] = job.replaced_by
    if job.expect:
        said["expect"] = [_expectation_json(expectation) for expectation in job.expect]
    if job.publish:
        said["publish"] = to_builtins(job.publish)
    return said


def _expectation_json(expectation: Expectation) -> list[Any]:
    """Return the stored form, without the fields that earlier versions don't have if they are empty."""
    said: list[Any] = to_builtins(expectation)
    return said if expectation.worse is not None else said[:_FIELDS_OF_BOUNDS]


def record_of(said: Any) -> CommitRecord:
    """Return the record that `record_json` wrote.

    Raises:
        ValueError: The JSON is no record, or needs a newer version.
    """
    try:
        if said["formatVersion"] != _RECORD_FORMAT:
            raise ValueError(f"it has format version {said['formatVersion']!r}, not {_RECORD_FORMAT}")
        # Every field is written, so a missing field is an error, although most have a default.
        said = {**_RECORD_LATER, **said}
        values = {name: said[_RECORD_NAMES.get(name, name)] for name in _RECORD_FIELDS}
        for name in ("since", "seen"):
            values[name] = checked(datetime.fromisoformat(values[name])) if values[name] else None
        return convert(values, CommitRecord)
    except (KeyError, TypeError, ValidationError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from None
