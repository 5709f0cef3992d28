"""Translation of a submitted job into its programs, arguments and environment variables.

The functions are pure: the caller passes in the machine's properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reconciler.training_service.http import auth
from reconciler.training_service.jobs import environment_variables, job_variables
from reconciler.training_service.jobs.cluster import Pool, Replica, job_spec_of, pools_of
from reconciler.training_service.jobs.images import find_image, find_override
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.state.records import (
    ML_JOBS,
    Code,
    JobRecord,
    JsonObject,
    details_of,
    google_region,
    number_of,
)
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask, ReplicaSpec, RunSpec
from reconciler.training_service.state.trial_records import TrialRecord
from reconciler.training_service.storage.files import bucket_of
from reconciler.training_service.tuning.study import DEFAULT_TAG, as_argument

MOST_REPLICAS = 200  # of one run: each is a process, and its environment lists the addresses of all
_WEEK = "604800s"
_DAY = "86400s"
_ML_ROLES = ("master", "worker", "parameterServer", "evaluator")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Host:
    """Resources of this machine for a run.

    Attributes:
        storage_url: The address of Cloud Storage's API for this job only.
        buckets: The absolute path of the folder with the buckets' folders.
        machine: The size of this machine.
        ports: `ports_wanted` free ports on loopback: PyTorch's, then one for each replica.
        gpus: The GPUs reserved for this run, as in CUDA_VISIBLE_DEVICES.
        reserved: Places closed to all jobs: "bucket", or "bucket/prefix of object names".
        reachable: Buckets that every job may access.
    """

    storage_url: str
    buckets: Path
    machine: Machine
    ports: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The google.rpc.Status of a job that can't run on this machine; `details` are its cause."""

    code: int
    message: str
    details: Mapping[str, str]


def launch(job: JobRecord, host: Host, trial: TrialRecord | None = None) -> RunSpec | Refusal:
    """Return the programs to run for a job, or the reason that it can't run.

    Args:
        trial: The trial to run, for a job with trials.
    """
    pools = pools_of(job)
    refusal = next(filter(None, map(_refusal, pools)), None)
    if refusal is not None or not pools:
        return refusal or _invalid("The job has no primary replica.")
    number = trial.number if trial else 0
    pools = tuple(_with_arguments(pool, _arguments(job, trial), job.images) for pool in pools)
    replicas = replicas_of(pools, host.ports[1:])
    gpus = _assign_gpus(replicas, host.gpus)
    scheduling = _scheduling(job)
    limit = "maxRunningTime" if job.collection == ML_JOBS else "timeout"
    spec = RunSpec(
        replicas=tuple(
            _replica(job, host, replicas, rank, gpus[rank], number) for rank in range(len(replicas))
        ),
        output_buckets=tuple(filter(None, [bucket_of(_output(job))])),
        buckets=auth.job_access(job.body, host.reserved, host.reachable).places(),
        time_limit=seconds(scheduling.get(limit, _WEEK)),
        time_limit_field=f"scheduling.{limit}",
        warnings=(*_warnings(pools, host.gpus), *_without_effect(job)),
        trial=number,
        metrics=_metrics(job) if trial else (),
        restarts=may_be_retried(job),
        restarts_together=scheduling.get("restartJobOnWorkerRestart", False),
        storage=host.storage_url,
    )
    return _refuse_null(spec) or spec


def replicas_of(pools: tuple[Pool, ...], ports: tuple[int, ...]) -> tuple[Replica, ...]:
    """Return all replicas in the order of the pools, each with one of the ports."""
    members = [(pool, index) for pool in pools for index in range(pool.size)]
    return tuple(Replica(pool, index, port) for (pool, index), port in zip(members, ports, strict=True))


def ports_wanted(job: JobRecord) -> int:
    """Return the number of ports that a run of this job needs."""
    return 1 + sum(pool.size for pool in pools_of(job))


