"""From a job as it was sent to what is run for it: programs, their arguments and their environment variables.

Nothing here touches the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reconciler.training_service.http import auth
from reconciler.training_service.jobs import environment_variables, metadata_server
from reconciler.training_service.jobs.cluster import Pool, Replica, job_spec_of, pools_of, replicas_of
from reconciler.training_service.jobs.images import find_image, find_override, how_to_override
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.state.records import (
    ML_JOBS,
    Code,
    JobRecord,
    JsonObject,
    TrialRecord,
    number_of,
)
from reconciler.training_service.state.run_folder import ContainerTask, PythonTask, ReplicaSpec, RunSpec
from reconciler.training_service.tuning.study import DEFAULT_TAG, as_argument


def dealt(replicas: Sequence[Replica], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """Each replica's GPUs: as many as it asks for, else equal shares.

    Where there isn't one for each, none gets any: replicas that work together have to be alike.
    """
    wanted = [replica.pool.gpus for replica in replicas]
    if sum(wanted) > len(gpus):
        share = len(gpus) // sum(number > 0 for number in wanted)
        wanted = [min(number, share) for number in wanted]
    left = iter(gpus)
    return [tuple(next(left) for _ in range(number)) for number in wanted]


def warnings(pools: Sequence[Pool], gpus: Sequence[str]) -> tuple[str, ...]:
    """What differs from the cloud: one line, or none."""
    asking = [pool for pool in pools if pool.gpus]
    if not asking:
        return _of_image(pools)
    wanted = sum(pool.size * pool.gpus for pool in asking)
    what = asking[0].accelerator or asking[0].machine_type
    if wanted <= len(gpus):
        return ()
    if len(gpus) < sum(pool.size for pool in asking):
        return (f"{what} asks for accelerators: the job runs on the CPU here.",)
    return (f"The job asks for {wanted} accelerators ({what}), and has {len(gpus)} here.",)


def _of_image(pools: Sequence[Pool]) -> tuple[str, ...]:
    for pool in pools:
        image = find_image(pool.task.image) if isinstance(pool.task, PythonTask) else None
        if image is not None and image.on_accelerators:
            return (f"The image {pool.task.image} asks for accelerators: the job runs on the CPU here.",)
    return ()


MOST_REPLICAS = 200  # of one run: each is a process, and is told where all the others are
_WEEK = "604800s"
_DAY = "86400s"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Here:
    """What a run finds on this machine.

    Attributes:
        storage_url: Cloud Storage's API for this job alone.
        buckets: The folder of the buckets' folders, absolute.
        machine: What this machine has.
        ports: As many free ones on loopback as `ports_wanted`: PyTorch's, then one for each replica.
        gpus: The GPUs that are this run's, as CUDA_VISIBLE_DEVICES names them.
        reserved: What no job may touch: "bucket", or "bucket/the beginning of names".
    """

    storage_url: str
    buckets: Path
    machine: Machine
    ports: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job can't run here: the google.rpc.Status that it fails with."""

    code: int
    message: str


def launch(job: JobRecord, here: Here, trial: TrialRecord | None = None) -> RunSpec | Refusal:
    """What to run for this job, or why nothing can be run for it.

    Args:
        trial: The trial to run of a job that has trials.
    """
    pools = pools_of(job)
    refusal = _too_many(pools) or next(
        (found for pool in pools if (found := _refusal(pool, job.images))), None
    )
    if refusal is not None or not pools:
        return refusal or Refusal(Code.INVALID_ARGUMENT, "The job has no primary replica.")
    number = trial.number if trial else 0
    pools = tuple(_with_arguments(pool, _arguments(job, trial), job.images) for pool in pools)
    replicas = replicas_of(pools, here.ports[1:])
    gpus = dealt(replicas, here.gpus)
    scheduling = _scheduling(job)
    limit = "maxRunningTime" if job.collection == ML_JOBS else "timeout"
    spec = RunSpec(
        replicas=tuple(
            _replica(job, here, replicas, rank, gpus[rank], number) for rank in range(len(replicas))
        ),
        output_buckets=tuple(filter(None, [bucket_of(_output(job))])),
        buckets=auth.job_access(job.body, here.reserved).places(),
        time_limit=seconds(scheduling.get(limit, _WEEK)),
        time_limit_field=f"scheduling.{limit}",
        warnings=warnings(pools, here.gpus),
        trial=number,
        metrics=_metrics(job) if trial else (),
        restarts=may_be_retried(job),
        restarts_together=scheduling.get("restartJobOnWorkerRestart", False),
    )
    return _with_null(spec) or spec


def ports_wanted(job: JobRecord) -> int:
    """How many ports a run of this job needs; of one that `launch` refuses, no more than others may need."""
    return 1 + min(MOST_REPLICAS, sum(pool.size for pool in pools_of(job)))


