"""What the discovery documents tell only in prose, or not at all: every hand-made rule about a job's `spec`.

A rule stands with the object it is about, its source in a comment: a quotation without a source is from the
description of that field or object in the discovery document; "protocol buffers" are the API's own, published
at https://github.com/googleapis/googleapis. The words, and the x- keywords, are explained in `words.py`.

To proto3's JSON an empty string or list is the same as no field, so one that is required must not be empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from words import (
    FROM_0,
    FROM_1,
    GS_FOLDER,
    GS_OBJECT,
    GS_OBJECT_NAMED,
    IMAGE,
    NETWORK,
    REGION,
    SERVICE_ACCOUNT,
    Schema,
    at_most_one,
    exactly_one,
    forbidden,
    has,
    lacks,
    needs,
    needs_items,
    shaped,
    told,
    when,
    whole,
    without,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is added to one object of a discovery document.

    Attributes:
        required: Fields that must be there, and not be empty.
        gcloud: Field -> the gcloud flag that gives the same.
        fields: Field -> keywords beside or in place of its own.
        rules: Subschemas for the object's `allOf`.
        output_only: Fields that only the service sets, though the document doesn't mark them.
        set_by_reconciler: Fields that the reconciler sets.
        refused: Other names that can't be used -> what to write instead.
    """

    required: Sequence[str] = ()
    gcloud: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Schema] = field(default_factory=dict)
    rules: Sequence[Schema] = ()
    output_only: Sequence[str] = ()
    set_by_reconciler: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


# --- Both APIs ------------------------------------------------------------------------------------------

# "The maximum number of package URIs is 100."
_PACKAGE_URIS: Schema = {"maxItems": 100, "items": {"allOf": [GS_OBJECT, GS_OBJECT_NAMED]}}

# "projects/{project}/locations/{location}/keyRings/{key_ring}/cryptoKeys/{crypto_key}"
_KMS_KEY = shaped(
    "projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+",
    "not the full name of a Cloud KMS key",
    'write "projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY"',
)

# algorithm, GRID_SEARCH: "all parameters must be `INTEGER`, `CATEGORICAL`, or `DISCRETE`"
_NO_GRID = (
    "a grid search can't enumerate a range of real numbers",
    "list the values as a discrete parameter, or take another algorithm",
)

# scaleType, both logarithmic ones: "The entire feasible space must be strictly positive."
_LOG_SCALES = ["UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE"]
_POSITIVE = told(
    # A 64-bit bound may be a string.
    {"not": {"anyOf": [{"type": "number", "maximum": 0}, {"type": "string", "pattern": whole("0|-[0-9]+")}]}},
    "a logarithmic scale has only values above 0",
    'give values above 0, or "scaleType: UNIT_LINEAR_SCALE"',
)


# --- Vertex AI ------------------------------------------------------------------------------------------

# "Format: `projects/{project}/locations/{location}/tensorboards/{tensorboard}`"
_TENSORBOARD = shaped(
    "projects/[^/]+/locations/[^/]+/tensorboards/[^/]+",
    "not the full name of a TensorBoard",
    'write "projects/PROJECT/locations/LOCATION/tensorboards/ID"',
)

# `persistentResourceId` of persistentResources.create: "The maximum length is 63 characters, and valid
# characters are `/^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$/`."
_PERSISTENT_RESOURCE = [
    without(
        "projects/[^/]+/locations/[^/]+/persistentResources/",
        "not the id of a persistent resource, but its full name",
    ),
    shaped(
        "[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?",
        "not the id of a persistent resource",
        "use lower-case letters, digits and '-', a letter first, at most 63, such as my-resource",
    ),
]

# `ReservationAffinity.values`: "This must be the resource name of the reservation, reservation block, or
# reservation sub-block."
_RESERVATION = shaped(
    "projects/[^/]+/zones/[^/]+/reservations/[^/]+"
    "(?:/reservationBlocks/[^/]+(?:/reservationSubBlocks/[^/]+)?)?",
    "not the full name of a reservation",
    'write "projects/PROJECT/zones/ZONE/reservations/NAME"',
)

# `experiment`: "Format: `projects/{project}/locations/{location}/metadataStores/{metadataStores}/contexts/…`"
_CONTEXT = shaped(
    "projects/[^/]+/locations/[^/]+/metadataStores/[^/]+/contexts/[^/]+",
    "not the full name of an experiment or its run",
    'write "projects/PROJECT/locations/LOCATION/metadataStores/default/contexts/NAME"',
)

