"""Which places of a schema lead to a number: every one of them, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.canonical import canonical_spec

INT = {"format": "int64"}
TEXTS = {"items": {"type": "string"}}


def schema_of(spec: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    return {"properties": {"spec": spec}, "$defs": definitions}


def test_what_holds_under_a_condition_counts() -> None:
    schema = schema_of({"if": {"required": ["n"]}, "then": {"properties": {"n": INT}}})
    assert canonical_spec({"n": "01"}, schema) == {"n": "1"}


def test_keys_that_the_schema_does_not_name_lead_to_numbers_below_others_too() -> None:
    schema = schema_of({"properties": {"a": {"additionalProperties": INT}}})
    assert canonical_spec({"a": {"any": 1}}, schema) == {"a": {"any": "1"}}


def test_a_schema_may_be_put_together_from_itself() -> None:
    node = {"allOf": [{"$ref": "#/$defs/Node"}], "properties": {"n": INT}}
    assert canonical_spec({"n": 1}, schema_of({"$ref": "#/$defs/Node"}, Node=node)) == {"n": "1"}


@pytest.mark.parametrize(
    "beside",
    [
        {"properties": {"n": INT, "texts": TEXTS}},
        {"properties": {"n": INT}, "additionalProperties": TEXTS},
    ],
    ids=["named", "unnamed"],
)
def test_what_leads_to_no_number_is_shared_with_the_spec_given(beside: dict[str, Any]) -> None:
    texts = ["a", "b"]
    canonical = canonical_spec({"n": 1, "texts": texts}, schema_of(beside))
    assert canonical["n"] == "1"
    assert canonical["texts"] is texts


def test_a_list_without_numbers_is_shared_also_where_an_object_would_have_some() -> None:
    texts = ["a", "b"]
    schema = schema_of({"properties": {"a": {"properties": {"n": INT}, **TEXTS}}})
    assert canonical_spec({"a": texts}, schema)["a"] is texts
    assert canonical_spec({"a": {"n": 1}}, schema) == {"a": {"n": "1"}}
