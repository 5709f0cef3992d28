"""Field differences: complete, minimal, sorted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.diff import diff, shifted

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~", max_size=3)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
)


def _remove_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _remove_none(item) for key, item in value.items() if item is not None}
    return [_remove_none(item) for item in value] if isinstance(value, list) else value


def _are_same(one: Any, other: Any) -> bool:
    return repr(_sort_keys(one)) == repr(_sort_keys(other))


def _sort_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sort_keys(value[key]) for key in sorted(value)}
    return [_sort_keys(item) for item in value] if isinstance(value, list) else value


objects = st.dictionaries(st.text("ab/~", max_size=2), values, max_size=4)


@given(objects, objects)
def test_diff_has_single_change_per_differing_pointer_and_none_for_equal_values(
    before: Any, after: Any
) -> None:
    before, after = _remove_none(before), _remove_none(after)
    changes = diff(before, after)
    assert bool(changes) != _are_same(before, after)
    pointers = [change.pointer for change in changes]
    assert len(set(pointers)) == len(pointers)


def test_changes_are_sorted_by_pointer_in_document_order() -> None:
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


def test_diff_distinguishes_true_from_number() -> None:
    assert [change.pointer for change in diff({"a": 1}, {"a": True})] == ["/a"]
    assert diff({"a": 1}, {"a": 1.0}) == ()


def count_moved(before: Any, after: Any) -> int:
    return shifted(before, after, diff(before, after))


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        pytest.param([1, 2, 3], [9, 1, 2, 3], 3, id="added first"),
        pytest.param([9, 1, 2, 3], [1, 2, 3], 3, id="removed first"),
        pytest.param([1, 2, 3], [1, 2, 3, 9], 0, id="added last"),
        pytest.param([1, 2, 3], [1, 2, 9, 3], 1, id="added before the last"),
        pytest.param([1, 2, 9, 3], [1, 2, 3], 1, id="removed before the last"),
        pytest.param([0, 2, 3], [8, 9, 2, 3], 2, id="one replaced by two"),
        pytest.param([8, 9, 2, 3], [0, 2, 3], 2, id="two replaced by one"),
        pytest.param([1, 2, 3], [2, 3, 1], 0, id="as many as before"),
        pytest.param([{"a": 1, "b": 2}, 1], [0, {"b": 2, "a": 1}, 1], 2, id="keys in another order"),
        pytest.param([[1, 2]], [[9, 1, 2]], 2, id="within an item"),
        pytest.param([0, [1, 2], 0], [5, [9, 1, 2], 5], 2, id="within the second of three"),
        pytest.param({"a": [1, 2], "gone": 0}, {"a": [9, 1, 2], "new": 0}, 2, id="within a field"),
        pytest.param({"a": [1, 2], "b": {"c": [3, 4]}}, {"a": [9, 1, 2], "b": {"c": [4]}}, 3, id="two lists"),
        pytest.param({"a": [1, 2], "aa": [3]}, {"a": [9, 1, 2], "aa": [4]}, 2, id="names that begin alike"),
        pytest.param({"a": [1, 2]}, {"a": {"0": 9, "1": 1, "2": 2}}, 0, id="a mapping for a list"),
        pytest.param({"a": {"0": [1]}}, {"a": [[9, 1]]}, 0, id="a list for a mapping"),
        pytest.param({"a": 1}, {"a": [1]}, 0, id="a list for a number"),
        pytest.param({"a": [1]}, {"a": 1}, 0, id="a number for a list"),
        pytest.param({"a": [0, [1, 2]]}, {"a": [0, [9, 1, 2]]}, 2, id="within an item of a field"),
        pytest.param([0] * 250, [9, *[0] * 250], 1, id="an item that is there often"),
    ],
)
def test_shifted_counts_items_that_only_moved(before: Any, after: Any, count: int) -> None:
    assert count_moved(before, after) == count


def test_shifted_counts_at_most_given_fields() -> None:
    assert shifted([1, 2, 3], [9, 8, 7, 6, 1], []) == 0


@pytest.mark.parametrize(("items", "added", "count"), [(499, 2, 2), (500, 1, 0)])
def test_lists_of_more_than_1000_items_are_not_aligned(items: int, added: int, count: int) -> None:
    assert count_moved([0] * items, [*[9] * added, *[0] * items]) == count
