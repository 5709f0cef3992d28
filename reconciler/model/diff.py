"""Differences: their types, and those of two JSON values, field by field, in a fixed order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from reconciler.base.diagnostics import Problem, pointer_of

Keys = tuple[str | int, ...]
_MOST_ALIGNED = 1000  # items of two lists; an alignment can take quadratic time


class FieldChange(Struct, frozen=True):
    """Changed field: JSON pointer below `spec`, and both values; None for a missing value."""

    pointer: str
    before: Any
    after: Any


class FileChange(Struct, frozen=True):
    """Changed file of a job's code.

    Attributes:
        path: The file, relative to the repository's root.
        added: Number of added lines; None for a binary file.
        removed: Number of removed lines; None for a binary file.
        about: What is known of a file that isn't here, in place of the numbers; "" for others.
    """

    path: str
    added: int | None
    removed: int | None
    about: str = ""


class Comparison(Struct, frozen=True):
    """The base commit of a plan, and the differences that belong to no single job.

    Attributes:
        base: The commit's id, 40 hex digits.
        problems: Problems of the work tree's manifests and settings; their jobs are not among the changes.
        base_problems: Number of problems of the base's manifests; the jobs of its invalid ones count as new.
        settings: The fields of `reconciler.yaml` that differ, the most important ones first.
        notes: The meaning of these differences, one sentence each.
        warnings: What is probably a mistake in the work tree's valid manifests and settings.
    """

    base: str
    problems: tuple[Problem, ...] = ()
    base_problems: int = 0
    settings: tuple[FieldChange, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()


def diff(before: Any, after: Any) -> tuple[FieldChange, ...]:
    """Return the smallest set of fields that turns `before` into `after`, in document order.

    Mapping keys sort by name and list items by index; a value missing on a side is None there.
    """
    return tuple(FieldChange(pointer_of(keys), old, new) for keys, old, new in _walk((), before, after))


def _walk(keys: Keys, before: Any, after: Any) -> Iterator[tuple[Keys, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from _walk((*keys, name), before.get(name), after.get(name))
    elif isinstance(before, list) and isinstance(after, list):
        for index, pair in enumerate(zip_longest(before, after)):
            yield from _walk((*keys, index), *pair)
    # As in JSON, true is not 1, but 1 is 1.0.
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield keys, before, after


def shifted(before: Any, after: Any, fields: Sequence[FieldChange]) -> int:
    """Return how many of the fields differ only because list items before them were added or removed."""
    return sum(_shifted((), before, after, [field.pointer for field in fields]))


def _shifted(keys: Keys, before: Any, after: Any, pointers: Sequence[str]) -> Iterator[int]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in before.keys() & after.keys():
            yield from _shifted((*keys, name), before[name], after[name], pointers)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) == len(after) or len(before) + len(after) > _MOST_ALIGNED:
            for index, pair in enumerate(zip(before, after, strict=False)):
                yield from _shifted((*keys, index), *pair, pointers)
            return
        from difflib import SequenceMatcher  # most plans compare nothing

        old, new = ([json.dumps(item, sort_keys=True) for item in items] for items in (before, after))
        edits = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        aligned = sum(max(b - a, d - c) for tag, a, b, c, d in edits if tag != "equal")
        counted = sum(pointer.startswith(f"{pointer_of(keys)}/") for pointer in pointers)
        yield max(0, counted - aligned)


REQUESTED = frozenset(
    {
        "displayName",
        "jobId",
        "encryptionSpec",
        "inputDataConfig",
        "jobSpec",
        "maxFailedTrialCount",
        "maxTrialCount",
        "modelId",
        "modelToUpload",
        "parallelTrialCount",
        "parentModel",
        "studySpec",
        "trainingInput",
        "trainingTaskDefinition",
        "trainingTaskInputs",
        "trialJobSpec",
    }
)
"""Fields that a request may set, besides those in its own body; the service writes the others."""

DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "bootDiskSizeGb": (100,),
    "bootDiskType": ("pd-ssd", "hyperdisk-balanced"),
    "evaluatorCount": ("0",),
    "goal": ("MAXIMIZE",),
    "hyperparameterMetricTag": ("training/hptuning/metric",),
    "maxRunningTime": ("604800s",),
    "maxTrials": (1,),
    "maxWaitDuration": ("86400s",),
    "parameterServerCount": ("0",),
    "replicaCount": ("1",),
    "scaleType": ("NONE",),
    "strategy": ("STANDARD",),
    "timeout": ("604800s",),
    "workerCount": ("0",),
}
"""By field, the values that the services set if a job omits it.

