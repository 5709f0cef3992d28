"""What a change of manifests would mean, from the manifests alone: no service is asked what there is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reconciler.diagnostics import Problem
from reconciler.plan import Change, FieldChange, Target


class Edit(StrEnum):
    """How a job's manifest differs from the base's."""

    NEW = "new"
    CHANGED = "changed"
    REMOVED = "removed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """One base name on both sides.

    Attributes:
        edit: How its manifest differs.
        change: What apply would do about it if the service had exactly the base's jobs, with the field
            differences; its `actual` is None.
        notes: What else differs, and what that may mean for runs that are still live; each a short sentence.
        code_changed: Whether the staged code differs.
        hours_before: The most accelerator-hours that a run of the base's manifest can use; 0 where there is
            none, or it is suspended.
        hours_after: The same for the manifest as it is now.
    """

    edit: Edit
    change: Change
    notes: tuple[str, ...] = ()
    code_changed: bool = False
    hours_before: float = 0.0
    hours_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """All that differs between two sets of manifests, and between the settings beside them.

    Attributes:
        target: Where the jobs are for; of a place that isn't known, only the environment.
        base: The commit that is compared with, 40 hex digits.
        changes: By base name.
        problems: Of the manifests and settings as they are now; the jobs that they are about are not among
            `changes`.
        base_problems: How many problems the base's manifests have: jobs of its invalid ones count as new.
        settings: The fields of `reconciler.yaml` that differ, those first that decide most; pointers count
            from its top.
        notes: What that means, each a sentence.
    """

    target: Target
    base: str
    changes: tuple[ProposedChange, ...]
    problems: tuple[Problem, ...] = ()
    base_problems: int = 0
    settings: tuple[FieldChange, ...] = ()
    notes: tuple[str, ...] = ()