_POOL = "--worker-pool-spec="  # of `gcloud ai custom-jobs create`
_NO_BLANK = shaped(r"\S+", "not an id: it has a blank in it", "use letters, digits, '_' and '-'")
_ENV: Schema = {"maxItems": 100}  # "Maximum limit is 100."

# Kubernetes and Cloud Run take a variable's value from a secret; `EnvVar` has only `name` and `value`.
_TRAINER_READS_IT = (
    "the service gives no secret to a variable, and a manifest holds none: let the trainer read it from "
    "Secret Manager as the job's service account, and write only the secret's name, such as "
    "{name: API_KEY_SECRET, value: projects/PROJECT/secrets/NAME/versions/1}"
)
_SOURCES_OF_VALUES = ("valueFrom", "valueSource", "secretKeyRef")

_FIRST_POOL: Schema = {
    "allOf": [
        # "All worker pools except the first one are optional and can be skipped by providing an empty value."
        told(
            {"minProperties": 1},
            "the first pool is the job's primary replica, so it can't be empty",
            'give it "machineSpec" and what it runs',
        ),
        # https://cloud.google.com/vertex-ai/docs/training/distributed-training: one primary replica.
        {
            "properties": {
                "replicaCount": told(
                    {"enum": [1, "1"]},
                    "the first pool is the job's primary replica, so it has one replica",
                    'write "replicaCount: 1", and add a second pool for workers',
                )
            }
        },
    ]
}

# "The definition files that can be used here are found in
# gs://google-cloud-aiplatform/schema/trainingjob/definition/."
TASK_DEFINITIONS = "gs://google-cloud-aiplatform/schema/trainingjob/definition"
CUSTOM_TASK, TUNING_TASK = "custom_task", "hyperparameter_tuning_task"
_TASK = needs(
    "trainingTaskDefinition",
    f'such as "{TASK_DEFINITIONS}/{CUSTOM_TASK}_1.0.0.yaml", or {TUNING_TASK}_1.0.0.yaml for tuning',
)

_WRITE_TUNING = f'for tuning, write "{TASK_DEFINITIONS}/{TUNING_TASK}_1.0.0.yaml" as "trainingTaskDefinition"'
CUSTOM_TASK_REFUSED = {
    "jobSpec": 'write what is below "jobSpec" directly below "trainingTaskInputs"',
    "studySpec": _WRITE_TUNING,
    "trialJobSpec": _WRITE_TUNING,
    "encryptionSpec": 'write it directly below "spec"',
}
"""Names that the inputs of custom training don't have -> what to write instead."""
TUNING_TASK_REFUSED = {"encryptionSpec": CUSTOM_TASK_REFUSED["encryptionSpec"]}
"""The same of tuning, besides those of a tuning job."""

# `Model.name`: "projects/{project}/locations/{location}/models/{model}"; a version may be named behind it
# (https://cloud.google.com/vertex-ai/docs/model-registry/versioning).
_MODEL = shaped(
    "projects/[^/@]+/locations/[^/@]+/models/[^/@]+(?:@[^/@]+)?",
    "not the full name of a model",
    'write "projects/PROJECT/locations/LOCATION/models/ID"',
)

# Protocol buffers, model.proto, `version_aliases`: "The format is [a-z][a-zA-Z0-9-]{0,126}[a-z0-9]".
_ALIAS = shaped(
    "[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]",
    "not an alias of a version",
    "use letters, digits and '-', a lower-case letter first, such as candidate",
)

