"""The law of import: a job that the service has accepted comes back as the manifest that makes it again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.convert.importing.live_job import live_job
from reconciler.convert.importing.manifest import spec_of
from reconciler.convert.importing.tidy_spec import tidy
from reconciler.model.diff import diff, is_default, is_filled, is_left_out, is_spelling
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, TRAINING_PIPELINE
from tests.support.manifests import with_inputs_in_snake_case
from tests.support.training_service.bodies import (
    ML,
    VERTEX,
    custom_job,
    job_spec,
    ml_job,
    pipeline,
    tuning_job,
    tuning_pipeline,
)
from tests.support.training_service.served import Service, serving

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "gcloud" / "flags.jsonl").read_text("utf-8").splitlines()
]
# In snake_case: the service answers in camelCase.
BODIES = [case for case in CASES if "body" in case and case["id"] != "cj-035"]
PLACES = {
    "aip": (ML, ML_V1, "Job"),
    "cj": (f"{VERTEX}/customJobs", AIPLATFORM_V1, "CustomJob"),
    "hp": (f"{VERTEX}/hyperparameterTuningJobs", AIPLATFORM_V1, "HyperparameterTuningJob"),
    "tp": (f"{VERTEX}/trainingPipelines", AIPLATFORM_V1, TRAINING_PIPELINE),
}
Json = dict[str, Any]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path / "home") as running:
        yield running


def assert_comes_back(service: Service, place: str, body: Json) -> bool:
    """Create a job, read it, import it; False if the service refuses the job."""
    url, api_version, kind = PLACES[place]
    answer = service.post(url, body)
    if answer.status != 200:
        return False
    name = answer.json.get("name") or f"projects/demo/jobs/{answer.json['jobId']}"
    resource = service.get(f"/v1/{name}").json
    found = live_job(resource)
    assert (found.api_version, found.kind) == (api_version, kind)
    spec, labels = spec_of(kind, found.body)
    expected, given_labels = spec_of(kind, body)
    assert labels == given_labels
    after = tidy(api_version, kind, spec)
    before = tidy(api_version, kind, expected)
    told = [
        field
        for field in diff(after, before)
        if not (is_filled(field) or is_left_out(field) or is_default(field) or is_spelling(field))
    ]
    assert told == []
    return True


@pytest.mark.slow
@pytest.mark.parametrize("case", BODIES, ids=lambda case: case["id"])
def test_accepted_body_comes_back(case: Json, service: Service) -> None:
    place = case["id"].partition("-")[0]
    assert_comes_back(service, place, case["body"])


@pytest.mark.slow
def test_most_bodies_are_accepted_by_the_service(service: Service) -> None:
    accepted = 0
    for number, case in enumerate(BODIES):
        body = dict(case["body"])
        if "jobId" in body:
            body["jobId"] = f"job_{number}"
        accepted += assert_comes_back(service, case["id"].partition("-")[0], body)
    assert accepted > 50


POOL = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1"}
CUSTOM_TIER: Json = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "masterConfig": {}}
for role in ("worker", "parameterServer", "evaluator"):
    CUSTOM_TIER |= {f"{role}Type": "n1-standard-4", f"{role}Count": "1", f"{role}Config": {}}
TUNED = {"params": [{"parameterName": "lr", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1.0}]}
INTEGER = {"parameterId": "n", "integerValueSpec": {"minValue": "1", "maxValue": "4"}}
DOCUMENTS = {
    "aip": ("ml.v1", "GoogleCloudMlV1__Job"),
    "cj": ("aiplatform.v1", "GoogleCloudAiplatformV1CustomJob"),
    "hp": ("aiplatform.v1", "GoogleCloudAiplatformV1HyperparameterTuningJob"),
}
# A TensorBoard needs one.
ACCOUNT = {"serviceAccount": "fit@tide.iam.gserviceaccount.com"}
# Valid jobs, to be extended with fields of the discovery documents.
SKELETONS: dict[str, Json] = {
    "aip": ml_job(),
    "aip-custom": ml_job(
        trainingInput={
            **ml_job()["trainingInput"],
            **CUSTOM_TIER,
            "hyperparameters": {**TUNED, "maxTrials": 2},
        }
    ),
    "cj": custom_job(jobSpec={**custom_job()["jobSpec"], **ACCOUNT}),
    "cj-container": custom_job(
        jobSpec={"workerPoolSpecs": [{**POOL, "containerSpec": {"imageUri": "gcr.io/tide/fit:7"}}], **ACCOUNT}
    ),
    "hp": tuning_job(trialJobSpec={**tuning_job()["trialJobSpec"], **ACCOUNT}),
    "hp-integer": tuning_job(
        studySpec={**tuning_job()["studySpec"], "parameters": [INTEGER]},
        trialJobSpec={**tuning_job()["trialJobSpec"], **ACCOUNT},
    ),
}
# Names and labels are compared separately. Requests set neither etag nor output; predictions are no jobs.
NOT_SET = {"displayName", "jobId", "labels", "etag", "predictionInput", "predictionOutput", "trainingOutput"}
FORMATS: Json = {
    "google-duration": ["3600s", "5400s"],
    "google-datetime": ["2030-01-02T03:04:05Z"],
    "int64": ["1", "2", "7"],
    "int32": [1, 2, 200],
    "double": [0.25, 1.0, 3.5],
}
TEXTS = [
    *("tide", "gs://tide-models/x", "gcr.io/tide/fit:7", "trainer.task", "n1-standard-8", "pd-standard"),
    *("fit@tide.iam.gserviceaccount.com", "projects/7/global/networks/tide", "/mnt/nfs/tide", "10.0.0.2"),
    *("projects/tide/locations/us-central1/keyRings/a/cryptoKeys/b", "2.11", "3.7", "CUSTOM", "lr"),
    *(
        "projects/7/locations/us-central1/tensorboards/8",
        "projects/7/regions/us-central1/networkAttachments/a",
    ),
]
Path_ = tuple[str | int, ...]


def messages(document: str) -> Json:
    file = Path(__file__).parents[3] / "schemas" / "discovery" / f"{document}.json"
    found: Json = json.loads(file.read_text("utf-8"))["schemas"]
    return found


def paths(known: Json, name: str, skeleton: Any, above: Path_ = ()) -> Iterator[tuple[Path_, Json]]:
    """Yield each field of a message that a request may set, with its schema; go into the skeleton's parts."""
    for key, node in known[name]["properties"].items():
        if node.get("readOnly") or (not above and key in NOT_SET):
            continue
        part = skeleton.get(key) if isinstance(skeleton, dict) else None
        items = node.get("items", {})
        if "$ref" in node and isinstance(part, dict):
            yield from paths(known, node["$ref"], part, (*above, key))
        elif "$ref" in items and part:
            yield from paths(known, items["$ref"], part[0], (*above, key, 0))
        else:
            yield (*above, key), node


