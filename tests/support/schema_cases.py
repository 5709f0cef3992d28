"""Documents that the schemas accept, and changes that they refuse."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from reconciler.manifests import schemas
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, TRAINING_PIPELINE

INPUTS = ["config.schema.json", schemas.ANY_KIND, *schemas.KINDS.values()]

Json = dict[str, Any]


def changed(value: Any, edits: Json) -> Any:
    """Return a copy with each "a/0/b" set to its value, or removed if the value is GONE."""
    result = copy.deepcopy(value)
    for path, new in edits.items():
        *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
        place = result
        for key in parents:
            place = place[key]
        if new is GONE:
            del place[last]
        elif last == APPEND:
            place.append(new)
        else:
            place[last] = new
    return result


GONE = object()

APPEND = "-"

POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": 1,
    "pythonPackageSpec": {
        "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
        "packageUris": ["gs://my-bucket/trainer-0.1.tar.gz"],
        "pythonModule": "trainer.task",
        "args": ["--epochs=3"],
        "env": [{"name": "SEED", "value": "1"}],
    },
}

CONTAINER_POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "containerSpec": {"imageUri": "example.com/trainer:1"},
}

CUSTOM_JOB = {
    "apiVersion": AIPLATFORM_V1,
    "kind": "CustomJob",
    "metadata": {"name": "census-income", "labels": {"team": "risk"}},
    "reconcile": {"attempts": 2, "onDelete": "cancel"},
    "spec": {
        "workerPoolSpecs": [POOL, {}, CONTAINER_POOL],
        "scheduling": {"timeout": "3600s"},
        "baseOutputDirectory": {"outputUriPrefix": "gs://my-bucket/census"},
        "encryptionSpec": {"kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k"},
    },
}

TUNING_JOB = {
    "apiVersion": AIPLATFORM_V1,
    "kind": "HyperparameterTuningJob",
    "metadata": {"name": "census-tuning"},
    "spec": {
        "studySpec": {
            "metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}],
            "parameters": [
                {
                    "parameterId": "rate",
                    "doubleValueSpec": {"minValue": 1e-5, "maxValue": 0.1},
                    "scaleType": "UNIT_LOG_SCALE",
                },
                {"parameterId": "depth", "integerValueSpec": {"minValue": 1, "maxValue": "8"}},
                {"parameterId": "kind", "categoricalValueSpec": {"values": ["a", "b"]}},
            ],
        },
        "maxTrialCount": 8,
        "parallelTrialCount": 2,
        "trialJobSpec": {"workerPoolSpecs": [POOL]},
    },
}

TASKS = "gs://google-cloud-aiplatform/schema/trainingjob/definition"

PIPELINE: Json = {
    "apiVersion": AIPLATFORM_V1,
    "kind": TRAINING_PIPELINE,
    "metadata": {"name": "census-pipeline"},
    "spec": {
        "trainingTaskDefinition": f"{TASKS}/custom_task_1.0.0.yaml",
        "trainingTaskInputs": {
            "workerPoolSpecs": [POOL, {}, CONTAINER_POOL],
            "baseOutputDirectory": {"outputUriPrefix": "gs://my-bucket/census"},
        },
        "modelToUpload": {
            "displayName": "census",
            "containerSpec": {"imageUri": "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest"},
            "labels": {"team": "risk"},
        },
        "parentModel": "projects/acme/locations/us-central1/models/census@2",
    },
}

TUNING_PIPELINE: Json = {
    **PIPELINE,
    "metadata": {"name": "census-tuning-pipeline"},
    "spec": {
        "trainingTaskDefinition": f"{TASKS}/hyperparameter_tuning_task_1.1.yaml",
        "trainingTaskInputs": TUNING_JOB["spec"],
    },
}

ML_JOB = {
    "apiVersion": ML_V1,
    "kind": "Job",
    "metadata": {"name": "census_ml"},
    "spec": {
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-4",
            "workerType": "n1-standard-4",
            "workerCount": "2",
            "region": "us-central1",
            "runtimeVersion": "2.11",
            "pythonVersion": "3.7",
            "pythonModule": "trainer.task",
            "packageUris": ["gs://my-bucket/trainer-0.1.tar.gz"],
            "jobDir": "gs://my-bucket/census",
            "args": ["--epochs=3"],
            "hyperparameters": {
                "params": [{"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}]
            },
            "scheduling": {"maxWaitTime": "1800s", "priority": 1000},
        }
    },
}

CONFIG = {
    "source": "acme-jobs",
    "environments": {
        "local": {"limits": {"submissions": 3}},
        "prod": {
            "engine": "google",
            "project": "acme-prod",
            "location": "us-central1",
            "stagingBucket": "acme-staging",
            "claimsBucket": "gs://acme-claims",
            "endpoints": {"storage": "https://storage.example.com"},
            "defaults": {"timeout": "86400s", "baseOutputDirectory": "gs://acme-models"},
            "limits": {"submissions": None, "acceleratorHours": 12.5},
        },
    },
    "images": {"2.11": {"python": "3.11", "requirements": ["scikit-learn~=1.6"]}},
    "github": {"repository": "acme/jobs", "apiUrl": "https://github.example.com/api/v3"},
}

POOLS = "spec/workerPoolSpecs"

PACKAGE = f"{POOLS}/0/pythonPackageSpec"

STUDY = "spec/studySpec"

INPUTS_OF_TASK = "spec/trainingTaskInputs"

PIPELINE_POOLS = f"{INPUTS_OF_TASK}/workerPoolSpecs"

TRIAL_POOLS = f"{INPUTS_OF_TASK}/trialJobSpec/workerPoolSpecs"

REGISTERED = "spec/modelToUpload"

INPUT = "spec/trainingInput"

IMAGE = {"imageUri": "example.com/trainer:1"}

OWN_IMAGE = {f"{INPUT}/{name}": GONE for name in ("runtimeVersion", "pythonModule", "packageUris", "args")}

GRID = {f"{STUDY}/algorithm": "GRID_SEARCH"}

NESTED = {
    "parentIntValues": {"values": [1]},
    "parameterSpec": {"parameterId": "rate", "doubleValueSpec": {"minValue": 0, "maxValue": 1}},
}

GOOD = {
    "custom job": (CUSTOM_JOB, {}),
    "staged package": (CUSTOM_JOB, {"package": {"path": "../trainer"}, f"{PACKAGE}/packageUris": GONE}),
    "package here": (CUSTOM_JOB, {"package": {"path": "."}}),
    "four pools": (CUSTOM_JOB, {f"{POOLS}/-": CONTAINER_POOL}),
    "count as digits": (CUSTOM_JOB, {f"{POOLS}/0/replicaCount": "1", f"{POOLS}/2/replicaCount": "4"}),
    "empty variable": (CUSTOM_JOB, {f"{PACKAGE}/env/0/value": ""}),
    "bucket alone": (CUSTOM_JOB, {"spec/baseOutputDirectory/outputUriPrefix": "gs://my-bucket"}),
    "wait for flex start": (
        CUSTOM_JOB,
        {"spec/scheduling": {"strategy": "FLEX_START", "maxWaitDuration": "0s"}},
    ),
    "deprecated accelerator": (
        CUSTOM_JOB,
        {f"{POOLS}/0/machineSpec/acceleratorType": "NVIDIA_TESLA_K80"},
    ),
    "fraction of a second": (CUSTOM_JOB, {"spec/scheduling/timeout": "3600.5s"}),
    "longest name": (CUSTOM_JOB, {"metadata/name": "a" * 100}),
    "one bound": (CUSTOM_JOB, {"expect": {"accuracy": {"min": 0.95}, "loss/train é": {"max": -3}}}),
    "both bounds": (TUNING_JOB, {"expect": {"accuracy": {"min": 1e-4, "max": 1e300}}}),
    "comparison": (
        CUSTOM_JOB,
        {"expect": {"auc": {"min": 0.9, "worse": 0}, "loss": {"worse": 0.5, "goal": "min"}}},
    ),
    "longest metric": (CUSTOM_JOB, {"expect": {"é" * 200: {"min": 0}}}),
    "most metrics": (ML_JOB, {"expect": {f"metric {number}": {"max": 0} for number in range(20)}}),
    "default publication": (CUSTOM_JOB, {"publish": {}}),
    "publication": (TUNING_JOB, {"publish": {"to": "gs://risk-models/a b/é.x/..y/", "from": "m/..1/x/"}}),
    "longest address": (ML_JOB, {"publish": {"to": "gs://models/" + "a" * 500, "from": "a" * 512}}),
    "tuning job": (TUNING_JOB, {}),
    "tuning, staged": (
        TUNING_JOB,
        {
            "package": {"path": "trainer"},
            "spec/trialJobSpec/workerPoolSpecs/0/pythonPackageSpec/packageUris": GONE,
        },
    ),
    "grid": (TUNING_JOB, {**GRID, f"{STUDY}/parameters/0": GONE}),
    "pipeline": (PIPELINE, {}),
    "pipeline, staged": (
        PIPELINE,
        {"package": {"path": "../trainer"}, f"{PIPELINE_POOLS}/0/pythonPackageSpec/packageUris": GONE},
    ),
    "shortest model id": (PIPELINE, {"spec/modelId": "_"}),
    "longest model id": (PIPELINE, {"spec/modelId": "a" + "-" * 62}),
    "model's parts": (
        PIPELINE,
        {
            "spec/modelToUpload/artifactUri": "gs://my-bucket/model/",
            "spec/modelToUpload/versionAliases": ["default", "v-1"],
            "spec/modelToUpload/metadata": {"any": ["thing", 1, None]},
            "spec/modelToUpload/explanationSpec": {
                "parameters": {"sampledShapleyAttribution": {"pathCount": 10}},
                "metadata": {
                    "inputs": {"age": {"inputBaselines": [0.5], "visualization": {}}},
                    "outputs": {},
                },
            },
        },
    ),
    "dataset": (PIPELINE, {"spec/inputDataConfig": {"datasetId": "7"}}),
    "pipeline's key": (PIPELINE, {"spec/encryptionSpec": CUSTOM_JOB["spec"]["encryptionSpec"]}),
    "tuning pipeline": (TUNING_PIPELINE, {}),
    "tuning pipeline, staged": (
        TUNING_PIPELINE,
        {"package": {"path": "trainer"}, f"{TRIAL_POOLS}/0/pythonPackageSpec/packageUris": GONE},
    ),
    "ml job": (ML_JOB, {}),
    "ml, staged": (ML_JOB, {"package": {"path": "trainer"}, f"{INPUT}/packageUris": GONE}),
    "ml, no tier": (
        ML_JOB,
        {f"{INPUT}/{name}": GONE for name in ("scaleTier", "masterType", "workerType", "workerCount")},
    ),
    "own image": (ML_JOB, {**OWN_IMAGE, f"{INPUT}/masterConfig": {**IMAGE, "containerArgs": ["x"]}}),
    "worker has master's image": (
        ML_JOB,
        {**OWN_IMAGE, f"{INPUT}/masterConfig": IMAGE, f"{INPUT}/workerConfig": {"containerArgs": ["x"]}},
    ),
    "config": (CONFIG, {}),
    "publications": (
        CONFIG,
        {
            "environments/local/defaults": {"publish": "gs://risk-models"},
            "environments/prod/defaults/publish": "gs://risk-models/a/b/",
            "environments/prod/limits/publications": None,
            "limits": {"publications": 0},
        },
    ),
    "no source, no cloud": (CONFIG, {"source": GONE, "environments/prod": GONE}),
}

# The change, the path of the failure, a part of the message.
BAD: dict[str, tuple[Json, Json, str, str]] = {
    # the envelope
    "no name": (CUSTOM_JOB, {"metadata/name": GONE}, "/metadata", "'name' is a required property"),
    "name with a digit first": (CUSTOM_JOB, {"metadata/name": "1st"}, "/metadata/name", "not a job name"),
    "name with a line end": (CUSTOM_JOB, {"metadata/name": "census\n"}, "/metadata/name", "not a job name"),
    "name too long": (CUSTOM_JOB, {"metadata/name": "a" * 101}, "/metadata/name", "not a job name"),
    "label key": (CUSTOM_JOB, {"metadata/labels/Team": "risk"}, "/metadata/labels", "not a label key"),
    "label value": (CUSTOM_JOB, {"metadata/labels/team": "é"}, "/metadata/labels/team", "not a label value"),
    "label value too long": (
        CUSTOM_JOB,
        {"metadata/labels/team": "a" * 64},
        "/metadata/labels/team",
        "not a label value",
    ),
    "our label": (
        CUSTOM_JOB,
        {"metadata/labels/reconciler-key": "x"},
        "/metadata/labels",
        "reconciler's own",
    ),
    "number as label": (CUSTOM_JOB, {"metadata/labels/team": 1}, "/metadata/labels/team", "type 'string'"),
    "no attempts": (CUSTOM_JOB, {"reconcile/attempts": 0}, "/reconcile/attempts", "minimum"),
    "many attempts": (CUSTOM_JOB, {"reconcile/attempts": 11}, "/reconcile/attempts", "maximum"),
    "no such reaction": (CUSTOM_JOB, {"reconcile/onChange": "kill"}, "/reconcile/onChange", "not one of"),
    "nothing expected": (CUSTOM_JOB, {"expect": {}}, "/expect", "non-empty"),
    "null expected": (CUSTOM_JOB, {"expect": None}, "/expect", "type 'object'"),
    "list of metrics": (CUSTOM_JOB, {"expect": [{"accuracy": {"min": 1}}]}, "/expect", "type 'object'"),
    "many metrics": (
        CUSTOM_JOB,
        {"expect": {f"metric {number}": {"max": 0} for number in range(21)}},
        "/expect",
        "too many properties",
    ),
    "empty metric": (CUSTOM_JOB, {"expect": {"": {"min": 1}}}, "/expect", "not the name of a metric"),
    "metric with a line end": (
        CUSTOM_JOB,
        {"expect": {"accuracy\n": {"min": 1}}},
        "/expect",
        "not the name of a metric",
    ),
    "metric with a control character": (
        TUNING_JOB,
        {"expect": {"a\x85b": {"min": 1}}},
        "/expect",
        "not the name of a metric",
    ),
    "long metric": (ML_JOB, {"expect": {"a" * 201: {"min": 1}}}, "/expect", "it is too long"),
    "metric without bounds": (CUSTOM_JOB, {"expect": {"auc": {}}}, "/expect/auc", "non-empty"),
    "negative worse": (
        CUSTOM_JOB,
        {"expect": {"auc": {"min": 0.9, "worse": -1e-9}}},
        "/expect/auc/worse",
        "minimum",
    ),
    "unknown goal": (
        CUSTOM_JOB,
        {"expect": {"auc": {"worse": 1, "goal": "MAXIMIZE"}}},
        "/expect/auc/goal",
        "is not one of",
    ),
    "number for bounds": (CUSTOM_JOB, {"expect": {"auc": 0.9}}, "/expect/auc", "type 'object'"),
    "text as a bound": (CUSTOM_JOB, {"expect": {"auc": {"min": "0.9"}}}, "/expect/auc/min", "type 'number'"),
    "boolean as a bound": (
        CUSTOM_JOB,
        {"expect": {"auc": {"max": True}}},
        "/expect/auc/max",
        "type 'number'",
    ),
    "null as a bound": (
        ML_JOB,
        {"expect": {"auc": {"min": 0.9, "max": None}}},
        "/expect/auc/max",
        "type 'number'",
    ),
    "unknown bound": (
        TUNING_JOB,
        {"expect": {"auc": {"min": 0.9, "about": 1}}},
        "/expect/auc",
        "'about' was unexpected",
    ),
    "null published": (CUSTOM_JOB, {"publish": None}, "/publish", "type 'object'"),
    "address alone": (CUSTOM_JOB, {"publish": "gs://models/census"}, "/publish", "type 'object'"),
    "unknown part of a publication": (
        CUSTOM_JOB,
        {"publish": {"in": "x"}},
        "/publish",
        "'in' was unexpected",
    ),
    "null address": (ML_JOB, {"publish": {"to": None}}, "/publish/to", "type 'string'"),
    "published to a bucket": (
        CUSTOM_JOB,
        {"publish": {"to": "gs://models"}},
        "/publish/to",
        "not a folder in",
    ),
    "published elsewhere": (CUSTOM_JOB, {"publish": {"to": "s3://m/x"}}, "/publish/to", "not a folder in"),
    "published above": (TUNING_JOB, {"publish": {"to": "gs://models/a/../b"}}, "/publish/to", '"." or ".."'),
    "nameless folder": (ML_JOB, {"publish": {"to": "gs://models//b"}}, "/publish/to", "name is missing"),
    "generation": (ML_JOB, {"publish": {"to": "gs://models/b#1"}}, "/publish/to", "stand for versions"),
    "address with a line end": (
        ML_JOB,
        {"publish": {"to": "gs://models/b\n"}},
        "/publish/to",
        "not a folder in",
    ),
    "address with a control character": (
        ML_JOB,
        {"publish": {"to": "gs://models/b\x9f"}},
        "/publish/to",
        "not a folder in",
    ),
    "long address": (ML_JOB, {"publish": {"to": "gs://models/" + "a" * 501}}, "/publish/to", "too long"),
    "absolute source": (CUSTOM_JOB, {"publish": {"from": "/model"}}, "/publish/from", "not a path below"),
    "source in a bucket": (
        CUSTOM_JOB,
        {"publish": {"from": "gs://m/x"}},
        "/publish/from",
        "not a path below",
    ),
    "no source": (CUSTOM_JOB, {"publish": {"from": ""}}, "/publish/from", "not a path below"),
    "source above": (CUSTOM_JOB, {"publish": {"from": "../model"}}, "/publish/from", '"." or ".."'),
    "run's folder as source": (CUSTOM_JOB, {"publish": {"from": "."}}, "/publish/from", '"." or ".."'),
    "source with a line end": (
        CUSTOM_JOB,
        {"publish": {"from": "model\n"}},
        "/publish/from",
        "not a path below",
    ),
    "absolute path": (CUSTOM_JOB, {"package": {"path": "/src"}}, "/package/path", "not a path relative"),
    "backslashes": (CUSTOM_JOB, {"package": {"path": "..\\src"}}, "/package/path", "not a path relative"),
    "bucket as a package": (
        CUSTOM_JOB,
        {"package": {"path": "gs://b/x"}},
        "/package/path",
        "not a path relative",
    ),
    "no spec": (CUSTOM_JOB, {"spec": GONE}, "", "'spec' is a required property"),
    # pipelines
    "no task": (PIPELINE, {"spec/trainingTaskDefinition": GONE}, "/spec", "'trainingTaskDefinition'"),
    "task elsewhere": (
        PIPELINE,
        {"spec/trainingTaskDefinition": "gs://acme/custom_task_1.0.0.yaml"},
        "/spec/trainingTaskDefinition",
        "not the definition of a task",
    ),
    "task without a version": (
        TUNING_PIPELINE,
        {"spec/trainingTaskDefinition": f"{TASKS}/hyperparameter_tuning_task_.yaml"},
        "/spec/trainingTaskDefinition",
        "not the definition of a task",
    ),
    "no inputs": (PIPELINE, {INPUTS_OF_TASK: GONE}, "/spec", "'trainingTaskInputs'"),
    "text as inputs": (PIPELINE, {INPUTS_OF_TASK: "x"}, f"/{INPUTS_OF_TASK}", "type 'object'"),
    "study in custom training": (
        PIPELINE,
        {f"{INPUTS_OF_TASK}/studySpec": {}},
        f"/{INPUTS_OF_TASK}",
        "'studySpec' was unexpected",
    ),
    "key in the inputs": (
        TUNING_PIPELINE,
        {
            f"{INPUTS_OF_TASK}/encryptionSpec": {
                "kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k"
            }
        },
        f"/{INPUTS_OF_TASK}",
        "'encryptionSpec' was unexpected",
    ),
    "pipeline's replicas": (
        PIPELINE,
        {f"{PIPELINE_POOLS}/0/replicaCount": 2},
        f"/{PIPELINE_POOLS}/0/replicaCount",
        "primary replica",
    ),
    "nothing staged for a pipeline": (
        PIPELINE,
        {f"{PIPELINE_POOLS}/0/pythonPackageSpec/packageUris": GONE},
        f"/{PIPELINE_POOLS}/0/pythonPackageSpec",
        "'packageUris'",
    ),
    "nothing staged for trials": (
        TUNING_PIPELINE,
        {f"{TRIAL_POOLS}/0/pythonPackageSpec/packageUris": []},
        f"/{TRIAL_POOLS}/0/pythonPackageSpec/packageUris",
        "non-empty",
    ),
    "pipeline's state": (PIPELINE, {"spec/trainingTaskMetadata": {}}, "/spec", "was unexpected"),
    "pipeline's model that is null": (
        PIPELINE,
        {"spec/modelToUpload": None},
        "/spec/modelToUpload",
        "type 'object'",
    ),
    "pipeline's name": (PIPELINE, {"spec/displayName": "x"}, "/spec", "'displayName' was unexpected"),
    "pipeline's labels": (PIPELINE, {"spec/labels": {}}, "/spec", "'labels' was unexpected"),
    "id with a digit first": (PIPELINE, {"spec/modelId": "7"}, "/spec/modelId", "not a model id"),
    "capital in an id": (PIPELINE, {"spec/modelId": "Census"}, "/spec/modelId", "not a model id"),
    "id too long": (PIPELINE, {"spec/modelId": "a" * 64}, "/spec/modelId", "not a model id"),
    "id as a parent": (PIPELINE, {"spec/parentModel": "census"}, "/spec/parentModel", "not the full name"),
    "parent with two versions": (
        PIPELINE,
        {"spec/parentModel": "projects/p/locations/l/models/m@1@2"},
        "/spec/parentModel",
        "not the full name",
    ),
    "nameless model": (PIPELINE, {f"{REGISTERED}/displayName": GONE}, f"/{REGISTERED}", "'displayName'"),
    "model's name": (PIPELINE, {f"{REGISTERED}/name": "m"}, f"/{REGISTERED}", "'name' was unexpected"),
    "model's version": (PIPELINE, {f"{REGISTERED}/versionId": "1"}, f"/{REGISTERED}", "was unexpected"),
    "model elsewhere": (
        PIPELINE,
        {f"{REGISTERED}/artifactUri": "s3://m/x"},
        f"/{REGISTERED}/artifactUri",
        "not a Cloud Storage folder",
    ),
    "number as an alias": (
        PIPELINE,
        {f"{REGISTERED}/versionAliases": ["2"]},
        f"/{REGISTERED}/versionAliases/0",
        "not an alias",
    ),
    "container without an image": (
        PIPELINE,
        {f"{REGISTERED}/containerSpec": {}},
        f"/{REGISTERED}/containerSpec",
        "'imageUri'",
    ),
    "explained input": (
        PIPELINE,
        {
            f"{REGISTERED}/explanationSpec": {
                "parameters": {"topK": 1},
                "metadata": {"inputs": {"a": 1}, "outputs": {}},
            }
        },
        f"/{REGISTERED}/explanationSpec/metadata/inputs/a",
        "type 'object'",
    ),
    "dataset without an id": (PIPELINE, {"spec/inputDataConfig": {}}, "/spec/inputDataConfig", "'datasetId'"),
    # Vertex AI
    "output-only field": (CUSTOM_JOB, {"spec/state": "JOB_STATE_RUNNING"}, "/spec", "'state' was unexpected"),
    "our field": (CUSTOM_JOB, {"spec/displayName": "x"}, "/spec", "'displayName' was unexpected"),
    "no pools": (CUSTOM_JOB, {POOLS: GONE}, "/spec", "'workerPoolSpecs' is a required"),
    "empty pools": (CUSTOM_JOB, {POOLS: []}, "/spec/workerPoolSpecs", "non-empty"),
    "five pools": (CUSTOM_JOB, {POOLS: [POOL, {}, {}, {}, {}]}, "/spec/workerPoolSpecs", "too long"),
    "empty first pool": (CUSTOM_JOB, {f"{POOLS}/0": {}}, "/spec/workerPoolSpecs/0", "primary replica"),
    "two primaries": (
        CUSTOM_JOB,
        {f"{POOLS}/0/replicaCount": 2},
        "/spec/workerPoolSpecs/0/replicaCount",
        "primary replica",
    ),
    "no replica": (
        CUSTOM_JOB,
        {f"{POOLS}/2/replicaCount": "0"},
        "/spec/workerPoolSpecs/2/replicaCount",
        "match",
    ),
    "no machine": (CUSTOM_JOB, {f"{POOLS}/2/machineSpec": GONE}, "/spec/workerPoolSpecs/2", "'machineSpec'"),
    "no machine type": (
        CUSTOM_JOB,
        {f"{POOLS}/2/machineSpec": {}},
        "/spec/workerPoolSpecs/2/machineSpec",
        "'machineType'",
    ),
    "nothing to run": (
        CUSTOM_JOB,
        {f"{POOLS}/2/containerSpec": GONE},
        "/spec/workerPoolSpecs/2",
        "doesn't say what it runs",
    ),
    "two things to run": (
        CUSTOM_JOB,
        {f"{POOLS}/0/containerSpec": IMAGE},
        "/spec/workerPoolSpecs/0",
        "not both",
    ),
    "no image": (
        CUSTOM_JOB,
        {f"{POOLS}/2/containerSpec": {}},
        "/spec/workerPoolSpecs/2/containerSpec",
        "'imageUri'",
    ),
    "no executor": (CUSTOM_JOB, {f"{PACKAGE}/executorImageUri": GONE}, f"/{PACKAGE}", "'executorImageUri'"),
    "empty executor": (
        CUSTOM_JOB,
        {f"{PACKAGE}/executorImageUri": ""},
        f"/{PACKAGE}/executorImageUri",
        "non-empty",
    ),
    "no module": (CUSTOM_JOB, {f"{PACKAGE}/pythonModule": GONE}, f"/{PACKAGE}", "'pythonModule'"),
    "nothing staged": (CUSTOM_JOB, {f"{PACKAGE}/packageUris": GONE}, f"/{PACKAGE}", "'packageUris'"),
    "no package": (CUSTOM_JOB, {f"{PACKAGE}/packageUris": []}, f"/{PACKAGE}/packageUris", "non-empty"),
    "a local package": (
        CUSTOM_JOB,
        {f"{PACKAGE}/packageUris/0": "dist/x.tar.gz"},
        f"/{PACKAGE}/packageUris/0",
        "not a Cloud Storage object",
    ),
    "101 packages": (
        CUSTOM_JOB,
        {f"{PACKAGE}/packageUris": [f"gs://my-bucket/{n}" for n in range(101)]},
        f"/{PACKAGE}/packageUris",
        "too long",
    ),
    "101 variables": (
        CUSTOM_JOB,
        {f"{PACKAGE}/env": [{"name": f"V{n}", "value": ""} for n in range(101)]},
        f"/{PACKAGE}/env",
        "too long",
    ),
    "nameless variable": (CUSTOM_JOB, {f"{PACKAGE}/env/0/name": GONE}, f"/{PACKAGE}/env/0", "'name'"),
    "variable's name": (
        CUSTOM_JOB,
        {f"{PACKAGE}/env/0/name": "MY-VAR"},
        f"/{PACKAGE}/env/0/name",
        "environment variable",
    ),
    "accelerator": (
        CUSTOM_JOB,
        {f"{POOLS}/0/machineSpec/acceleratorType": "T4"},
        f"/{POOLS}/0/machineSpec/acceleratorType",
        "not one of",
    ),
    "disk": (
        CUSTOM_JOB,
        {f"{POOLS}/0/diskSpec": {"bootDiskType": "ssd"}},
        f"/{POOLS}/0/diskSpec/bootDiskType",
        "one of",
    ),
    "count out of 32 bits": (
        CUSTOM_JOB,
        {f"{POOLS}/0/diskSpec": {"bootDiskSizeGb": 2**31}},
        f"/{POOLS}/0/diskSpec/bootDiskSizeGb",
        "maximum",
    ),
    "strategy": (
        CUSTOM_JOB,
        {"spec/scheduling/strategy": "CHEAP"},
        "/spec/scheduling/strategy",
        "not one of",
    ),
    "wait without flex start": (
        CUSTOM_JOB,
        {"spec/scheduling/maxWaitDuration": "60s"},
        "/spec/scheduling/maxWaitDuration",
        "only for",
    ),
    "seconds as a number": (
        CUSTOM_JOB,
        {"spec/scheduling/timeout": 3600},
        "/spec/scheduling/timeout",
        "type 'string'",
    ),
    "minutes": (CUSTOM_JOB, {"spec/scheduling/timeout": "60m"}, "/spec/scheduling/timeout", "does not match"),
    "duration with a line end": (
        CUSTOM_JOB,
        {"spec/scheduling/timeout": "3600s\n"},
        "/spec/scheduling/timeout",
        "does not match",
    ),
    "local output": (
        CUSTOM_JOB,
        {"spec/baseOutputDirectory/outputUriPrefix": "/tmp/out"},
        "/spec/baseOutputDirectory/outputUriPrefix",
        "not a Cloud Storage folder",
    ),
    "no output": (
        CUSTOM_JOB,
        {"spec/baseOutputDirectory": {}},
        "/spec/baseOutputDirectory",
        "'outputUriPrefix' is a required",
    ),
    "network": (CUSTOM_JOB, {"spec/network": "default"}, "/spec/network", "full name of a network"),
    "key": (
        CUSTOM_JOB,
        {"spec/encryptionSpec/kmsKeyName": "k"},
        "/spec/encryptionSpec/kmsKeyName",
        "full name of a Cloud KMS key",
    ),
    "reservation": (
        CUSTOM_JOB,
        {
            f"{POOLS}/0/machineSpec/reservationAffinity": {
                "reservationAffinityType": "SPECIFIC_RESERVATION",
                "values": ["projects/p/zones/z/reservations/r"],
            }
        },
        f"/{POOLS}/0/machineSpec/reservationAffinity",
        "'key' is a required",
    ),
    "mount": (
        CUSTOM_JOB,
        {f"{POOLS}/0/nfsMounts": [{"server": "10.0.0.1", "path": "data", "mountPoint": "data"}]},
        f"/{POOLS}/0/nfsMounts/0/path",
        "not a path on an NFS server",
    ),
    "domain": (
        CUSTOM_JOB,
        {
            "spec/pscInterfaceConfig": {
                "dnsPeeringConfigs": [{"domain": "corp", "targetProject": "p", "targetNetwork": "n"}]
            }
        },
        "/spec/pscInterfaceConfig/dnsPeeringConfigs/0/domain",
        "not a DNS suffix",
    ),
    # tuning on Vertex AI
    "no study": (TUNING_JOB, {STUDY: GONE}, "/spec", "'studySpec'"),
    "no trial job": (TUNING_JOB, {"spec/trialJobSpec": GONE}, "/spec", "'trialJobSpec'"),
    "trial job without packages": (
        TUNING_JOB,
        {"spec/trialJobSpec/workerPoolSpecs/0/pythonPackageSpec/packageUris": GONE},
        "/spec/trialJobSpec/workerPoolSpecs/0/pythonPackageSpec",
        "'packageUris'",
    ),
    "no trials": (TUNING_JOB, {"spec/maxTrialCount": 0}, "/spec/maxTrialCount", "minimum"),
    "none at once": (TUNING_JOB, {"spec/parallelTrialCount": 0}, "/spec/parallelTrialCount", "minimum"),
    "no trial count": (TUNING_JOB, {"spec/maxTrialCount": GONE}, "/spec", "'maxTrialCount'"),
    "no metric": (TUNING_JOB, {f"{STUDY}/metrics": []}, f"/{STUDY}/metrics", "non-empty"),
    "metric without goal": (TUNING_JOB, {f"{STUDY}/metrics/0/goal": GONE}, f"/{STUDY}/metrics/0", "'goal'"),
    "metric with a blank": (
        TUNING_JOB,
        {f"{STUDY}/metrics/0/metricId": "my metric"},
        f"/{STUDY}/metrics/0/metricId",
        "blank",
    ),
    "no parameter": (TUNING_JOB, {f"{STUDY}/parameters": []}, f"/{STUDY}/parameters", "non-empty"),
    "parameter without values": (
        TUNING_JOB,
        {f"{STUDY}/parameters/1/integerValueSpec": GONE},
        f"/{STUDY}/parameters/1",
        "exactly one description",
    ),
    "parameter with two": (
        TUNING_JOB,
        {f"{STUDY}/parameters/1/discreteValueSpec": {"values": [1]}},
        f"/{STUDY}/parameters/1",
        "exactly one description",
    ),
    "no bound": (
        TUNING_JOB,
        {f"{STUDY}/parameters/1/integerValueSpec/maxValue": GONE},
        f"/{STUDY}/parameters/1/integerValueSpec",
        "'maxValue'",
    ),
    "no category": (
        TUNING_JOB,
        {f"{STUDY}/parameters/2/categoricalValueSpec/values": []},
        f"/{STUDY}/parameters/2/categoricalValueSpec/values",
        "non-empty",
    ),
    "scale of categories": (
        TUNING_JOB,
        {f"{STUDY}/parameters/2/scaleType": "UNIT_LINEAR_SCALE"},
        f"/{STUDY}/parameters/2/scaleType",
        "categories have no scale",
    ),
    "logarithm of zero": (
        TUNING_JOB,
        {f"{STUDY}/parameters/0/doubleValueSpec/minValue": 0},
        f"/{STUDY}/parameters/0/doubleValueSpec/minValue",
        "above 0",
    ),
    "logarithm of zero as digits": (
        TUNING_JOB,
        {
            f"{STUDY}/parameters/1/scaleType": "UNIT_LOG_SCALE",
            f"{STUDY}/parameters/1/integerValueSpec/minValue": "0",
        },
        f"/{STUDY}/parameters/1/integerValueSpec/minValue",
        "above 0",
    ),
    "logarithm of a list with zero": (
        TUNING_JOB,
        {
            f"{STUDY}/parameters/1": {
                "parameterId": "size",
                "discreteValueSpec": {"values": [0, 1]},
                "scaleType": "UNIT_REVERSE_LOG_SCALE",
            }
        },
        f"/{STUDY}/parameters/1/discreteValueSpec/values/0",
        "above 0",
    ),
    "time and duration": (
        TUNING_JOB,
        {
            f"{STUDY}/studyStoppingConfig": {
                "maximumRuntimeConstraint": {"maxDuration": "60s", "endTime": "2026-11-07T00:00:00Z"}
            }
        },
        f"/{STUDY}/studyStoppingConfig/maximumRuntimeConstraint/endTime",
        "not both",
    ),
    "grid over a range": (TUNING_JOB, GRID, f"/{STUDY}/parameters/0/doubleValueSpec", "can't enumerate"),
    "grid over a nested range": (
        TUNING_JOB,
        {**GRID, f"{STUDY}/parameters/0": GONE, f"{STUDY}/parameters/0/conditionalParameterSpecs": [NESTED]},
        f"/{STUDY}/parameters/0/conditionalParameterSpecs/0/parameterSpec/doubleValueSpec",
        "can't enumerate",
    ),
    "two conditions": (
        TUNING_JOB,
        {
            f"{STUDY}/parameters/1/conditionalParameterSpecs": [
                {**NESTED, "parentCategoricalValues": {"values": ["a"]}}
            ]
        },
        f"/{STUDY}/parameters/1/conditionalParameterSpecs/0",
        "exactly one condition",
    ),
    "two rules for stopping": (
        TUNING_JOB,
        {f"{STUDY}/medianAutomatedStoppingSpec": {}, f"{STUDY}/convexAutomatedStoppingSpec": {}},
        f"/{STUDY}/convexAutomatedStoppingSpec",
        "one rule for stopping",
    ),
    # AI Platform Training
    "no input": (ML_JOB, {INPUT: GONE}, "/spec", "'trainingInput'"),
    "no region": (ML_JOB, {f"{INPUT}/region": GONE}, f"/{INPUT}", "'region'"),
    "workers without a tier": (
        ML_JOB,
        {f"{INPUT}/scaleTier": GONE, f"{INPUT}/workerType": GONE},
        f"/{INPUT}/workerCount",
        "brings its own machines",
    ),
    "no runtime": (ML_JOB, {f"{INPUT}/runtimeVersion": GONE}, f"/{INPUT}", "'runtimeVersion'"),
    "number as runtime": (
        ML_JOB,
        {f"{INPUT}/runtimeVersion": 2.1},
        f"/{INPUT}/runtimeVersion",
        "type 'string'",
    ),
    "runtime": (
        ML_JOB,
        {f"{INPUT}/runtimeVersion": "2"},
        f"/{INPUT}/runtimeVersion",
        "not a runtime version",
    ),
    "runtime and image": (
        ML_JOB,
        {f"{INPUT}/masterConfig": IMAGE},
        f"/{INPUT}/runtimeVersion",
        "no runtime version",
    ),
    "no module in ml": (ML_JOB, {f"{INPUT}/pythonModule": GONE}, f"/{INPUT}", "'pythonModule'"),
    "nothing staged in ml": (ML_JOB, {f"{INPUT}/packageUris": GONE}, f"/{INPUT}", "'packageUris'"),
    "custom without machine": (ML_JOB, {f"{INPUT}/masterType": GONE}, f"/{INPUT}", "'masterType'"),
    "workers of a fixed tier": (
        ML_JOB,
        {f"{INPUT}/scaleTier": "BASIC", f"{INPUT}/workerType": GONE},
        f"/{INPUT}/workerCount",
        "its own machines",
    ),
    "count without type": (ML_JOB, {f"{INPUT}/workerType": GONE}, f"/{INPUT}", "'workerType'"),
    "evaluators without type": (ML_JOB, {f"{INPUT}/evaluatorCount": 1}, f"/{INPUT}", "'evaluatorType'"),
    "less than none": (ML_JOB, {f"{INPUT}/workerCount": -1}, f"/{INPUT}/workerCount", "minimum"),
    "command without image": (
        ML_JOB,
        {f"{INPUT}/args": GONE, f"{INPUT}/masterConfig": {"containerCommand": ["x"]}},
        f"/{INPUT}/masterConfig/containerCommand",
        "image of your own",
    ),
    "arguments twice": (
        ML_JOB,
        {**OWN_IMAGE, f"{INPUT}/args": ["x"], f"{INPUT}/masterConfig": {**IMAGE, "containerArgs": ["x"]}},
        f"/{INPUT}/masterConfig/containerArgs",
        'not together with "args"',
    ),
    "short wait": (
        ML_JOB,
        {f"{INPUT}/scheduling/maxWaitTime": "1799.9s"},
        f"/{INPUT}/scheduling/maxWaitTime",
        "half an hour",
    ),
    "priority": (ML_JOB, {f"{INPUT}/scheduling/priority": 1001}, f"/{INPUT}/scheduling/priority", "maximum"),
    "local job folder": (
        ML_JOB,
        {f"{INPUT}/jobDir": "out"},
        f"/{INPUT}/jobDir",
        "not a Cloud Storage folder",
    ),
    "nothing to tune": (
        ML_JOB,
        {f"{INPUT}/hyperparameters/params": []},
        f"/{INPUT}/hyperparameters/params",
        "non-empty",
    ),
    "grid over a range in ml": (
        ML_JOB,
        {f"{INPUT}/hyperparameters/algorithm": "GRID_SEARCH"},
        f"/{INPUT}/hyperparameters/params/0/type",
        "can't enumerate",
    ),
    "no bound in ml": (
        ML_JOB,
        {f"{INPUT}/hyperparameters/params/0/maxValue": GONE},
        f"/{INPUT}/hyperparameters/params/0",
        "'maxValue'",
    ),
    "fraction as integer": (
        ML_JOB,
        {f"{INPUT}/hyperparameters/params/0/type": "INTEGER"},
        f"/{INPUT}/hyperparameters/params/0/minValue",
        "whole numbers",
    ),
    "categories in ml": (
        ML_JOB,
        {f"{INPUT}/hyperparameters/params/0": {"parameterName": "kind", "type": "CATEGORICAL"}},
        f"/{INPUT}/hyperparameters/params/0",
        "'categoricalValues'",
    ),
    "categories with a bound": (
        ML_JOB,
        {
            f"{INPUT}/hyperparameters/params/0": {
                "parameterName": "kind",
                "type": "CATEGORICAL",
                "categoricalValues": ["a"],
                "minValue": 1,
            }
        },
        f"/{INPUT}/hyperparameters/params/0/minValue",
        "neither bounds nor a scale",
    ),
    "no discrete value": (
        ML_JOB,
        {
            f"{INPUT}/hyperparameters/params/0": {
                "parameterName": "size",
                "type": "DISCRETE",
                "discreteValues": [],
            }
        },
        f"/{INPUT}/hyperparameters/params/0/discreteValues",
        "non-empty",
    ),
    "empty list of packages in ml": (
        ML_JOB,
        {f"{INPUT}/packageUris": []},
        f"/{INPUT}/packageUris",
        "non-empty",
    ),
    "logarithm of zero in ml": (
        ML_JOB,
        {
            f"{INPUT}/hyperparameters/params/0/scaleType": "UNIT_LOG_SCALE",
            f"{INPUT}/hyperparameters/params/0/minValue": 0,
        },
        f"/{INPUT}/hyperparameters/params/0/minValue",
        "above 0",
    ),
    # reconciler.yaml
    "cloud without source": (CONFIG, {"source": GONE}, "", "'source' is a required"),
    "source": (CONFIG, {"source": "A"}, "/source", "not a source id"),
    "environment's name": (
        CONFIG,
        {"environments/Prod": {"engine": "local"}},
        "/environments",
        "name of an env",
    ),
    "published nowhere": (
        CONFIG,
        {"environments/prod/defaults/publish": "models"},
        "/environments/prod/defaults/publish",
        "not a Cloud Storage folder",
    ),
    "published above all": (
        CONFIG,
        {"environments/prod/defaults/publish": "gs://models/../x"},
        "/environments/prod/defaults/publish",
        '"." or ".."',
    ),
    "negative publications": (
        CONFIG,
        {"environments/prod/limits/publications": -1},
        "/environments/prod/limits/publications",
        "minimum",
    ),
    "no engine": (CONFIG, {"environments/prod/engine": GONE}, "/environments/prod", "'engine'"),
    "no project": (CONFIG, {"environments/prod/project": GONE}, "/environments/prod", "'project'"),
    "no bucket": (CONFIG, {"environments/prod/stagingBucket": GONE}, "/environments/prod", "'stagingBucket'"),
    "local is local": (
        CONFIG,
        {"environments/local/engine": "google"},
        "/environments/local/engine",
        "is the embedded service",
    ),
    "unknown endpoint": (
        CONFIG,
        {"environments/prod/endpoints/gcs": "https://x"},
        "/environments/prod/endpoints",
        "gcs",
    ),
    "endpoint": (
        CONFIG,
        {"environments/prod/endpoints/storage": "localhost"},
        "/environments/prod/endpoints/storage",
        "not a URL",
    ),
    "limit": (CONFIG, {"limits": {"cancels": -1}}, "/limits/cancels", "minimum"),
    "default timeout": (
        CONFIG,
        {"environments/prod/defaults/timeout": "1h"},
        "/environments/prod/defaults/timeout",
        "does not match",
    ),
    "image without requirements": (
        CONFIG,
        {"images/2.11/requirements": GONE},
        "/images/2.11",
        "'requirements'",
    ),
    "repository": (CONFIG, {"github/repository": "jobs"}, "/github/repository", "not a repository"),
}


def walk(node: Any) -> Iterator[Json]:
    """Yield every mapping in `node`."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from walk(item)
