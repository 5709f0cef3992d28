"""Training pipelines: the job that trains for one is the custom or tuning job that its inputs describe."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.engines.spec import vertex_ai
from reconciler.model.job import ActualJob, State, Trials
from reconciler.model.manifest import AIPLATFORM_V1, TRAINING_PIPELINE, JsonObject

TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
CUSTOM: JsonObject = {
    "workerPoolSpecs": [
        {
            "machineSpec": {
                "machineType": "n1-standard-4",
                "acceleratorType": "NVIDIA_TESLA_T4",
                "acceleratorCount": 2,
            },
            "replicaCount": "1",
            "pythonPackageSpec": {
                "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
                "packageUris": ["gs://b/p.tar.gz"],
                "pythonModule": "trainer.task",
            },
        },
        {"machineSpec": {"machineType": "n1-standard-4"}, "containerSpec": {"imageUri": "image"}},
    ],
    "baseOutputDirectory": {"outputUriPrefix": "gs://b/census/"},
    "scheduling": {"timeout": "7200s"},
    "serviceAccount": "trainer@acme.iam.gserviceaccount.com",
}
TUNING: JsonObject = {
    "studySpec": {
        "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
        "parameters": [{"parameterId": "lr", "scaleType": "UNIT_LOG_SCALE"}],
    },
    "trialJobSpec": CUSTOM,
    "maxTrialCount": 3,
    "parallelTrialCount": 1,
}
JOBS = [("CustomJob", CUSTOM), ("HyperparameterTuningJob", TUNING)]
TRIALS = [
    {"id": "1", "state": "SUCCEEDED", "finalMeasurement": {"metrics": [{"metricId": "loss", "value": 0.5}]}},
    {"id": "2", "state": "SUCCEEDED", "finalMeasurement": {"metrics": [{"metricId": "loss", "value": 0.25}]}},
    {"id": "3", "state": "REQUESTED"},
]


def pipeline(inputs: JsonObject) -> JsonObject:
    model = {"displayName": "census", "labels": {"team": "risk"}}
    return {"trainingTaskDefinition": TASK, "trainingTaskInputs": inputs, "modelToUpload": model}


def run(spec: JsonObject, backing: JsonObject) -> ActualJob:
    name, base = "projects/1/locations/l/trainingPipelines/2", {"trainingTaskMetadata": {}}
    state = State.SUCCEEDED
    return ActualJob(
        name,
        "census_1",
        AIPLATFORM_V1,
        TRAINING_PIPELINE,
        state,
        "PIPELINE_STATE_SUCCEEDED",
        spec=spec,
        body={**base, **spec},
        backing_body=backing,
    )


@pytest.mark.parametrize(("kind", "spec"), JOBS)
def test_a_pipeline_has_the_parts_of_the_job_that_its_inputs_describe(kind: str, spec: JsonObject) -> None:
    of_pipeline = pipeline(spec)
    for part in (
        vertex_ai.module,
        vertex_ai.accelerator_hours,
        vertex_ai.replicas,
        vertex_ai.log_directory,
        vertex_ai.workers,
        vertex_ai.limits,
        vertex_ai.output_directory,
        vertex_ai.has_trials,
    ):
        assert part(TRAINING_PIPELINE, of_pipeline) == part(kind, spec), part


@pytest.mark.parametrize(("kind", "spec"), JOBS)
def test_a_change_of_a_pipeline_is_that_change_of_its_inputs(kind: str, spec: JsonObject) -> None:
    defaults = {"network": "projects/1/global/networks/n", "timeout": "60s", "baseOutputDirectory": "gs://d"}
    changes: list[Any] = [
        (vertex_ai.with_defaults, (defaults, "census_1")),
        (vertex_ai.with_package, ("gs://b/q.tar.gz",)),
        (vertex_ai.with_command, (["python3", "-m", "trainer"],)),
        (vertex_ai.with_output_directory, ("gs://b/own",)),
    ]
    for change, arguments in changes:
        changed = change(TRAINING_PIPELINE, pipeline(spec), *arguments)
        assert changed == pipeline(change(kind, spec, *arguments)), change
        assert changed != pipeline(spec)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (CUSTOM, "spec.trainingTaskInputs.baseOutputDirectory.outputUriPrefix"),
        (TUNING, "spec.trainingTaskInputs.trialJobSpec.baseOutputDirectory.outputUriPrefix"),
    ],
)
def test_the_folder_of_a_pipeline_is_named_in_its_inputs(spec: JsonObject, field: str) -> None:
    assert ".".join(vertex_ai.output_directory_field(TRAINING_PIPELINE, pipeline(spec))) == field


def test_a_request_has_the_reconcilers_name_and_labels_beside_the_models_own() -> None:
    body = vertex_ai.body(TRAINING_PIPELINE, pipeline(CUSTOM), "census_1", {"a": "b"})
    assert body == {"displayName": "census_1", "labels": {"a": "b"}, **pipeline(CUSTOM)}
    assert vertex_ai.spec_of(TRAINING_PIPELINE, body) == pipeline(CUSTOM)
    registered = {**body["modelToUpload"], "name": "projects/1/locations/l/models/5", "versionId": "2"}
    answer = {**body, "modelToUpload": registered, "state": "PIPELINE_STATE_SUCCEEDED"}
    assert vertex_ai.spec_of(TRAINING_PIPELINE, answer) == pipeline(CUSTOM)


@pytest.mark.fault(73)
def test_an_answer_in_snake_case_is_read_as_the_request() -> None:
    pool = {
        "machine_spec": {"machine_type": "n1-standard-4"},
        "container_spec": {"image_uri": "image", "env": [{"name": "A_B", "value": "c_d"}]},
    }
    answer = {
        "trainingTaskInputs": {
            "worker_pool_specs": [pool],
            "base_output_directory": {"output_uri_prefix": "gs://b"},
        }
    }
    assert vertex_ai.resource_in_form(TRAINING_PIPELINE, answer) == {
        "trainingTaskInputs": {
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": "n1-standard-4"},
                    "containerSpec": {"imageUri": "image", "env": [{"name": "A_B", "value": "c_d"}]},
                }
            ],
            "baseOutputDirectory": {"outputUriPrefix": "gs://b"},
        }
    }


def test_the_trials_of_a_pipeline_are_those_of_its_backing_job() -> None:
    tuned = run(pipeline(TUNING), {"trials": TRIALS})
    assert vertex_ai.trials(tuned) == Trials(frozenset({"1", "2"}), 3)
    study = vertex_ai.study(tuned)
    assert study is not None
    assert study.best is not None
    assert (study.best.id, study.best.metrics, study.planned, study.logarithmic) == (
        "2",
        {"loss": 0.25},
        3,
        {"lr"},
    )
    assert vertex_ai.study(run(pipeline(CUSTOM), {})) is None
    assert vertex_ai.trials(run(pipeline(CUSTOM), {})) is None


def test_the_registered_model_is_the_one_that_the_service_names() -> None:
    named = {
        "modelToUpload": {
            "displayName": "census",
            "name": "projects/1/locations/l/models/5",
            "versionId": "2",
        }
    }
    registered = replace(run(pipeline(CUSTOM), {}), body=named)
    assert vertex_ai.registered_model(registered) == "projects/1/locations/l/models/5@2"
    assert vertex_ai.registered_model(run(pipeline(CUSTOM), {})) == ""
    assert vertex_ai.registered_model(replace(registered, kind="CustomJob")) == ""


@pytest.mark.parametrize(
    ("metadata", "backing"),
    [
        (
            {"backingCustomJob": "projects/1/locations/l/customJobs/2"},
            ("CustomJob", "projects/1/locations/l/customJobs/2"),
        ),
        (
            {
                "backingHyperparameterTuningJob": "p/hyperparameterTuningJobs/3",
                "bestTrialBackingCustomJob": "p/customJobs/4",
            },
            ("HyperparameterTuningJob", "p/hyperparameterTuningJobs/3"),
        ),
        ({}, None),
        ({"backingCustomJob": 7}, None),
        (None, None),
    ],
)
def test_the_backing_job_is_the_one_that_the_metadata_names(metadata: Any, backing: Any) -> None:
    assert vertex_ai.backing_job({"trainingTaskMetadata": metadata}) == backing