def values(known: Json, node: Json, depth: int = 0) -> Iterator[Any]:
    """Yield values of a field's schema; a message has every field in its first value, then a single field."""
    if "items" in node:
        yield from ([value] for value in values(known, node["items"], depth))
    elif "$ref" in node:
        fields = {
            key: each for key, each in known[node["$ref"]]["properties"].items() if "readOnly" not in each
        }
        firsts = {
            key: [*islice(values(known, each, depth + 1), 1)] for key, each in fields.items() if depth < 3
        }
        yield {key: found[0] for key, found in firsts.items() if found}
        for key, each in fields.items() if depth < 2 else ():
            yield from ({key: value} for value in islice(values(known, each, depth + 1), 8))
    elif "enum" in node:
        deprecated = node.get("enumDeprecated", [False] * len(node["enum"]))
        yield from (word for word, old in zip(node["enum"], deprecated, strict=True) if not old)
    elif node["type"] == "boolean":
        yield from (True, False)
    elif node["type"] != "object":
        yield from FORMATS.get(node.get("format", ""), TEXTS)


def with_value(body: Any, path: Path_, value: Any) -> Any:
    """Return a body with a value at a path."""
    key, *rest = path
    changed = copy.copy(body)
    changed[key] = with_value(body[key], tuple(rest), value) if rest else value
    return changed


FIELDS = {
    name: [*paths(messages(document), message, body)]
    for name, body in SKELETONS.items()
    for document, message in [DOCUMENTS[name.partition("-")[0]]]
}
LEAST = {"aip": 19, "aip-custom": 51, "cj": 30, "cj-container": 29, "hp": 47, "hp-integer": 47}
"""Least numbers of fields that the service accepts with some value."""
NUMBERS = count(10_000)


def numbered(body: Json) -> Json:
    """Return a body with a name that no other job has."""
    return {**body, "jobId": f"job_{next(NUMBERS)}"} if "jobId" in body else body


@pytest.mark.slow
@pytest.mark.parametrize("name", SKELETONS)
def test_each_field_of_the_discovery_document_comes_back(name: str, service: Service) -> None:
    place = name.partition("-")[0]
    (service.home / "gcs" / "tide-models").mkdir(parents=True, exist_ok=True)  # of a jobDir
    known, accepted = messages(DOCUMENTS[place][0]), set()
    for path, node in FIELDS[name]:
        for value in islice(values(known, node), 60):
            if assert_comes_back(service, place, numbered(with_value(SKELETONS[name], path, value))):
                accepted.add(path)
    assert len(accepted) >= LEAST[name]


@settings(max_examples=15, suppress_health_check=[*HealthCheck])
@given(data=st.data(), name=st.sampled_from([*SKELETONS]))
def test_fields_of_the_discovery_document_come_back_together(
    service: Service, data: st.DataObject, name: str
) -> None:
    body, place = SKELETONS[name], name.partition("-")[0]
    known = messages(DOCUMENTS[place][0])
    for path, node in data.draw(st.lists(st.sampled_from(FIELDS[name]), max_size=6, unique_by=str)):
        found = [*islice(values(known, node), 40)]
        value = data.draw(st.sampled_from(found)) if found else {}
        added = numbered(with_value(body, path, value))
        # Leave out values that the service refuses beside the other fields.
        if assert_comes_back(service, place, added):
            body = added


REGISTERED = {
    "modelToUpload": {"displayName": "census", "description": "d", "labels": {"unit": "metre"}},
    "modelId": "census",
}


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("cj", custom_job()),
        ("hp", tuning_job()),
        ("tp", pipeline()),
        ("tp", tuning_pipeline()),
        ("aip", ml_job()),
    ],
)
def test_small_job_of_each_kind_comes_back(place: str, body: Json, service: Service) -> None:
    assert assert_comes_back(service, place, {**body, "labels": {"team": "hydro"}})


def test_pipeline_with_inputs_in_snake_case_comes_back_with_its_model(service: Service) -> None:
    inputs = {**job_spec(), "baseOutputDirectory": {"outputUriPrefix": "gs://runs/census"}}
    body = with_inputs_in_snake_case({"spec": {**pipeline(trainingTaskInputs=inputs), **REGISTERED}})["spec"]
    assert "worker_pool_specs" in body["trainingTaskInputs"]
    assert assert_comes_back(service, "tp", body)