def demand(job: JobRecord, whole: Machine) -> Machine:
    """What the job asks for, at most the whole machine: all its replicas, and the trials it runs at once."""
    pools, trials = pools_of(job), parallel_trials(job, whole)
    machines = [(pool.machine or replace(whole, gpus=pool.gpus), pool.size * trials) for pool in pools]
    return Machine(
        cpus=min(whole.cpus, sum(machine.cpus * times for machine, times in machines)),
        memory=min(whole.memory, sum(machine.memory * times for machine, times in machines)),
        gpus=min(whole.gpus, sum(machine.gpus * times for machine, times in machines)),
    )


def parallel_trials(job: JobRecord, whole: Machine) -> int:
    """How many of the job's trials run at once: as many as it wishes, if there is a CPU for each replica.

    And, where there are GPUs, as many as there are for each that asks for some.
    """
    if job.collection == ML_JOBS:
        wish = job.body.get("trainingInput", {}).get("hyperparameters", {}).get("maxParallelTrials", 1)
    else:
        wish = job.body.get("parallelTrialCount", 1)
    pools = pools_of(job)
    gpus = sum(pool.size * pool.gpus for pool in pools) if whole.gpus else 0
    room = min(
        whole.cpus // max(1, sum(pool.size for pool in pools)), whole.gpus // gpus if gpus else int(wish)
    )
    return max(1, min(int(wish), room))


def max_wait(job: JobRecord) -> float | None:
    """Seconds that a job may wait until it is RUNNING, None where it may wait for ever."""
    scheduling = _scheduling(job)
    if job.collection == ML_JOBS:
        text = scheduling.get("maxWaitTime")
        return None if text is None else seconds(text)
    if scheduling.get("strategy") != "FLEX_START":
        return None
    return seconds(scheduling.get("maxWaitDuration", _DAY)) or None


def may_be_retried(job: JobRecord) -> bool:
    """Whether what was lost with its machine, or was ended by SIGTERM, is started again."""
    return not _scheduling(job).get("disableRetries", False)


def priority(job: JobRecord) -> int:
    """Jobs with a higher one are started first; Vertex AI's are all alike."""
    return int(_scheduling(job).get("priority", 0)) if job.collection == ML_JOBS else 0


def seconds(duration: str) -> float:
    """The seconds in a google.protobuf.Duration such as `3600s`."""
    return float(duration.removesuffix("s"))


def bucket_of(uri: str) -> str:
    """The bucket in a gs:// URI, "" where there is none."""
    match = re.match(r"gs://([^/]+)", uri)
    return match[1] if match else ""


def _scheduling(job: JobRecord) -> JsonObject:
    spec = job.body.get("trainingInput", {}) if job.collection == ML_JOBS else job_spec_of(job)
    found: JsonObject = spec.get("scheduling", {})
    return found


def _output(job: JobRecord) -> str:
    if job.collection == ML_JOBS:
        return str(job.body.get("trainingInput", {}).get("jobDir", ""))
    return str(job_spec_of(job).get("baseOutputDirectory", {}).get("outputUriPrefix", ""))


def _metrics(job: JobRecord) -> tuple[str, ...]:
    if job.collection == ML_JOBS:
        tuned = job.body.get("trainingInput", {}).get("hyperparameters", {})
        return (tuned.get("hyperparameterMetricTag") or DEFAULT_TAG,)
    return tuple(metric["metricId"] for metric in job.body.get("studySpec", {}).get("metrics", []))


def _arguments(job: JobRecord, trial: TrialRecord | None) -> tuple[str, ...]:
    """What follows the job's own arguments: a trial's parameters, and the job-dir (ml)."""
    parameters = trial.parameters.items() if trial else ()
    words = [word for name, value in parameters for word in (f"--{name}", as_argument(value))]
    if job.collection == ML_JOBS and (job_dir := _output(job)):
        # Each trial has a folder of its own in it; without trials it is passed on as it was written.
        words += ["--job-dir", f"{job_dir.rstrip('/')}/{trial.number}" if trial else job_dir]
    return tuple(words)


def _with_arguments(pool: Pool, words: tuple[str, ...], images: Mapping[str, Any]) -> Pool:
    task = pool.task
    if isinstance(task, ContainerTask):
        return replace(pool, task=replace(task, args=(*task.args, *words)))
    override = find_override(task.image, images)
    known = None if override is None else asdict(override)
    return replace(pool, task=replace(task, args=(*task.args, *words), override=known))


