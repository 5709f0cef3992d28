"""The canonical form: a single spelling for each value, and no other change."""

from __future__ import annotations

import copy
import enum
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.manifests import schemas
from reconciler.model.canonical import canonical_json, canonical_spec
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

Keys = tuple[str | int, ...]

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
INT64 = st.integers(-(2**63), 2**63 - 1)


def make_schema(spec: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    return {"properties": {"spec": spec}, "$defs": definitions}


def make_fields(**schemas_by_key: Any) -> dict[str, Any]:
    return {"properties": schemas_by_key}


def make_number_field(number_format: str) -> dict[str, Any]:
    return make_schema(make_fields(n={"format": number_format}))


def make_exact_form(value: Any) -> Any:
    """Return a form that is equal only for the same JSON: 1, 1.0 and true differ, key orders don't."""
    if isinstance(value, dict):
        return {key: make_exact_form(item) for key, item in value.items()}
    return (
        [make_exact_form(item) for item in value] if isinstance(value, list) else (type(value), repr(value))
    )


def shuffle_keys(value: Any, rng: random.Random) -> Any:
    """Return the same value with the keys of all objects in another order."""
    if isinstance(value, dict):
        return {key: shuffle_keys(value[key], rng) for key in rng.sample(list(value), len(value))}
    return [shuffle_keys(item, rng) for item in value] if isinstance(value, list) else value


# JSON


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": [1, 1.0, True, None], "a": {}}, '{"a":{},"b":[1,1.0,true,null]}'),
        (dict.fromkeys(["z", "\U0001f600", "\uffff", "Z"], 0), '{"Z":0,"z":0,"\uffff":0,"\U0001f600":0}'),
        ('a"b\\c/d\n\t\x01\x7f\u2028é', '"a\\"b\\\\c/d\\n\\t\\u0001\x7f\u2028é"'),
        ([1e16, 1e-7, 0.1, 1e22, 5e-324, -0.0], "[1e+16,1e-07,0.1,1e+22,5e-324,-0.0]"),
        (2**70, "1180591620717411303424"),
    ],
)
def test_canonical_json_has_expected_bytes(value: Any, text: str) -> None:
    assert canonical_json(value) == text.encode("utf-8")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "\ud800", {"\udfff": 1}])
