"""Vertex AI's training pipelines over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from reconciler.training_service.http.auth import Tokens
from reconciler.training_service.scheduler.pipelines import PipelineRunner
from reconciler.training_service.state.database import rfc3339
from reconciler.training_service.state.models import ModelStore
from reconciler.training_service.state.records import PIPELINES, UNFINISHED, JobRecord, JobState, number_of
from tests.support.training_service.bodies import DEFINITIONS, VERTEX, job_spec, pipeline, tuning_pipeline
from tests.support.training_service.served import Service

JOBS = f"{VERTEX}/trainingPipelines"
PARENT = f"projects/{number_of('demo')}/locations/us-central1"
KINDS = pytest.mark.parametrize(
    ("make", "collection", "field", "suffix"),
    [
        (pipeline, "customJobs", "backingCustomJob", "-custom-job"),
        (
            tuning_pipeline,
            "hyperparameterTuningJobs",
            "backingHyperparameterTuningJob",
            "-hyperparameter-tuning-job",
        ),
    ],
)


def create(service: Service, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = service.post(JOBS, pipeline() if body is None else body)
    assert answer.status == 200, answer.content
    created: dict[str, Any] = answer.json
    return created


def row_of(service: Service, created: dict[str, Any]) -> JobRecord:
    row = service.store.find(PIPELINES, "demo", "us-central1", created["name"].rpartition("/")[2])
    assert row is not None
    return row


def backing_of(service: Service, created: dict[str, Any]) -> JobRecord:
    _, _, _, _, collection, job_id = next(iter(created["trainingTaskMetadata"].values())).split("/")
    row = service.store.find(collection, "demo", "us-central1", job_id)
    assert row is not None
    return row


def move(service: Service, job: JobRecord, *states: JobState) -> None:
    for state in states:
        service.clock.advance(1)
        assert service.store.move(job.id, state, only_from=UNFINISHED, at=service.store.now())


def names(service: Service, text: str = "") -> list[str]:
    answer = service.get(f"{JOBS}?filter={quote(text)}")
    assert answer.status == 200, answer.content
    return [each["displayName"] for each in answer.json.get("trainingPipelines", [])]


def fields_of(answer: Any) -> list[str]:
    assert (answer.status, answer.json["error"]["status"]) == (400, "INVALID_ARGUMENT"), answer.content
    return [each["field"] for each in answer.json["error"]["details"][0]["fieldViolations"]]


@KINDS
def test_new_pipeline_is_queued_and_names_the_job_that_trains_for_it(
    service: Service, make: Callable[..., dict[str, Any]], collection: str, field: str, suffix: str
) -> None:
    body = make(labels={"team": "risk"}, encryptionSpec={"kmsKeyName": "k"})
    created = create(service, body)
    job = f"{PARENT}/{collection}/{backing_of(service, created).job_id}"
    now = "2026-01-02T03:04:05.000000Z"
    assert created["name"].startswith(f"{PARENT}/trainingPipelines/")
    assert created == body | {
        "name": created["name"],
        "trainingTaskMetadata": {field: job},
        "state": "PIPELINE_STATE_QUEUED",
        "createTime": now,
        "updateTime": now,
    }
    assert service.get(f"/v1/{created['name']}").json == created
    backing = service.get(f"/v1/{job}").json
    inputs = body["trainingTaskInputs"]
    expected = {"jobSpec": inputs} if collection == "customJobs" else inputs
    assert backing == {
        **expected,
        "name": job,
        "displayName": body["displayName"] + suffix,
        "encryptionSpec": {"kmsKeyName": "k"},
        "state": "JOB_STATE_QUEUED",
        "createTime": now,
        "updateTime": now,
    }
    assert service.woken == [None]


def test_backing_job_has_the_labels_of_its_pipeline_if_the_service_is_told_so(service: Service) -> None:
    for is_copied in (True, False):
        setting = {"labelsOnBackingJobs": is_copied}
        assert service.call("PUT", "/_service/pipelines", setting).status == 200
        backing = backing_of(service, create(service, pipeline(labels={"team": "risk"})))
        assert backing.body.get("labels") == ({"team": "risk"} if is_copied else None)
    answer = service.call("PUT", "/_service/pipelines", {"labelsOnBackingJobs": "yes"})
    assert answer.error == "INVALID_ARGUMENT: labelsOnBackingJobs: must be true or false."


def test_answers_name_the_first_version_of_the_task_definition_whichever_was_sent(service: Service) -> None:
    created = create(service, pipeline(trainingTaskDefinition=f"{DEFINITIONS}custom_task_1.2.3.yaml"))
    assert created["trainingTaskDefinition"] == f"{DEFINITIONS}custom_task_1.0.0.yaml"
    assert names(service, 'training_task_definition:"*custom_task*"') == ["census"]
    assert names(service, f'training_task_definition!="{DEFINITIONS}custom_task_1.0.0.yaml"') == []


def test_inputs_in_snake_case_are_answered_as_sent_and_trained_as_in_camel_case(service: Service) -> None:
    inputs = {
        "worker_pool_specs": [
            {
                "machine_spec": {
                    "machine_type": "n1-standard-4",
                    "accelerator_type": 5,
                    "accelerator_count": "1",
                },
                "replica_count": 1,
                "container_spec": {"image_uri": "us-docker.pkg.dev/demo/images/trainer:1"},
            }
        ],
        "scheduling": {"timeout": "3600s", "restart_job_on_worker_restart": True},
        "base_output_directory": {"output_uri_prefix": "gs://out/census"},
    }
    created = create(service, pipeline(trainingTaskInputs=inputs))
    assert created["trainingTaskInputs"] == inputs
    assert backing_of(service, created).body["jobSpec"] == {
        "workerPoolSpecs": [
            {
                "machineSpec": {
                    "machineType": "n1-standard-4",
                    "acceleratorType": "NVIDIA_TESLA_T4",
                    "acceleratorCount": 1,
                },
                "replicaCount": "1",
                "containerSpec": {"imageUri": "us-docker.pkg.dev/demo/images/trainer:1"},
            }
        ],
        "scheduling": {"timeout": "3600s", "restartJobOnWorkerRestart": True},
        "baseOutputDirectory": {"outputUriPrefix": "gs://out/census"},
    }


MODEL = {"displayName": "census", "containerSpec": {"imageUri": "us-docker.pkg.dev/demo/images/serve:1"}}
LOCAL = {"outputUriPrefix": "/tmp"}
INPUTS = "training_task_inputs"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "training_task_definition"),
        (pipeline(displayName=""), "display_name"),
        (pipeline(displayName="x" * 129), "display_name"),
        (pipeline(labels={"Team": "x"}), "labels.Team"),
        (pipeline(trainingTaskInputs=None), INPUTS),
        (pipeline(trainingTaskInputs=[]), f"training_pipeline.{INPUTS}"),
        (pipeline(trainingTaskInputs={"jobSpec": job_spec()}), f"training_pipeline.{INPUTS}"),
        (
            pipeline(trainingTaskInputs={"worker_pool_specs": [{"replica_count": "many"}]}),
            f"training_pipeline.{INPUTS}.worker_pool_specs[0].replica_count",
        ),
        (
            pipeline(trainingTaskInputs=job_spec(scheduling={"timeout": "1 h"})),
            f"training_pipeline.{INPUTS}.scheduling.timeout",
        ),
        (pipeline(trainingTaskInputs={}), f"{INPUTS}.worker_pool_specs"),
        (
            pipeline(trainingTaskInputs=job_spec(baseOutputDirectory=LOCAL)),
            f"{INPUTS}.base_output_directory.output_uri_prefix",
        ),
        (
            pipeline(trainingTaskInputs=job_spec(tensorboard="projects/1/t")),
            f"{INPUTS}.service_account",
        ),
        (tuning_pipeline(maxTrialCount=0), f"{INPUTS}.max_trial_count"),
        (tuning_pipeline(studySpec={}), f"{INPUTS}.study_spec.metrics"),
        (
            tuning_pipeline(trialJobSpec=job_spec(baseOutputDirectory=LOCAL)),
            f"{INPUTS}.trial_job_spec.base_output_directory.output_uri_prefix",
        ),
        (tuning_pipeline(displayName=""), "display_name"),
        (tuning_pipeline(displayNames="x"), f"training_pipeline.{INPUTS}"),
        (pipeline(inputDataConfig={"datasetId": "1"}), "input_data_config"),
        (pipeline(modelToUpload={}), "model_to_upload.display_name"),
        (pipeline(modelToUpload=MODEL, modelId="9"), "model_id"),
        (pipeline(modelToUpload=MODEL, parentModel="census"), "parent_model"),
        (pipeline(modelToUpload=MODEL), f"{INPUTS}.base_output_directory.output_uri_prefix"),
        (
            tuning_pipeline(modelToUpload=MODEL),
            f"{INPUTS}.trial_job_spec.base_output_directory.output_uri_prefix",
        ),
    ],
)
def test_refusal_of_a_pipeline_names_the_field(service: Service, body: dict[str, Any], field: str) -> None:
    assert field in fields_of(service.post(JOBS, body))
    assert not service.store.is_busy()


@pytest.mark.parametrize(
    "definition",
    [
        f"{DEFINITIONS}automl_tabular_1.0.0.yaml",
        f"{DEFINITIONS}custom_task.yaml",
        "gs://mine/custom_task_1.0.0.yaml",
    ],
)
def test_refusal_of_a_task_definition_names_it_and_the_tasks_that_run_here(
    service: Service, definition: str
) -> None:
    answer = service.post(JOBS, pipeline(trainingTaskDefinition=definition))
    assert fields_of(answer) == ["training_task_definition"]
    known = f"custom_task_1.0.0.yaml and hyperparameter_tuning_task_1.0.0.yaml of {DEFINITIONS}"
    name = "automl_tabular" if "automl" in definition else definition
    assert f"This service runs {known}, but not {name}: " in answer.json["error"]["message"]


def test_all_mistakes_of_a_pipeline_are_told_at_once(service: Service) -> None:
    body = pipeline(
        labels={"Team": "x"}, inputDataConfig={}, trainingTaskInputs=job_spec(scheduling={"timeout": "-1s"})
    )
    fields = fields_of(service.post(JOBS, body))
    assert fields == ["input_data_config", "labels.Team", f"{INPUTS}.scheduling.timeout"]


def test_pipeline_that_cant_run_here_is_refused_with_the_field_and_the_remedy(service: Service) -> None:
    inputs = job_spec()
    inputs["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "ct5lp-hightpu-4t"}
    for body, prefix in (
        (pipeline(trainingTaskInputs=inputs), INPUTS),
        (tuning_pipeline(trialJobSpec=inputs), f"{INPUTS}.trial_job_spec"),
    ):
        answer = service.post(JOBS, body)
        assert fields_of(answer) == [f"{prefix}.worker_pool_specs[0].machine_spec"]
        assert "has no TPUs" in answer.json["error"]["message"]


def model_of(service: Service, model_id: str = "census") -> str:
    models = ModelStore(service.store.database, service.clock)
    with service.store.database.writing() as connection:
        made = models.register(connection, "demo", "us-central1", {"displayName": "m"}, model_id=model_id)
    return made.name


def test_model_that_could_not_be_registered_is_refused_before_the_training(service: Service) -> None:
    name = model_of(service)
    inputs = job_spec(baseOutputDirectory={"outputUriPrefix": "gs://out/census"})
    body = pipeline(trainingTaskInputs=inputs, modelToUpload=MODEL)
    answer = service.post(JOBS, body | {"modelId": "census"})
    said = "FAILED_PRECONDITION: The modelId census is already used. Take another, or write parentModel: "
    assert answer.error == said + name.replace(number_of("demo"), "demo")
    for parent in (f"{name}s", name.replace("us-central1", "europe-west4")):
        answer = service.post(JOBS, body | {"parentModel": parent})
        assert answer.error.startswith(f"NOT_FOUND: The parentModel {parent} doesn't exist")
    assert not service.store.is_busy()
    for more in ({"modelId": "other"}, {"parentModel": name}, {"parentModel": f"{name}@1"}):
        assert service.post(JOBS, body | more).status == 200


def test_model_is_answered_without_its_container_and_with_its_name_once_it_is_registered(
    service: Service,
) -> None:
    model = MODEL | {"artifactUri": "gs://out/census/model", "versionAliases": ["default"], "name": "x"}
    created = create(service, pipeline(modelToUpload=model, modelId="census"))
    shown = {name: model[name] for name in ("displayName", "artifactUri", "versionAliases")}
    assert created["modelToUpload"] == shown
    (service.home / "gcs/out/census/model").mkdir(parents=True)
    (service.home / "gcs/out/census/model/saved").touch()
    move(service, backing_of(service, created), JobState.RUNNING, JobState.SUCCEEDED)
    PipelineRunner(service.store, service.home).step(row_of(service, created))
    found = service.get(f"/v1/{created['name']}").json
    assert found["state"] == "PIPELINE_STATE_SUCCEEDED"
    assert found["modelToUpload"] == shown | {"name": f"{PARENT}/models/census", "versionId": "1"}


def test_neither_pipeline_nor_backing_job_is_made_after_the_end_of_the_credential(service: Service) -> None:
    token, expiry = Tokens(service.store).mint(timedelta(seconds=60))
    store_add = service.store.add_job

    def late(*arguments: Any, **named: Any) -> JobRecord:
        service.clock.now = expiry
        return store_add(*arguments, **named)

    service.store.add_job = late  # type: ignore[method-assign]
    answer = service.call("POST", JOBS, pipeline(), token=token)
    assert (answer.status, answer.json["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert not service.store.is_busy()


def test_cancel_of_a_pipeline_cancels_its_backing_job_and_then_the_pipeline(service: Service) -> None:
    created = create(service)
    path = f"/v1/{created['name']}"
    for _ in range(2):  # again, as a client does that got no answer
        assert service.post(f"{path}:cancel").json == {}
        assert service.get(path).json["state"] == "PIPELINE_STATE_CANCELLING"
    runner = PipelineRunner(service.store, service.home)
    runner.step(row_of(service, created))
    assert backing_of(service, created).state is JobState.CANCELLED
    runner.step(row_of(service, created))
    found = service.get(path).json
    assert (found["state"], found["error"]["code"]) == ("PIPELINE_STATE_CANCELLED", 1)
    assert "already CANCELLED" in service.post(f"{path}:cancel").error
    assert len(service.woken) == 3


def test_only_an_ended_pipeline_is_deleted_and_its_backing_job_stays(service: Service) -> None:
    created = create(service)
    path = f"/v1/{created['name']}"
    refused = service.call("DELETE", path).error
    assert refused.startswith("FAILED_PRECONDITION: The job is in state PIPELINE_STATE_QUEUED: only")
    backing = backing_of(service, created)
    move(service, backing, JobState.FAILED)
    PipelineRunner(service.store, service.home).step(row_of(service, created))
    operation = service.call("DELETE", path).json
    assert operation["done"] is True
    assert operation["name"].startswith(f"{PARENT}/operations/")
    assert service.get(path).status == 404
    assert service.store.job(backing.id) is not None


def test_pipelines_are_listed_by_the_filters_of_jobs_with_the_names_of_their_states(service: Service) -> None:
    create(service, pipeline(displayName="one", labels={"team": "risk", "reconciler-key": "k"}))
    service.clock.advance(3600)
    failed = create(service, pipeline(displayName="two", labels={"reconciler-key": "k"}))
    service.store.move(
        row_of(service, failed).id, JobState.FAILED, only_from=UNFINISHED, at=service.store.now()
    )
    assert names(service) == ["two", "one"]
    assert names(service, 'state="PIPELINE_STATE_QUEUED"') == ["one"]
    ended = ("SUCCEEDED", "FAILED", "CANCELLED")
    unfinished = " AND ".join(f'state!="PIPELINE_STATE_{state}"' for state in ended)
    assert names(service, f'labels.reconciler-key="k" AND {unfinished}') == ["one"]
    assert names(service, f'labels.team="risk" AND {unfinished} AND display_name:"o*"') == ["one"]
    assert names(service, 'state="PIPELINE_STATE_PAUSED" OR labels.reconciler-key="k"') == ["two", "one"]
    noon = quote(f'create_time>"{rfc3339(service.clock.now - timedelta(seconds=60))}"')
    page = service.get(f"{JOBS}?filter={noon}&readMask=displayName,trainingTaskMetadata").json
    (found,) = page["trainingPipelines"]
    assert found == {"displayName": "two", "trainingTaskMetadata": failed["trainingTaskMetadata"]}
    assert "none of PIPELINE_STATE_QUEUED" in service.get(f"{JOBS}?filter=state%3DJOB_STATE_QUEUED").error


def test_pages_hold_each_pipeline_once_and_no_backing_job(service: Service) -> None:
    for number in range(3):
        create(service, pipeline(displayName=f"p{number}"))
    first = service.get(f"{JOBS}?pageSize=2").json
    second = service.get(f"{JOBS}?pageSize=2&pageToken={first['nextPageToken']}").json
    listed = [each["displayName"] for page in (first, second) for each in page["trainingPipelines"]]
    assert listed == ["p2", "p1", "p0"]
    assert "nextPageToken" not in second
    assert len(service.get(f"{VERTEX}/customJobs").json["customJobs"]) == 3


def test_pipeline_has_no_state_while_that_of_its_backing_job_cant_be_read(service: Service) -> None:
    created = create(service)
    backing = backing_of(service, created)
    with service.store.database.writing() as connection:
        connection.execute("UPDATE jobs SET state = 'BROKEN' WHERE id = ?", (backing.id,))
    PipelineRunner(service.store, service.home).step(row_of(service, created))
    path = f"/v1/{created['name']}"
    for found in (*service.get(JOBS).json["trainingPipelines"], service.get(path).json):
        assert (found["state"], found["error"]["code"]) == ("PIPELINE_STATE_UNSPECIFIED", 15)
        assert found["error"]["message"].endswith(f"state.\nIt is the record of customJobs/{backing.job_id}.")
        (info,) = found["error"]["details"]
        assert (info["reason"], info["metadata"]["columns"]) == ("UNREADABLE", "state")
    assert service.post(f"{path}:cancel").status == 200
    assert service.get(path).json["state"] == "PIPELINE_STATE_CANCELLING"


def test_pipeline_that_cant_be_read_is_listed_with_its_name_and_the_reason(service: Service) -> None:
    created = create(service, pipeline(modelToUpload=MODEL | {"artifactUri": "gs://out/model"}))
    with service.store.database.writing() as connection:
        connection.execute("UPDATE jobs SET body = '{' WHERE collection = ?", (PIPELINES,))
    (found,) = service.get(JOBS).json["trainingPipelines"]
    assert (found["displayName"], found["error"]["code"]) == ("census", 15)
    assert found["trainingTaskMetadata"] == created["trainingTaskMetadata"]
