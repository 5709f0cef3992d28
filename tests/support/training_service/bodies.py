"""Small valid resources for the tests."""

from __future__ import annotations

from typing import Any

VERTEX = "/v1/projects/demo/locations/us-central1"
ML = "/v1/projects/demo/jobs"
DEFINITIONS = "gs://google-cloud-aiplatform/schema/trainingjob/definition/"


def custom_job(name: str = "census", **more: Any) -> dict[str, Any]:
    return {"displayName": name, "jobSpec": job_spec(), **more}


def job_spec(**more: Any) -> dict[str, Any]:
    package = {
        "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
        "packageUris": ["gs://staging/trainer-1.tar.gz"],
        "pythonModule": "trainer.task",
    }
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": "1",
        "pythonPackageSpec": package,
    }
    return {"workerPoolSpecs": [pool], **more}


def tuning_job(name: str = "tuned", **more: Any) -> dict[str, Any]:
    study = {
        "metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}],
        "parameters": [{"parameterId": "lr", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}],
    }
    return {
        "displayName": name,
        "studySpec": study,
        "maxTrialCount": 4,
        "parallelTrialCount": 2,
        "trialJobSpec": job_spec(),
        **more,
    }


def pipeline(**more: Any) -> dict[str, Any]:
    """Return a TrainingPipeline of a custom task."""
    definition = f"{DEFINITIONS}custom_task_1.0.0.yaml"
    body = {"displayName": "census", "trainingTaskDefinition": definition, "trainingTaskInputs": job_spec()}
    return {**body, **more}


_OF_PIPELINES = ("displayName", "labels", "encryptionSpec", "modelToUpload", "modelId", "parentModel")


def tuning_pipeline(**more: Any) -> dict[str, Any]:
    """Return a TrainingPipeline of a tuning task; `more` are fields of the pipeline or of its inputs."""
    own = {name: value for name, value in more.items() if name in _OF_PIPELINES}
    inputs = {name: value for name, value in {**tuning_job(), **more}.items() if name not in _OF_PIPELINES}
    definition = f"{DEFINITIONS}hyperparameter_tuning_task_1.0.0.yaml"
    return {
        "displayName": "tuned",
        "trainingTaskDefinition": definition,
        "trainingTaskInputs": inputs,
        **own,
    }


def ml_job(job_id: str = "census_1", **more: Any) -> dict[str, Any]:
    training = {
        "region": "us-central1",
        "scaleTier": "BASIC",
        "runtimeVersion": "2.11",
        "pythonModule": "trainer.task",
        "packageUris": ["gs://staging/trainer-1.tar.gz"],
    }
    return {"jobId": job_id, "trainingInput": training, **more}


def model(name: str = "census", **more: Any) -> dict[str, Any]:
    container = {"imageUri": "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest"}
    return {
        "displayName": name,
        "artifactUri": "gs://models/census",
        "containerSpec": container,
        **more,
    }