def test_canonical_json_refuses_values_that_json_cannot_hold(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|surrogates not allowed"):
        canonical_json({"value": [value]})


@given(JSON, st.randoms(use_true_random=False))
def test_canonical_json_ignores_order_of_keys(value: Any, rng: random.Random) -> None:
    assert canonical_json(shuffle_keys(value, rng)) == canonical_json(value)


@given(JSON)
def test_canonical_json_loses_no_value(value: Any) -> None:
    """So two different values never have the same form."""
    assert make_exact_form(json.loads(canonical_json(value))) == make_exact_form(value)


# Numbers


@pytest.mark.parametrize(
    ("number_format", "spellings", "canonical"),
    [
        ("int64", [1, "1", "01", 1.0, "0001"], "1"),
        ("int64", [0, "0", "-0", "00", 0.0, -0.0], "0"),
        ("int64", [-5, "-5", "-05", -5.0], "-5"),
        ("int64", [2**63 - 1, "9223372036854775807", "09223372036854775807"], "9223372036854775807"),
        ("int64", ["1" * 5000, "0" + "1" * 5000], "1" * 5000),
        ("int32", [10, 10.0, 1e1], 10),
        ("double", [1, 1.0, 1e0], 1.0),
        ("double", [0, 0.0, -0.0], 0.0),
        ("double", [10**22, 1e22], 1e22),
        ("double", [1e-4, 0.0001], 0.0001),
    ],
)
def test_spellings_of_number_have_same_canonical_form(
    number_format: str, spellings: list[Any], canonical: Any
) -> None:
    schema = make_number_field(number_format)
    for spelling in spellings:
        assert make_exact_form(canonical_spec({"n": spelling}, schema)) == make_exact_form(
            {"n": canonical}
        ), spelling


@pytest.mark.parametrize(
    ("number_format", "value"),
    [
        *[("int64", value) for value in ("", "-", "+1", "1.0", " 1", "1\n", "1_0", "٣", "0x1")],
        *[("int64", value) for value in (True, None, 1.5, [1])],
        *[("int32", value) for value in ("1", True, None, 1.5, math.inf)],
        *[("double", value) for value in ("1", "NaN", True, None)],
        *[(other, value) for other in ("google-duration", "date", "float16") for value in ("01", 1, 1.0)],
    ],
)
def test_value_that_is_not_valid_number_stays_unchanged(number_format: str, value: Any) -> None:
    assert make_exact_form(canonical_spec({"n": value}, make_number_field(number_format))) == make_exact_form(
        {"n": value}
    )


@given(INT64, st.integers(0, 20))
def test_spellings_of_same_int64_have_same_canonical_form(number: int, zeros: int) -> None:
    sign, digits = ("-", str(-number)) if number < 0 else ("", str(number))
    schema = make_number_field("int64")
    spelt = canonical_spec({"n": sign + "0" * zeros + digits}, schema)
    assert spelt == canonical_spec({"n": number}, schema) == {"n": str(number)}


# Paths of numbers


INT = {"format": "int64"}
REF = {"$ref": "#/$defs/odd~1name~0"}


@pytest.mark.parametrize(
    ("schema", "spec", "canonical"),
    [
        (
            make_fields(a={"items": {"items": INT}}),
            {"a": [[1], [], [2, "03"]]},
            {"a": [["1"], [], ["2", "3"]]},
        ),
        (make_fields(a={"prefixItems": [make_fields(n=INT)]}), {"a": [{"n": 1}]}, {"a": [{"n": "1"}]}),
        ({"additionalProperties": INT}, {"x": 1, "y": 2}, {"x": "1", "y": "2"}),
        (make_fields(x={}) | {"additionalProperties": INT}, {"x": 1, "y": 2}, {"x": 1, "y": "2"}),
        ({"allOf": [make_fields(a=REF), {"then": make_fields(a={"minimum": 1})}]}, {"a": 1}, {"a": "1"}),
        ({"oneOf": [{"anyOf": [{"else": make_fields(a=INT)}]}]}, {"a": 1}, {"a": "1"}),
        (make_fields(a=REF), {"a": 1}, {"a": "1"}),
        (make_fields(a={"type": "string"}, b={}), {"a": "01", "b": {"n": 1.0}}, {"a": "01", "b": {"n": 1.0}}),
        (make_fields(a={"not": INT, "if": INT}), {"a": 1}, {"a": 1}),
        (True, {"a": 1}, {"a": 1}),
    ],
)
def test_numbers_are_canonical_at_every_path_of_schema(schema: Any, spec: Any, canonical: Any) -> None:
    whole = make_schema(schema, **{"odd/name~": INT})
    assert make_exact_form(canonical_spec(spec, whole)) == make_exact_form(canonical)


def test_canonical_spec_follows_recursive_schema() -> None:
    node = {"properties": {"n": {"format": "int64"}, "children": {"items": {"$ref": "#/$defs/Node"}}}}
    schema = make_schema({"$ref": "#/$defs/Node"}, Node=node)
    spec: dict[str, Any] = {"n": 0}
    canonical: dict[str, Any] = {"n": "0"}
    for depth in range(1, 30):
        spec = {"n": depth, "children": [spec, {}]}
        canonical = {"n": str(depth), "children": [canonical, {}]}
    assert canonical_spec(spec, schema) == canonical


def test_reference_to_other_document_is_refused() -> None:
    with pytest.raises(LookupError, match="no local reference"):
        canonical_spec({}, make_schema({"$ref": "https://example.com/schema.json"}))


def test_canonical_spec_leaves_given_spec_unchanged() -> None:
    schema = schemas.manifest_schema(AIPLATFORM_V1, "CustomJob")
    spec = {"workerPoolSpecs": [{"replicaCount": 1, "machineSpec": {"acceleratorCount": 1.0}}]}
    before = copy.deepcopy(spec)
    assert canonical_spec(spec, schema)["workerPoolSpecs"][0]["replicaCount"] == "1"
    assert make_exact_form(spec) == make_exact_form(before)


@given(st.dictionaries(st.sampled_from("ab"), JSON))
def test_canonical_spec_is_idempotent(spec: dict[str, Any]) -> None:
    node = {"properties": {"a": {"items": {"$ref": "#/$defs/X"}}}, "format": "double"}
    schema = make_schema({"$ref": "#/$defs/X"}, X=node)
    once = canonical_spec(spec, schema)
    assert make_exact_form(canonical_spec(once, schema)) == make_exact_form(once)


# The shipped schemas

ODD = {"int64": 7, "int32": 7.0, "double": 7}
EVEN = {"int64": "7", "int32": 7, "double": 7.0}


def find_numbers(
    schema: dict[str, Any], node: Any, keys: Keys = (), seen: tuple[int, ...] = ()
) -> Iterator[tuple[Keys, str]]:
    """Yield the path of each number below `node`, with 0 for a list's item, and its format."""
    if id(node) in seen:
        return
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].removeprefix("#/$defs/")]
    types = node.get("type", [])
    if {"number", "integer"} & {*([types] if isinstance(types, str) else types)}:
        yield keys, node["format"]
    for key, below in node.get("properties", {}).items():
        yield from find_numbers(schema, below, (*keys, key), (*seen, id(node)))
    if "items" in node:
        yield from find_numbers(schema, node["items"], (*keys, 0), (*seen, id(node)))