_AIPLATFORM: dict[str, Rule] = {
    "aiplatform.CustomJob": Rule(
        set_by_reconciler=("displayName", "labels"),
        refused={"jobSpec": 'write what is below "jobSpec" directly below "spec"'},
    ),
    "aiplatform.HyperparameterTuningJob": Rule(
        required=("studySpec", "trialJobSpec", "maxTrialCount", "parallelTrialCount"),  # "Required." for each
        # `gcloud ai hp-tuning-jobs create --help`: "The default value is 1." for both
        gcloud={
            "maxTrialCount": "--max-trial-count (1 by default)",
            "parallelTrialCount": "--parallel-trial-count (1 by default)",
        },
        fields={
            "maxTrialCount": {"minimum": 1},
            "parallelTrialCount": {"minimum": 1},
            "maxFailedTrialCount": {"minimum": 0},  # "If set to 0, Vertex AI decides"
        },
        set_by_reconciler=("displayName", "labels"),
        refused={"jobSpec": 'a tuning job has "trialJobSpec"'},
    ),
    "aiplatform.TrainingPipeline": Rule(
        required=("trainingTaskInputs",),  # "Required."; so is trainingTaskDefinition, see `_TASK`
        fields={
            "trainingTaskDefinition": {"description": "The task: custom training or tuning, of any version."},
            # The definitions of the two tasks describe these as the specs of the backing jobs.
            "trainingTaskInputs": {
                "description": "The task's inputs: with custom_task a CustomJobSpec, with "
                "hyperparameter_tuning_task the study and its trials. Keys in snake_case mean the same.",
                "type": "object",
                "x-snake-case": True,
            },
            # "up to 63 characters, and valid characters are `[a-z0-9_-]`. The first character cannot be a
            # number or hyphen."
            "modelId": {
                "allOf": [
                    shaped(
                        "[a-z_][a-z0-9_-]{0,62}",
                        "not a model id",
                        "use lower-case letters, digits, '-' and '_', a letter or '_' first, at most 63",
                    )
                ]
            },
            "parentModel": {"allOf": [_MODEL]},
            # Its name alone, with nothing below it, would register no model without a word.
            "modelToUpload": {"x-not-null": True},
        },
        rules=[_TASK],
        set_by_reconciler=("displayName", "labels"),
        refused={"jobSpec": 'write what is below "jobSpec" directly below "trainingTaskInputs"'},
    ),
    # What the registered Model takes from its request.
    "aiplatform.Model": Rule(
        required=("displayName",),  # "Required."
        fields={
            "displayName": {"maxLength": 128},  # "up to 128 characters long"
            "artifactUri": {"allOf": [GS_FOLDER]},
            "versionAliases": {"items": {"allOf": [_ALIAS]}},
        },
        # "Identifier."; for updates; "Only populated when the Model is trained by a TrainingPipeline with
        # data_input_config."
        output_only=("name", "etag", "dataStats"),
    ),
    "aiplatform.ModelContainerSpec": Rule(
        required=("imageUri",),  # "Required."
        fields={"imageUri": {"minLength": 1, "allOf": IMAGE}, "env": {"maxItems": 200}},  # "At most 200"
    ),
    # "Required." for what follows.
    "aiplatform.ExplanationSpec": Rule(required=("parameters",)),
    "aiplatform.ExplanationMetadata": Rule(required=("inputs", "outputs")),
    "aiplatform.SampledShapleyAttribution": Rule(required=("pathCount",)),
    "aiplatform.IntegratedGradientsAttribution": Rule(required=("stepCount",)),
    "aiplatform.XraiAttribution": Rule(required=("stepCount",)),
    "aiplatform.GcsSource": Rule(required=("uris",)),
    "aiplatform.GenieSource": Rule(required=("baseModelUri",)),
    "aiplatform.ModelGardenSource": Rule(required=("publicModelName",)),
    "aiplatform.InputDataConfig": Rule(required=("datasetId",)),
    "aiplatform.FilterSplit": Rule(required=("testFilter", "trainingFilter", "validationFilter")),
    "aiplatform.PredefinedSplit": Rule(required=("key",)),
    "aiplatform.StratifiedSplit": Rule(required=("key",)),
    "aiplatform.TimestampSplit": Rule(required=("key",)),
    "aiplatform.BigQueryDestination": Rule(required=("outputUri",)),
    "aiplatform.CustomJobSpec": Rule(
        required=("workerPoolSpecs",),  # "Required."
        gcloud={"workerPoolSpecs": "--worker-pool-spec"},
        fields={
            # The same page: primary replica, workers, parameter servers or reducers, evaluators.
            "workerPoolSpecs": {"maxItems": 4},
            "network": {"allOf": [NETWORK]},
            "serviceAccount": {"allOf": SERVICE_ACCOUNT},
            "tensorboard": {"allOf": [_TENSORBOARD]},
            "persistentResourceId": {"allOf": _PERSISTENT_RESOURCE},
            "experiment": {"allOf": [_CONTEXT]},
            "experimentRun": {"allOf": [_CONTEXT]},
            "models": {"items": {"allOf": [_MODEL]}},
            # The document has lost what stood in angle brackets here.
            "baseOutputDirectory": {
                "description": "The Cloud Storage location to store the output of this CustomJob or "
                "HyperparameterTuningJob. The job finds it in its environment: AIP_MODEL_DIR is "
                "`<base>/model/`, AIP_CHECKPOINT_DIR `<base>/checkpoints/`, AIP_TENSORBOARD_LOG_DIR "
                "`<base>/logs/`; in a trial of a HyperparameterTuningJob they are `<base>/<trial>/model/` "
                "and so on."
            },
        },
        # In a subschema of its own: `items` passes over what a `prefixItems` beside it has taken.
        rules=[{"properties": {"workerPoolSpecs": {"prefixItems": [_FIRST_POOL]}}}],
    ),
    "aiplatform.WorkerPoolSpec": Rule(
        fields={"replicaCount": FROM_1},
        rules=[
            # An empty pool stands for one that isn't there, see _FIRST_POOL.
            when(
                {"minProperties": 1},
                needs(
                    "machineSpec",
                    'such as "machineSpec: {machineType: n1-standard-4}"',
                    f"{_POOL}machine-type=…",
                ),
                # https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec#workerpoolspec
                told(
                    {"anyOf": [has("containerSpec"), has("pythonPackageSpec")]},
                    "the pool doesn't say what it runs",
                    'give it "pythonPackageSpec" or "containerSpec"',
                ),
                # Protocol buffers, custom_job.proto: `oneof task`.
                told(
                    {"not": {"required": ["containerSpec", "pythonPackageSpec"]}},
                    'a pool runs "containerSpec" or "pythonPackageSpec", not both',
                    "remove one of the two",
                ),
            )
        ],
    ),
    "aiplatform.MachineSpec": Rule(
        required=("machineType",),  # "as part of WorkerPoolSpec this field is required"
        gcloud={"machineType": f"{_POOL}machine-type=…"},
        fields={"acceleratorCount": {"minimum": 0}},
    ),
    "aiplatform.DiskSpec": Rule(
        fields={
            # 'Valid values: "pd-ssd" (…), "pd-standard" (…) or "hyperdisk-balanced".'
            "bootDiskType": {"enum": ["pd-ssd", "pd-standard", "hyperdisk-balanced"]},
            "bootDiskSizeGb": {"minimum": 1},
        },
    ),
    "aiplatform.ContainerSpec": Rule(
        required=("imageUri",),  # "Required."
        gcloud={"imageUri": f"{_POOL}container-image-uri=…"},
        fields={"imageUri": {"minLength": 1, "allOf": IMAGE}, "env": _ENV},
        refused={"envFrom": _TRAINER_READS_IT},
    ),
    "aiplatform.PythonPackageSpec": Rule(
        required=("executorImageUri", "pythonModule"),  # "Required."; packageUris too, see WITHOUT_PACKAGE
        gcloud={
            "executorImageUri": f"{_POOL}executor-image-uri=…",
            "pythonModule": f"{_POOL}python-module=…",
        },
        fields={
            "executorImageUri": {"minLength": 1, "allOf": IMAGE},
            "packageUris": _PACKAGE_URIS,
            "env": _ENV,
        },
        refused={"envFrom": _TRAINER_READS_IT},
    ),
    "aiplatform.EnvVar": Rule(
        required=("name", "value"),  # "Required." for both
        fields={
            # "Must be a valid C identifier."
            "name": {
                "allOf": [
                    shaped(
                        "[A-Za-z_][A-Za-z0-9_]*",
                        "not the name of an environment variable",
                        "use letters, digits and '_', no digit first",
                    )
                ]
            },
            "value": {"minLength": 0},  # a variable may well be empty
        },
        refused=dict.fromkeys(_SOURCES_OF_VALUES, _TRAINER_READS_IT),
    ),
    "aiplatform.Scheduling": Rule(
        rules=[
            # maxWaitDuration: "the maximum duration that a job will wait for the requested resources to be
            # provisioned if the scheduling strategy is set to [Strategy.DWS_FLEX_START]"
            when(
                {
                    "properties": {"strategy": {"enum": ["STANDARD", "SPOT", "ON_DEMAND", "LOW_COST"]}}
                },  # or none
                forbidden(
                    ["maxWaitDuration"],
                    '"maxWaitDuration" is only for "strategy: FLEX_START"',
                    'add "strategy: FLEX_START", or remove "maxWaitDuration"',
                ),
            )
        ],
    ),
    "aiplatform.GcsDestination": Rule(
        required=("outputUriPrefix",),  # "Required. Google Cloud Storage URI to output directory."
        fields={"outputUriPrefix": {"allOf": [GS_FOLDER]}},
    ),
    "aiplatform.EncryptionSpec": Rule(
        required=("kmsKeyName",),  # "Required."
        fields={"kmsKeyName": {"allOf": [_KMS_KEY]}},
    ),
    "aiplatform.ReservationAffinity": Rule(
        required=("reservationAffinityType",),  # "Required."
        rules=[
            # SPECIFIC_RESERVATION: "the reservation must be identified via the `key` and `values` fields"
            when(
                has("reservationAffinityType", const="SPECIFIC_RESERVATION"),
                needs("key", 'such as "key: compute.googleapis.com/reservation-name"'),
                needs_items("values", "the reservation's resource name"),
                {"properties": {"values": {"items": {"allOf": [_RESERVATION]}}}},
            )
        ],
    ),
    "aiplatform.NfsMount": Rule(
        required=("server", "path", "mountPoint"),  # "Required." for each
        fields={
            # "Has to start with '/'"
            "path": {"allOf": [shaped("/.*", "not a path on an NFS server", "it starts with '/'")]},
            # The document has lost what stood in angle brackets here.
            "mountPoint": {
                "description": "Destination mount path. The NFS will be mounted for the user under "
                "/mnt/nfs/<mountPoint>."
            },
        },
    ),
    "aiplatform.LustreMount": Rule(
        required=("instanceIp", "volumeHandle", "filesystem", "mountPoint"),  # "Required." for each
        fields={
            # The document has lost what stood in angle brackets here.
            "mountPoint": {
                "description": "Destination mount path. The Lustre file system will be mounted for the user "
                "under /mnt/lustre/<mountPoint>."
            }
        },
    ),
    "aiplatform.DnsPeeringConfig": Rule(
        required=("domain", "targetProject", "targetNetwork"),  # "Required." for each
        fields={
            # "Must end with a dot."
            "domain": {"allOf": [shaped(r".*\.", "not a DNS suffix", 'it ends with a dot: "example.corp."')]},
        },
    ),
    "aiplatform.StudySpec": Rule(
        required=("metrics", "parameters"),  # "Required." for both
        rules=[
            when(
                has("algorithm", const="GRID_SEARCH"),
                {"properties": {"parameters": {"items": {"$ref": "#/$defs/aiplatform.GridParameter"}}}},
            ),
            # Protocol buffers, study.proto: `oneof automated_stopping_spec`.
            *at_most_one(
                ["decayCurveStoppingSpec", "medianAutomatedStoppingSpec", "convexAutomatedStoppingSpec"],
                "a study has one rule for stopping trials early",
            ),
        ],
    ),
    "aiplatform.StudySpecMetricSpec": Rule(
        required=("metricId", "goal"),  # "Required." for both
        fields={"metricId": {"allOf": [_NO_BLANK]}},  # "Must not contain whitespaces"
    ),
    "aiplatform.StudySpecMetricSpecSafetyMetricConfig": Rule(
        # "This should be between 0.0 and 1.0"
        fields={"desiredMinSafeTrialsFraction": {"minimum": 0, "maximum": 1}},
    ),
    "aiplatform.StudySpecParameterSpec": Rule(
        required=("parameterId",),  # "Required."
        fields={"parameterId": {"allOf": [_NO_BLANK]}},  # "Must not contain whitespaces"
        rules=[
            # Protocol buffers, study.proto: `oneof parameter_value_spec`.
            exactly_one(
                ["doubleValueSpec", "integerValueSpec", "categoricalValueSpec", "discreteValueSpec"],
                "a parameter needs exactly one description of its values",
            ),
            # "Leave unset for `CATEGORICAL` parameters."
            when(
                has("categoricalValueSpec"),
                forbidden(["scaleType"], "categories have no scale", 'remove "scaleType"'),
            ),
            when(
                has("scaleType", enum=_LOG_SCALES),
                {
                    "properties": {
                        "doubleValueSpec": {"properties": {"minValue": _POSITIVE}},
                        "integerValueSpec": {"properties": {"minValue": _POSITIVE}},
                        "discreteValueSpec": {"properties": {"values": {"items": _POSITIVE}}},
                    }
                },
            ),
        ],
    ),
    # "Required." for what follows.
    "aiplatform.StudySpecParameterSpecDoubleValueSpec": Rule(required=("minValue", "maxValue")),
    "aiplatform.StudySpecParameterSpecIntegerValueSpec": Rule(required=("minValue", "maxValue")),
    "aiplatform.StudySpecParameterSpecCategoricalValueSpec": Rule(required=("values",)),
    "aiplatform.StudySpecParameterSpecDiscreteValueSpec": Rule(
        required=("values",),
        fields={"values": {"maxItems": 1000}},  # "This list should not contain more than 1,000 values."
    ),
    "aiplatform.StudySpecParameterSpecConditionalParameterSpec": Rule(
        required=("parameterSpec",),
        rules=[
            # Protocol buffers, study.proto: `oneof parent_value_condition`.
            exactly_one(
                ["parentDiscreteValues", "parentIntValues", "parentCategoricalValues"],
                "a conditional parameter needs exactly one condition on its parent's value",
            )
        ],
    ),
    **{
        f"aiplatform.StudySpecParameterSpecConditionalParameterSpec{kind}ValueCondition": Rule(
            required=("values",)
        )
        for kind in ("Discrete", "Int", "Categorical")
    },
    "aiplatform.StudyTimeConstraint": Rule(
        # Protocol buffers, study.proto: `oneof constraint`.
        rules=at_most_one(["maxDuration", "endTime"], "a time constraint is a duration or a time, not both"),
    ),
}


