"""Validation of jobs in requests, for Vertex AI and AI Platform Training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from reconciler.training_service.http.json_mapping import snake
from reconciler.training_service.jobs.launch import seconds
from reconciler.training_service.state.models import RESOURCE
from reconciler.training_service.tuning import checks
from reconciler.training_service.tuning.checks import NOT_SET, Message, Mistake

_LABEL = re.compile(r"[\w-]{0,64}")
# An image's name alone: no flag of an engine, no address, no place of the engine's own.
_IMAGE = re.compile(
    r"(?!(?:containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball):)"
    r"[A-Za-z0-9\[](?:[A-Za-z0-9._@+\[\]-]|/(?!/)|:(?!/))*"
)
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_MODEL_ID = re.compile(r"(?:[a-z_][a-z0-9_-]{0,62})?")
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_MAX_PACKAGES = 100
_MAX_VARIABLES = 100
_MAX_LABELS = 64
_MAX_POOLS = 4
_MIN_WAIT = 1800.0
_ML_POOLS = ("worker", "parameterServer", "evaluator")


def custom_job_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes of a new customJobs resource."""
    yield from resource_mistakes(job)
    yield from _job_spec(job.get("jobSpec", {}), "job_spec")


def tuning_job_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes of a new hyperparameterTuningJobs resource."""
    yield from resource_mistakes(job)
    yield from checks.study_spec(job.get("studySpec", {}), "study_spec")
    yield from (
        (snake(name), "Must be greater than zero.")
        for name in ("maxTrialCount", "parallelTrialCount")
        if job.get(name, 0) < 1
    )
    if job.get("maxFailedTrialCount", 0) < 0:
        yield "max_failed_trial_count", "Must not be negative."
    yield from _job_spec(job.get("trialJobSpec", {}), "trial_job_spec")


def ml_job_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes of a new projects.jobs resource."""
    if not _JOB_ID.fullmatch(job.get("jobId", "")):
        yield "job_id", f"A job id must match ^{_JOB_ID.pattern}$."
    yield from label_mistakes(job)
    if "trainingInput" in job:
        yield from _training_input(job["trainingInput"])
    else:
        yield "training_input", NOT_SET


def resource_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes in the display name and the labels of a resource of Vertex AI."""
    yield from _unset(job, "", "displayName")
    if len(job.get("displayName", "")) > 128:
        yield "display_name", "A display name has at most 128 characters."
    yield from label_mistakes(job)


def label_mistakes(job: Message) -> Iterator[Mistake]:
    """Yield the mistakes in the labels of any resource."""
    labels = job.get("labels", {})
    if len(labels) > _MAX_LABELS:
        yield "labels", f"At most {_MAX_LABELS} labels."
    for key, value in labels.items():
        if not key or not _is_label(key) or not _is_label(value):
            yield (
                f"labels.{key}",
                "Label keys and values have at most 64 characters: lower-case letters, digits, '_' and '-'.",
            )


def registration_mistakes(request: Message, name: str) -> Iterator[Mistake]:
    """Yield the mistakes of a request that registers a version of a model.

    Args:
        request: An UploadModelRequest, or a TrainingPipeline.
        name: The name of the request's field with the new Model.
    """
    model, path = request.get(name, {}), snake(name)
    yield from ((f"{path}.{field}", text) for field, text in resource_mistakes(model))
    if not model.get("artifactUri", "gs://").startswith("gs://"):
        yield f"{path}.artifact_uri", "A Cloud Storage URI begins with gs://."
    yield from alias_mistakes(model.get("versionAliases", []), f"{path}.version_aliases")
    if "containerSpec" in model:
        yield from _unset(model["containerSpec"], f"{path}.container_spec.", "imageUri")
        yield from _image(model["containerSpec"], "imageUri", f"{path}.container_spec")
        yield from _variables(model["containerSpec"], f"{path}.container_spec.env")
    if not _MODEL_ID.fullmatch(request.get("modelId", "")):
        text = "At most 63 characters: lower-case letters, digits, '_' and '-'; no digit or '-' first."
        yield "model_id", text
    if request.get("parentModel") and not RESOURCE.fullmatch(request["parentModel"]):
        yield "parent_model", "Must be the name of a model: projects/PROJECT/locations/LOCATION/models/MODEL."


def alias_mistakes(aliases: Sequence[str], path: str) -> Iterator[Mistake]:
    """Yield the mistakes in the aliases of a model's version."""
    for index, alias in enumerate(aliases):
        if not _ALIAS.fullmatch(alias):
            text = "An alias has 2 to 128 characters: letters, digits and '-'; a lower-case letter first,"
            yield f"{path}[{index}]", f"{text} a lower-case letter or a digit last."


def _is_label(text: str) -> bool:
    return text == text.lower() and _LABEL.fullmatch(text) is not None


def _job_spec(spec: Message, path: str) -> Iterator[Mistake]:
    pools = spec.get("workerPoolSpecs", [])
    yield from _unset(spec, path + ".", "workerPoolSpecs")
    if len(pools) > _MAX_POOLS:
        yield f"{path}.worker_pool_specs", f"At most {_MAX_POOLS} worker pools."
    for index, pool in enumerate(pools):
        # A pool's position is its role, so pools other than the first may be empty placeholders.
        if index == 0 or pool:
            yield from _pool(pool, f"{path}.worker_pool_specs[{index}]")
    if pools and pools[0].get("replicaCount", "1") != "1":
        yield f"{path}.worker_pool_specs[0].replica_count", "The first worker pool has exactly one replica."
    yield from _durations(spec.get("scheduling", {}), f"{path}.scheduling", "timeout", "maxWaitDuration")
    if spec.get("tensorboard") and not spec.get("serviceAccount"):
        # Google's words, as in https://github.com/kubeflow/pipelines/issues/7123.
        yield f"{path}.service_account", "must be specified when uploading to TensorBoard"
    prefix = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "gs://")
    if not prefix.startswith("gs://"):
        yield f"{path}.base_output_directory.output_uri_prefix", "A Cloud Storage URI begins with gs://."


