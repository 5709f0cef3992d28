"""The request's body that gcloud would send for a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from msgspec import Struct, field

from reconciler.convert.importing.command_line import Invocation
from reconciler.convert.importing.flags import (
    KMS,
    POOL_ACCELERATORS,
    POOL_BUILD_KEYS,
    POOL_KEYS,
    REGIONS,
    TRAINING,
    Flag,
)
from reconciler.convert.importing.placeholders import (
    flag_error,
    is_mark,
    is_marked,
    mark,
    quoted,
)

_KEY = re.compile("projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
_LOCATION = re.compile("projects/([^/]+)/locations/([^/]+)")
_STORED = re.compile("gs://[^/]{3,}/.")
_REGISTRY = re.compile(r"(?:[\w.-]+\.)?gcr\.io|[\w-]+-docker\.pkg\.dev")
_IMAGE_PART = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*")
_IMAGE_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_MODULE = re.compile(r"[\w/-]+\.py")
_POOLS = "--worker-pool-spec"

Json = dict[str, Any]


class Code(Struct, frozen=True):
    """Local code of a job, as its flags name it.

    Attributes:
        path: The folder of the package.
        is_package: True if the folder is the Python package itself, False if it contains the modules.
        archives: Local archives.
        module: The Python module that is run, if the folder contains it.
    """

    path: str = ""
    is_package: bool = False
    archives: tuple[str, ...] = ()
    module: str = ""


class ImportedRequest(Struct):
    """Request that gcloud would send.

    Attributes:
        body: Its body, without `enableWebAccess: false` and without staged code.
        project: "" if unknown.
        location: "" for jobs whose body contains the region.
        code: The local code; None without any.
        notes: Sentences about what gcloud ignores, or import translates.
    """

    body: Json
    project: str = ""
    location: str = ""
    code: Code | None = None
    notes: list[str] = field(default_factory=list)


ConfigReader = Callable[[str], Any]
"""Returns the value of a config file; `-` is the standard input."""


def request_of(
    invocation: Invocation, config: ConfigReader, properties: Mapping[str, str]
) -> ImportedRequest:
    """Return the request of a call; raise SourceError, with the flag's name, if gcloud would refuse it.

    `properties` are gcloud's, as far as they are known: `core/project`, `ai/region`, `compute/region`.
    """
    command = invocation.command
    request = ImportedRequest(_config_of(invocation, config), _project(invocation, properties))
    if command is TRAINING:
        _training(invocation, request)
    elif command.kind == "CustomJob":
        _custom_job(invocation, request)
    else:
        _tuning_job(invocation, request)
    for flag in command.flags:
        if flag.field and invocation.has(flag.name) and not _is_no_value(flag, invocation):
            _put(request.body, flag.field, invocation.get(flag.name), flag.name)
    if command.names_job:
        request.body[command.name_field] = invocation.job
    key = _kms_key(invocation, request.project)
    if key:
        message = "encryptionSpec" if command.is_vertex_ai else "trainingInput.encryptionConfig"
        _put(request.body, f"{message}.kmsKeyName", key, "--kms-key")
    _place(invocation, request, properties)
    return request


def _config_of(invocation: Invocation, config: ConfigReader) -> Json:
    """Return the body that the config file gives."""
    command = invocation.command
    if not invocation.has("--config"):
        return {}
    name = invocation.get("--config")
    value = config(name)
    if not isinstance(value, dict):
        what = "is empty" if value is None else "isn't a mapping of fields"
        raise flag_error("--config", f"the file {what}", "write the job's fields into it")
    value = deepcopy(value)
    if command is TRAINING and "trainingInput" in value and not isinstance(value["trainingInput"], dict):
        hint = "write the fields below it, or remove it"
        raise flag_error("--config", '"trainingInput" has no fields', hint)
    return {command.config_root: value} if command.config_root else value


def _put(body: Json, path: str, value: Any, flag: str) -> None:
    """Set a field of the body; raise SourceError if a value of the file is in the way."""
    *above, last = path.split(".")
    for name in above:
        if body.get(name) is None:
            body[name] = {}
        body = body[name]
        if not isinstance(body, dict):
            raise flag_error(
                flag, f'"{name}" of the config file isn\'t a mapping', "write its fields below it"
            )
    body[last] = value


def _is_no_value(flag: Flag, invocation: Invocation) -> bool:
    """Return True for a number 0, which gcloud takes for a flag that is missing."""
    return flag.kind == "int32" and invocation.get(flag.name) == 0


def _project(invocation: Invocation, properties: Mapping[str, str]) -> str:
    project = invocation.get("--project") or properties.get("core/project")
    if project == "":
        raise flag_error("--project", "the property core/project is empty", "write --project=PROJECT")
    return project or ""


def _place(invocation: Invocation, request: ImportedRequest, properties: Mapping[str, str]) -> None:
    """Find the region, and check it as gcloud does."""
    command = invocation.command
    region = invocation.get("--region") or properties.get(command.region_property, "")
    if not region:
        hint = f"add --region=REGION, or --set {command.region_property}=REGION as gcloud's property"
        raise flag_error("--region", "is missing", hint)
    if command is TRAINING:
        request.body["trainingInput"]["region"] = region
        return
    match = _LOCATION.fullmatch(region)
    if match:
        request.project, region = match.groups()
    if not is_marked(region) and region not in REGIONS:
        raise flag_error("--region", f"{quoted(region)} is not a region", "write for example us-central1")
    request.location = region


def _kms_key(invocation: Invocation, project: str) -> str:
    given = {name: invocation.get(name, "") for name in KMS}
    if not any(given.values()):
        return ""
    key, ring, location, owner = given.values()
    if not key:
        given_names = ", ".join(name for name, value in given.items() if value)
        raise flag_error(
            "--kms-key", f"is missing, because {given_names} is given", "write the key's full name"
        )
    if _KEY.fullmatch(key) or is_mark(key):
        return str(key)
    if not (ring and location):
        hint = "write projects/P/locations/L/keyRings/R/cryptoKeys/K"
        raise flag_error("--kms-key", "the key's name is incomplete", hint)
    owner = owner or project or mark("PROJECT")
    return f"projects/{owner}/locations/{location}/keyRings/{ring}/cryptoKeys/{key}"


# --- gcloud ai-platform jobs submit training ---------------------------------------------------------------


def _training(invocation: Invocation, request: ImportedRequest) -> None:
    given = request.body.setdefault("trainingInput", {})
    if given.pop("packageUris", None) is not None:
        request.notes.append("gcloud drops the config file's packageUris")
    if given.pop("enableWebAccess", None) and not invocation.has("--enable-web-access"):
        request.notes.append("gcloud overwrites the config file's enableWebAccess with false")
    tier = invocation.get("--scale-tier", "") or given.get("scaleTier")
    # The file's CUSTOM passes; gcloud compares its flag's own spelling.
    is_custom = invocation.get("--scale-tier") == "CUSTOM" or tier == "custom"
    if is_custom and not invocation.has("--master-machine-type"):
        raise flag_error("--master-machine-type", "is missing with --scale-tier=custom", "add it")
    stored, local = _packages(invocation)
    path = invocation.get("--package-path", "")
    has_image = invocation.has("--master-image-uri") or _image_of(given)
    if not (stored or local or path or has_image or invocation.unknown):
        message = "is missing: a job without an image of its own needs packages"
        raise flag_error("--packages", message, "add --packages or --package-path")
    if (local or path) and not (invocation.has("--staging-bucket") or invocation.has("--job-dir")):
        hint = "add --staging-bucket or --job-dir"
        raise flag_error("--staging-bucket", "is missing: local packages need a bucket", hint)
    if stored:
        given["packageUris"] = stored
    if local or path:
        request.code = Code(path, is_package=True, archives=tuple(local))
    if invocation.arguments is not None:
        given.pop("args", None)
        if invocation.arguments:
            given["args"] = invocation.arguments


def _packages(invocation: Invocation) -> tuple[list[str], list[str]]:
    """Return the packages in Cloud Storage, and those on disk."""
    packages = invocation.get("--packages", [])
    stored = [package for package in packages if is_mark(package) or _STORED.match(package)]
    return stored, [package for package in packages if package not in stored]


def _image_of(training_input: Json) -> Any:
    master = training_input.get("masterConfig")
    return master.get("imageUri") if isinstance(master, dict) else None


# --- gcloud ai custom-jobs create --------------------------------------------------------------------------


def _custom_job(invocation: Invocation, request: ImportedRequest) -> None:
    if not (invocation.has("--config") or invocation.has(_POOLS) or invocation.unknown):
        raise flag_error(_POOLS, "is missing, and so is --config", "add one of the two")
    spec = request.body.setdefault("jobSpec", {})
    if "jobSpec" in spec:
        hint = "write only what is below jobSpec into the file"
        raise flag_error("--config", 'the file is a whole CustomJob: gcloud would send "jobSpec" twice', hint)
    if "worker_pool_specs" in spec:
        message = 'gcloud sends "worker_pool_specs" as an unknown field, and no pool'
        raise flag_error("--config", message, "write workerPoolSpecs, and all fields below it in camelCase")
    if invocation.has(_POOLS):
        spec["workerPoolSpecs"] = _pools(invocation, request)
    pools = spec.get("workerPoolSpecs")
    pools = [pools] if isinstance(pools, dict) else pools
    if not invocation.has(_POOLS):
        _check_pools(pools)
    packages = invocation.get("--python-package-uris", []) if invocation.has(_POOLS) else []
    for pool in pools if isinstance(pools, list) else []:
        _add_arguments(invocation, pool, packages)


def _check_pools(pools: Any) -> None:
    for pool in pools if isinstance(pools, list) else []:
        if not isinstance(pool, dict):
            continue
        container = pool.get("containerSpec")
        image = container.get("imageUri") if isinstance(container, dict) else None
        if bool(image) == bool(pool.get("pythonPackageSpec")):
            message = "each pool needs exactly one of containerSpec.imageUri and pythonPackageSpec"
            raise flag_error("--config", message, "write one of the two, in camelCase")


def _add_arguments(invocation: Invocation, pool: Any, packages: list[str]) -> None:
    """Give a pool the packages, arguments and command that count for all pools."""
    if not isinstance(pool, dict):
        return
    container, package = pool.get("containerSpec"), pool.get("pythonPackageSpec")
    if packages and isinstance(package, dict):
        package["packageUris"] = packages
    for task in (container, package):
        if isinstance(task, dict) and invocation.get("--args"):
            task["args"] = invocation.get("--args")
    if isinstance(container, dict) and invocation.get("--command"):
        container["command"] = invocation.get("--command")


def _pools(invocation: Invocation, request: ImportedRequest) -> list[Json]:
    given = invocation.get(_POOLS)
    if not given[0]:
        raise flag_error(_POOLS, "the first pool is empty", "write machine-type=…,container-image-uri=…")
    built = _built(given, invocation, request)
    pools: list[Json] = []
    for number, pool in enumerate(given):
        if not pool:
            pools.append({})
            continue
        if built is None:
            _check_task(pool)
        elif number and {"container-image-uri", "executor-image-uri", *POOL_BUILD_KEYS} & pool.keys():
            raise flag_error(
                _POOLS, "only the first pool names the image or the package", "write machine-type=… alone"
            )
        elif number and "local-package-path" in pool:
            raise flag_error(_POOLS, "local-package-path is only for the first pool", "move it there")
        pools.append({**_machine(pool), **(deepcopy(built) if built is not None else _task(pool))})
    return pools


def _check_task(pool: Json) -> None:
    """Refuse a pool whose keys don't fit together."""
    if "local-package-path" in pool:
        raise flag_error(_POOLS, "local-package-path is only for the first pool", "move it there")
    for key in POOL_BUILD_KEYS:
        if key in pool:
            raise flag_error(
                _POOLS, f"{key} goes only with local-package-path in the first pool", "remove it"
            )
    if ("container-image-uri" in pool) == ("executor-image-uri" in pool):
        hint = "an executor image also needs python-module"
        raise flag_error(_POOLS, "needs exactly one of container-image-uri and executor-image-uri", hint)
    if "container-image-uri" in pool and "python-module" in pool:
        raise flag_error(_POOLS, "python-module goes only with executor-image-uri", "remove one of the two")
    if "executor-image-uri" in pool and "python-module" not in pool:
        raise flag_error(_POOLS, "python-module is missing", "add python-module=PACKAGE.MODULE")


