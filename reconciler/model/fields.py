"""Readers of the fields of a JSON resource, which may be missing or of another type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reconciler.model.manifest import JsonObject

if TYPE_CHECKING:
    from reconciler.model.details import Value  # validation needs no details

MOST_NUMBERS = 50
"""The most numbers of a metrics file or a measurement."""


def text_of(resource: JsonObject, name: str) -> str:
    """Return a text field; "" if it is missing or no text."""
    value = resource.get(name)
    return value if isinstance(value, str) else ""


def part_of(resource: JsonObject, name: str) -> JsonObject:
    """Return an object field; an empty object if it is missing or no object."""
    value = resource.get(name)
    return value if isinstance(value, dict) else {}


def parts_of(resource: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects of a list field, with an empty object in the place of any other item."""
    value = resource.get(name)
    return [part if isinstance(part, dict) else {} for part in value] if isinstance(value, list) else []


def texts_in(resource: JsonObject, name: str) -> tuple[str, ...]:
    """Return the texts of a list field."""
    return tuple(text for text in list_of(resource, name) if isinstance(text, str))


def count_of(resource: JsonObject, name: str, default: int = 0) -> int:
    """Return a number field, which APIs write as text if it is an int64; the default if it is no number."""
    value = resource.get(name, default)
    try:
        return int(value) if isinstance(value, int | str) else default
    except ValueError:
        return default


def numbers_of(pairs: Iterable[tuple[str, Any]]) -> Mapping[str, float]:
    """Return the pairs with a number that a float can hold, at most `MOST_NUMBERS`; NaN and infinity stay."""
    numbers: dict[str, float] = {}
    for name, value in pairs:
        if isinstance(value, int | float) and not isinstance(value, bool) and len(numbers) < MOST_NUMBERS:
            with suppress(OverflowError):
                float(value)
                numbers[name] = value
    return numbers


def values_of(pairs: Iterable[tuple[str, Any]]) -> Mapping[str, Value]:
    """Return the pairs with a number or a text, as parameters of a trial."""
    return {
        name: value if isinstance(value, str) or _is_finite(value) else str(value)
        for name, value in pairs
        if isinstance(value, int | float | str)
    }


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def list_of(resource: JsonObject, name: str) -> list[Any]:
    """Return a list field; empty if it is missing or has another type."""
    value = resource.get(name)
    return value if isinstance(value, list) else []