def demand(job: JobRecord, whole: Machine) -> Machine:
    """Return the resources of all replicas of all parallel trials, at most the whole machine."""
    pools, trials = pools_of(job), parallel_trials(job, whole)
    machines = [(pool.machine or replace(whole, gpus=pool.gpus), pool.size * trials) for pool in pools]
    return Machine(
        cpus=min(whole.cpus, sum(machine.cpus * times for machine, times in machines)),
        memory=min(whole.memory, sum(machine.memory * times for machine, times in machines)),
        gpus=min(whole.gpus, sum(machine.gpus * times for machine, times in machines)),
    )


def parallel_trials(job: JobRecord, whole: Machine) -> int:
    """Return the number of trials to run at the same time, at least 1.

    The job's own limit is reduced to a CPU for each replica and, on a machine with GPUs, to the GPUs that its
    replicas request.
    """
    if job.collection == ML_JOBS:
        limit = job.body.get("trainingInput", {}).get("hyperparameters", {}).get("maxParallelTrials", 1)
    else:
        limit = job.body.get("parallelTrialCount", 1)
    pools = pools_of(job)
    gpus = sum(pool.size * pool.gpus for pool in pools) if whole.gpus else 0
    by_cpus = whole.cpus // max(1, sum(pool.size for pool in pools))
    by_gpus = whole.gpus // gpus if gpus else int(limit)
    return max(1, min(int(limit), by_cpus, by_gpus))


def max_wait(job: JobRecord) -> float | None:
    """Return the seconds that a job may wait until it is RUNNING, None for no limit."""
    scheduling = _scheduling(job)
    if job.collection == ML_JOBS:
        text = scheduling.get("maxWaitTime")
        return None if text is None else seconds(text)
    if scheduling.get("strategy") != "FLEX_START":
        return None
    return seconds(scheduling.get("maxWaitDuration", _DAY)) or None


def may_be_retried(job: JobRecord) -> bool:
    """Return True if a replica is restarted after its machine was lost or SIGTERM ended it."""
    return not _scheduling(job).get("disableRetries", False)


def priority(job: JobRecord) -> int:
    """Return the priority of a job: the scheduler starts higher ones first. Vertex AI has none: 0."""
    return int(_scheduling(job).get("priority", 0)) if job.collection == ML_JOBS else 0


def region_of(job: JobRecord) -> str:
    """Return the region of Google's that a job's programs are told."""
    if job.collection == ML_JOBS:
        return str(job.body.get("trainingInput", {}).get("region", ""))
    return google_region(job.location)


def seconds(duration: str) -> float:
    """Return the seconds of a google.protobuf.Duration such as `3600s`."""
    return float(duration.removesuffix("s"))


def _scheduling(job: JobRecord) -> JsonObject:
    spec = job.body.get("trainingInput", {}) if job.collection == ML_JOBS else job_spec_of(job)
    scheduling: JsonObject = spec.get("scheduling", {})
    return scheduling


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
    """Return the arguments to append to the job's own: a trial's parameters, and --job-dir (ml)."""
    parameters = trial.parameters.items() if trial else ()
    words = [word for name, value in parameters for word in (f"--{name}", as_argument(value))]
    if job.collection == ML_JOBS and (job_dir := _output(job)):
        # Each trial has its own folder in it. Without trials the API passes the text on unchanged.
        words += ["--job-dir", f"{job_dir.rstrip('/')}/{trial.number}" if trial else job_dir]
    return tuple(words)


def _with_arguments(pool: Pool, words: tuple[str, ...], images: Mapping[str, Any]) -> Pool:
    entry = find_override(pool.task.image, images)
    override = None if entry is None else asdict(entry)
    return replace(pool, task=replace(pool.task, args=(*pool.task.args, *words), override=override))


