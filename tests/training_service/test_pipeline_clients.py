"""Vertex AI's SDK trains by pipelines, and gets the models that they register; nothing of it is changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import BadRequest, MethodNotImplemented, NotFound
from google.cloud import aiplatform
from google.oauth2.credentials import Credentials
from google.protobuf import json_format, struct_pb2

from reconciler.training_service.scheduler.supervisor import Supervisor
from reconciler.training_service.state.records import number_of
from tests.support.training_service import trainers
from tests.support.training_service.bodies import DEFINITIONS
from tests.support.training_service.served import TOKEN, Service
from tests.support.training_service.supervised import FOR_TWO
from tests.support.waiting import until

REGION = "europe-west4"
PARENT = f"projects/{number_of('demo')}/locations/{REGION}"
SERVING = "europe-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest"
# Needs no package of its own: it writes the model as a file, as below /gcs.
TRAINER = """
import os, pathlib, sys
if "AIP_MODEL_DIR" in os.environ:
    uri = os.environ["AIP_MODEL_DIR"].removeprefix("gs://")
    folder = pathlib.Path(os.environ["RECONCILER_GCS_DIR"], uri)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "arguments").write_text(" ".join(sys.argv[1:]))
print("trained with", *sys.argv[1:])
"""


@pytest.fixture
def training(
    service: Service,
    tmp_path_factory: pytest.TempPathFactory,
    wheelhouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[], object]]:
    """Yield the step of a supervisor for the service that the SDK is told to use."""
    monkeypatch.setattr("google.cloud.aiplatform.training_jobs._JOB_WAIT_TIME", 0.05)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{service.url}/jobs/{TOKEN}")
    (service.home / "environments").symlink_to(trainers.shared_environments(tmp_path_factory))
    service.call("PUT", "/_service/images", trainers.IMAGES)
    service.post("/storage/v1/b?project=demo", {"name": "staging"})
    supervisor = Supervisor(
        service.store,
        service.home,
        storage_url=lambda job: f"{service.url}/jobs/{job.gcs_secret}",
        machine=FOR_TWO,
    )
    aiplatform.init(
        project="demo",
        location=REGION,
        staging_bucket="gs://staging",
        api_endpoint=service.url,
        api_transport="rest",
        credentials=Credentials(token=TOKEN),
    )
    yield supervisor.tick
    supervisor.stop()


def run(training: Callable[[], object], job: Any, **given: Any) -> Any:
    """Run a training job of the SDK while the service trains; return what `run` returns."""
    model = job.run(machine_type="n1-standard-4", **given, sync=False)
    until(lambda: job.done(), meanwhile=training)
    job.wait()
    return model


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "task.py"
    path.write_text(TRAINER)
    return str(path)


def test_custom_training_job_trains_a_script_and_returns_the_model(
    service: Service, training: Callable[[], object], script: str
) -> None:
    job = aiplatform.CustomTrainingJob(
        display_name="census",
        script_path=script,
        container_uri=trainers.PLAIN,
        model_serving_container_image_uri=SERVING,
        labels={"team": "risk"},
    )
    model = run(
        training,
        job,
        model_display_name="census-model",
        model_labels={"stage": "test"},
        base_output_dir="gs://staging/out",
        args=["--epochs=3"],
        replica_count=1,
        timeout=3600,
    )
    model.wait()
    assert job.state is aiplatform.gapic.PipelineState.PIPELINE_STATE_SUCCEEDED
    assert job.resource_name.startswith(f"{PARENT}/trainingPipelines/")
    assert (model.display_name, model.version_id, model.labels) == ("census-model", "1", {"stage": "test"})
    assert model.version_aliases == ["default"]
    assert model.uri == "gs://staging/out/model"
    assert model.container_spec.image_uri == SERVING
    assert type(model.training_job) is aiplatform.CustomTrainingJob
    assert (service.home / "gcs/staging/out/model/arguments").read_text() == "--epochs=3"
    assert job.get_model().resource_name == model.resource_name


def test_parent_model_gets_the_version_with_the_aliases_that_the_sdk_sends(
    service: Service, training: Callable[[], object], script: str
) -> None:
    def trained(**given: Any) -> Any:
        job = aiplatform.CustomTrainingJob(
            display_name="census",
            script_path=script,
            container_uri=trainers.PLAIN,
            model_serving_container_image_uri=SERVING,
        )
        model = run(training, job, model_display_name="census-model", **given)
        model.wait()
        return model

    first = trained(model_id="census", model_version_description="the first")
    assert first.resource_name == f"{PARENT}/models/census"
    second = trained(
        parent_model=first.resource_name, is_default_version=False, model_version_aliases=["candidate"]
    )
    assert (second.resource_name, second.version_id) == (first.resource_name, "2")
    assert second.version_aliases == ["candidate"]
    third = trained(parent_model="census", is_default_version=True)
    assert (third.version_id, third.version_aliases) == ("3", ["default"])
    assert aiplatform.Model(f"{PARENT}/models/census@1").version_aliases == []
    assert aiplatform.Model("census").version_id == "3"


def test_python_package_training_job_without_a_model_returns_none(
    service: Service, training: Callable[[], object]
) -> None:
    trainers.wheel(service.home / "gcs" / trainers.URI.removeprefix("gs://"), TRAINER)
    job = aiplatform.CustomPythonPackageTrainingJob(
        display_name="census",
        python_package_gcs_uri=trainers.URI,
        python_module_name="trainer.task",
        container_uri=trainers.PLAIN,
    )
    assert run(training, job, args=["--epochs=3"]) is None
    assert job.state is aiplatform.gapic.PipelineState.PIPELINE_STATE_SUCCEEDED
    with pytest.raises(RuntimeError, match="is not configured to upload a Model"):
        job.get_model()


def test_container_training_job_trains_and_returns_the_model(
    service: Service, training: Callable[[], object]
) -> None:
    job = aiplatform.CustomContainerTrainingJob(
        display_name="census",
        container_uri=f"python:{sys.version_info.major}.{sys.version_info.minor}-slim",
        command=["python3", "-c", TRAINER],
        model_serving_container_image_uri=SERVING,
    )
    model = run(training, job, model_display_name="census-model", args=["--epochs=3"])
    model.wait()
    assert (model.display_name, model.version_id) == ("census-model", "1")
    path = service.home / "gcs" / model.uri.removeprefix("gs://") / "arguments"
    assert path.read_text() == "--epochs=3"


def test_failure_of_the_training_reaches_the_caller_with_its_reason(
    training: Callable[[], object], tmp_path: Path
) -> None:
    (tmp_path / "task.py").write_text("raise SystemExit(3)")
    job = aiplatform.CustomTrainingJob(
        display_name="census",
        script_path=str(tmp_path / "task.py"),
        container_uri=trainers.PLAIN,
        model_serving_container_image_uri=SERVING,
    )
    with pytest.raises(RuntimeError, match=r"(?s)Training failed with:.*code: 3.*NON_ZERO_EXIT"):
        run(training, job, model_display_name="census-model")
    assert job.has_failed
    assert aiplatform.Model.list() == []


def test_training_jobs_are_listed_got_cancelled_and_deleted(
    service: Service, training: Callable[[], object]
) -> None:
    def container_job(name: str) -> Any:
        job = aiplatform.CustomContainerTrainingJob(
            display_name=name,
            container_uri=f"python:{sys.version_info.major}.{sys.version_info.minor}-slim",
            command=["python3", "-c", "import time; time.sleep(600)"],
        )
        job.submit(machine_type="n1-standard-4")
        return job

    one, two = container_job("one"), container_job("two")
    until(lambda: one.state.name == "PIPELINE_STATE_RUNNING", meanwhile=training)
    listed = aiplatform.CustomContainerTrainingJob.list(filter='display_name="one"')
    assert [each.resource_name for each in listed] == [one.resource_name]
    assert len(aiplatform.CustomTrainingJob.list(filter='state!="PIPELINE_STATE_FAILED"')) == 2
    found = aiplatform.CustomContainerTrainingJob.get(two.resource_name)
    assert (found.display_name, found.to_dict()["trainingTaskMetadata"]["backingCustomJob"]) == (
        "two",
        two.to_dict()["trainingTaskMetadata"]["backingCustomJob"],
    )
    with pytest.raises(BadRequest, match="only a job that has ended"):
        one.delete()
    for job in (one, two):
        job.cancel()
    until(lambda: one.state.name == two.state.name == "PIPELINE_STATE_CANCELLED", meanwhile=training)
    one.delete()
    with pytest.raises(NotFound):
        aiplatform.CustomContainerTrainingJob.get(one.resource_name)
    assert len(aiplatform.CustomJob.list()) == 2


def test_tuning_pipeline_of_the_api_client_registers_the_model_of_its_best_trial(
    service: Service, training: Callable[[], object]
) -> None:
    client = aiplatform.gapic.PipelineServiceClient(
        client_options=ClientOptions(api_endpoint=service.url),
        transport="rest",
        credentials=Credentials(token=TOKEN),
    )
    report = TRAINER + (
        "import json\n"
        "value = sys.argv[-1]\n"
        "file = pathlib.Path(os.environ['CLOUD_ML_HP_METRIC_FILE'])\n"
        "file.parent.mkdir(parents=True, exist_ok=True)\n"
        "line = {'accuracy': value, 'global_step': '1', 'trial': os.environ['CLOUD_ML_TRIAL_ID']}\n"
        "file.write_text(json.dumps(line) + '\\n')\n"
    )
    trainers.wheel(service.home / "gcs" / trainers.URI.removeprefix("gs://"), report)
    package = {
        "executor_image_uri": trainers.PLAIN,
        "package_uris": [trainers.URI],
        "python_module": "trainer.task",
    }
    pool = {
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": 1,
        "python_package_spec": package,
    }
    inputs = {
        "study_spec": {
            "metrics": [{"metric_id": "accuracy", "goal": "MAXIMIZE"}],
            "parameters": [{"parameter_id": "x", "discrete_value_spec": {"values": [1, 2, 3]}}],
            "algorithm": "GRID_SEARCH",
        },
        "max_trial_count": 3,
        "parallel_trial_count": 2,
        "trial_job_spec": {
            "worker_pool_specs": [pool],
            "base_output_directory": {"output_uri_prefix": "gs://staging/tuned"},
        },
    }
    created = client.create_training_pipeline(
        parent=f"projects/demo/locations/{REGION}",
        training_pipeline=aiplatform.gapic.TrainingPipeline(
            display_name="tuned",
            training_task_definition=f"{DEFINITIONS}hyperparameter_tuning_task_1.0.0.yaml",
            training_task_inputs=json_format.ParseDict(inputs, struct_pb2.Value()),
            model_to_upload={"display_name": "tuned-model", "container_spec": {"image_uri": SERVING}},
        ),
    )

    def ended() -> Any:
        found = client.get_training_pipeline(name=created.name)
        return found if found.end_time else None

    pipeline = until(ended, meanwhile=training)
    assert pipeline.state is aiplatform.gapic.PipelineState.PIPELINE_STATE_SUCCEEDED, pipeline.error
    tuning = aiplatform.HyperparameterTuningJob.get(
        pipeline.training_task_metadata["backingHyperparameterTuningJob"]
    )
    values = {trial.id: trial.final_measurement.metrics[0].value for trial in tuning.trials}
    best = max(values, key=lambda id: values[id])
    model = aiplatform.Model(pipeline.model_to_upload.name, version=pipeline.model_to_upload.version_id)
    assert (model.display_name, model.uri) == ("tuned-model", f"gs://staging/tuned/{best}/model")


@pytest.mark.parametrize(
    "resource",
    [
        aiplatform.BatchPredictionJob,
        aiplatform.Endpoint,
        aiplatform.ModelDeploymentMonitoringJob,
        aiplatform.PipelineJob,
        aiplatform.PipelineJobSchedule,
        aiplatform.TabularDataset,
        aiplatform.Tensorboard,
    ],
)
def test_rest_of_the_sdk_is_told_at_once_that_it_isnt_served(
    training: Callable[[], object], resource: Any
) -> None:
    with pytest.raises(MethodNotImplemented, match="This service doesn't serve"):
        resource.list()


def test_automl_task_is_refused_by_name(service: Service, training: Callable[[], object]) -> None:
    client = aiplatform.gapic.PipelineServiceClient(
        client_options=ClientOptions(api_endpoint=service.url),
        transport="rest",
        credentials=Credentials(token=TOKEN),
    )
    pipeline = aiplatform.gapic.TrainingPipeline(
        display_name="census",
        training_task_definition=f"{DEFINITIONS}automl_tabular_1.0.0.yaml",
        training_task_inputs=json_format.ParseDict({}, struct_pb2.Value()),
        input_data_config={"dataset_id": "1"},
    )
    with pytest.raises(BadRequest, match="but not automl_tabular: train by code of your own") as refused:
        client.create_training_pipeline(
            parent=f"projects/demo/locations/{REGION}", training_pipeline=pipeline
        )
    assert "This service has no managed datasets." in str(refused.value)
