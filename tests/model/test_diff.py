"""Field differences: complete, minimal, sorted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.diff import diff

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~", max_size=3)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _same(one: Any, other: Any) -> bool:
    return repr(_sorted(one)) == repr(_sorted(other))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


objects = st.dictionaries(st.text("ab/~", max_size=2), values, max_size=4)


@given(objects, objects)
def test_no_change_is_told_for_what_is_equal_and_one_for_each_that_differs(before: Any, after: Any) -> None:
    before, after = _without_none(before), _without_none(after)
    changes = diff(before, after)
    assert bool(changes) != _same(before, after)
    pointers = [change.pointer for change in changes]
    assert len(set(pointers)) == len(pointers)


def test_fields_are_told_by_pointer_in_document_order() -> None:
    before = {"b": 1, "a": {"x/y": [1, 2]}, "gone": True}
    after = {"b": 2, "a": {"x/y": [1, 3, 4]}, "new": {"deep": 1}}
    told = [(change.pointer, change.before, change.after) for change in diff(before, after)]
    assert told == [
        ("/a/x~1y/1", 2, 3),
        ("/a/x~1y/2", None, 4),
        ("/b", 1, 2),
        ("/gone", True, None),
        ("/new", None, {"deep": 1}),
    ]


def test_true_is_not_one() -> None:
    assert [change.pointer for change in diff({"a": 1}, {"a": True})] == ["/a"]
    assert diff({"a": 1}, {"a": 1.0}) == ()
