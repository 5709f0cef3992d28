"""Changes of an environment's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.base.diagnostics import pointer_of
from reconciler.model.diff import FieldChange, diff
from reconciler.model.manifest import JsonObject

_IMPORTANT = (
    "source",
    "engine",
    "project",
    "location",
    "instance",
    "claimsBucket",
    "stagingBucket",
    "submitter",
    "limits",
    "github",
    "endpoints",
    "defaults",
    "outputs",
)
"""Settings whose effect a plan shows, the most important ones first."""


def changed_settings(before: JsonObject, after: JsonObject, environment: str) -> tuple[FieldChange, ...]:
    """Return the fields that differ between two valid documents, as written, the most important ones first.

    Each field of a setting that one side lacks counts. A written null is "no limit". The settings of
    `environment` come before those of other environments.
    """

    def rank(change: FieldChange) -> tuple[bool, bool, int, str]:
        owner, setting = _owner_and_setting(change.pointer)
        importance = [*_IMPORTANT, setting].index(setting)
        return setting not in _IMPORTANT, owner not in ("", environment), importance, change.pointer

    old, new = dict(_settings((), before)), dict(_settings((), after))
    pairs = ((pointer, old.get(pointer), new.get(pointer)) for pointer in {**old, **new})
    return tuple(sorted((FieldChange(*pair) for pair in pairs if diff(*pair[1:])), key=rank))


def setting_of(pointer: str) -> str:
    """Return the name of the setting that a JSON pointer leads to or into."""
    return _owner_and_setting(pointer)[1]


def _settings(keys: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and (value or not keys):
        for name, part in value.items():
            yield from _settings((*keys, name), part)
    else:
        # Only limits may be null, and a written null differs from a missing limit.
        yield pointer_of(keys), "no limit" if value is None else value


def _owner_and_setting(pointer: str) -> tuple[str, str]:
    """Return the environment of a setting, "" for the whole repository, and the setting's name."""
    # Any other pointer still begins with "/", so that its owner is "".
    owner, _, rest = pointer.removeprefix("/environments/").partition("/")
    return owner, rest.partition("/")[0]