# --- AI Platform Training -------------------------------------------------------------------------------

# Role -> the part that stands for it in gcloud's flags.
_MORE_ROLES = {"worker": "worker", "parameterServer": "parameter-server", "evaluator": "evaluator"}
_CONFIGS = ("masterConfig", *(f"{role}Config" for role in _MORE_ROLES))
_FIXED_TIERS = ["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU"]
_CONTAINER_FIELDS = ("containerCommand", "containerArgs")
_HAS_IMAGE = has("masterConfig", required=["imageUri"])
_OWN_IMAGE = "or give masterConfig.imageUri, an image of your own"


# Neither `TrainingInput` nor `ReplicaConfig` has a field for it.
_NO_ENV = (
    'AI Platform has no environment variables for jobs: pass the values in "args", or set them by ENV in the '
    "image; Vertex AI has containerSpec.env (`reconciler migrate` makes a CustomJob of the job)"
)
_ENV_NAMES = ("env", "envVars", "environment")


def _in_each_config(rule: Schema) -> Schema:
    return {"properties": dict.fromkeys(_CONFIGS, rule)}


_ML: dict[str, Rule] = {
    "ml.Job": Rule(
        required=("trainingInput",),
        output_only=("etag", "predictionOutput", "trainingOutput"),
        set_by_reconciler=("jobId", "labels"),
        refused={"predictionInput": 'a manifest is a training job and has "trainingInput"'},
    ),
    "ml.TrainingInput": Rule(
        # "Required."; so is scaleTier, but gcloud sends jobs without it, and they are to run as BASIC.
        required=("region",),
        gcloud={"region": "--region"},
        fields={
            "region": {"allOf": REGION},
            "packageUris": _PACKAGE_URIS,
            "jobDir": {"allOf": [GS_FOLDER]},  # "A Google Cloud Storage path"
            "network": {"allOf": [NETWORK]},
            "serviceAccount": {"allOf": SERVICE_ACCOUNT},
            # https://cloud.google.com/ai-platform/training/docs/runtime-version-list
            "runtimeVersion": {
                "allOf": [shaped(r"[0-9]+\.[0-9]+", "not a runtime version", 'such as "2.11"')]
            },
            "pythonVersion": {"allOf": [shaped(r"[0-9]+\.[0-9]+", "not a Python version", 'such as "3.7"')]},
            **{f"{role}Count": FROM_0 for role in _MORE_ROLES},
        },
        rules=[
            # runtimeVersion: "You must either specify this field or specify `masterConfig.imageUri`."
            # pythonModule: "Required.", but what runs in one's own image is that image's matter, see
            # https://cloud.google.com/ai-platform/training/docs/using-containers.
            when(
                lacks(_HAS_IMAGE),
                needs("runtimeVersion", _OWN_IMAGE, "--runtime-version"),
                needs("pythonModule", _OWN_IMAGE, "--module-name"),
            ),
            # masterConfig: "Only one of `masterConfig.imageUri` and `runtimeVersion` should be set."
            when(
                _HAS_IMAGE,
                forbidden(
                    ["runtimeVersion"],
                    "a job with an image of its own has no runtime version",
                    'remove "runtimeVersion", or masterConfig.imageUri',
                ),
            ),
            # scaleTier, CUSTOM: "You _must_ set `TrainingInput.masterType`". workerCount and its like: "you
            # must also set `worker_type`"
            when(
                has("scaleTier", const="CUSTOM"),
                needs("masterType", '"scaleTier: CUSTOM" needs it', "--master-machine-type"),
                *(
                    # "when `scaleTier` is set to `CUSTOM` and `parameter_server_count` is greater than zero"
                    when(
                        {**has(f"{role}Count"), "not": has(f"{role}Count", enum=[0, "0"])},
                        needs(f"{role}Type", f'"{role}Count" needs it', f"--{flag}-machine-type"),
                    )
                    for role, flag in _MORE_ROLES.items()
                ),
            ),
            # The same: "This value can only be used when `scale_tier` is set to `CUSTOM`."
            when(
                {"properties": {"scaleTier": {"enum": _FIXED_TIERS}}},  # or none, which is BASIC
                forbidden(
                    [f"{role}{part}" for role in _MORE_ROLES for part in ("Type", "Count")],
                    "this scale tier brings its own machines",
                    'write "scaleTier: CUSTOM", or remove this field',
                ),
            ),
            # containerCommand and containerArgs: "this field and [TrainingInput.args] are mutually exclusive"
            when(
                has("args"),
                _in_each_config(
                    forbidden(
                        _CONTAINER_FIELDS,
                        'not together with "args" of trainingInput',
                        'remove this field, or "args"',
                    )
                ),
            ),
            # The same: "It cannot be set if custom container image is not provided." workerConfig and its
            # like: "If `workerConfig.imageUri` has not been set, AI Platform uses the value of
            # `masterConfig.imageUri`."
            when(
                lacks(_HAS_IMAGE),
                _in_each_config(
                    when(
                        lacks(has("imageUri")),
                        forbidden(
                            _CONTAINER_FIELDS,
                            "only an image of your own can be given this",
                            'add "imageUri", or remove this field',
                        ),
                    )
                ),
            ),
        ],
        refused=dict.fromkeys(_ENV_NAMES, _NO_ENV),
    ),
    "ml.ReplicaConfig": Rule(
        fields={"imageUri": {"allOf": IMAGE}}, refused=dict.fromkeys(_ENV_NAMES, _NO_ENV)
    ),
    "ml.AcceleratorConfig": Rule(fields={"count": FROM_0}),
    "ml.DiskConfig": Rule(
        fields={
            # 'Valid values: "pd-ssd" (…) or "pd-standard" (…).'
            "bootDiskType": {"enum": ["pd-ssd", "pd-standard"]},
            "bootDiskSizeGb": {"minimum": 1},
        },
    ),
    "ml.EncryptionConfig": Rule(
        required=("kmsKeyName",),  # the object has no other field
        fields={"kmsKeyName": {"allOf": [_KMS_KEY]}},
    ),
    "ml.Scheduling": Rule(
        fields={
            "priority": {"minimum": 0, "maximum": 1000},  # "in the range [0, 1000]"
            # "The minimum for this field is `1800s` (30 minutes)."
            "maxWaitTime": {
                "allOf": [
                    told(
                        {
                            "not": {
                                "type": "string",
                                "pattern": whole(r"0*(?:[0-9]{1,3}|1[0-7][0-9]{2})(?:\.[0-9]+)?s"),
                            }
                        },
                        "the shortest wait is half an hour",
                        'write "1800s" or more',
                    )
                ]
            },
        },
    ),
    "ml.HyperparameterSpec": Rule(
        required=("params",),  # "Required."; so is goal, but it "Defaults to `MAXIMIZE`"
        fields={
            "maxTrials": {"minimum": 1},
            "maxParallelTrials": {"minimum": 1},
            "maxFailedTrials": {"minimum": 0},  # "zero, which means the service decides"
        },
        rules=[
            when(
                has("algorithm", const="GRID_SEARCH"),
                {
                    "properties": {
                        "params": {
                            "items": {"properties": {"type": told({"not": {"const": "DOUBLE"}}, *_NO_GRID)}}
                        }
                    }
                },
            )
        ],
    ),
    "ml.ParameterSpec": Rule(
        required=("parameterName", "type"),  # "Required." for both
        fields={"discreteValues": {"maxItems": 1000}},  # "should not contain more than 1,000 values"
        rules=[
            # minValue and maxValue: "Required if type is `DOUBLE` or `INTEGER`."
            when(has("type", enum=["DOUBLE", "INTEGER"]), needs("minValue"), needs("maxValue")),
            # The same: "This value should be integers if type is `INTEGER`."
            when(
                has("type", const="INTEGER"),
                {
                    "properties": {
                        bound: told(
                            {"multipleOf": 1},
                            "an INTEGER parameter has whole numbers as its bounds",
                            "write a whole number, or take another type",
                        )
                        for bound in ("minValue", "maxValue")
                    }
                },
            ),
            # categoricalValues: "Required if type is `CATEGORICAL`." minValue and maxValue: "should be unset
            # if type is `CATEGORICAL`". scaleType: "Leave unset for categorical parameters."
            when(
                has("type", const="CATEGORICAL"),
                needs_items("categoricalValues", "the list of categories"),
                forbidden(
                    ["minValue", "maxValue", "scaleType"],
                    "categories have neither bounds nor a scale",
                    "remove this field",
                ),
            ),
            # discreteValues: "Required if type is `DISCRETE`."
            when(has("type", const="DISCRETE"), needs_items("discreteValues", "the list of numbers")),
            when(
                has("scaleType", enum=_LOG_SCALES),
                {"properties": {"minValue": _POSITIVE, "discreteValues": {"items": _POSITIVE}}},
            ),
        ],
    ),
}