As the descriptions in their discovery documents have it (aiplatform v1, revision 20261106: DiskSpec,
Scheduling; ml v1, revision 20251213: DiskConfig, HyperparameterSpec, ParameterSpec, Scheduling,
TrainingInput), but for `replicaCount` and `strategy`, which they leave open: one replica, and the ordinary
machines. The machine decides between the boot disk's two types.
"""

_DURATIONS = frozenset({"maxRunningTime", "maxWaitDuration", "maxWaitTime", "timeout"})
_UNSPECIFIED = "_UNSPECIFIED"
_BITS = 64
"""Length of the APIs' longest integers; Python refuses to print integers of several thousand digits."""
SWITCH = "StoppingSpec"
"""Suffix of the names of messages that switch a feature on even if empty."""


def is_filled(field: FieldChange) -> bool:
    """Return True if only `before` has a value, and the service may have set it by itself."""
    name = _name(field.pointer)
    return field.after is None and name is not None and _says_nothing(name, field.before)


def is_left_out(field: FieldChange) -> bool:
    """Return True if only `after` has a value, and it is empty: the services omit empty values."""
    name = _name(field.pointer)
    return field.before is None and name is not None and _is_empty(name, field.after)


def is_default(field: FieldChange) -> bool:
    """Return True if only `after` has a value, and the service would have set it by itself."""
    return is_filled(FieldChange(field.pointer, field.after, field.before))


def is_spelling(field: FieldChange) -> bool:
    """Return True if both values mean the same: a number, a duration or a task definition.

    The service answers with another URI than it got (`TrainingPipeline.trainingTaskDefinition`); the inputs
    tell which task it is, too.
    """
    before, after = field.before, field.after
    if field.pointer.endswith("/trainingTaskDefinition"):
        return isinstance(before, str) and isinstance(after, str)
    if _name(field.pointer) in _DURATIONS:
        seconds = _seconds(before)
        return seconds is not None and seconds == _seconds(after)
    return _is_number_and_text(before, after) or _is_number_and_text(after, before)


def _name(pointer: str) -> str | None:
    """Return the field's name; None for a list item, as an extra item is always a difference."""
    name = pointer.rpartition("/")[2]
    return None if name.isdigit() else name


def _says_nothing(name: str, value: Any) -> bool:
    if name.endswith(SWITCH):
        return False
    if isinstance(value, Mapping):
        return all(_says_nothing(below, item) for below, item in value.items())
    return _is_empty(name, value) or any(
        value == default or is_spelling(FieldChange(f"/{name}", value, default))
        for default in DEFAULTS.get(name, ())
    )


def _is_empty(name: str, value: Any) -> bool:
    """Return True if a value is the initial value of its field."""
    if name.endswith(SWITCH):
        return False
    if isinstance(value, Mapping):
        return all(_is_empty(below, item) for below, item in value.items())
    return not value or (isinstance(value, str) and value.endswith(_UNSPECIFIED))


def _is_number_and_text(number: Any, text: Any) -> bool:
    """Return True if an int64 is a number on the left and the same text on the right."""
    # In a value of any type, such as a pipeline's inputs, all numbers are floating-point.
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return is_number and isinstance(text, str) and number.bit_length() <= _BITS and str(number) == text


def _seconds(duration: Any) -> Decimal | None:
    if isinstance(duration, int) and duration.bit_length() > _BITS:
        return None
    number = str(duration).removesuffix("s")
    return Decimal(number) if number.replace(".", "", 1).isdecimal() and number.isascii() else None