def _too_many(pools: Sequence[Pool]) -> Refusal | None:
    wanted = sum(pool.size for pool in pools)
    if wanted <= MOST_REPLICAS:
        return None
    return Refusal(
        Code.UNIMPLEMENTED,
        f"The job has {wanted} replicas: the embedded training service runs {MOST_REPLICAS} at most.",
    )


def _with_null(spec: RunSpec) -> Refusal | None:
    """Why programs can't be started as the job says it: the system ends a word where it has a NUL."""
    for replica in spec.replicas:
        task = replica.task
        if isinstance(task, ContainerTask):
            words = (task.image, *task.command, *task.args)
        else:
            words = (task.image, task.python, *task.packages, task.module, *task.args)
        for word in (*words, *(f"{name}={value}" for name, value in replica.env.items())):
            if "\0" in word:
                message = f"Nothing can be started with {word!r}: there is a NUL character in it."
                return Refusal(Code.INVALID_ARGUMENT, message)
    return None


def _refusal(pool: Pool, images: Mapping[str, Any]) -> Refusal | None:
    if pool.on_tpu:
        message = "The embedded training service doesn't run jobs on TPUs: this machine has none."
        return Refusal(Code.UNIMPLEMENTED, message)
    for name, value in pool.env:
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            message = f"The environment variable {name!r} has a name or a value that none can have."
            return Refusal(Code.INVALID_ARGUMENT, message)
    if isinstance(pool.task, ContainerTask):
        missing = "" if pool.task.image else "imageUri of its container"
    else:
        missing = "" if pool.task.module else "pythonModule to run"
        missing = missing or ("" if pool.task.image else "executorImageUri or runtimeVersion to run in")
    if missing:
        return Refusal(Code.INVALID_ARGUMENT, f"The job names no {missing}.")
    image = pool.task.image
    if (
        isinstance(pool.task, PythonTask)
        and find_image(image) is None
        and find_override(image, images) is None
    ):
        return Refusal(
            Code.UNIMPLEMENTED,
            f"The embedded training service doesn't know {image}. "
            f"Say in reconciler.yaml what to run it as: {how_to_override(image)}",
        )
    return None


def _replica(
    job: JobRecord, here: Here, replicas: Sequence[Replica], rank: int, gpus: tuple[str, ...], trial: int
) -> ReplicaSpec:
    own = replicas[rank]
    task = own.pool.task
    machine = own.pool.machine or here.machine
    # All that runs at once shares this machine's CPUs.
    share = here.machine.cpus // (len(replicas) * parallel_trials(job, here.machine))
    env = {
        "CLOUD_ML_PROJECT_ID": number_of(job.project),
        "CLOUD_ML_JOB_ID": job.job_id,
        "CLOUD_ML_JOB": _told_job(task),
        **environment_variables.told_trial(trial, _metrics(job)),
        **environment_variables.for_pytorch(here.ports[0], rank, len(replicas)),
        "OMP_NUM_THREADS": str(max(1, min(machine.cpus, share))),
        # Also where the job asks for none: others' GPUs are others'.
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        **metadata_server.variables(here.storage_url),
        "RECONCILER_GCS_DIR": str(here.buckets),
        **_of_api(job, replicas, own, trial),
    }
    return ReplicaSpec(
        name=own.name,
        task_name=own.task_name,
        role=own.pool.role,
        task=task,
        env=environment_variables.with_users(env, own.pool.env),
        cpus=min(machine.cpus, here.machine.cpus),
        memory=min(machine.memory, here.machine.memory),
    )


def _told_job(task: PythonTask | ContainerTask) -> str:
    if isinstance(task, ContainerTask):
        return environment_variables.told_job("", (), task.args)
    return environment_variables.told_job(task.module, task.packages, task.args)


def _of_api(job: JobRecord, replicas: Sequence[Replica], own: Replica, trial: int) -> dict[str, str]:
    """The variables that are another matter in each of the two APIs."""
    if job.collection == ML_JOBS:
        given: JsonObject = job.body.get("trainingInput", {})
        told, primary = environment_variables.snake_case(given), environment_variables.primary_of_ml(given)
        found = {
            "CLOUD_ML_REGION": given.get("region", ""),
            "TF_CONFIG": environment_variables.tf_config(replicas, own, primary, told, trial),
        }
        if isinstance(own.pool.task, ContainerTask):
            found["CLUSTER_SPEC"] = environment_variables.cluster_spec(replicas, own, told, trial)
        return found
    spec = job_spec_of(job)
    found = {
        **environment_variables.output_folders(_output(job), trial),
        "CLOUD_ML_REGION": job.location,
        "CLUSTER_SPEC": environment_variables.cluster_spec(replicas, own, spec, trial),
    }
    if len(replicas) > 1:
        found["TF_CONFIG"] = environment_variables.tf_config(replicas, own, "chief", spec, trial)
    return found
