"""How two JSON values differ, field by field, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.diagnostics import pointer_of
from reconciler.plan import FieldChange

Keys = tuple[str | int, ...]


def diff(before: Any, after: Any) -> tuple[FieldChange, ...]:
    """The smallest set of fields that turns `before` into `after`, in document order.

    Mapping keys sort by name and list items by index; a value that is on one side only is None on the other.
    """
    return tuple(FieldChange(pointer_of(keys), old, new) for keys, old, new in _walk((), before, after))


def _walk(keys: Keys, before: Any, after: Any) -> Iterator[tuple[Keys, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from _walk((*keys, name), before.get(name), after.get(name))
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            yield from _walk((*keys, index), _item(before, index), _item(after, index))
    elif not _same(before, after):
        yield keys, before, after


def _item(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else None


def _same(before: Any, after: Any) -> bool:
    """JSON equality: true is not 1, but 1 is 1.0."""
    return before == after and isinstance(before, bool) == isinstance(after, bool)