def _assign_gpus(replicas: Sequence[Replica], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each replica's GPUs: the requested number if the machine has enough, else equal shares."""
    numbers = [replica.pool.gpus for replica in replicas]
    if sum(numbers) > len(gpus):
        # The share is 0 if some replica would get none: replicas that work together have to be alike.
        share = len(gpus) // sum(number > 0 for number in numbers)
        numbers = [min(number, share) for number in numbers]
    left = iter(gpus)
    return [tuple(next(left) for _ in range(number)) for number in numbers]


def _warnings(pools: Sequence[Pool], gpus: Sequence[str]) -> tuple[str, ...]:
    """Return at most one line, on missing accelerators."""
    with_gpus = [pool for pool in pools if pool.gpus]
    if not with_gpus:
        return _image_warnings(pools)
    requested = sum(pool.size * pool.gpus for pool in with_gpus)
    name = with_gpus[0].accelerator or with_gpus[0].machine_type
    if requested <= len(gpus):
        return ()
    if len(gpus) < sum(pool.size for pool in with_gpus):
        return (f"{name} asks for accelerators: the job runs on the CPU here.",)
    return (f"The job asks for {requested} accelerators ({name}), and has {len(gpus)} here.",)


def _image_warnings(pools: Sequence[Pool]) -> tuple[str, ...]:
    for pool in pools:
        image = find_image(pool.task.image) if isinstance(pool.task, PythonTask) else None
        if image is not None and image.on_accelerators:
            return (f"The image {pool.task.image} asks for accelerators: the job runs on the CPU here.",)
    return ()


# The fields that take effect here. A field of the API that is missing below is only stored.
_EFFECTIVE = {
    "job_spec": "workerPoolSpecs scheduling baseOutputDirectory",
    "scheduling": "timeout restartJobOnWorkerRestart disableRetries maxWaitDuration",
    "worker_pool": "machineSpec replicaCount containerSpec pythonPackageSpec",
    "machine": "machineType acceleratorType acceleratorCount",
    "study": "metrics parameters algorithm measurementSelectionType studyStoppingConfig"
    " decayCurveStoppingSpec medianAutomatedStoppingSpec convexAutomatedStoppingSpec",
    "training_input": "scaleTier region packageUris pythonModule args hyperparameters jobDir runtimeVersion"
    " pythonVersion useChiefInTfConfig scheduling"
    + "".join(f" {role}Type {role}Count {role}Config" for role in _ML_ROLES),
    "replica": "acceleratorConfig imageUri containerCommand containerArgs",
}


def _without_effect(job: JobRecord) -> tuple[str, ...]:
    """Return a line for each field of the job that is set but has no effect here."""
    return tuple(
        f"{field} has no effect here: the job runs as if it weren't set."
        for field in dict.fromkeys(_ineffective(job))
    )


def _ineffective(job: JobRecord) -> Iterator[str]:
    if job.collection == ML_JOBS:
        given = job.body.get("trainingInput", {})
        yield from _others(given, "training_input", "trainingInput.")
        for role in _ML_ROLES:
            yield from _others(given.get(f"{role}Config", {}), "replica", f"trainingInput.{role}Config.")
        return
    if job.body.get("encryptionSpec"):
        yield "encryptionSpec"
    yield from _others(job.body.get("studySpec", {}), "study", "studySpec.")
    spec = job_spec_of(job)
    yield from _others(spec, "job_spec", "")
    scheduling = dict(spec.get("scheduling", {}))
    strategy = scheduling.pop("strategy", "")
    if strategy not in ("", "STRATEGY_UNSPECIFIED", "STANDARD", "ON_DEMAND", "FLEX_START"):
        yield f"scheduling.strategy {strategy}"
    yield from _others(scheduling, "scheduling", "scheduling.")
    for index, pool in enumerate(spec.get("workerPoolSpecs", [])):
        yield from _others(pool, "worker_pool", f"workerPoolSpecs[{index}].")
        yield from _others(pool.get("machineSpec", {}), "machine", f"workerPoolSpecs[{index}].machineSpec.")


def _others(message: JsonObject, kind: str, path: str) -> Iterator[str]:
    effective = _EFFECTIVE[kind].split()
    return (f"{path}{name}" for name, value in message.items() if value and name not in effective)


def _invalid(message: str) -> Refusal:
    return Refusal(Code.INVALID_ARGUMENT, message, details_of("INVALID_JOB"))


def _refuse_null(spec: RunSpec) -> Refusal | None:
    # The system ends a program's argument or variable at its first NUL, so it would get another value.
    for replica in spec.replicas:
        task = replica.task
        if isinstance(task, ContainerTask):
            words = (task.image, *task.command, *task.args)
        else:
            words = (task.image, task.python, *task.packages, task.module, *task.args)
        for word in (*words, *(f"{name}={value}" for name, value in replica.env.items())):
            if "\0" in word:
                message = f"No program can be started with {word!r}: it contains a NUL character."
                return _invalid(message)
    return None


def _refusal(pool: Pool) -> Refusal | None:
    for name, value in pool.env:
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            message = f"The environment variable {name!r} has an invalid name or value."
            return _invalid(message)
    if isinstance(pool.task, ContainerTask):
        missing = "" if pool.task.image else "imageUri of its container"
    else:
        missing = "" if pool.task.module else "pythonModule to run"
        missing = missing or ("" if pool.task.image else "executorImageUri or runtimeVersion to run in")
    if missing:
        return _invalid(f"The job names no {missing}.")
    return None


def _replica(
    job: JobRecord, host: Host, replicas: Sequence[Replica], rank: int, gpus: tuple[str, ...], trial: int
) -> ReplicaSpec:
    replica = replicas[rank]
    task = replica.pool.task
    machine = replica.pool.machine or host.machine
    # All replicas of all parallel trials share this machine's CPUs.
    share = host.machine.cpus // (len(replicas) * parallel_trials(job, host.machine))
    env = {
        "CLOUD_ML_PROJECT_ID": number_of(job.project),
        "CLOUD_ML_JOB_ID": job.job_id,
        "CLOUD_ML_JOB": _job_description(task),
        **job_variables.for_trial(trial, _metrics(job)),
        **job_variables.for_pytorch(host.ports[0], rank, len(replicas)),
        "OMP_NUM_THREADS": str(max(1, min(machine.cpus, share))),
        # Set also for a replica without GPUs, or it would see those of other jobs.
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        **environment_variables.for_google_clients(host.storage_url),
        "RECONCILER_GCS_DIR": str(host.buckets),
        **_api_variables(job, replicas, replica, trial),
    }
    return ReplicaSpec(
        name=replica.name,
        task_name=replica.task_name,
        role=replica.pool.role,
        task=task,
        env=job_variables.with_users(env, replica.pool.env),
        cpus=min(machine.cpus, host.machine.cpus),
        memory=min(machine.memory, host.machine.memory),
    )


def _job_description(task: PythonTask | ContainerTask) -> str:
    if isinstance(task, ContainerTask):
        return job_variables.job_description("", (), task.args)
    return job_variables.job_description(task.module, task.packages, task.args)


def _api_variables(
    job: JobRecord, replicas: Sequence[Replica], replica: Replica, trial: int
) -> dict[str, str]:
    """Return the variables that differ between the two APIs."""
    if job.collection == ML_JOBS:
        given: JsonObject = job.body.get("trainingInput", {})
        spec, primary = job_variables.snake_case(given), job_variables.primary_of_ml(given)
        variables = {
            "CLOUD_ML_REGION": region_of(job),
            "TF_CONFIG": job_variables.tf_config(replicas, replica, primary, spec, trial),
        }
        if isinstance(replica.pool.task, ContainerTask):
            variables["CLUSTER_SPEC"] = job_variables.cluster_spec(replicas, replica, spec, trial)
        return variables
    spec = job_spec_of(job)
    variables = {
        **job_variables.output_folders(_output(job), trial),
        "CLOUD_ML_REGION": region_of(job),
        "CLUSTER_SPEC": job_variables.cluster_spec(replicas, replica, spec, trial),
    }
    # Vertex AI sets TF_CONFIG only for distributed jobs.
    if len(replicas) > 1:
        variables["TF_CONFIG"] = job_variables.tf_config(replicas, replica, "chief", spec, trial)
    return variables
