"""The quick verdict: never "valid" if jsonschema finds an error; on contents of files, the two agree."""

from __future__ import annotations

import copy
import datetime
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler.manifests import schemas
from reconciler.manifests import schemas as verdict
from reconciler.manifests.schemas import is_valid, portable
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from tests.support.schema_cases import (
    BAD,
    CONFIG,
    CUSTOM_JOB,
    GOOD,
    INPUTS,
    ML_JOB,
    PIPELINE,
    TASKS,
    TUNING_JOB,
    TUNING_PIPELINE,
    changed,
    walk,
)

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
ANY = schemas.KINDS[ML_V1, "Job"]

PLAIN: list[Any] = [
    *("", "0", "1", "-1", "01", "1\n", "a\n", "\n", "a b", "é", "\u2028", "\x1c", "a\x1cb", "\x85", "\ufeff"),
    *(
        "gs://bucket-x/a",
        "gs://bucket-x/a\x7f",
        "3600s",
        "3600s\n",
        "٣s",
        "CUSTOM",
        "DOUBLE",
        "INTEGER",
        "n1",
    ),
    *(
        "projects/p/global/networks/n",
        "reconciler-x",
        "/x",
        "/x\n",
        "a.",
        "a" * 100,
        "\U0001f600" * 64,
        "1.0",
    ),
    *(
        "TPU_V2",
        "NVIDIA_TESLA_T4",
        "n1-standard-4",
        "a2-highgpu-1g",
        "9223372036854775808",
        "2026-01-01T00:00:00Z",
    ),
    *(0, 1, 2, -1, 100, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 2**70, 10**400),
    *(0.0, -0.0, 1.0, 1e3, 1.5, 0.1, 1e-7, 1e22, 1e300, float(2**63), 5e-324),
    *(True, False, None, [], {}, [None], [[]], {"": None}, {"a": {"b": [1, True, 1.0]}}),
]
"""What a file may hold, or a reader of JSON may give."""

ODD: list[Any] = [
    *(math.nan, math.inf, -math.inf, "\ud800", {"\udfff": 1}, b"a", datetime.date(2026, 1, 1), {1}),
    *({1: 2}, {None: 1}, {1.5: 1}, {True: 1}, object()),
]
"""What no file holds, though a Python value may."""


def schema_of(value: Any) -> Json:
    """Return the schema of the document's kind, or of any kind if its own is unknown."""
    said = [value.get("apiVersion"), value.get("kind")] if isinstance(value, dict) else []
    return schemas.document(next((name for pair, name in schemas.KINDS.items() if [*pair] == said), ANY))


def errors(value: Any, schema: Any) -> list[Any]:
    return list(Draft202012Validator(schema).iter_errors(value))


def documents(folder: str) -> Iterator[Any]:
    for path in sorted((ROOT / folder).rglob("*.y*ml")):
        for document in load_documents(path.read_bytes(), path.name)[0]:
            yield document.value