def _machine(pool: Json) -> Json:
    if "machine-type" not in pool:
        raise flag_error(_POOLS, "machine-type is missing", "add machine-type=n1-standard-4, or another")
    accelerator = pool.get("accelerator-type")
    if accelerator is None and "accelerator-count" in pool:
        raise flag_error(_POOLS, "accelerator-type is missing", "add it, or remove accelerator-count")
    if accelerator is not None and not is_marked(accelerator) and accelerator not in POOL_ACCELERATORS:
        upper = accelerator.upper().replace("-", "_")
        hint = f"write {upper}" if upper in POOL_ACCELERATORS else "write for example NVIDIA_TESLA_T4"
        raise flag_error(_POOLS, f"{quoted(accelerator)} is not a valid accelerator-type", hint)
    made: Json = {}
    numbered = {"replica-count": 1, **({"accelerator-count": 1} if accelerator else {}), **pool}
    for key in ("machine-type", "accelerator-type", "accelerator-count", "replica-count"):
        if key in numbered:
            value = numbered[key]
            is_int64 = key == "replica-count" and not is_marked(value)
            _put(made, POOL_KEYS[key], str(value) if is_int64 else value, _POOLS)
    return made


def _task(pool: Json) -> Json:
    made: Json = {}
    for key in ("container-image-uri", "executor-image-uri", "python-module"):
        if key in pool:
            _put(made, POOL_KEYS[key], pool[key], _POOLS)
    return made


