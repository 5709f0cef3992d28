"""From a job as it was sent to what is run for it: the module, its arguments and its environment variables.

Nothing here touches the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reconciler.localservice import variables
from reconciler.localservice.codes import Code
from reconciler.localservice.frameworks import find_image, find_override, how_to_override
from reconciler.localservice.machines import cpus_of, has_tpu
from reconciler.localservice.records import CUSTOM_JOBS, ML_JOBS, JobRecord, JsonObject, number_of
from reconciler.localservice.run_spec import RunSpec

_WEEK = "604800s"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Here:
    """What the job finds on this machine.

    Attributes:
        storage_url: Cloud Storage's API for this job alone.
        buckets: The folder of the buckets' folders, absolute.
        cpus: How many this machine has.
        port: A free one on loopback, for what the replicas say to each other.
    """

    storage_url: str
    buckets: Path
    cpus: int
    port: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job can't run here: the google.rpc.Status that it fails with."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class _Task:
    """What both APIs say of a job's only replica, in one form."""

    replica: str
    module: str
    args: tuple[str, ...]
    packages: tuple[str, ...]
    image: str
    machine_type: str
    accelerator: str
    outputs: tuple[str, ...]
    time_limit: str
    time_limit_field: str
    python: str = ""
    env: tuple[tuple[str, str], ...] = ()
    cloud_env: Mapping[str, str] = field(default_factory=dict)


def launch(job: JobRecord, here: Here) -> RunSpec | Refusal:
    """What to run for this job, or why nothing can be run for it."""
    if job.collection == CUSTOM_JOBS:
        task = _custom_job(job, here)
    elif job.collection == ML_JOBS:
        task = _ml_job(job, here)
    else:
        return _not_here("hyper-parameter tuning")
    if isinstance(task, Refusal):
        return task
    return _missing(task, job.images) or _spec(job, task, here)


def max_wait(job: JobRecord) -> float | None:
    """Seconds that a job may wait until it is RUNNING, None where it may wait for ever."""
    text = job.body.get("trainingInput", {}).get("scheduling", {}).get("maxWaitTime")
    return None if text is None else seconds(text)


def may_be_retried(job: JobRecord) -> bool:
    """Whether a run that was lost with its machine is started again."""
    return not job.body.get("jobSpec", {}).get("scheduling", {}).get("disableRetries", False)


def seconds(duration: str) -> float:
    """The seconds in a google.protobuf.Duration such as `3600s`."""
    return float(duration.removesuffix("s"))


def _not_here(what: str) -> Refusal:
    return Refusal(Code.UNIMPLEMENTED, f"The embedded training service doesn't run {what}.")


_SEVERAL = "jobs of several replicas"
_CONTAINERS = "containers: give the job a pythonPackageSpec instead"
_TPUS = "jobs on TPUs: this machine has none"


def _custom_job(job: JobRecord, here: Here) -> _Task | Refusal:
    spec: JsonObject = job.body.get("jobSpec", {})
    first, *others = [dict(pool) for pool in spec.get("workerPoolSpecs", [])] or [{}]
    package = first.get("pythonPackageSpec")
    machine = first.get("machineSpec", {})
    if (
        any(int(pool.get("replicaCount", 1)) for pool in others if pool)
        or int(first.get("replicaCount", 1)) > 1
    ):
        return _not_here(_SEVERAL)
    if package is None:
        return _not_here(_CONTAINERS)
    if has_tpu(machine.get("machineType", ""), machine.get("acceleratorType", "")):
        return _not_here(_TPUS)
    output = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")
    return _Task(
        replica="workerpool0-0",
        module=package.get("pythonModule", ""),
        args=tuple(package.get("args", ())),
        packages=tuple(package.get("packageUris", ())),
        image=package.get("executorImageUri", ""),
        machine_type=machine.get("machineType", ""),
        accelerator=machine.get("acceleratorType", ""),
        outputs=(output,),
        time_limit=spec.get("scheduling", {}).get("timeout", _WEEK),
        time_limit_field="scheduling.timeout",
        env=tuple((entry["name"], entry.get("value", "")) for entry in package.get("env", ())),
        cloud_env={
            **variables.output_folders(output),
            "CLOUD_ML_REGION": job.location,
            "CLUSTER_SPEC": variables.cluster_spec(spec, here.port),
        },
    )


