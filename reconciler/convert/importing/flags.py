"""Flags of gcloud's three commands that create training jobs, as tables.

Each table says how gcloud 578 reads a flag, and to what field of the request the value goes. The rules that
tie several flags together are data too; only `body.py` interprets both.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

Kind = Literal[
    "text", "list", "map", "integer", "count", "int32", "switch", "boolean", "choice", "labels",
    "accelerator", "pool", "account", "bucket", "object"
]  # fmt: skip
GA, BETA, ALPHA = "ga", "beta", "alpha"
TRACKS = (GA, BETA, ALPHA)


class Flag(Struct, frozen=True):
    """One flag.

    Attributes:
        name: With its dashes.
        kind: The form of its value; "count" is an integer from 1, "boolean" a switch with a value.
        field: The place in the request's body, with dots; "" if the flag isn't sent as it is.
        appends: True if a repeated flag adds to the value. Otherwise the last flag counts.
        choices: The values of a choice, in gcloud's spelling.
        tracks: The release tracks that have the flag.
    """

    name: str
    kind: Kind = "text"
    field: str = ""
    appends: bool = False
    choices: tuple[str, ...] = ()
    tracks: tuple[str, ...] = TRACKS


class Command(Struct, frozen=True):
    """One command of gcloud.

    Attributes:
        words: The command without "gcloud" and the release track.
        api_version: The apiVersion of its manifests.
        kind: Their kind.
        config_root: The field of the body that `--config` holds; "" for the whole body.
        fields_root: The message that fields such as the service account belong to.
        name_field: The field of the job's name.
        flags: Its own flags.
        required: Flags that must be there.
        together: Pairs of flags that need each other.
        exclusive: Pairs of flags that exclude each other.
        region_property: gcloud's property with the default region.
        takes_arguments: True if the command takes the trainer's arguments behind "--".
        names_job: True if the job's name is an argument.
    """

    words: tuple[str, ...]
    api_version: str
    kind: str
    config_root: str
    fields_root: str
    name_field: str
    flags: tuple[Flag, ...]
    required: tuple[str, ...]
    together: tuple[tuple[str, str], ...] = ()
    exclusive: tuple[tuple[str, str], ...] = ()
    region_property: str = "ai/region"
    takes_arguments: bool = False
    names_job: bool = False

    @property
    def is_vertex_ai(self) -> bool:
        """True for the commands of Vertex AI."""
        return self.api_version == AIPLATFORM_V1


KMS = ("--kms-key", "--kms-keyring", "--kms-location", "--kms-project")
_KMS_FLAGS = tuple(Flag(name) for name in KMS)
_SCALE_TIERS = ("basic", "basic-gpu", "basic-tpu", "custom", "premium-1", "standard-1")
_PREVIEW = (BETA, ALPHA)
OLD_ACCELERATORS = (
    *("nvidia-tesla-a100", "nvidia-tesla-k80", "nvidia-tesla-p100", "nvidia-tesla-p4", "nvidia-tesla-t4"),
    *("nvidia-tesla-v100", "tpu-v2", "tpu-v2-pod", "tpu-v3", "tpu-v3-pod", "tpu-v4-pod"),
)


def _replicas(name: str, field: str) -> tuple[Flag, ...]:
    """Return the flags for the workers or the parameter servers."""
    return (
        Flag(f"--{name}-machine-type", field=f"trainingInput.{field}Type"),
        Flag(f"--{name}-count", "count", f"trainingInput.{field}Count"),
        Flag(f"--{name}-accelerator", "accelerator", f"trainingInput.{field}Config.acceleratorConfig"),
        Flag(f"--{name}-image-uri", field=f"trainingInput.{field}Config.imageUri"),
    )


TRAINING = Command(
    words=("ai-platform", "jobs", "submit", "training"),
    api_version=ML_V1,
    kind="Job",
    config_root="",
    fields_root="trainingInput",
    name_field="jobId",
    flags=(
        Flag("--region", field="trainingInput.region"),
        Flag("--config"),
        Flag("--module-name", field="trainingInput.pythonModule"),
        Flag("--package-path"),
        Flag("--packages", "list"),
        Flag("--staging-bucket", "bucket"),
        Flag("--job-dir", "object", "trainingInput.jobDir"),
        Flag("--scale-tier", "choice", "trainingInput.scaleTier", choices=_SCALE_TIERS),
        Flag("--runtime-version", field="trainingInput.runtimeVersion"),
        Flag("--python-version", field="trainingInput.pythonVersion"),
        Flag("--master-machine-type", field="trainingInput.masterType"),
        Flag("--master-accelerator", "accelerator", "trainingInput.masterConfig.acceleratorConfig"),
        Flag("--master-image-uri", field="trainingInput.masterConfig.imageUri"),
        *_replicas("worker", "worker"),
        *_replicas("parameter-server", "parameterServer"),
        Flag("--use-chief-in-tf-config", "boolean", "trainingInput.useChiefInTfConfig"),
        Flag("--tpu-tf-version", field="trainingInput.workerConfig.tpuTfVersion", tracks=_PREVIEW),
        Flag("--service-account", "account", "trainingInput.serviceAccount"),
        Flag("--network", field="trainingInput.network", tracks=_PREVIEW),
        Flag("--enable-web-access", "switch", "trainingInput.enableWebAccess"),
        Flag("--labels", "labels", "labels", appends=True),
        *_KMS_FLAGS,
        Flag("--stream-logs", "switch"),
        Flag("--async", "switch"),
    ),
    required=(),
    together=(
        ("--worker-machine-type", "--worker-count"),
        ("--parameter-server-machine-type", "--parameter-server-count"),
    ),
    exclusive=(("--async", "--stream-logs"), ("--master-image-uri", "--runtime-version")),
    region_property="compute/region",
    takes_arguments=True,
    names_job=True,
)

CUSTOM_JOBS = Command(
    words=("ai", "custom-jobs", "create"),
    api_version=AIPLATFORM_V1,
    kind="CustomJob",
    config_root="jobSpec",
    fields_root="jobSpec",
    name_field="displayName",
    flags=(
        Flag("--region"),
        Flag("--display-name", field="displayName"),
        Flag("--config"),
        Flag("--worker-pool-spec", "pool", appends=True),
        Flag("--python-package-uris", "list"),
        Flag("--args", "list", appends=True),
        Flag("--command", "list", appends=True),
        Flag("--service-account", field="jobSpec.serviceAccount"),
        Flag("--network", field="jobSpec.network"),
        Flag("--enable-web-access", "switch", "jobSpec.enableWebAccess"),
        Flag("--enable-dashboard-access", "switch", "jobSpec.enableDashboardAccess"),
        Flag("--persistent-resource-id", field="jobSpec.persistentResourceId"),
        Flag("--labels", "labels", "labels", appends=True),
        *_KMS_FLAGS,
    ),
    required=("--display-name",),
)

TUNING_JOBS = Command(
    words=("ai", "hp-tuning-jobs", "create"),
    api_version=AIPLATFORM_V1,
    kind="HyperparameterTuningJob",
    config_root="",
    fields_root="trialJobSpec",
    name_field="displayName",
    flags=(
        Flag("--region"),
        Flag("--display-name", field="displayName"),
        Flag("--config"),
        Flag("--max-trial-count", "int32", "maxTrialCount"),
        Flag("--parallel-trial-count", "int32", "parallelTrialCount"),
        Flag(
            "--algorithm",
            "choice",
            "studySpec.algorithm",
            choices=("algorithm-unspecified", "grid-search", "random-search"),
        ),
        Flag("--service-account", field="trialJobSpec.serviceAccount"),
        Flag("--network", field="trialJobSpec.network"),
        Flag("--enable-web-access", "switch", "trialJobSpec.enableWebAccess"),
        Flag("--enable-dashboard-access", "switch", "trialJobSpec.enableDashboardAccess"),
        Flag("--labels", "labels", "labels", appends=True),
        *_KMS_FLAGS,
    ),
    required=("--config", "--display-name"),
)

COMMANDS = (TRAINING, CUSTOM_JOBS, TUNING_JOBS)
OLD_GROUPS = {"ml-engine": "ai-platform"}
"""Earlier names of command groups."""

GLOBAL_FLAGS = (
    Flag("--project"),
    Flag("--flags-file"),
    *(
        Flag(name)
        for name in (
            *("--format", "--verbosity", "--account", "--impersonate-service-account", "--configuration"),
            *("--billing-project", "--access-token-file", "--trace-token", "--flatten"),
        )
    ),
    *(Flag(name, "switch") for name in ("--quiet", "-q", "--log-http", "--user-output-enabled")),
)

# Keys of --worker-pool-spec -> the field of the pool; "" for the keys that build an image.
POOL_KEYS = {
    "machine-type": "machineSpec.machineType",
    "replica-count": "replicaCount",
    "accelerator-type": "machineSpec.acceleratorType",
    "accelerator-count": "machineSpec.acceleratorCount",
    "container-image-uri": "containerSpec.imageUri",
    "executor-image-uri": "pythonPackageSpec.executorImageUri",
    "python-module": "pythonPackageSpec.pythonModule",
    "local-package-path": "",
    "script": "",
    "output-image-uri": "",
    "requirements": "",
    "extra-packages": "",
    "extra-dirs": "",
}
POOL_NUMBERS = ("replica-count", "accelerator-count")
POOL_BUILD_KEYS = ("script", "output-image-uri", "requirements", "extra-packages", "extra-dirs")
"""Keys that only go with `local-package-path`."""

POOL_ACCELERATORS = frozenset(
    {
        *("NVIDIA_A100_80GB", "NVIDIA_B200", "NVIDIA_GB200", "NVIDIA_H100_80GB"),
        *("NVIDIA_H100_MEGA_80GB", "NVIDIA_H200_141GB", "NVIDIA_L4", "NVIDIA_RTX_PRO_6000"),
        *("NVIDIA_TESLA_A100", "NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_P4"),
        *("NVIDIA_TESLA_T4", "NVIDIA_TESLA_V100", "TPU_V2", "TPU_V3", "TPU_V4_POD"),
        *("TPU_V5_LITEPOD",),
    }
)
"""Accelerator types of a pool. Only the API's spelling counts there."""

REGIONS = frozenset(
    {
        *("africa-south1", "asia-east1", "asia-east2", "asia-northeast1"),
        *("asia-northeast2", "asia-northeast3", "asia-south1", "asia-south2"),
        *("asia-southeast1", "asia-southeast2", "australia-southeast1"),
        *("australia-southeast2", "europe-", "central2", "europe-north1", "europe-north2"),
        *("europe-southwest1", "europe-west1", "europe-west2", "europe-west3"),
        *("europe-west4", "europe-west6", "europe-west8", "europe-west9", "europe-west12"),
        *("europe-west15", "me-central1", "me-", "central2", "me-west1"),
        *("northamerica-northeast1", "northamerica-northeast2", "southamerica-east1"),
        *("southamerica-west1", "us-central1", "us-east1", "us-east4", "us-east5"),
        *("us-south1", "us-west1", "us-west2", "us-west3", "us-west4", "us-west8"),
    }
)
"""Regions that gcloud 578 accepts for Vertex AI."""
