"""A valid manifest, and a writer of manifest files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PLAIN = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      containerSpec: {imageUri: "example.com/trainer:1"}
"""
CUSTOM_JOB: dict[str, Any] = {
    "apiVersion": "aiplatform.googleapis.com/v1",
    "kind": "CustomJob",
    "metadata": {"name": "census-income", "labels": {"team": "risk"}},
    "package": {"path": "../trainers"},
    "reconcile": {
        "suspend": True,
        "attempts": 2,
        "rerun": "again",
        "onChange": "cancel",
        "onDelete": "cancel",
    },
    "expect": {"rmse": {"max": 3}, "accuracy": {"min": 0.95, "max": 1.0}},
    "spec": {
        "workerPoolSpecs": [
            {
                "machineSpec": {
                    "machineType": "n1-standard-8",
                    "acceleratorType": "NVIDIA_TESLA_T4",
                    "acceleratorCount": 2,
                },
                "replicaCount": "1",
                "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
                "pythonPackageSpec": {
                    "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
                    "pythonModule": "census.task",
                    "args": ["--epochs=3", "--rate", "1e-4", "no"],
                    "env": [{"name": "SEED", "value": "010"}, {"name": "EMPTY", "value": ""}],
                },
            },
            {},
            {
                "machineSpec": {
                    "machineType": "a2-highgpu-1g",
                    "acceleratorType": "NVIDIA_TESLA_A100",
                    "acceleratorCount": 1,
                },
                "replicaCount": 3,
                "containerSpec": {
                    "imageUri": "example.com/evaluator:1",
                    "command": ["python3", "-m", "evaluate"],
                },
            },
        ],
        "scheduling": {"timeout": "3600s", "restartJobOnWorkerRestart": False, "strategy": "SPOT"},
        "serviceAccount": "trainer@project.iam.gserviceaccount.com",
        "network": "projects/123/global/networks/default",
        "baseOutputDirectory": {"outputUriPrefix": "gs://my-bucket/census"},
        "enableWebAccess": True,
    },
}

TUNING_JOB: dict[str, Any] = {
    "apiVersion": "aiplatform.googleapis.com/v1",
    "kind": "HyperparameterTuningJob",
    "metadata": {"name": "tuning"},
    "expect": {"accuracy": {"min": 0.9}},
    "spec": {
        "studySpec": {
            "metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}],
            "parameters": [
                {
                    "parameterId": "rate",
                    "scaleType": "UNIT_LOG_SCALE",
                    "doubleValueSpec": {"minValue": 1e-05, "maxValue": 0.1},
                },
                {"parameterId": "depth", "integerValueSpec": {"minValue": "2", "maxValue": 9}},
                {"parameterId": "kind", "categoricalValueSpec": {"values": ["a", "b"]}},
            ],
        },
        "trialJobSpec": {
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": "n2-standard-4"},
                    "containerSpec": {"imageUri": "example.com/trainer:1"},
                }
            ]
        },
        "maxTrialCount": 8,
        "parallelTrialCount": 2,
    },
}

ML_JOB: dict[str, Any] = {
    "apiVersion": "ml.googleapis.com/v1",
    "kind": "Job",
    "metadata": {"name": "legacy_job"},
    "spec": {
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-8",
            "masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_V100", "count": "1"}},
            "workerType": "n1-highmem-8",
            "workerCount": 2,
            "region": "us-central1",
            "runtimeVersion": "2.11",
            "pythonVersion": "3.7",
            "packageUris": ["gs://my-bucket/trainer-0.1.tar.gz"],
            "pythonModule": "trainer.task",
            "args": ["--epochs", "3"],
            "jobDir": "gs://my-bucket/out",
            "scheduling": {"maxRunningTime": "7200s", "maxWaitTime": "1800s", "priority": 3},
            "hyperparameters": {
                "goal": "MINIMIZE",
                "maxTrials": 4,
                "params": [
                    {"parameterName": "rate", "type": "DOUBLE", "minValue": 0, "maxValue": 1.5},
                    {"parameterName": "kind", "type": "CATEGORICAL", "categoricalValues": ["a", "b"]},
                ],
            },
        }
    },
}

TASKS = "gs://google-cloud-aiplatform/schema/trainingjob/definition"
PIPELINE: dict[str, Any] = {
    "apiVersion": "aiplatform.googleapis.com/v1",
    "kind": "TrainingPipeline",
    "metadata": {"name": "census-pipeline"},
    "package": {"path": "../trainers"},
    "expect": {"rmse": {"max": 3}},
    "spec": {
        "trainingTaskDefinition": f"{TASKS}/custom_task_1.0.0.yaml",
        "trainingTaskInputs": {
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": "n1-standard-8"},
                    "replicaCount": 1,
                    "pythonPackageSpec": {
                        "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
                        "pythonModule": "census.task",
                        "args": ["--epochs=3"],
                    },
                }
            ],
            "scheduling": {"timeout": "3600s"},
            "baseOutputDirectory": {"outputUriPrefix": "gs://my-bucket/census"},
        },
        "modelToUpload": {
            "displayName": "Census income",
            "description": "The income of a household.",
            "labels": {"team": "risk"},
            "containerSpec": {
                "imageUri": "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
                "env": [{"name": "THREADS", "value": "4"}],
                "ports": [{"containerPort": 8080}],
                "sharedMemorySizeMb": 64,
            },
        },
        "parentModel": "projects/acme/locations/us-central1/models/census",
        "encryptionSpec": {"kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k"},
    },
}
TUNING_PIPELINE: dict[str, Any] = {
    "apiVersion": "aiplatform.googleapis.com/v1",
    "kind": "TrainingPipeline",
    "metadata": {"name": "tuning-pipeline"},
    "expect": {"accuracy": {"min": 0.9}},
    "spec": {
        "trainingTaskDefinition": f"{TASKS}/hyperparameter_tuning_task_1.0.0.yaml",
        "trainingTaskInputs": TUNING_JOB["spec"],
    },
}

GOOD = {
    "CustomJob": CUSTOM_JOB,
    "HyperparameterTuningJob": TUNING_JOB,
    "TrainingPipeline": PIPELINE,
    "TrainingPipeline, tuning": TUNING_PIPELINE,
    "Job": ML_JOB,
}


def with_inputs_in_snake_case(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Return a pipeline whose inputs have the keys that Google's SDK writes."""
    spec = pipeline["spec"]
    return {**pipeline, "spec": {**spec, "trainingTaskInputs": _in_snake_case(spec["trainingTaskInputs"])}}


def _in_snake_case(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", key): _in_snake_case(part)
            for key, part in value.items()
        }
    return [_in_snake_case(part) for part in value] if isinstance(value, list) else value


def write(root: Path, path: str, content: Any) -> Path:
    """Write a file with a text, bytes or a value (JSON is YAML too), and return its path."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file
