"""Google's clients against the service: Vertex AI's SDK, google-api-python-client, google-cloud-storage."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import google.auth.credentials
import googleapiclient.discovery
import pytest
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import (
    BadRequest,
    Conflict,
    Forbidden,
    MethodNotImplemented,
    NotFound,
    PreconditionFailed,
)
from google.cloud import aiplatform, storage
from google.cloud.aiplatform import hyperparameter_tuning
from google.oauth2.credentials import Credentials
from google.rpc.error_details_pb2 import ErrorInfo

from reconciler.training_service.http import discovery
from reconciler.training_service.state.records import DOMAIN, Code, JobState, details_of, number_of
from reconciler.training_service.state.trial_records import Measurement, TrialState
from reconciler.training_service.tuning.study import Algorithm, study_of
from tests.support.documented import documented
from tests.support.training_service.served import TOKEN, Service

REGION = "europe-west4"
POOLS = [
    {
        "machine_spec": {
            "machine_type": "n1-standard-4",
            "accelerator_type": "NVIDIA_TESLA_T4",
            "accelerator_count": 1,
        },
        "replica_count": 1,
        "python_package_spec": {
            "executor_image_uri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
            "package_uris": ["gs://staging/trainer-1.tar.gz"],
            "python_module": "trainer.task",
            "args": ["--epochs=3"],
        },
    }
]


@pytest.fixture
def vertex(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr("google.cloud.aiplatform.jobs._JOB_WAIT_TIME", 0.05)
    aiplatform.init(
        project="demo",
        location=REGION,
        staging_bucket="gs://staging",
        api_endpoint=service.url,
        api_transport="rest",
        credentials=Credentials(token=TOKEN),
    )
    return service


def move(service: Service, name: str, *states: JobState) -> None:
    _, _, _, location, collection, job_id = name.split("/")
    job = service.store.find(collection, "demo", location, job_id)
    assert job
    for state in states:
        service.store.move(job.id, state, only_from=set(JobState), at=service.store.now())


def test_the_official_sdk_creates_gets_lists_cancels_and_deletes_a_custom_job(vertex: Service) -> None:
    job = aiplatform.CustomJob(
        display_name="census",
        worker_pool_specs=POOLS,
        labels={"team": "risk"},
        base_output_dir="gs://out/census",
    )
    job.submit(timeout=3600, restart_job_on_worker_restart=True)

    assert job.resource_name.startswith(f"projects/{number_of('demo')}/locations/{REGION}/customJobs/")
    assert job.state is aiplatform.gapic.JobState.JOB_STATE_QUEUED
    found = aiplatform.CustomJob.get(job.resource_name)
    sent = found.gca_resource
    assert sent.job_spec.worker_pool_specs[0].machine_spec.accelerator_type.name == "NVIDIA_TESLA_T4"
    assert sent.job_spec.worker_pool_specs[0].replica_count == 1
    assert sent.job_spec.scheduling.timeout.total_seconds() == 3600
    assert dict(sent.labels) == {"team": "risk"}
    listed = aiplatform.CustomJob.list(filter='display_name="census" AND labels.team=risk')
    assert [each.resource_name for each in listed] == [job.resource_name]
    assert aiplatform.CustomJob.list(filter='display_name="other"') == []

    job.cancel()
    assert job.state is aiplatform.gapic.JobState.JOB_STATE_CANCELLED
    assert aiplatform.CustomJob.get(job.resource_name).error.code == 1
    with pytest.raises(BadRequest, match="already CANCELLED"):
        job.cancel()
    job.delete()
    with pytest.raises(NotFound):
        aiplatform.CustomJob.get(job.resource_name)


def test_the_official_sdk_reads_the_cause_of_a_failure(vertex: Service) -> None:
    job = aiplatform.CustomJob(display_name="census", worker_pool_specs=POOLS, base_output_dir="gs://out/a")
    job.submit()
    (record,) = vertex.store.unfinished()
    vertex.store.move(
        record.id,
        JobState.FAILED,
        only_from={JobState.QUEUED},
        at=vertex.store.now(),
        error_code=Code.UNAVAILABLE,
        error_message="It could not be installed.",
        error_details=details_of("INDEX_UNREACHABLE", index="https://index.example/simple"),
    )
    error = aiplatform.CustomJob.get(job.resource_name).error
    (detail,) = error.details
    info = ErrorInfo()
    assert detail.Unpack(info)
    assert (error.code, info.domain, info.reason) == (Code.UNAVAILABLE, DOMAIN, "INDEX_UNREACHABLE")
    assert dict(info.metadata) == {"class": "set-up", "index": "https://index.example/simple"}


def test_the_official_sdk_cancels_a_running_job_which_then_is_cancelling(vertex: Service) -> None:
    job = aiplatform.CustomJob(
        display_name="census", worker_pool_specs=POOLS, base_output_dir="gs://out/census"
    )
    job.submit()
    move(vertex, job.resource_name, JobState.PREPARING, JobState.RUNNING)
    job.cancel()
    assert job.state is aiplatform.gapic.JobState.JOB_STATE_CANCELLING
    with pytest.raises(BadRequest, match="only a job that has ended"):
        job.delete()


def upload(**more: Any) -> aiplatform.Model:
    """Upload a version of a model; its files need not exist."""
    image = "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest"
    uri = "gs://models/census"
    return aiplatform.Model.upload(
        **{"display_name": "census", "artifact_uri": uri, "serving_container_image_uri": image} | more
    )


def test_the_official_sdk_uploads_finds_updates_and_deletes_a_model(vertex: Service) -> None:
    model = upload(model_id="census", labels={"team": "risk"}, description="d", version_aliases=["golden"])
    assert model.resource_name == f"projects/{number_of('demo')}/locations/{REGION}/models/census"
    assert (model.version_id, sorted(model.version_aliases)) == ("1", ["default", "golden"])
    assert (model.uri, model.container_spec.image_uri) == (
        "gs://models/census",
        "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
    )
    assert model.supported_deployment_resources_types == []
    upload(display_name="other")
    listed = aiplatform.Model.list(filter='display_name="census" AND labels.team=risk')
    assert [each.resource_name for each in listed] == [model.resource_name]
    assert len(aiplatform.Model.list(order_by="create_time desc")) == 2
    assert aiplatform.Model("census@golden").version_id == "1"
    changed = model.update(display_name="new", description="new one", labels={"team": "a"})
    assert (changed.display_name, changed.description, dict(changed.labels)) == (
        "new",
        "new one",
        {"team": "a"},
    )
    with pytest.raises(Conflict, match="write it as parentModel"):
        upload(model_id="census")
    with pytest.raises(MethodNotImplemented, match="artifactUri"):
        model.list_model_evaluations()
    with pytest.raises(MethodNotImplemented, match="load its files to predict"):
        model.deploy(machine_type="n1-standard-2")
    with pytest.raises(MethodNotImplemented, match="load its files to predict"):
        model.batch_predict("predictions", gcs_source="gs://in/a", gcs_destination_prefix="gs://out")
    with pytest.raises(ValueError, match="is not exportable"):
        model.export_model(export_format_id="custom-trained", artifact_destination="gs://out")
    model.delete()
    with pytest.raises(NotFound, match="is not found"):
        aiplatform.Model("census")
    tried = ["Model.upload", "Model.list", "Model(name)", "Model.update", "Model.delete"]
    assert documented("`Model` of google-cloud-aiplatform") == tried


def test_the_official_sdk_keeps_versions_of_a_model(vertex: Service) -> None:
    first = upload(model_id="census")
    second = upload(parent_model="census", is_default_version=False, version_description="larger")
    assert (second.version_id, list(second.version_aliases)) == ("2", [])
    assert second.versioned_resource_name == f"{first.resource_name}@2"
    registry = first.versioning_registry
    versions = registry.list_versions()
    assert [(each.version_id, list(each.version_aliases)) for each in versions] == [
        ("2", []),
        ("1", ["default"]),
    ]
    assert {each.model_resource_name for each in versions} == {first.resource_name}
    registry.add_version_aliases(["default", "golden"], "2")
    assert registry.get_version_info("golden").version_id == "2"
    assert registry.get_model().version_id == "2"
    registry.remove_version_aliases(["golden"], "2")
    assert list(registry.get_version_info("2").version_aliases) == ["default"]
    registry.update_version("2", version_description="smaller", labels={"stage": "b"})
    changed = registry.get_model("2")
    assert (changed.version_description, dict(changed.labels)) == ("smaller", {"stage": "b"})
    third = upload(parent_model=first.resource_name)
    assert list(third.version_aliases) == ["default"]
    registry.delete_version("3")
    assert list(registry.get_version_info("2").version_aliases) == ["default"]
    registry.delete_version("1")
    with pytest.raises(BadRequest, match="the only version"):
        registry.delete_version("2")
    of_aliases = ["add_version_aliases", "remove_version_aliases"]
    others = ["list_versions", "get_model", "get_version_info", "update_version", "delete_version"]
    assert documented("`ModelRegistry` of google-cloud-aiplatform") == [*others, *of_aliases]


@pytest.mark.slow
def test_the_official_sdk_creates_lists_gets_and_cancels_a_tuning_job(vertex: Service) -> None:
    parameters = {
        "lr": hyperparameter_tuning.DoubleParameterSpec(min=0.001, max=0.1, scale="log"),
        "units": hyperparameter_tuning.IntegerParameterSpec(min=4, max=128, scale="linear"),
        "activation": hyperparameter_tuning.CategoricalParameterSpec(values=["relu", "tanh"]),
        "batch": hyperparameter_tuning.DiscreteParameterSpec(values=[8, 16, 32], scale=None),
    }
    trial = aiplatform.CustomJob(
        display_name="trial", worker_pool_specs=POOLS, base_output_dir="gs://out/census"
    )
    job = aiplatform.HyperparameterTuningJob(
        display_name="tuned",
        custom_job=trial,
        metric_spec={"accuracy": "maximize"},
        parameter_spec=parameters,
        max_trial_count=4,
        parallel_trial_count=2,
        search_algorithm="random",
    )
    job.run(sync=False)
    job._wait_for_resource_creation()

    (record,) = vertex.store.unfinished()
    assert record.body["studySpec"]["metrics"] == [{"metricId": "accuracy", "goal": "MAXIMIZE"}]
    assert record.body["studySpec"]["algorithm"] == "RANDOM_SEARCH"
    by_id = {each["parameterId"]: each for each in record.body["studySpec"]["parameters"]}
    assert by_id["lr"]["scaleType"] == "UNIT_LOG_SCALE"
    assert by_id["units"]["integerValueSpec"] == {"minValue": "4", "maxValue": "128"}
    assert record.body["maxTrialCount"] == 4
    listed = aiplatform.HyperparameterTuningJob.list(filter='state="JOB_STATE_QUEUED"')
    assert [each.resource_name for each in listed] == [job.resource_name]
    job.cancel()
    with pytest.raises(RuntimeError, match="CANCELED"):
        job.wait()
    found = aiplatform.HyperparameterTuningJob.get(job.resource_name)
    assert found.state is aiplatform.gapic.JobState.JOB_STATE_CANCELLED


def test_the_official_sdk_lists_over_several_pages(vertex: Service) -> None:
    for number in range(5):
        aiplatform.CustomJob(
            display_name=f"job-{number}", worker_pool_specs=POOLS, base_output_dir="gs://out"
        ).submit()
    client = aiplatform.gapic.JobServiceClient(
        client_options=ClientOptions(api_endpoint=vertex.url),
        transport="rest",
        credentials=Credentials(token=TOKEN),
    )
    pages = client.list_custom_jobs(request={"parent": f"projects/demo/locations/{REGION}", "page_size": 2})
    assert [job.display_name for job in pages] == [f"job-{number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.slow
def test_the_official_sdk_reads_the_trials_of_a_tuning_job(vertex: Service) -> None:
    parameters = {
        "lr": hyperparameter_tuning.DoubleParameterSpec(min=0.001, max=0.1, scale="log"),
        "kernel": hyperparameter_tuning.CategoricalParameterSpec(
            values=["rbf", "linear"],
            conditional_parameter_spec={
                "degree": hyperparameter_tuning.DiscreteParameterSpec(
                    values=[2, 3], scale="linear", parent_values=["rbf"]
                )
            },
        ),
    }
    trial_job = aiplatform.CustomJob(
        display_name="trial", worker_pool_specs=POOLS, base_output_dir="gs://out/census"
    )
    job = aiplatform.HyperparameterTuningJob(
        display_name="tuned",
        custom_job=trial_job,
        metric_spec={"accuracy": "maximize", "loss": "minimize"},
        parameter_spec=parameters,
        max_trial_count=4,
        parallel_trial_count=2,
        measurement_selection="best",
    )
    job.run(sync=False)
    job._wait_for_resource_creation()
    (record,) = vertex.store.unfinished()
    study = study_of(record)
    assert study
    assert [metric.maximize for metric in study.metrics] == [True, False]
    assert (study.algorithm, study.best_measurement) == (Algorithm.DEFAULT, True)
    assert study.parameters[1].active("rbf")[0].values == (2, 3)

    first = vertex.store.add_trial(record.id, {"lr": 0.01, "kernel": "rbf", "degree": 3})
    vertex.store.add_trial(record.id, {"lr": 0.1, "kernel": "linear"})
    final = Measurement(5, 1.25, {"accuracy": 0.75, "loss": 0.5})
    now = vertex.store.now()
    vertex.store.save_trial(
        replace(
            first,
            state=TrialState.SUCCEEDED,
            start_time=now,
            end_time=now,
            measurements=(final,),
            final=final,
        )
    )
    one, two = aiplatform.HyperparameterTuningJob.get(job.resource_name).trials
    assert (one.id, one.state.name, two.state.name) == ("1", "SUCCEEDED", "REQUESTED")
    assert {each.parameter_id: each.value for each in one.parameters} == {
        "lr": 0.01,
        "kernel": "rbf",
        "degree": 3,
    }
    assert one.final_measurement.step_count == 5
    assert one.final_measurement.elapsed_duration.total_seconds() == 1.25
    assert {each.metric_id: each.value for each in one.measurements[0].metrics} == final.metrics
    job.cancel()


def test_the_official_sdk_is_told_what_is_wrong(vertex: Service) -> None:
    pools = [{**POOLS[0], "python_package_spec": {"python_module": "trainer.task"}}]
    job = aiplatform.CustomJob(display_name="census", worker_pool_specs=pools, base_output_dir="gs://out")
    with pytest.raises(BadRequest, match=r"python_package_spec.executor_image_uri; Message: Required field"):
        job.submit()


def generated(service: Service, name: str, version: str) -> Any:
    document = {**discovery.document(f"{name}.{version}"), "rootUrl": service.url + "/"}
    return googleapiclient.discovery.build_from_document(document, credentials=Credentials(token=TOKEN))


def test_google_api_python_client_drives_ai_platform_jobs(service: Service) -> None:
    jobs = generated(service, "ml", "v1").projects().jobs()
    body = {
        "jobId": "census_1",
        "labels": {"team": "risk"},
        "trainingInput": {
            "region": "us-central1",
            "scaleTier": "BASIC",
            "runtimeVersion": "2.11",
            "pythonModule": "trainer.task",
            "packageUris": ["gs://staging/trainer-1.tar.gz"],
        },
    }
    created = jobs.create(parent="projects/demo", body=body).execute()
    assert created["state"] == "QUEUED"
    with pytest.raises(googleapiclient.errors.HttpError) as refused:
        jobs.create(parent="projects/demo", body=body).execute()
    assert refused.value.status_code == 409
    name = "projects/demo/jobs/census_1"
    assert jobs.get(name=name).execute() == created
    changed = jobs.patch(name=name, updateMask="labels", body={"labels": {"team": "fraud"}}).execute()
    assert changed["labels"] == {"team": "fraud"}
    listed = jobs.list(parent="projects/demo", filter="jobId:census* AND state:QUEUED").execute()
    assert [job["jobId"] for job in listed["jobs"]] == ["census_1"]
    assert jobs.cancel(name=name, body={}).execute() == {}
    assert jobs.get(name=name).execute()["state"] == "CANCELLED"


def test_google_api_python_client_pages_through_vertex_jobs(service: Service) -> None:
    jobs = generated(service, "aiplatform", "v1").projects().locations().customJobs()
    parent = f"projects/demo/locations/{REGION}"
    spec = {"machineSpec": {"machineType": "n1-standard-4"}, "containerSpec": {"imageUri": "image"}}
    for number in range(3):
        jobs.create(
            parent=parent, body={"displayName": f"j{number}", "jobSpec": {"workerPoolSpecs": [spec]}}
        ).execute()
    request, names = jobs.list(parent=parent, pageSize=2, readMask="displayName"), []
    while request is not None:
        answer = request.execute()
        names += [job["displayName"] for job in answer["customJobs"]]
        request = jobs.list_next(request, answer)
    assert names == ["j2", "j1", "j0"]


@pytest.fixture
def gcs(service: Service, monkeypatch: pytest.MonkeyPatch) -> storage.Client:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
    client = storage.Client(project="demo", credentials=Credentials(token=TOKEN))
    client.create_bucket("bucket")
    return client


def test_google_cloud_storage_round_trip(gcs: storage.Client, service: Service, tmp_path: Path) -> None:
    bucket = gcs.bucket("bucket")
    blob = bucket.blob("models/a b+c%2Fé/model.bin")
    blob.metadata = {"epoch": "3"}
    blob.upload_from_string(b"weights", content_type="application/x-model", checksum="md5")
    assert (service.home / "gcs/bucket/models/a b+c%2Fé/model.bin").read_bytes() == b"weights"

    found = bucket.get_blob(blob.name)
    assert found is not None
    assert (found.size, found.content_type, found.metadata) == (7, "application/x-model", {"epoch": "3"})
    assert found.download_as_bytes(checksum="crc32c") == b"weights"
    assert found.download_as_bytes(start=2, end=4) == b"igh"
    found.download_to_filename(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"weights"

    found.metadata = {"epoch": None, "seed": "1"}
    found.cache_control = "no-cache"
    found.patch()
    again = bucket.get_blob(blob.name)
    assert again is not None
    assert (again.metadata, again.cache_control, again.metageneration) == ({"seed": "1"}, "no-cache", 2)

    bucket.copy_blob(again, bucket, "copy")
    assert bucket.blob("copy").download_as_bytes() == b"weights"
    again.delete()
    with pytest.raises(NotFound):
        again.reload()


def test_google_cloud_storage_uploads_large_files_in_chunks(gcs: storage.Client, tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000  # more than two chunks, not a multiple of a chunk
    path = tmp_path / "large"
    path.write_bytes(data)
    blob = gcs.bucket("bucket").blob("large", chunk_size=1024 * 1024)
    blob.upload_from_filename(path, if_generation_match=0, checksum="crc32c")
    assert blob.size == len(data)
    target = io.BytesIO()
    blob.download_to_file(target)
    assert target.getvalue() == data
    with pytest.raises(PreconditionFailed):
        gcs.bucket("bucket").blob("large", chunk_size=1024 * 1024).upload_from_filename(
            path, if_generation_match=0
        )


def test_google_cloud_storage_streams(gcs: storage.Client) -> None:
    blob = gcs.bucket("bucket").blob("stream")
    with blob.open("wb", chunk_size=256 * 1024) as writer:
        for _ in range(5):
            writer.write(b"x" * 100_000)
    with blob.open("rb") as reader:
        assert reader.read() == b"x" * 500_000
    empty = gcs.bucket("bucket").blob("empty")
    with empty.open("wb"):
        pass
    assert empty.download_as_bytes() == b""


def test_google_cloud_storage_lists(gcs: storage.Client) -> None:
    bucket = gcs.bucket("bucket")
    for name in ("a", "d/1", "d/2", "d/e/3", "z"):
        bucket.blob(name).upload_from_string(name)
    assert [blob.name for blob in gcs.list_blobs("bucket", page_size=2)] == ["a", "d/1", "d/2", "d/e/3", "z"]
    listing = gcs.list_blobs("bucket", prefix="d/", delimiter="/")
    assert [blob.name for blob in listing] == ["d/1", "d/2"]
    assert listing.prefixes == {"d/e/"}
    assert [found.name for found in gcs.list_buckets()] == ["bucket"]
    bucket.delete_blobs(list(gcs.list_blobs("bucket", prefix="d/")))
    assert [blob.name for blob in gcs.list_blobs("bucket")] == ["a", "z"]


def test_google_cloud_storage_preconditions(gcs: storage.Client) -> None:
    blob = gcs.bucket("bucket").blob("claim")
    blob.upload_from_string("mine", if_generation_match=0)
    first = blob.generation
    with pytest.raises(PreconditionFailed):
        gcs.bucket("bucket").blob("claim").upload_from_string("yours", if_generation_match=0)
    blob.upload_from_string("mine again", if_generation_match=first)
    assert blob.generation > first
    with pytest.raises(PreconditionFailed):
        blob.delete(if_generation_match=first)
    assert blob.download_as_text() == "mine again"


def test_a_jobs_own_url_serves_the_storage_client_without_a_token(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.post("/storage/v1/b?project=demo", {"name": "out"})
    service.post("/storage/v1/b?project=demo", {"name": "foreign"})
    jobs = generated(service, "aiplatform", "v1").projects().locations().customJobs()
    spec = {
        "machineSpec": {"machineType": "m"},
        "containerSpec": {"imageUri": "i", "args": ["--out=gs://out/x"]},
    }
    jobs.create(
        parent="projects/demo/locations/l", body={"displayName": "j", "jobSpec": {"workerPoolSpecs": [spec]}}
    ).execute()
    (job,) = service.store.unfinished()

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{service.url}/jobs/{job.gcs_secret}")
    client = storage.Client(project="demo", credentials=google.auth.credentials.AnonymousCredentials())
    blob = client.bucket("out").blob("deep/model", chunk_size=256 * 1024)
    blob.upload_from_string(b"m" * 600_000)
    assert blob.download_as_bytes() == b"m" * 600_000
    assert [found.name for found in client.list_buckets()] == ["out"]
    with pytest.raises(Forbidden):
        client.bucket("foreign").blob("x").upload_from_string("x")