def _pool(pool: Message, path: str) -> Iterator[Mistake]:
    yield from _unset(pool.get("machineSpec", {}), f"{path}.machine_spec.", "machineType")
    tasks = [name for name in ("containerSpec", "pythonPackageSpec") if name in pool]
    if len(tasks) != 1:
        yield f"{path}.task", "Exactly one of container_spec and python_package_spec must be set."
    if "containerSpec" in pool:
        yield from _unset(pool["containerSpec"], f"{path}.container_spec.", "imageUri")
        yield from _image(pool["containerSpec"], "imageUri", f"{path}.container_spec")
        yield from _variables(pool["containerSpec"], f"{path}.container_spec.env")
    if "pythonPackageSpec" in pool:
        yield from _python_package(pool["pythonPackageSpec"], f"{path}.python_package_spec")


def _python_package(spec: Message, path: str) -> Iterator[Mistake]:
    yield from _unset(spec, path + ".", "executorImageUri", "packageUris", "pythonModule")
    yield from _image(spec, "executorImageUri", path)
    yield from _packages(spec, f"{path}.package_uris")
    yield from _variables(spec, f"{path}.env")


def _image(spec: Message, name: str, path: str) -> Iterator[Mistake]:
    image = spec.get(name, "")
    if image and not _IMAGE.fullmatch(image):
        yield (
            f"{path}.{snake(name)}",
            "Must be the name of an image alone: HOST/PROJECT/REPOSITORY/IMAGE:TAG.",
        )


def _packages(spec: Message, path: str) -> Iterator[Mistake]:
    uris = spec.get("packageUris", [])
    if len(uris) > _MAX_PACKAGES:
        yield path, f"At most {_MAX_PACKAGES} packages."
    for index, uri in enumerate(uris):
        if not uri.startswith("gs://"):
            yield f"{path}[{index}]", "A Cloud Storage URI begins with gs://."


def _variables(spec: Message, path: str) -> Iterator[Mistake]:
    variables = spec.get("env", [])
    if len(variables) > _MAX_VARIABLES:
        yield path, f"At most {_MAX_VARIABLES} environment variables."
    for index, variable in enumerate(variables):
        yield from _unset(variable, f"{path}[{index}].", "name")


def _training_input(given: Message) -> Iterator[Mistake]:
    path = "training_input"
    yield from _unset(given, path + ".", "region")
    if given.get("scaleTier") == "CUSTOM":
        yield from _unset(given, path + ".", "masterType")
    if not given.get("masterConfig", {}).get("imageUri"):
        yield from _unset(given, path + ".", "packageUris", "pythonModule", "runtimeVersion")
    yield from _packages(given, f"{path}.package_uris")
    yield from _ml_pools(given, path)
    yield from _ml_commands(given, path)
    scheduling = given.get("scheduling", {})
    yield from _durations(scheduling, f"{path}.scheduling", "maxRunningTime", "maxWaitTime")
    if 0 <= seconds(scheduling.get("maxWaitTime", "1800s")) < _MIN_WAIT:
        yield f"{path}.scheduling.max_wait_time", "Must be at least 1800s."
    if "hyperparameters" in given:
        yield from checks.hyperparameters(given["hyperparameters"], f"{path}.hyperparameters")
    if "jobDir" in given and not given["jobDir"].startswith("gs://"):
        yield f"{path}.job_dir", "A Cloud Storage URI begins with gs://."


def _ml_pools(given: Message, path: str) -> Iterator[Mistake]:
    for role in _ML_POOLS:
        count, machine = int(given.get(f"{role}Count", 0)), given.get(f"{role}Type", "")
        field = f"{path}.{snake(role)}"
        if count < 0:
            yield f"{field}_count", "Must not be negative."
        if given.get("scaleTier") != "CUSTOM":
            yield from (
                (f"{field}_{name}", "Only with the scale tier CUSTOM.")
                for name, value in (("count", count), ("type", machine))
                if value
            )
        elif count > 0 and not machine:
            yield f"{field}_type", f"Required field is not set, as there is a {snake(role)}_count."


def _ml_commands(given: Message, path: str) -> Iterator[Mistake]:
    image = given.get("masterConfig", {}).get("imageUri")
    for role in ("master", *_ML_POOLS):
        config = given.get(f"{role}Config", {})
        yield from _image(config, "imageUri", f"{path}.{snake(role)}_config")
        for name in ("containerCommand", "containerArgs"):
            if not config.get(name):
                continue
            field = f"{path}.{snake(role)}_config.{snake(name)}"
            if not (config.get("imageUri") or image):  # the master's image is every role's default
                yield field, "Only with an image_uri."
            if given.get("args"):
                yield field, "Must not be set together with training_input.args."


def _durations(spec: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from (
        (f"{path}.{snake(name)}", "Must not be negative.")
        for name in names
        if seconds(spec.get(name, "0s")) < 0
    )


def _unset(message: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from ((path + snake(name), NOT_SET) for name in names if not message.get(name))