SHIPPED = [*documents("jobs")]
REFUSED = [
    *documents("tests/bad_manifests"),
    *(changed(document, edits) for document, edits, *_ in BAD.values() if document is not CONFIG),
]
ACCEPTED = [
    CUSTOM_JOB,
    TUNING_JOB,
    PIPELINE,
    TUNING_PIPELINE,
    ML_JOB,
    *SHIPPED,
    *(changed(document, edits) for document, edits in GOOD.values() if document is not CONFIG),
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Yield each container in `value` with each of its keys or indices."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    for part in todo:
        keys = [*part] if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        found += ((part, key) for key in keys)
        todo += (part[key] for key in keys)
    return found


def mutated(rng: random.Random, value: Any, pool: list[Any]) -> Any:
    """Draw a copy with a few keys or items dropped, renamed, doubled, exchanged or replaced."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not (found := places(value)):
            break
        around, key = rng.choice(found)
        mutate(rng, around, key, rng.choice(found), pool)
    return value


def mutate(rng: random.Random, around: Any, key: Any, other: tuple[Any, Any], pool: list[Any]) -> None:
    old = around[key]
    match rng.randrange(8):
        case 0:
            del around[key]
        case 1 if isinstance(around, dict) and isinstance(key, str):
            around[rng.choice((f"{key}s", key.lower(), f"{key}\n", "x", "", other[1], "é"))] = around.pop(key)
        case 1 | 2 if isinstance(around, list):
            around.insert(rng.randrange(len(around) + 1), copy.deepcopy(old))
        case 3:
            around[key] = copy.deepcopy(other[0][other[1]])
        case 4 if isinstance(old, str):
            near = rng.choice(("\n", " ", "\x1c", "é", "\u2028", "0", "/", ".", "\U0001f600"))
            at = rng.choice((0, len(old) // 2, len(old)))
            around[key] = old[:at] + near + old[at:]
        case 4 | 5 if isinstance(old, int | float) and abs(old) < 2**70:
            around[key] = rng.choice((str(old), float(old), old + 1, -old, old * 1e3, bool(old), old + 0.5))
        case _:
            around[key] = copy.deepcopy(rng.choice(pool))


def documents_near_valid(pool: list[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        mutated,
        st.randoms(use_true_random=True),
        st.sampled_from([*ACCEPTED, *REFUSED]),
        st.just(pool),
    )


# The verdict and jsonschema


def test_what_is_right_is_found_valid() -> None:
    """The slow check is for invalid values."""
    assert len(SHIPPED) >= 3
    for value in ACCEPTED:
        assert is_valid(value, schema_of(value)), value


@pytest.mark.slow
def test_what_is_wrong_is_not() -> None:
    for value in REFUSED:
        assert is_valid(value, schema_of(value)) == (not errors(value, schema_of(value))), value


@pytest.mark.slow
@settings(max_examples=150)
@given(documents_near_valid(PLAIN))
def test_the_two_agree_on_what_files_can_hold(value: Any) -> None:
    for schema in {id(found): found for found in (schema_of(value), schema_of(None))}.values():
        assert is_valid(value, schema) == (not errors(value, schema))


@settings(max_examples=100)
@given(documents_near_valid([*PLAIN, *ODD, *ODD]))
def test_what_is_found_valid_has_no_error(value: Any) -> None:
    schema = schema_of(value)
    assert not is_valid(value, schema) or not errors(value, schema)


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_what_no_file_holds_is_not_found_valid(value: Any) -> None:
    for field in ("workerCount", "scheduling", "jobDir"):
        document = changed(ML_JOB, {f"spec/trainingInput/{field}": value})
        assert not is_valid(document, schema_of(document))


@pytest.mark.slow
def test_nesting_without_end_is_not_found_valid() -> None:
    parameter: Json = {"parameterId": "p", "categoricalValueSpec": {"values": ["a"]}}
    for _ in range(20_000):
        parameter = {**parameter, "conditionalParameterSpecs": [{"parameterSpec": parameter}]}
    value = copy.copy(TUNING_JOB)
    value["spec"] = {**TUNING_JOB["spec"], "studySpec": {"parameters": [parameter]}}
    try:
        assert not is_valid(value, schema_of(value))
    finally:
        while "conditionalParameterSpecs" in parameter:  # freed one by one: else Python frees it recursively
            parameter = parameter.pop("conditionalParameterSpecs")[0]["parameterSpec"]


def test_fields_that_defaults_give_may_be_left_out() -> None:
    value = changed(ML_JOB, {})
    del value["spec"]["trainingInput"]["region"]
    filled = schemas.manifest_schema(ML_V1, "Job", frozenset({"region"}))
    assert filled is not None
    assert is_valid(value, filled)
    assert not is_valid(value, schema_of(value))


# The schemas


MEANT_ALIKE = {
    *("$schema", "$id", "$defs", "$ref", "description", "format", "type", "const", "enum", "pattern"),
    *("properties", "additionalProperties", "propertyNames", "required", "minProperties", "maxProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"),
    *(
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "multipleOf",
        "default",
        "examples",
        "title",
        "enumDescriptions",
        "doNotSuggest",
    ),
}
"""The keywords that were compared; those without a rule are annotations in both."""


def subschemas(schema: Any) -> Iterator[Json]:
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, part in schema.items():
        if keyword in ("properties", "$defs"):
            below = [*part.values()]
        elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            below = part
        else:
            below = [part] if keyword in MEANT_ALIKE - {"const", "enum", "default", "examples"} else []
        for node in below:
            yield from subschemas(node)


@pytest.mark.parametrize("name", schemas.KINDS.values())
def test_the_schemas_hold_only_what_both_read_alike(name: str) -> None:
    found = [*subschemas(schemas.document(name))]
    assert len(found) > 100
    for node in found:
        assert {key for key in node if not key.startswith("x-")} <= MEANT_ALIKE
        assert node.get("$ref", "#/$defs/").startswith("#/$defs/")
        assert node.get("multipleOf", 1) == 1


PATTERNS = sorted(
    {
        node["pattern"]
        for name in INPUTS
        for node in walk(schemas.document(name))
        if isinstance(node.get("pattern"), str)
    }
)
NEAR = [
    *(
        "",
        "a",
        "a" * 63,
        "a" * 64,
        "a" * 100,
        "1",
        "-1",
        "0",
        "1.5",
        "3.10",
        ">=3.8,<3.12",
        "12s",
        "1.5s",
        "1799s",
    ),
    *(
        "gs://bucket-x",
        "gs://bucket-x/a",
        "bucket-x/",
        "/x",
        "C:",
        "~",
        "a.",
        "\\",
        "https://a.b/c",
        "own/repo",
    ),
    *("projects/p/global/networks/n", "projects/p/locations/l/keyRings/r/cryptoKeys/k", "reconciler-x"),
    *("x@y.gserviceaccount.com", "2026-01-01T00:00:00Z", "google.com:project-1", "my-project", "A_b-9"),
    *(f"{TASKS}/custom_task_1.0.yaml", f"{TASKS}/hyperparameter_tuning_task_1.yaml"),
    *("projects/p/locations/l/models/m", "projects/p/locations/l/models/m@1"),
    *("us-central1-a", "gs://bucket/..", "gs://bucket-x/a//b", "docker-archive:x"),
    *("projects/p/locations/l/persistentResources/r", "projects/p/locations/l/tensorboards/1"),
    *("projects/p/locations/l/metadataStores/s/contexts/c", "projects/p/zones/z/reservations/r"),
    *("serviceAccount:x@y", "projects/p/serviceAccounts/x"),
]
SIGNS = [
    *map(
        chr, (*range(0x30), 0x7F, 0x85, 0xA0, 0xAD, 0xE9, 0x130, 0x17F, 0x212A, 0x301, 0x663, 0x1680, 0x180E)
    ),
    *map(
        chr,
        (0x2000, 0x200B, 0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF, 0xFF11, 0x1D7CE, 0x1F600),
    ),
    *("\r\n", "\n\n", "S", "_", "0", "9", "z", "{", "s"),
]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_to_both(pattern: str) -> None:
    compiled = jsonschema_rs.Draft202012Validator(portable({"pattern": pattern}))
    matches = 0
    for text in NEAR:
        for sign in SIGNS:
            middle = len(text) // 2
            for changed_text in (text, sign + text, text + sign, text[:middle] + sign + text[middle:]):
                wanted = bool(re.search(pattern, changed_text))
                assert compiled.is_valid(changed_text) == wanted, ascii(changed_text)
                matches += wanted
    assert 0 < matches < 4 * len(NEAR) * len(SIGNS)


def test_schema_from_elsewhere_is_never_fetched() -> None:
    with pytest.raises(ValueError, match="is not a known schema"):
        is_valid(CUSTOM_JOB, {"$ref": "https://127.0.0.1:1/schema.json"})


# Failures of the other library


class PanicException(BaseException):
    """A failed Rust assertion as it appears in Python: under this name, and not importable."""


@pytest.mark.parametrize("error", [ValueError(), RecursionError(), PanicException()], ids=repr)
def test_a_failure_is_no_verdict(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    fail_with(monkeypatch, error)
    assert not is_valid(CUSTOM_JOB, schema_of(CUSTOM_JOB))


def test_who_interrupts_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        is_valid(CUSTOM_JOB, schema_of(CUSTOM_JOB))


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    class Failing:
        def __init__(self, schema: Any, **options: Any) -> None: ...

        def is_valid(self, value: Any) -> bool:
            raise error

    monkeypatch.setattr(jsonschema_rs, "Draft202012Validator", Failing)
    monkeypatch.setattr(verdict, "_checks", {})


# Loaded modules


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    code = """
import sys
import reconciler.model.naming, reconciler.manifests.schemas
from reconciler.manifests.schemas import is_valid
print(*{"jsonschema", "jsonschema_rs", "yaml"} & {*sys.modules})
is_valid({}, reconciler.manifests.schemas.document("job.schema.json"))
print(*{"jsonschema", "jsonschema_rs", "yaml"} & {*sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["", "jsonschema_rs"]


def test_only_the_schemas_asked_for_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_checks", {})
    compiled: list[Any] = []
    real = jsonschema_rs.Draft202012Validator
    monkeypatch.setattr(
        jsonschema_rs,
        "Draft202012Validator",
        lambda schema, **options: compiled.append(schema["$id"]) or real(schema, **options),
    )
    schema = schemas.manifest_schema(AIPLATFORM_V1, "CustomJob")
    assert schema is not None
    assert [is_valid(CUSTOM_JOB, schema) for _ in range(3)] == [True] * 3
    assert len(compiled) == 1
