"""Plan as data: rendered, digested, compared and applied."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from reconciler.model.job import ActualJob
from reconciler.model.manifest import JsonObject, Manifest, Packed, Publish, unpacked

# `validate` imports this module and compares nothing: it needn't pay for the import of `diff`.
if TYPE_CHECKING:
    from reconciler.model.applied_tree import TreeFinding
    from reconciler.model.diff import Comparison, FieldChange, FileChange
    from reconciler.model.reason import Note, Reason
    from reconciler.model.standing import Publication

FORMAT_VERSION = 1


class Action(StrEnum):
    """Action of apply on a job."""

    SUBMIT = "submit"
    RETRY = "retry"
    CANCEL = "cancel"
    PUBLISH = "publish"
    NONE = "none"
    BLOCKED = "blocked"


class DriftKind(StrEnum):
    """Kinds of drift; for some, `planning.drift` adds a cancel that resolves the difference."""

    ORPHANED = "orphaned"
    SUPERSEDED = "superseded"
    CANCELLED_OUTSIDE = "cancelled-outside"
    DELETED_OUTSIDE = "deleted-outside"
    MODIFIED = "modified"
    DUPLICATE = "duplicate"
    OVERWRITTEN = "overwritten"
    UNPUBLISHED = "unpublished"


class NotDone(StrEnum):
    """Why an unchanged job is not in sync."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    DELETED = "deleted outside"
    GIVEN_UP = "given up"
    REVERTED = "already ran"
    UNREADABLE = "unreadable"
    OVERWRITTEN = "overwritten"
    MISSED = "below expectations"
    UNJUDGED = "not judged yet"
    UNPUBLISHED = "not published"
    SUSPENDED = "suspended"


class Edit(StrEnum):
    """Difference of a job's manifest from the base commit's."""

    NEW = "new"
    CHANGED = "changed"
    REMOVED = "removed"
    UNCHANGED = "unchanged"


class Target(Struct, frozen=True):
    """Environment of a plan.

    Attributes:
        environment: The environment's name.
        engine, project, location: From the environment.
        sharing: Another environment with the same engine and project, in any location; "" for none.
    """

    environment: str
    engine: str
    project: str
    location: str
    sharing: str = ""


class Trigger(Struct, frozen=True):
    """What decides about another try of a failed set-up, besides the runs.

    Attributes:
        by_hand: True if a person started the command: such a try needs no other reason.
        images: The `images` setting.
    """

    by_hand: bool = False
    images: JsonObject = {}


class DesiredJob(Struct, frozen=True):
    """A manifest with its identity.

    Attributes:
        manifest: The manifest.
        identity: The whole SHA-256, 64 hex digits.
        job_name: `<base>_<first 16 digits>`, the first attempt's name.
        code: SHA-256 of the package's source tree, 64 hex digits; "" without a package.
        packed: The `spec`, decoded on demand.
        earlier: Identities of the same content under older versions of the hash, newest first.
        keys: All of these identities as labels, its own first; () if not computed yet.
        publish: Where its result is published in the environment; None for nowhere.
    """

    manifest: Manifest
    identity: str
    job_name: str
    code: str
    packed: Packed
    earlier: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    publish: Publish | None = None

    @property
    def spec(self) -> JsonObject:
        """The manifest's spec in canonical form, the environment's defaults filled in, nothing staged."""
        return unpacked(self.packed)