# --- For convert.py and envelope.py ---------------------------------------------------------------------

OBJECTS: dict[str, Rule] = {**_AIPLATFORM, **_ML}
"""The rules by object: the API, a dot, and the discovery document's name without its prefix."""

ROOTS = (
    "aiplatform.CustomJob",
    "aiplatform.HyperparameterTuningJob",
    "aiplatform.TrainingPipeline",
    "ml.Job",
)
"""The objects that a manifest's `spec` is made from."""

EXTRA_DEFINITIONS: dict[str, Schema] = {
    # A definition of its own, because a conditional parameter is a parameter again.
    "aiplatform.GridParameter": {
        "description": "A parameter that a grid search can enumerate.",
        "properties": {
            "doubleValueSpec": told({"not": {}}, *_NO_GRID),
            "conditionalParameterSpecs": {
                "items": {"properties": {"parameterSpec": {"$ref": "#/$defs/aiplatform.GridParameter"}}}
            },
        },
    }
}
"""Definitions that the rules refer to."""

# packageUris: "Required." in both APIs; where the manifest has `package`, the reconciler adds the URI.
_PACKAGES = 'list them, or name the folder of the code: "package: {path: …}" beside "spec"'
_POOLS: Schema = {
    "properties": {
        "workerPoolSpecs": {
            "items": {
                "properties": {
                    "pythonPackageSpec": needs_items("packageUris", _PACKAGES, "--python-package-uris")
                }
            }
        }
    }
}
_TRAINING_INPUT = when(
    lacks(_HAS_IMAGE), needs_items("packageUris", _PACKAGES, "--packages or --package-path")
)

WITHOUT_PACKAGE: dict[str, Schema] = {
    "CustomJob": _POOLS,
    "HyperparameterTuningJob": {"properties": {"trialJobSpec": _POOLS}},
    "TrainingPipeline": {
        "properties": {
            "trainingTaskInputs": {
                "properties": {**_POOLS["properties"], "trialJobSpec": _POOLS},
                "x-snake-case": True,
            }
        }
    },
    "Job": {"properties": {"trainingInput": _TRAINING_INPUT}},
}
"""What the `spec` of each kind needs in a manifest that has no `package`."""
