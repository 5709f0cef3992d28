"""Request messages in proto3's JSON mapping: accepted forms, output forms, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from google.logging.type.log_severity_pb2 import LogSeverity
from hypothesis import given
from hypothesis import strategies as st

from reconciler.training_service.http import discovery, json_mapping
from reconciler.training_service.http.discovery import Method
from reconciler.training_service.http.json_mapping import NUMBERS
from reconciler.training_service.http.message import ApiError
from tests.support.training_service.bodies import job_spec


def method(path: str) -> Method:
    found = discovery.match("POST", path)
    assert found
    return found.method


CREATE = method("/v1/projects/p/locations/l/customJobs")
TUNE = method("/v1/projects/p/locations/l/hyperparameterTuningJobs")
UPLOAD = method("/v1/projects/p/locations/l/models:upload")


def read(body: dict[str, Any], of: Method = CREATE) -> dict[str, Any]:
    return json_mapping.read_message(of.api, of.request, body, "custom_job")


def refusal(body: dict[str, Any], of: Method = CREATE) -> list[tuple[str, str]]:
    with pytest.raises(ApiError) as refused:
        read(body, of)
    assert refused.value.status == "INVALID_ARGUMENT"
    return [(each["field"], each["description"]) for each in refused.value.details[0]["fieldViolations"]]


def test_snake_case_and_camel_case_are_the_same() -> None:
    snake = {
        "display_name": "j",
        "job_spec": {"worker_pool_specs": [{"replica_count": 2}], "enable_web_access": True},
    }
    camel = {
        "displayName": "j",
        "jobSpec": {"workerPoolSpecs": [{"replicaCount": "2"}], "enableWebAccess": True},
    }
    assert read(snake) == read(camel) == camel


def test_output_only_fields_and_nulls_are_left_out() -> None:
    body = {"displayName": "j", "name": "mine", "state": "NO_STATE", "error": {"code": 3}, "labels": None}
    assert read(body) == {"displayName": "j"}


def machine(**values: Any) -> dict[str, Any]:
    return {"jobSpec": {"workerPoolSpecs": [{"machineSpec": values}]}}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (machine(acceleratorCount="4"), machine(acceleratorCount=4)),
        (machine(acceleratorCount=4.0), machine(acceleratorCount=4)),
        (machine(acceleratorType=11), machine(acceleratorType="NVIDIA_L4")),
        (
            {"jobSpec": {"scheduling": {"timeout": "3600.5s"}}},
            {"jobSpec": {"scheduling": {"timeout": "3600.5s"}}},
        ),
    ],
)
def test_values_come_out_in_one_form(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert read(given) == wanted


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"colour": "red"}, "custom_job", "Unknown name \"colour\" at 'custom_job': Cannot find field."),
        ({"displayName": 3}, "custom_job.display_name", "(TYPE_STRING), 3"),
        ({"displayName": "\ud800"}, "custom_job.display_name", "TYPE_STRING"),
        ({"displayName": "a", "display_name": "b"}, "custom_job.display_name", "given twice"),
        ({"labels": {"a": 1}}, "custom_job.labels.a", "TYPE_STRING"),
        ({"labels": []}, "custom_job.labels", "Struct"),
        ({"jobSpec": "x"}, "custom_job.job_spec", "GoogleCloudAiplatformV1CustomJobSpec"),
        ({"jobSpec": {"enableWebAccess": "true"}}, "custom_job.job_spec.enable_web_access", "TYPE_BOOL"),
        ({"jobSpec": {"workerPoolSpecs": {}}}, "custom_job.job_spec.worker_pool_specs", "Expected an array"),
        (
            {"jobSpec": {"workerPoolSpecs": [None]}},
            "custom_job.job_spec.worker_pool_specs[0]",
            "WorkerPoolSpec",
        ),
        (
            machine(acceleratorCount=2**31),
            "custom_job.job_spec.worker_pool_specs[0].machine_spec.accelerator_count",
            "INT32",
        ),
        (
            machine(acceleratorCount=1.5),
            "custom_job.job_spec.worker_pool_specs[0].machine_spec.accelerator_count",
            "INT32",
        ),
        (
            machine(acceleratorCount=True),
            "custom_job.job_spec.worker_pool_specs[0].machine_spec.accelerator_count",
            "INT32",
        ),
        (
            machine(acceleratorType="GPU"),
            "custom_job.job_spec.worker_pool_specs[0].machine_spec.accelerator_type",
            "GPU",
        ),
        (
            machine(acceleratorType=99),
            "custom_job.job_spec.worker_pool_specs[0].machine_spec.accelerator_type",
            "99",
        ),
        (
            {"jobSpec": {"scheduling": {"timeout": "1h"}}},
            "custom_job.job_spec.scheduling.timeout",
            "Duration",
        ),
        (
            {"jobSpec": {"scheduling": {"timeout": "1s\n"}}},
            "custom_job.job_spec.scheduling.timeout",
            "Duration",
        ),
    ],
)
def test_each_mistake_is_told_with_its_place(body: dict[str, Any], field: str, text: str) -> None:
    ((place, description),) = refusal(body)
    assert place == field
    assert text in description


def test_all_mistakes_are_told_at_once() -> None:
    assert len(refusal({"a": 1, "displayName": 1, "jobSpec": {"b": 2}})) == 3


@pytest.mark.parametrize(
    "text",
    [b"{", b"[]", b'"x"', b'{"displayName": NaN}', b'{"x": 1e999}', b"\xff", b'{"a":' * 100_000, b"1" * 5000],
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ApiError, match="Invalid JSON payload received"):
        json_mapping.read_json(text)


def test_nothing_and_null_are_an_empty_object() -> None:
    assert json_mapping.read_json(b"") == json_mapping.read_json(b"null") == {}


@given(st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_every_64_bit_integer_comes_out_as_text(number: int, as_text: bool) -> None:
    body = {"jobSpec": {"workerPoolSpecs": [{"replicaCount": str(number) if as_text else number}]}}
    assert read(body) == {"jobSpec": {"workerPoolSpecs": [{"replicaCount": str(number)}]}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(["displayName", "jobSpec", "x"]), below)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["displayName", "jobSpec", "labels", "encryptionSpec", "y"]), JSON))
def test_any_json_is_read_or_refused_and_reading_again_changes_nothing(body: dict[str, Any]) -> None:
    try:
        once = read(body)
    except ApiError:
        return
    assert read(once) == once


@pytest.mark.slow
def test_the_numbers_of_enum_values_are_the_official_sdks() -> None:
    from google.cloud.aiplatform_v1 import types  # a second, which a run of other tests needn't wait for

    inputs = types.ExplanationMetadata.InputMetadata
    visualization = "ExplanationMetadataInputMetadataVisualization"
    enums = {
        ("ExamplesExampleGcsSource", "dataFormat"): types.Examples.ExampleGcsSource.DataFormat,
        ("ExplanationMetadataInputMetadata", "encoding"): inputs.Encoding,
        (visualization, "colorMap"): inputs.Visualization.ColorMap,
        (visualization, "overlayType"): inputs.Visualization.OverlayType,
        (visualization, "polarity"): inputs.Visualization.Polarity,
        (visualization, "type"): inputs.Visualization.Type,
        ("Presets", "modality"): types.Presets.Modality,
        ("Presets", "query"): types.Presets.Query,
        ("MachineSpec", "acceleratorType"): types.AcceleratorType,
        ("ReservationAffinity", "reservationAffinityType"): types.ReservationAffinity.Type,
        ("Scheduling", "strategy"): types.Scheduling.Strategy,
        ("StudySpec", "algorithm"): types.StudySpec.Algorithm,
        ("StudySpec", "measurementSelectionType"): types.StudySpec.MeasurementSelectionType,
        ("StudySpec", "observationNoise"): types.StudySpec.ObservationNoise,
        ("StudySpecMetricSpec", "goal"): types.StudySpec.MetricSpec.GoalType,
        ("StudySpecParameterSpec", "scaleType"): types.StudySpec.ParameterSpec.ScaleType,
    }
    official = {
        ("GoogleCloudAiplatformV1" + schema, field): {member.value: member.name for member in enum}
        for (schema, field), enum in enums.items()
    }
    official["LogEntry", "severity"] = {number: name for name, number in LogSeverity.items()}
    assert official == NUMBERS


def test_every_enum_that_a_vertex_client_may_send_has_its_numbers() -> None:
    api, left, seen = CREATE.api, [CREATE.request, TUNE.request, UPLOAD.request], set()
    found = set()
    while left:
        name = left.pop()
        seen.add(name)
        for key, value in api.schemas[name].get("properties", {}).items():
            if value.get("readOnly"):
                continue
            inner = value.get("items") or value.get("additionalProperties") or value
            if "enum" in inner:
                assert set(inner["enum"]) == set(NUMBERS[name, key].values())
                found.add((name, key))
            if "$ref" in inner and inner["$ref"] not in seen:
                left.append(inner["$ref"])
    assert found == {key for key in NUMBERS if key[0].startswith("GoogleCloudAiplatformV1")}


def test_query_parameters_are_read_by_their_type() -> None:
    found = discovery.match("GET", "/v1/projects/p/locations/l/customJobs")
    assert found
    query = (("page_size", "5"), ("prettyPrint", "false"), ("key", "k"))
    assert json_mapping.read_parameters(found.method, query) == {
        "pageSize": 5,
        "prettyPrint": False,
        "key": "k",
    }
    for bad in (("pageSize", "many"), ("prettyPrint", "maybe"), ("colour", "red")):
        with pytest.raises(ApiError):
            json_mapping.read_parameters(found.method, (bad,))


def test_a_job_spec_is_kept_word_for_word() -> None:
    body = {"displayName": "j", "jobSpec": job_spec(baseOutputDirectory={"outputUriPrefix": "gs://b/x"})}
    assert read(body) == body