def _built(pools: list[Json], invocation: Invocation, request: ImportedRequest) -> Json | None:
    """Return the task of a job whose image gcloud would build of local code; None for any other job."""
    first = pools[0]
    if "local-package-path" not in first:
        return None
    if "executor-image-uri" not in first or "container-image-uri" in first:
        raise flag_error(_POOLS, "executor-image-uri is missing with local-package-path", "add it")
    if ("script" in first) == ("python-module" in first):
        hint = "remove one, or add one"
        raise flag_error(
            _POOLS, "needs exactly one of python-module and script with local-package-path", hint
        )
    image = first.get("output-image-uri", "")
    if image:
        _check_image(image)
    for key in ("requirements", "extra-packages", "extra-dirs"):
        if first.get(key):
            request.notes.append(f"{key} ({first[key]}) is left out: list it in the code's requirements.txt")
    script = first.get("script", "")
    if script and not is_marked(script) and not _MODULE.fullmatch(script):
        request.notes.append(
            f"The image is not built: gcloud built it to run {script} in {first['local-package-path']}"
        )
        return {"containerSpec": {"imageUri": image or mark("IMAGE")}}
    module = first.get("python-module") or script.removesuffix(".py").replace("/", ".")
    module = mark("PYTHON_MODULE") if is_marked(script) else module
    request.code = Code(first["local-package-path"], module=module)
    request.notes.append("The code is staged as a package; gcloud built an image of it")
    return {"pythonPackageSpec": {"executorImageUri": first["executor-image-uri"], "pythonModule": module}}


