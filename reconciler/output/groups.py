"""Groups of jobs with the same change, so that a line in a trainer that many jobs share is shown once."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import to_builtins

from reconciler.model.plan import Action, Change, Edit

Group = tuple[Change, ...]
"""Changes that are the same for several jobs; most groups have one."""

_ATTENTION = (Action.BLOCKED, Action.CANCEL)
_EDITS = (Edit.REMOVED, Edit.CHANGED, Edit.NEW, Edit.UNCHANGED)


def grouped(changes: Sequence[Change]) -> list[Group]:
    """Return the changes in groups, in the order of their first members."""
    groups: dict[object, list[Change]] = {}
    for number, change in enumerate(changes):
        groups.setdefault(_key(change) or number, []).append(change)
    return [tuple(group) for group in groups.values()]


def by_importance(groups: Sequence[Group]) -> list[Group]:
    """Return the groups of a comparison in the order in which a person should read them.

    What needs attention comes first, then the changes of single jobs, and of these the larger ones.
    """
    return sorted(groups, key=_rank)


def _rank(group: Group) -> tuple[int, bool, int, int]:
    first = group[0]
    attention = [*_ATTENTION, first.action].index(first.action)
    return attention, len(group) > 1, _EDITS.index(first.edit or Edit.NEW), -_size(first)


def _size(change: Change) -> int:
    """Return the number of changed fields, and of changed lines of the code."""
    files = (max(1, (file.added or 0) + (file.removed or 0)) for file in change.files)
    return len(change.fields) + sum(files)


def _key(change: Change) -> str | None:
    """Return a text that two changes share if they are the same; None for one without a known difference."""
    # Without these, the differences are unknown, as of a `rerun`.
    is_known = change.fields or change.files or (change.action is Action.NONE and change.notes)
    if change.edit not in (None, Edit.CHANGED) or not is_known:
        return None
    fields = [[field.pointer, field.before, field.after] for field in change.fields]
    files = [[file.path, file.added, file.removed] for file in change.files]
    reasons = to_builtins([change.reason, change.notes])
    said = [change.action, reasons, change.kind, change.code_changed, change.attempt]
    # In ASCII, as a service's JSON may have lone surrogates.
    return json.dumps([*said, fields, files], sort_keys=True)
