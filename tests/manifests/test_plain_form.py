"""Other forms that gcloud takes: the published schemas, the plain form and the names agree on them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reconciler.manifests import schemas
from reconciler.manifests.places import placed
from reconciler.manifests.plain_form import plain_form, snake_case
from reconciler.manifests.validate import Validation, validate
from tests.support.schema_cases import (
    BAD,
    CONFIG,
    CUSTOM_JOB,
    GOOD,
    ML_JOB,
    PIPELINE,
    TUNING_JOB,
    TUNING_PIPELINE,
    changed,
)

Json = dict[str, Any]
FORMS = [
    *[changed(*case) for case in GOOD.values() if case[0] is not CONFIG],
    *[changed(document, edits) for document, edits, *_ in BAD.values() if document is not CONFIG],
]
VALIDATORS = {name: Draft202012Validator(schemas.document(name)) for name in [*schemas.KINDS.values()]}
ANY_KIND = Draft202012Validator(schemas.document(schemas.ANY_KIND))
ABSENT = [None, "ACCELERATOR_TYPE_UNSPECIFIED", "SCALE_TYPE_UNSPECIFIED", "SCALE_TIER_UNSPECIFIED"]
ABSENT += ["STRATEGY_UNSPECIFIED", "ALGORITHM_UNSPECIFIED", "PARAMETER_TYPE_UNSPECIFIED"]


def edited(document: Json, random_source: random.Random) -> Json:
    """Return a copy with a few values in other forms, and maybe some keys in snake_case."""
    result = copy.deepcopy(document)
    for _ in range(random_source.randint(1, 3)):
        places = [*_places(result.get("spec", {}))]
        if places:
            around, key = random_source.choice(places)
            around[key] = random_source.choice([*ABSENT, _one(around[key])])
    spec = result.get("spec", {})
    # Outside a pipeline's inputs a key in snake_case is unknown.
    for part in random_source.choices(
        [spec.get("trainingTaskInputs"), spec], [30, 1], k=random_source.choice([0, 30])
    ):
        places = [(around, key) for around, key in _places(part) if isinstance(key, str)]
        if places:
            around, key = random_source.choice(places)
            kept = around[key] if random_source.random() < 0.05 else around.pop(key)
            around[snake_case(key)] = kept
    return result


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in [*value] if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_published_schema_accepts_what_the_plain_schema_accepts_in_plain_form(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(30):
        written = edited(source.choice(FORMS), source)
        kind = (written.get("apiVersion", ""), written.get("kind", ""))
        schema = schemas.manifest_schema(*kind, spec=written.get("spec"))
        if schema is None:
            continue
        is_valid = Draft202012Validator(schema).is_valid(plain_form(written, schema))
        assert VALIDATORS[schemas.KINDS[kind]].is_valid(written) == is_valid, written
        assert ANY_KIND.is_valid(written) == is_valid, written


@pytest.mark.parametrize("document", [CUSTOM_JOB, TUNING_JOB, PIPELINE, TUNING_PIPELINE, ML_JOB])
def test_plain_form_of_a_plain_manifest_is_the_manifest(document: Json) -> None:
    schema = schemas.manifest_schema(document["apiVersion"], document["kind"], spec=document["spec"])
    assert schema is not None
    assert plain_form(document, schema) == document


PLAIN = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      containerSpec:
        imageUri: example.com/trainer:1
        env: [{name: SEED, value: "1"}]
"""
PASTED = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census}
spec:
  workerPoolSpecs:
    machineSpec: {machineType: n1-standard-4, acceleratorType: ACCELERATOR_TYPE_UNSPECIFIED}
    diskSpec:
    containerSpec:
      imageUri: example.com/trainer:1
      env: {name: SEED, value: "1"}
      args: null
  scheduling:
"""
ML = """
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: census}
spec:
  trainingInput:
    region: us-central1
    masterConfig: {imageUri: example.com/trainer:1}
"""


def validated(folder: Path, text: str) -> Validation:
    """Return the result for a repository with a single file."""
    folder.mkdir()
    (folder / "job.yaml").write_text(text)
    return validate(folder, [folder])


def test_other_forms_give_the_same_name_and_request_as_the_plain_form(tmp_path: Path) -> None:
    plain, pasted = validated(tmp_path / "a", PLAIN), validated(tmp_path / "b", PASTED)
    assert (plain.problems, pasted.problems) == ((), ())
    assert pasted.manifests[0].identities == plain.manifests[0].identities
    assert pasted.manifests[0].spec == plain.manifests[0].spec


def _spelled_otherwise(value: Any, source: random.Random) -> Any:
    """Return a value with absent fields written out, and lists of a single mapping as the mapping."""
    if isinstance(value, list):
        items = [_spelled_otherwise(item, source) for item in value]
        return items[0] if len(items) == 1 and isinstance(items[0], dict) and source.random() < 0.7 else items
    if not isinstance(value, dict):
        return value
    result = {key: _spelled_otherwise(part, source) for key, part in value.items()}
    for field, absent in (
        ("acceleratorType", "ACCELERATOR_TYPE_UNSPECIFIED"),
        ("diskSpec", None),
        ("nfsMounts", None),
    ):
        if "machineType" in value and field == "acceleratorType" and field not in value:
            result[field] = source.choice([absent, None])
        elif "replicaCount" in value and field != "acceleratorType" and field not in value:
            result[field] = absent
    return result


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_mix_of_the_other_forms_gives_the_name_of_the_plain_form(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    for number, (document, edits) in enumerate(GOOD.values()):
        plain = changed(document, edits)
        if document is CONFIG or "package" in plain:
            continue
        expected = validated(tmp_path / f"{number}plain", json.dumps(plain))
        if expected.problems:  # by a rule beyond the schema
            continue
        other = {**plain, "spec": _spelled_otherwise(plain["spec"], source)}
        found = validated(tmp_path / f"{number}other", json.dumps(other))
        assert found.problems == (), other
        assert found.manifests[0].identities == expected.manifests[0].identities


@pytest.mark.parametrize(
    ("written", "mistaken", "line"),
    [
        ("name: SEED", "nme: SEED", 11),  # an unknown key
        ("args: null", "args: [null]", 12),  # a null in a list
        ("machineType: n1-standard-4,", "machineType: null,", 7),  # a required field
        ("name: SEED", "name: API_KEY", 11),  # a secret
    ],
)
def test_mistakes_inside_a_single_mapping_keep_their_line(
    written: str, mistaken: str, line: int, tmp_path: Path
) -> None:
    text = PASTED.replace(written, mistaken).replace('value: "1"', 'value: "s3cr3t-9f8e7d6c5b4a"')
    found = validated(tmp_path / "a", text).problems
    assert line in [problem.line for problem in found], found


def test_secret_in_a_single_mapping_is_exempt_by_its_place_in_the_plain_form(tmp_path: Path) -> None:
    secret = PASTED.replace("name: SEED", "name: API_KEY").replace('"1"', '"s3cr3t-9f8e7d6c5b4a"')
    (problem,) = validated(tmp_path / "a", secret).problems
    exempted = f"{secret}reconcile: {{notSecret: {json.dumps([problem.pointer])}}}\n"
    assert validated(tmp_path / "b", exempted).problems == ()


def test_job_without_a_scale_tier_is_valid_with_a_warning_and_stays_without(tmp_path: Path) -> None:
    found = validated(tmp_path / "a", ML)
    assert found.problems == ()
    (warning,) = placed(tmp_path / "a", found.warnings)
    assert ("scaleTier" in warning.message, warning.line) == (True, 6)
    assert "scaleTier" not in found.manifests[0].spec["trainingInput"]