def nest_value(keys: Keys, value: Any) -> Any:
    for key in reversed(keys):
        value = [value] if key == 0 else {key: value}
    return value


@pytest.mark.parametrize(("api_version", "kind"), schemas.KINDS)
def test_every_number_of_shipped_kinds_becomes_canonical(api_version: str, kind: str) -> None:
    schema = schemas.manifest_schema(api_version, kind)
    assert schema is not None
    places = list(find_numbers(schema, schema["properties"]["spec"]))
    assert len(places) >= 3
    for keys, number_format in places:
        spec = canonical_spec(nest_value(keys, ODD[number_format]), schema)
        assert make_exact_form(spec) == make_exact_form(nest_value(keys, EVEN[number_format])), keys


def test_nested_conditional_parameters_become_canonical() -> None:
    schema = schemas.manifest_schema(AIPLATFORM_V1, "HyperparameterTuningJob")

    def make_study(parameter: dict[str, Any], levels: int) -> dict[str, Any]:
        for _ in range(levels):
            parameter = {"conditionalParameterSpecs": [{"parameterSpec": parameter}]}
        return {"studySpec": {"parameters": [parameter]}}

    for levels in (0, 1, 5):
        spec = make_study({"doubleValueSpec": {"minValue": 0, "maxValue": 1}}, levels)
        canonical = make_study({"doubleValueSpec": {"minValue": 0.0, "maxValue": 1.0}}, levels)
        assert make_exact_form(canonical_spec(spec, schema)) == make_exact_form(canonical)


def test_text_that_looks_like_number_stays_text() -> None:
    schema = schemas.manifest_schema(ML_V1, "Job")
    spec = {
        "trainingInput": {
            "args": ["01", "1.0", "-0", "1e3"],
            "runtimeVersion": "2.10",
            "pythonVersion": "3.7",
        }
    }
    assert make_exact_form(canonical_spec(spec, schema)) == make_exact_form(spec)


# Equivalent fast paths


class Goal(enum.StrEnum):
    """A `str` enumeration."""

    MOST = "maximize"


class Text(str):
    """A subclass of `str`."""

    __slots__ = ()


NASTY = (
    st.sampled_from(
        [1e16, 1e15, 1e-5, 1e-4, 123456789012345680.0, 0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 1e22]
    )
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**70, -(10**400)])
    | st.sampled_from(
        [Goal.MOST, Text("x"), "1e16", '":1.5', "\u02db1.5", "\u2028\u2029", "\x00\x1f\x7f\b\f", "/\\"]
    )
    | st.text(st.characters(exclude_categories=["Cs"]))
)
NASTY_KEYS = st.sampled_from(
    ["", "a", "A", "a\\", "é", "\uffff", "\U0001f600", "\ue000", "\u02db", "\n", Goal.MOST]
)
NASTY_JSON = st.recursive(
    SCALARS | NASTY,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(NASTY_KEYS | st.text(), inner, max_size=5)
    ),
)


def write_as_python(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8")


@given(NASTY_JSON)
def test_canonical_json_has_same_bytes_as_python_json(value: Any) -> None:
    """The names of jobs depend on these bytes, with any encoder."""
    assert canonical_json(value) == write_as_python(value)


@pytest.mark.slow
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, "\ud800", {"\udfff": 1}])
@given(inner=NASTY_JSON)
def test_canonical_json_refuses_invalid_value_at_any_depth(special: Any, inner: Any) -> None:
    for value in ([inner, special], {"a": inner, "b": {"c": [special]}}):
        with pytest.raises(ValueError, match=r"JSON compliant|surrogates not allowed"):
            canonical_json(value)