class Change(Struct, frozen=True):
    """Action on a job, and its reason.

    Attributes:
        action: The action of apply.
        reason: Its reason; its sentence is also in commit statuses and, for a cancel, in its claim.
        base_name: The base name as written in the manifest.
        job_name: The run's name, with its attempt.
        attempt: From 1.
        fields: Differences of the desired spec from the newest run of the same base name.
        desired: The desired job; None for a cancel and a publication.
        actual: The run of the change, if any.
        key: The key of the change's claim, possibly from an older version of the hash.
        free: Number of earlier submissions of the content that used up no attempt.
        stopped: True if apply has cancelled the content's last job by a manifest's policy.
        not_before: Time before which the submission isn't sent, by the service's clock; None for none.
        binds_only: True if the submission binds a job that exists, and makes none after too many failed
            set-ups.
        repair: True if a cancel is of a duplicate job of an attempt.
        stuck: Reason for leaving an out-of-sync job unchanged; None for a job in sync or a planned action.
        edit: Difference from the base commit's manifest; None in a plan against the service.
        notes: Other differences from the base, and their effect on live runs.
        code_changed: True if the staged code differs from the base's.
        cancels_earlier: True if the submission cancels the run of the base's content, if that is still live.
        hours: The most accelerator-hours of one run, by the base's manifest and by the work tree's; 0 for a
            missing or suspended job.
        is_new: True for a submission without an earlier run to compare with.
        earlier_commit: The commit of the run that it is compared with; "" if unknown.
        files: The changed files of the code, if both sides are known.
        output: The folder (gs://…) that a submission's run writes to; "" for none, and for other changes.
        publication: What a `publish`, or its blocked form, is about; None for other changes.
    """

    action: Action
    reason: Reason
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
    free: int = 0
    stopped: bool = False
    not_before: datetime | None = None
    binds_only: bool = False
    repair: bool = False
    stuck: NotDone | None = None
    edit: Edit | None = None
    notes: tuple[Note, ...] = ()
    code_changed: bool = False
    cancels_earlier: bool = False
    hours: tuple[float, float] = (0.0, 0.0)
    is_new: bool = False
    earlier_commit: str = ""
    files: tuple[FileChange, ...] = ()
    output: str = ""
    publication: Publication | None = None

    @property
    def is_awaited(self) -> bool:
        """True if the content is submitted again once its job, which is being cancelled, has ended."""
        return self.stopped and self.action is Action.NONE and self.stuck is None

    @property
    def spec(self) -> JsonObject | None:
        """The effective spec of a new job; None for other changes."""
        return self.desired.spec if self.desired and (self.is_new or self.edit is Edit.NEW) else None


class Cost(Struct, frozen=True):
    """What the submissions of a plan can cost, as the limits count it.

    Attributes:
        submissions: Their number.
        hours: The most accelerator-hours that one run of each can use.
        accelerators: The types of their accelerators, as the manifests or their machines name them, sorted.
        untimed: Names of jobs with accelerators and without a time limit: they count with the service's.
        unknown: Names of jobs on machines of unknown types: these count as having no accelerators.
    """

    submissions: int
    hours: float = 0.0
    accelerators: tuple[str, ...] = ()
    untimed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Drift(Struct, frozen=True):
    """Reported difference of an actual job."""

    kind: DriftKind
    job_name: str
    base_name: str
    detail: Note


class Plan(Struct, frozen=True):
    """All changes and drift, sorted.

    Attributes:
        digest: "sha256:" and 64 hex digits; None in a plan against a base commit.
        whole: True if it covers all jobs of the repository.
        comparison: The base commit in place of actual jobs; None in a plan against the service.
        refusals: Reasons why apply would refuse the plan: the limits that it exceeds, or the checkout's
            commit.
        needed_limits: The smallest values of the exceeded limits that permit the plan, by the names of the
            limits in `reconciler.yaml`.
        cost: What apply submits; None in a plan against the service.
        tree: The comparison of the checkout with the tree that was applied last; None for none.
        new_buckets: The buckets (gs://…) of output folders that the embedded service would make.
    """

    target: Target
    changes: tuple[Change, ...]
    drift: tuple[Drift, ...]
    digest: str | None
    whole: bool = True
    comparison: Comparison | None = None
    refusals: tuple[str, ...] = ()
    needed_limits: Mapping[str, int] = {}
    cost: Cost | None = None
    tree: TreeFinding | None = None
    new_buckets: tuple[str, ...] = ()