def _ml_job(job: JobRecord, here: Here) -> _Task | Refusal:
    given: JsonObject = job.body.get("trainingInput", {})
    master = given.get("masterConfig", {})
    accelerator = master.get("acceleratorConfig", {}).get("type", "")
    tier = given.get("scaleTier", "BASIC")
    refused = _refusal_of_ml(given, tier, master)
    if refused is not None:
        return refused
    machine, accelerator = _ML_TIERS.get(tier, (given.get("masterType", ""), accelerator))
    if has_tpu(machine, accelerator):
        return _not_here(_TPUS)
    job_dir = given.get("jobDir", "")
    runtime = given.get("runtimeVersion", "")
    return _Task(
        replica="master 0",
        module=given.get("pythonModule", ""),
        args=(*given.get("args", ()), *(("--job-dir", job_dir) if job_dir else ())),
        packages=tuple(given.get("packageUris", ())),
        image=runtime,
        machine_type=machine,
        accelerator=accelerator,
        outputs=(job_dir,),
        time_limit=given.get("scheduling", {}).get("maxRunningTime", _WEEK),
        time_limit_field="scheduling.maxRunningTime",
        python=given.get("pythonVersion", ""),
        cloud_env={
            "CLOUD_ML_REGION": given.get("region", ""),
            "TF_CONFIG": variables.tf_config(given, here.port),
        },
    )


# The tiers of one machine that name it themselves: machine, accelerator.
_ML_TIERS = {
    "BASIC": ("n1-standard-4", ""),
    "BASIC_GPU": ("n1-standard-8", "NVIDIA_TESLA_K80"),
    "BASIC_TPU": ("cloud_tpu", ""),
}


def _refusal_of_ml(given: JsonObject, tier: str, master: JsonObject) -> Refusal | None:
    counts = ("workerCount", "parameterServerCount", "evaluatorCount")
    if "hyperparameters" in given:
        return _not_here("hyper-parameter tuning")
    if tier in ("STANDARD_1", "PREMIUM_1") or any(int(given.get(name, 0)) for name in counts):
        return _not_here(_SEVERAL)
    if master.get("imageUri"):
        return _not_here("containers: give the job a runtimeVersion instead of masterConfig.imageUri")
    return None


def _missing(task: _Task, images: Mapping[str, Any]) -> Refusal | None:
    if not task.module:
        return Refusal(Code.INVALID_ARGUMENT, "The job names no pythonModule to run.")
    if not task.image:
        return Refusal(
            Code.INVALID_ARGUMENT, "The job names no executorImageUri or runtimeVersion to run in."
        )
    for name, value in task.env:
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            message = f"The environment variable {name!r} has a name or a value that none can have."
            return Refusal(Code.INVALID_ARGUMENT, message)
    if find_image(task.image) is None and find_override(task.image, images) is None:
        return Refusal(
            Code.UNIMPLEMENTED,
            f"The embedded training service doesn't know {task.image}. "
            f"Say in reconciler.yaml what to run it as: {how_to_override(task.image)}",
        )
    return None


def _spec(job: JobRecord, task: _Task, here: Here) -> RunSpec:
    override = find_override(task.image, job.images)
    cpus = min(here.cpus, cpus_of(task.machine_type) or here.cpus)
    env = {
        "CLOUD_ML_PROJECT_ID": number_of(job.project),
        "CLOUD_ML_JOB_ID": job.job_id,
        "CLOUD_ML_JOB": variables.told_job(task.module, task.packages, task.args),
        **variables.for_pytorch(here.port),
        "OMP_NUM_THREADS": str(cpus),
        "STORAGE_EMULATOR_HOST": here.storage_url,
        "RECONCILER_GCS_DIR": str(here.buckets),
        **task.cloud_env,
    }
    return RunSpec(
        replica=task.replica,
        image=task.image,
        override=None if override is None else asdict(override),
        python=task.python,
        packages=task.packages,
        module=task.module,
        args=task.args,
        env=variables.with_users(env, task.env),
        output_buckets=tuple(bucket for uri in task.outputs if (bucket := bucket_of(uri))),
        time_limit=seconds(task.time_limit),
        time_limit_field=task.time_limit_field,
        warnings=_warnings(task),
    )


def _warnings(task: _Task) -> tuple[str, ...]:
    image = find_image(task.image)
    if not task.accelerator and not (image and image.on_accelerators):
        return ()
    what = task.accelerator or f"The image {task.image}"
    return (f"{what} asks for accelerators: the job runs on the CPU here.",)


def bucket_of(uri: str) -> str:
    """The bucket in a gs:// URI, "" where there is none."""
    match = re.match(r"gs://([^/]+)", uri)
    return match[1] if match else ""
