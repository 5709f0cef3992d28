"""Flags of gcloud's three commands that create training jobs, as tables; and YAML as gcloud reads it.

Each table says how gcloud 578 reads a flag, and to what field of the request the value goes. The rules that
tie several flags together are data too; only `body.py` interprets both.

Files of flags and configs are YAML 1.1, with numbers such as 1e-4, and no key twice.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NoReturn

import yaml
from msgspec import Struct

from reconciler.base.diagnostics import MAX_FILE_BYTES
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.operations.importing.marks import SourceError, quoted, without_marks

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


MAX_VALUES = 1_000_000
"""Most values of a file, those of aliases counted each time; a saved list of 10,000 jobs has half of them."""

_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+\Z")
_MOST_DEPTH = 100


class _Loader(yaml.SafeLoader):
    """Loader of plain values; other tags and dates stay texts."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a list or mapping can't be a key", "quote the key")
            if key.value in seen:
                raise _refused(key, f"{quoted(key.value)} is defined twice", "remove one of the two")
            seen.add(key.value)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("+-0123456789"))


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]\Z"), list("yYnN"))


def _boolean(loader: Any, node: Any) -> bool:
    return node.value.lower() in ("y", "yes", "true", "on")


_Loader.add_constructor("tag:yaml.org,2002:bool", _boolean)


def _text(loader: Any, node: Any) -> Any:
    return loader.construct_scalar(node)


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text)
_Loader.add_constructor("tag:yaml.org,2002:binary", _text)


class ConfigError(SourceError):
    """Mistake in a config file; `line` counts from 1 in the file."""

    def __init__(self, message: str, *, hint: str = "", line: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.line = line


def _refused(node: Any, message: str, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint, line=node.start_mark.line + 1)


def load_all(text: str) -> list[tuple[Any, int]]:
    """Return each document of a YAML or JSON file and its first line; raise ConfigError.

    An empty file has no document.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError("the file is too large", hint=f"at most {MAX_FILE_BYTES // 1024} KB are read")
    if (value := _json_of(text)) is not _NO_JSON:
        return [(value, text[: len(text) - len(text.lstrip())].count("\n") + 1)]
    found = []
    try:
        loader = _Loader(without_marks(text))
        while loader.check_node():
            node: Any = loader.get_node()
            _check_depth(node)
            value = loader.construct_document(node)
            _check_size(value)
            found.append((value, node.start_mark.line + 1))
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        line = place.line + 1 if place else 1
        raise ConfigError(f"not readable as YAML: {error.problem}", hint="correct it", line=line) from None
    except RecursionError:
        raise _too_deep() from None
    except (yaml.YAMLError, ValueError):
        raise ConfigError("not readable as YAML", hint="correct it, or save it as UTF-8") from None
    return found


_NO_JSON = object()


def _json_of(text: str) -> Any:
    """Return the value of a list or mapping in JSON, which is read in a hundredth of the time of YAML.

    Return `_NO_JSON` for anything else, and for what only the reader of YAML has a message for.
    """
    if text.lstrip()[:1] not in ("[", "{"):
        return _NO_JSON
    try:
        value = json.loads(
            without_marks(text), object_pairs_hook=_without_repeats, parse_constant=_no_constant
        )
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        return _NO_JSON
    todo = [(value, 0)]
    while todo:
        part, depth = todo.pop()
        if depth > _MOST_DEPTH:
            raise _too_deep()
        if isinstance(part, dict | list):
            children = part.values() if isinstance(part, dict) else part
            todo += [(child, depth + 1) for child in children if isinstance(child, dict | list)]
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity


def _too_deep() -> ConfigError:
    return ConfigError("too deeply nested values", hint=f"at most {_MOST_DEPTH} levels are read")


def _check_depth(root: Any) -> None:
    """Refuse deep nesting, and aliases that contain themselves, before values are made."""
    todo = [(root, 0)]
    count = 0
    while todo:
        node, depth = todo.pop()
        count += 1
        if depth > _MOST_DEPTH:
            raise _too_deep()
        if count > MAX_VALUES:
            raise _refused(node, "too many values", f"split the file: at most {MAX_VALUES:,} are read")
        if isinstance(node, yaml.SequenceNode):
            todo += [(child, depth + 1) for child in node.value]
        elif isinstance(node, yaml.MappingNode):
            todo += [(child, depth + 1) for pair in node.value for child in pair]


def _check_size(value: Any) -> None:
    todo = [value]
    count = 0
    while todo:
        part = todo.pop()
        count += 1
        if count > MAX_VALUES:
            raise ConfigError("the file contains too many values", hint="split it")
        if isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, list):
            todo += part
