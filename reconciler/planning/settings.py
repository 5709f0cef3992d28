"""How two `reconciler.yaml` differ, and what their settings decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.diagnostics import pointer_of
from reconciler.diff import diff
from reconciler.manifest import JsonObject
from reconciler.plan import FieldChange

_WHERE = "where jobs run"
_DECIDES = {
    "source": "which runs are this repository's",
    "engine": _WHERE,
    "project": _WHERE,
    "location": _WHERE,
    "instance": "which runs and claims are the environment's",
    "claimsBucket": "where it is recorded what ran",
    "stagingBucket": "where code is uploaded",
    "submitter": "as whom jobs are submitted",
    "limits": "what one apply may cost",
    "github": "who is told",
    "endpoints": "who is asked in Google's place",
    "defaults": "what jobs run with",
}
_ORDER = {setting: number for number, setting in enumerate(_DECIDES)}
_ENVIRONMENTS = "environments"
# In limits alone a null may be written, and it isn't the same as nothing written.
_NULL = "no limit"


def changed_settings(before: JsonObject, after: JsonObject, environment: str) -> tuple[FieldChange, ...]:
    """The fields that differ between two valid documents, those first that decide most.

    Of what is on one side only, each field counts. A written null is "no limit".

    Args:
        before: One as it is written.
        after: The other.
        environment: Whose settings come before those of the others.
    """
    old, new = dict(_fields((), before)), dict(_fields((), after))
    changes = [
        FieldChange(pointer, old.get(pointer), new.get(pointer))
        for pointer in {**old, **new}
        if diff(old.get(pointer), new.get(pointer))
    ]
    return tuple(sorted(changes, key=lambda change: _rank(change.pointer, environment)))


def decides(pointer: str) -> str:
    """What the setting at a JSON pointer decides, as a short phrase; "" where it is nothing of weight."""
    return _DECIDES.get(_place(pointer)[1], "")


def _fields(keys: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and (value or not keys):
        for name, part in value.items():
            yield from _fields((*keys, name), part)
    else:
        yield pointer_of(keys), _NULL if value is None else value


def _rank(pointer: str, environment: str) -> tuple[bool, bool, int, str]:
    owner, setting = _place(pointer)
    is_light = setting not in _DECIDES
    return is_light, owner not in ("", environment), _ORDER.get(setting, 0), pointer


def _place(pointer: str) -> tuple[str, str]:
    """The environment that a setting is of, "" for the repository, and the setting's name."""
    first, second, third, *_ = [*pointer.split("/")[1:], "", "", ""]
    return (second, third) if first == _ENVIRONMENTS else ("", first)