def _check_image(image: str) -> None:
    if is_marked(image):
        return
    host, _, path = image.partition("/")
    name, _, tag = path.partition(":")
    parts = name.split("/")
    if not _REGISTRY.fullmatch(host) or not all(map(_IMAGE_PART.fullmatch, parts)):
        hint = "write HOST.gcr.io/… or REGION-docker.pkg.dev/…, in lower case"
        raise flag_error(_POOLS, f"{quoted(image)} is not a valid output-image-uri", hint)
    if tag and not _IMAGE_TAG.fullmatch(tag):
        raise flag_error(_POOLS, f"{quoted(tag)} is not a valid tag of output-image-uri", "correct it")


# --- gcloud ai hp-tuning-jobs create -----------------------------------------------------------------------


def _tuning_job(invocation: Invocation, request: ImportedRequest) -> None:
    body = request.body
    if not body:
        raise flag_error("--config", "the file is empty", "write studySpec and trialJobSpec into it")
    for flag in invocation.command.flags:
        root = flag.field.partition(".")[0]
        if invocation.has(flag.name) and root == "trialJobSpec" and not body.get(root):
            raise flag_error(flag.name, f'the config file has no "{root}"', f"add {root} to the file")
    if invocation.has("--algorithm") and not body.get("studySpec"):
        invocation.values.pop("--algorithm")
        request.notes.append("gcloud ignores --algorithm without a studySpec")
    for name in ("maxTrialCount", "parallelTrialCount"):
        if not body.get(name):
            body[name] = 1