def test_canonical_json_refuses_circular_value() -> None:
    value: dict[str, Any] = {}
    value["a"] = [value]
    with pytest.raises(ValueError, match="Circular"):
        canonical_json(value)


@pytest.mark.parametrize("value", [{1: "a"}, {None: 1, True: 2}, {"a": 1, 2: 3}, {"a": object()}])
def test_canonical_json_handles_non_json_values_as_python_json_does(value: Any) -> None:
    try:
        wanted: bytes | None = write_as_python(value)
    except TypeError:
        wanted = None
    if wanted is None:
        with pytest.raises(TypeError):
            canonical_json(value)
    else:
        assert canonical_json(value) == wanted


def test_canonical_spec_returns_same_object_when_unchanged() -> None:
    node = {"properties": {"n": INT, "d": {"format": "double"}, "l": {"items": {"$ref": "#/$defs/X"}}}}
    schema = make_schema({"$ref": "#/$defs/X"}, X=node)
    still = {"l": [{"n": "1", "d": 0.5}, {"n": "-3", "d": 0.25}], "d": 1e300}
    assert canonical_spec(still, schema) is still
    spec = {"l": [still, {"n": 1}], "d": 1.0}
    canonical = canonical_spec(spec, schema)
    assert make_exact_form(canonical) == make_exact_form({"l": [still, {"n": "1"}], "d": 1.0})
    assert canonical["l"][0] is still


def test_canonical_spec_distinguishes_equal_values_of_other_types() -> None:
    """1 == 1.0 == True, yet each is written differently."""
    schema = make_schema(
        make_fields(a={"items": {"format": "double"}}, b={"additionalProperties": {"format": "int32"}})
    )
    canonical = canonical_spec({"a": [1, 2.0, True], "b": {"x": 1.0, "y": -0.0}}, schema)
    assert make_exact_form(canonical) == make_exact_form({"a": [1.0, 2.0, True], "b": {"x": 1, "y": 0}})
    assert make_exact_form(canonical_spec({"a": [-0.0, 0.0]}, schema)) == make_exact_form({"a": [0.0, 0.0]})
    assert [*canonical_spec({"z": 0, "b": {"y": 1.0, "x": 1}, "a": []}, schema)] == ["z", "b", "a"]


# --- the paths of a schema that lead to a number ----------------------------------------------------------

TEXTS = {"items": {"type": "string"}}


def test_number_below_condition_becomes_canonical() -> None:
    schema = make_schema({"if": {"required": ["n"]}, "then": {"properties": {"n": INT}}})
    assert canonical_spec({"n": "01"}, schema) == {"n": "1"}


def test_number_below_unnamed_key_becomes_canonical() -> None:
    schema = make_schema({"properties": {"a": {"additionalProperties": INT}}})
    assert canonical_spec({"a": {"any": 1}}, schema) == {"a": {"any": "1"}}


def test_canonical_spec_follows_schema_that_includes_itself() -> None:
    node = {"allOf": [{"$ref": "#/$defs/Node"}], "properties": {"n": INT}}
    assert canonical_spec({"n": 1}, make_schema({"$ref": "#/$defs/Node"}, Node=node)) == {"n": "1"}


@pytest.mark.parametrize(
    "beside",
    [
        {"properties": {"n": INT, "texts": TEXTS}},
        {"properties": {"n": INT}, "additionalProperties": TEXTS},
    ],
    ids=["named", "unnamed"],
)
def test_canonical_spec_shares_values_without_numbers(beside: dict[str, Any]) -> None:
    texts = ["a", "b"]
    canonical = canonical_spec({"n": 1, "texts": texts}, make_schema(beside))
    assert canonical["n"] == "1"
    assert canonical["texts"] is texts


def test_canonical_spec_shares_list_without_numbers_when_object_would_have_numbers() -> None:
    texts = ["a", "b"]
    schema = make_schema({"properties": {"a": {"properties": {"n": INT}, **TEXTS}}})
    assert canonical_spec({"a": texts}, schema)["a"] is texts
    assert canonical_spec({"a": {"n": 1}}, schema) == {"a": {"n": "1"}}
