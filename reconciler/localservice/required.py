"""What the services refuse at once when a job is created: missing fields, and values of the wrong form.

Vertex AI: the "Required." of the discovery document and of the fields' pages. AI Platform: the same.
Every mistake is (path of the field, sentence).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from reconciler.localservice.launch import seconds
from reconciler.localservice.records import Json
from reconciler.localservice.tuning import checks
from reconciler.localservice.wire import snake

Mistake = tuple[str, str]
Message = Mapping[str, Json]

_NOT_SET = "Required field is not set."
_LABEL = re.compile(r"[\w-]{0,64}")
_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_MAX_PACKAGES = 100
_MAX_VARIABLES = 100
_MAX_LABELS = 64
_MAX_POOLS = 4
_LEAST_WAIT = 1800.0
_ML_POOLS = ("worker", "parameterServer", "evaluator")
_OWN_COMMAND = ("containerCommand", "containerArgs")


def custom_job(job: Message) -> Iterator[Mistake]:
    """A new customJobs resource."""
    yield from _resource(job)
    yield from _job_spec(job.get("jobSpec", {}), "job_spec")


def tuning_job(job: Message) -> Iterator[Mistake]:
    """A new hyperparameterTuningJobs resource."""
    yield from _resource(job)
    yield from checks.study_spec(job.get("studySpec", {}), "study_spec")
    yield from (
        (snake(name), "Must be greater than zero.")
        for name in ("maxTrialCount", "parallelTrialCount")
        if job.get(name, 0) < 1
    )
    if job.get("maxFailedTrialCount", 0) < 0:
        yield "max_failed_trial_count", "Must not be negative."
    yield from _job_spec(job.get("trialJobSpec", {}), "trial_job_spec")


def ml_job(job: Message) -> Iterator[Mistake]:
    """A new projects.jobs resource."""
    if not _JOB_ID.fullmatch(job.get("jobId", "")):
        yield "job_id", f"A job id must match ^{_JOB_ID.pattern}$."
    yield from _labels(job.get("labels", {}))
    if "trainingInput" in job:
        yield from _training_input(job["trainingInput"])
    else:
        yield "training_input", _NOT_SET


def labels(job: Message) -> Iterator[Mistake]:
    """The labels of any resource."""
    yield from _labels(job.get("labels", {}))


def _resource(job: Message) -> Iterator[Mistake]:
    yield from _missing(job, "", "displayName")
    if len(job.get("displayName", "")) > 128:
        yield "display_name", "A display name has at most 128 characters."
    yield from _labels(job.get("labels", {}))


def _labels(found: Mapping[str, str]) -> Iterator[Mistake]:
    if len(found) > _MAX_LABELS:
        yield "labels", f"At most {_MAX_LABELS} labels."
    for key, value in found.items():
        if not key or not _is_label(key) or not _is_label(value):
            yield (
                f"labels.{key}",
                "Label keys and values have at most 64 characters: lower-case letters, digits, '_' and '-'.",
            )


def _is_label(text: str) -> bool:
    return text == text.lower() and _LABEL.fullmatch(text) is not None


def _job_spec(spec: Message, path: str) -> Iterator[Mistake]:
    pools = spec.get("workerPoolSpecs", [])
    yield from _missing(spec, path + ".", "workerPoolSpecs")
    if len(pools) > _MAX_POOLS:
        yield f"{path}.worker_pool_specs", f"At most {_MAX_POOLS} worker pools."
    for index, pool in enumerate(pools):
        # Only the first may not be left empty: the others' places say what they are for.
        if index == 0 or pool:
            yield from _pool(pool, f"{path}.worker_pool_specs[{index}]")
    if pools and pools[0].get("replicaCount", "1") != "1":
        yield f"{path}.worker_pool_specs[0].replica_count", "The first worker pool has exactly one replica."
    yield from _durations(spec.get("scheduling", {}), f"{path}.scheduling", "timeout", "maxWaitDuration")
    prefix = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "gs://")
    if not prefix.startswith("gs://"):
        yield f"{path}.base_output_directory.output_uri_prefix", "A Cloud Storage URI begins with gs://."


def _pool(pool: Message, path: str) -> Iterator[Mistake]:
    yield from _missing(pool.get("machineSpec", {}), f"{path}.machine_spec.", "machineType")
    tasks = [name for name in ("containerSpec", "pythonPackageSpec") if name in pool]
    if len(tasks) != 1:
        yield f"{path}.task", "Exactly one of container_spec and python_package_spec must be set."
    if "containerSpec" in pool:
        yield from _missing(pool["containerSpec"], f"{path}.container_spec.", "imageUri")
        yield from _variables(pool["containerSpec"], f"{path}.container_spec.env")
    if "pythonPackageSpec" in pool:
        yield from _python_package(pool["pythonPackageSpec"], f"{path}.python_package_spec")


def _python_package(spec: Message, path: str) -> Iterator[Mistake]:
    yield from _missing(spec, path + ".", "executorImageUri", "packageUris", "pythonModule")
    yield from _packages(spec, f"{path}.package_uris")
    yield from _variables(spec, f"{path}.env")


def _packages(spec: Message, path: str) -> Iterator[Mistake]:
    found = spec.get("packageUris", [])
    if len(found) > _MAX_PACKAGES:
        yield path, f"At most {_MAX_PACKAGES} packages."
    for index, uri in enumerate(found):
        if not uri.startswith("gs://"):
            yield f"{path}[{index}]", "A Cloud Storage URI begins with gs://."


def _variables(spec: Message, path: str) -> Iterator[Mistake]:
    found = spec.get("env", [])
    if len(found) > _MAX_VARIABLES:
        yield path, f"At most {_MAX_VARIABLES} environment variables."
    yield from _each(found, path, ("name",))


def _training_input(given: Message) -> Iterator[Mistake]:
    path = "training_input"
    yield from _missing(given, path + ".", "region", "scaleTier")
    if given.get("scaleTier") == "CUSTOM":
        yield from _missing(given, path + ".", "masterType")
    if not given.get("masterConfig", {}).get("imageUri"):
        yield from _missing(given, path + ".", "packageUris", "pythonModule", "runtimeVersion")
    yield from _packages(given, f"{path}.package_uris")
    yield from _ml_pools(given, path)
    yield from _ml_commands(given, path)
    scheduling = given.get("scheduling", {})
    yield from _durations(scheduling, f"{path}.scheduling", "maxRunningTime", "maxWaitTime")
    if 0 <= seconds(scheduling.get("maxWaitTime", "1800s")) < _LEAST_WAIT:
        yield f"{path}.scheduling.max_wait_time", "Must be at least 1800s."
    if "hyperparameters" in given:
        yield from checks.hyperparameters(given["hyperparameters"], f"{path}.hyperparameters")
    if "jobDir" in given and not given["jobDir"].startswith("gs://"):
        yield f"{path}.job_dir", "A Cloud Storage URI begins with gs://."


def _ml_pools(given: Message, path: str) -> Iterator[Mistake]:
    for role in _ML_POOLS:
        count, machine = int(given.get(f"{role}Count", 0)), given.get(f"{role}Type", "")
        told = f"{path}.{snake(role)}"
        if count < 0:
            yield f"{told}_count", "Must not be negative."
        if given.get("scaleTier") != "CUSTOM":
            yield from (
                (f"{told}_{name}", "Only with the scale tier CUSTOM.")
                for name, value in (("count", count), ("type", machine))
                if value
            )
        elif count > 0 and not machine:
            yield f"{told}_type", f"Required field is not set, as there is a {snake(role)}_count."


def _ml_commands(given: Message, path: str) -> Iterator[Mistake]:
    image = given.get("masterConfig", {}).get("imageUri")
    for role in ("master", *_ML_POOLS):
        config = given.get(f"{role}Config", {})
        for name in _OWN_COMMAND:
            if not config.get(name):
                continue
            told = f"{path}.{snake(role)}_config.{snake(name)}"
            if not (config.get("imageUri") or image):  # the master's is the others' too
                yield told, "Only with an image_uri."
            if given.get("args"):
                yield told, "Must not be set together with training_input.args."


def _durations(spec: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from (
        (f"{path}.{snake(name)}", "Must not be negative.")
        for name in names
        if seconds(spec.get(name, "0s")) < 0
    )


def _each(items: Sequence[Message], path: str, names: Sequence[str]) -> Iterator[Mistake]:
    for index, item in enumerate(items):
        yield from _missing(item, f"{path}[{index}].", *names)


def _missing(message: Message, path: str, *names: str) -> Iterator[Mistake]:
    yield from ((path + snake(name), _NOT_SET) for name in names if not message.get(name))
