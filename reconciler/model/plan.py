"""The plan as data: what is rendered, digested, compared and applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import Struct

from reconciler.base.diagnostics import Problem
from reconciler.model.job import ActualJob
from reconciler.model.manifest import JsonObject, Manifest, Packed, unpacked

FORMAT_VERSION = 1


class Action(StrEnum):
    """What apply does about one job."""

    SUBMIT = "submit"
    RETRY = "retry"
    CANCEL = "cancel"
    NONE = "none"
    BLOCKED = "blocked"


class DriftKind(StrEnum):
    """How what there is can differ from what is wanted without apply mending it by itself."""

    ORPHANED = "orphaned"
    SUPERSEDED = "superseded"
    CANCELLED_OUTSIDE = "cancelled-outside"
    DELETED_OUTSIDE = "deleted-outside"
    MODIFIED = "modified"
    DUPLICATE = "duplicate"


class Stuck(StrEnum):
    """Why a job that is left alone hasn't done what is wanted of it."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    DELETED = "deleted outside"
    GIVEN_UP = "given up"
    REVERTED = "already ran"
    SUSPENDED = "suspended"


class Edit(StrEnum):
    """How a job's manifest differs from the one of a base commit."""

    NEW = "new"
    CHANGED = "changed"
    REMOVED = "removed"
    UNCHANGED = "unchanged"


class Target(Struct, frozen=True):
    """Where the plan is for.

    Attributes:
        environment: The environment's name.
        engine, project, location: As the environment has them.
        sharing: Another environment with the same engine and project, whatever its location; "" for none.
    """

    environment: str
    engine: str
    project: str
    location: str
    sharing: str = ""


class DesiredJob(Struct, frozen=True):
    """A manifest with its identity.

    Attributes:
        manifest: What the repository says.
        identity: The whole SHA-256, 64 hex digits.
        job_name: `<base>_<first 16 digits>`, the first attempt's name.
        code: SHA-256 of the package's source tree, 64 hex digits; "" without a package.
        packed: What `spec` gives.
        earlier: The identities that older versions of the hash gave the same content, newest first.
        keys: All of these identities as labels have them, its own first; () where nobody has made them yet.
    """

    manifest: Manifest
    identity: str
    job_name: str
    code: str
    packed: Packed
    earlier: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def spec(self) -> JsonObject:
        """The manifest's spec in canonical form, the environment's defaults filled in, nothing staged."""
        return unpacked(self.packed)


@dataclass(frozen=True, order=True, slots=True)
class FieldChange:
    """One field that differs: JSON pointer below `spec`, and both values; None where there is none."""

    pointer: str
    before: Any = field(compare=False)
    after: Any = field(compare=False)


class Change(Struct, frozen=True):
    """What is to be done about one job, and why.

    Attributes:
        action: What apply does.
        reason: A short phrase for readers; nothing branches on it.
        base_name: The base name as the manifest writes it.
        job_name: The run's name, with its attempt.
        attempt: From 1.
        fields: How the wanted spec differs from the newest run of the same base name.
        desired: The wanted job; None for a cancel.
        actual: The run that the change is about; None where there is none.
        key: The key of the claim that the change is about: an older one where an older version of the hash
            named the content.
        repair: Whether a cancel is of a second job of one attempt.
        stuck: Why nothing is done about a job that isn't as wanted; None where it is, or where something is.
        edit: How the manifest differs from the base commit's; None in a plan that asked the service.
        notes: Other differences from the base, and their effect on live runs; one sentence each.
        code_changed: True if the staged code differs from the base's.
        hours: The most accelerator-hours of one run, by the base's manifest and by the work tree's; 0 for a
            missing or suspended job.
    """

    action: Action
    reason: str
    base_name: str
    job_name: str
    kind: str
    path: str = ""
    line: int = 0
    attempt: int = 1
    fields: tuple[FieldChange, ...] = ()
    desired: DesiredJob | None = None
    actual: ActualJob | None = None
    key: str = ""
    repair: bool = False
    stuck: Stuck | None = None
    edit: Edit | None = None
    notes: tuple[str, ...] = ()
    code_changed: bool = False
    hours: tuple[float, float] = (0.0, 0.0)


class Drift(Struct, frozen=True, order=True):
    """One finding about what there is."""

    kind: DriftKind
    job_name: str
    base_name: str
    detail: str


class Comparison(Struct, frozen=True):
    """The base commit of a plan, and the differences that belong to no single job.

    Attributes:
        base: The commit's id, 40 hex digits.
        problems: Problems of the work tree's manifests and settings; their jobs are not among the changes.
        base_problems: Number of problems of the base's manifests; the jobs of its invalid ones count as new.
        settings: The fields of `reconciler.yaml` that differ, the most important ones first.
        notes: The meaning of these differences, one sentence each.
    """

    base: str
    problems: tuple[Problem, ...] = ()
    base_problems: int = 0
    settings: tuple[FieldChange, ...] = ()
    notes: tuple[str, ...] = ()


class Plan(Struct, frozen=True):
    """All changes and findings, sorted.

    Attributes:
        digest: "sha256:" and 64 hex digits; None where no service was asked.
        whole: Whether it is about all that the repository wants.
        comparison: The base commit that stands for the actual jobs; None where a service was asked.
    """

    target: Target
    changes: tuple[Change, ...]
    drift: tuple[Drift, ...]
    digest: str | None
    whole: bool = True
    comparison: Comparison | None = None
