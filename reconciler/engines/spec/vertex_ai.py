"""Specs of Vertex AI: `aiplatform.googleapis.com/v1`.

A `TrainingPipeline` trains as the custom or tuning job that its `trainingTaskInputs` describe, so each
function but `body` looks at that job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

from reconciler.engines.spec.container_command import shown_command, staged_module
from reconciler.engines.spec.timeout import DEFAULT_TIMEOUT, hours
from reconciler.manifests.known_values import accelerators_of
from reconciler.manifests.pipelines import INPUTS
from reconciler.manifests.plain_form import plain_form
from reconciler.manifests.schemas import manifest_schema
from reconciler.model.details import Goal, Measurement, Study, Trial, Workers
from reconciler.model.fields import count_of, numbers_of, part_of, parts_of, text_of, texts_in, values_of
from reconciler.model.job import ActualJob, Trials
from reconciler.model.manifest import AIPLATFORM_V1, TRAINING_PIPELINE, JsonObject
from reconciler.packaging.staged_uri import without_staged

_TOPOLOGY = re.compile("[0-9]{1,4}(?:x[0-9]{1,4}){1,2}")
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/Trial: states before the start of a trial.
_UNBEGUN_TRIALS = ("", "STATE_UNSPECIFIED", "REQUESTED")
_CUSTOM_JOB, _TUNING_JOB = "CustomJob", "HyperparameterTuningJob"
_TUNING_FIELDS = ("studySpec", "trialJobSpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount")
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.trainingPipelines, without what
# only the service sets and what the reconciler sets.
_PIPELINE_FIELDS = (
    "trainingTaskDefinition",
    INPUTS,
    "modelToUpload",
    "modelId",
    "parentModel",
    "inputDataConfig",
)


def module(kind: str, spec: JsonObject) -> str:
    """Return the first pool's Python module; "" if all pools run containers."""
    packages = (pool.get("pythonPackageSpec") for pool in _job_spec(kind, spec)["workerPoolSpecs"])
    return next((str(package["pythonModule"]) for package in packages if package), "")


def accelerator_hours(kind: str, spec: JsonObject) -> float:
    """Return the accelerators of all replicas times `scheduling.timeout` times `maxTrialCount`."""
    kind, spec = _trained(kind, spec)
    job_spec = _job_spec(kind, spec)
    pools = sum(_accelerators(pool) for pool in job_spec["workerPoolSpecs"])
    timeout = job_spec.get("scheduling", {}).get("timeout", DEFAULT_TIMEOUT)
    return pools * int(spec.get("maxTrialCount", 1)) * hours(timeout)


def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
    """Fill in missing `serviceAccount`, `network`, `timeout` and `baseOutputDirectory`."""
    return _job_spec_changed(kind, spec, lambda job_spec: _filled(job_spec, defaults, job_name))


def with_package(kind: str, spec: JsonObject, uri: str) -> JsonObject:
    """Append `uri` to the package URIs of every pool that runs a Python package."""
    return _pools_changed(kind, spec, lambda pool: _pool_with(pool, uri))


def with_command(kind: str, spec: JsonObject, command: Sequence[str]) -> JsonObject:
    """Return `spec` with a command for every container."""
    return _pools_changed(kind, spec, lambda pool: _pool_with_command(pool, command))


def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
    """Return a resource of the kind."""
    head: dict[str, Any] = {"displayName": job_name, "labels": dict(labels)}
    if kind != _CUSTOM_JOB:
        return {**head, **spec}
    job_spec = {name: value for name, value in spec.items() if name != "encryptionSpec"}
    encryption = {"encryptionSpec": spec["encryptionSpec"]} if "encryptionSpec" in spec else {}
    return {**head, "jobSpec": job_spec, **encryption}


def spec_of(kind: str, resource: JsonObject) -> JsonObject:
    """Return the fields of a resource that a manifest's `spec` has; empty for a listed resource.

    A pipeline is in the form that `resource_in_form` returns.
    """
    if kind == TRAINING_PIPELINE:
        fields = _pipeline_fields(resource)
    else:
        fields = part_of(resource, "jobSpec") if kind == _CUSTOM_JOB else _selected(_TUNING_FIELDS, resource)
    spec = {**fields, **_selected(("encryptionSpec",), resource)}
    pools = _job_spec(kind, spec).get("workerPoolSpecs")
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        return spec
    return _pools_changed(kind, spec, _pool_without_staged)


def replicas(kind: str, spec: JsonObject) -> Mapping[str, int]:
    """Return the replicas of each worker pool."""
    pools = parts_of(_job_spec(kind, spec), "workerPoolSpecs")
    # An empty pool only keeps the numbers of the pools behind it. Other pools default to one replica.
    counts = (count_of(pool, "replicaCount", 1) if pool else 0 for pool in pools)
    return {f"workerpool{number}-": count for number, count in enumerate(counts) if count}


def trials(job: ActualJob) -> Trials | None:
    """Return the trials in the resource of a tuning job, or of a pipeline's backing job."""
    if not has_trials(job.kind, job.body):
        return None
    _, spec = _trained(job.kind, job.body)
    trials = _trials_of(job)
    begun = (text_of(trial, "id") for trial in trials if text_of(trial, "state") not in _UNBEGUN_TRIALS)
    return Trials(frozenset(begun), count_of(spec, "maxTrialCount"))


def log_directory(kind: str, spec: JsonObject) -> str:
    """Return AIP_TENSORBOARD_LOG_DIR; for a tuning job, the parent of all trials' folders."""
    base = output_directory(kind, spec)
    return f"{base}/logs" if base and not has_trials(kind, spec) else base


def workers(kind: str, spec: JsonObject) -> list[Workers]:
    """Return the worker pools, without empty ones."""
    pools = enumerate(parts_of(_job_spec(kind, spec), "workerPoolSpecs"))
    return [_workers(number, pool) for number, pool in pools if pool]


def limits(kind: str, spec: JsonObject) -> Mapping[str, str]:
    """Return the fields of the `CustomJobSpec` and of its `scheduling`."""
    job_spec = _job_spec(kind, spec)
    given = {**job_spec, "timeout": text_of(part_of(job_spec, "scheduling"), "timeout")}
    return {name: text_of(given, name) for name in ("serviceAccount", "network", "timeout")}


def output_directory(kind: str, spec: JsonObject) -> str:
    """Return `baseOutputDirectory`, which contains a folder for each trial of a tuning job."""
    return text_of(part_of(_job_spec(kind, spec), "baseOutputDirectory"), "outputUriPrefix").rstrip("/")


def output_directory_field(kind: str, spec: JsonObject) -> tuple[str, ...]:
    """Return the keys of `outputUriPrefix`."""
    inputs = (INPUTS,) if kind == TRAINING_PIPELINE else ()
    kind, spec = _trained(kind, spec)
    trial = () if kind == _CUSTOM_JOB else ("trialJobSpec",)
    return ("spec", *inputs, *trial, "baseOutputDirectory", "outputUriPrefix")


def with_output_directory(kind: str, spec: JsonObject, uri: str) -> JsonObject:
    """Set `baseOutputDirectory`."""
    directory = {"baseOutputDirectory": {"outputUriPrefix": uri}}
    return _job_spec_changed(kind, spec, lambda job_spec: {**job_spec, **directory})


def registered_model(job: ActualJob) -> str:
    """Return `modelToUpload.name`, which the service fills in, with its version: projects/…/models/5@2."""
    model = part_of(job.body, "modelToUpload") if job.kind == TRAINING_PIPELINE else {}
    return "@".join(filter(None, (text_of(model, "name"), text_of(model, "versionId"))))


def has_trials(kind: str, spec: JsonObject) -> bool:
    """Return True for a tuning job."""
    return _trained(kind, spec)[0] == _TUNING_JOB


def study(job: ActualJob) -> Study | None:
    """Return the trials in the resource of a tuning job, or of a pipeline's backing job."""
    if not has_trials(job.kind, job.body):
        return None
    _, spec = _trained(job.kind, job.body)
    metrics = parts_of(part_of(spec, "studySpec"), "metrics")
    goals = (Goal(text_of(metric, "metricId"), text_of(metric, "goal") == "MAXIMIZE") for metric in metrics)
    trials = (_trial(trial) for trial in _trials_of(job))
    parameters = parts_of(part_of(spec, "studySpec"), "parameters")
    return Study(
        tuple(goals),
        tuple(trials),
        count_of(spec, "maxTrialCount"),
        frozenset(_logarithmic(parameters)),
    )


def backing_job(resource: JsonObject) -> tuple[str, str] | None:
    """Return kind and resource name of a pipeline's backing job, from its `trainingTaskMetadata`; None before
    the service has made it.
    """
    metadata = part_of(resource, "trainingTaskMetadata")
    names = ((kind, text_of(metadata, f"backing{kind}")) for kind in (_CUSTOM_JOB, _TUNING_JOB))
    return next((named for named in names if named[1]), None)


def resource_in_form(kind: str, resource: JsonObject) -> JsonObject:
    """Return a resource as a request has it: a pipeline's inputs, a free value, with the API's own keys.

    The service may answer with the keys that it keeps them under: `worker_pool_specs`.
    """
    if kind != TRAINING_PIPELINE or INPUTS not in resource:
        return resource
    inputs = {INPUTS: resource[INPUTS]}
    schema = manifest_schema(AIPLATFORM_V1, kind, spec=inputs)
    return {**resource, **plain_form({"spec": inputs}, schema)["spec"]} if schema else resource


def _workers(number: int, pool: JsonObject) -> Workers:
    machine, package = part_of(pool, "machineSpec"), part_of(pool, "pythonPackageSpec")
    container = part_of(pool, "containerSpec")
    task = package or container
    command = texts_in(container, "command")
    staged = staged_module(command)
    return Workers(
        name=f"workerpool{number}",
        count=count_of(pool, "replicaCount", 1),
        machine=" ".join(filter(None, (text_of(machine, "machineType"), text_of(machine, "tpuTopology")))),
        accelerator=text_of(machine, "acceleratorType"),
        accelerator_count=count_of(machine, "acceleratorCount"),
        image=text_of(package, "executorImageUri") or text_of(container, "imageUri"),
        module=staged[0] if staged else text_of(package, "pythonModule"),
        command=() if staged else command,
        args=texts_in(task, "args"),
        env=tuple(
            (text_of(variable, "name"), text_of(variable, "value")) for variable in parts_of(task, "env")
        ),
    )


def _trial(trial: JsonObject) -> Trial:
    return Trial(
        id=text_of(trial, "id"),
        state=text_of(trial, "state"),
        parameters=values_of(
            (text_of(parameter, "parameterId"), parameter.get("value"))
            for parameter in parts_of(trial, "parameters")
        ),
        metrics=_metrics(part_of(trial, "finalMeasurement")),
        start_time=text_of(trial, "startTime"),
        end_time=text_of(trial, "endTime"),
        reason=text_of(trial, "infeasibleReason"),
        measurements=tuple(
            Measurement(count_of(measurement, "stepCount") or number, _metrics(measurement))
            for number, measurement in enumerate(parts_of(trial, "measurements"), 1)
        ),
    )


def _metrics(measurement: JsonObject) -> Mapping[str, float]:
    metrics = parts_of(measurement, "metrics")
    return numbers_of((text_of(metric, "metricId"), metric.get("value", 0.0)) for metric in metrics)


def _logarithmic(parameters: Iterable[JsonObject]) -> Iterator[str]:
    """Yield the ids of the parameters with a logarithmic scale, those below a condition too."""
    for parameter in parameters:
        if text_of(parameter, "scaleType") == "UNIT_LOG_SCALE":
            yield text_of(parameter, "parameterId")
        children = parts_of(parameter, "conditionalParameterSpecs")
        yield from _logarithmic(part_of(child, "parameterSpec") for child in children)


def _pipeline_fields(resource: JsonObject) -> JsonObject:
    """Return what a manifest can say of a pipeline: of its model without what the service fills in."""
    fields = _selected(_PIPELINE_FIELDS, resource)
    if "modelToUpload" not in fields:
        return fields
    return {**fields, "modelToUpload": _selected(_model_fields(), part_of(fields, "modelToUpload"))}


@cache
def _model_fields() -> frozenset[str]:
    schema = manifest_schema(AIPLATFORM_V1, TRAINING_PIPELINE)
    assert schema is not None, "the kind has a schema"
    return frozenset(schema["$defs"]["aiplatform.Model"]["properties"])


def _trained(kind: str, spec: JsonObject) -> tuple[str, JsonObject]:
    """Return kind and spec of the job that trains: of the backing job for a pipeline, else the given ones."""
    if kind != TRAINING_PIPELINE:
        return kind, spec
    inputs = part_of(spec, INPUTS)
    return (_TUNING_JOB if "trialJobSpec" in inputs else _CUSTOM_JOB), inputs


def _trials_of(job: ActualJob) -> list[JsonObject]:
    return parts_of(job.backing_body if job.kind == TRAINING_PIPELINE else job.body, "trials")


def _job_spec(kind: str, spec: JsonObject) -> JsonObject:
    """Return the `CustomJobSpec`: a custom job's whole spec, or a tuning job's `trialJobSpec`."""
    kind, spec = _trained(kind, spec)
    return spec if kind == _CUSTOM_JOB else part_of(spec, "trialJobSpec")


def _accelerators(pool: JsonObject) -> int:
    machine, replicas = pool.get("machineSpec", {}), int(pool.get("replicaCount", 1))
    name, given = machine.get("machineType", ""), int(machine.get("acceleratorCount", 0))
    # A slice may be a whole pool: its topology then determines the machines, whatever `replicaCount` is.
    return max(replicas * (given or accelerators_of(name)), _chips(machine.get("tpuTopology", "")))


def _chips(topology: str) -> int:
    """Return the TPU chips of a topology such as "4x4"; 0 for none."""
    return prod(map(int, topology.split("x"))) if _TOPOLOGY.fullmatch(topology) else 0


def _job_spec_changed(kind: str, spec: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    if kind == TRAINING_PIPELINE:
        trained, inputs = _trained(kind, spec)
        return {**spec, INPUTS: _job_spec_changed(trained, inputs, change)}
    if kind == _CUSTOM_JOB:
        return change(spec)
    return {**spec, "trialJobSpec": change(spec["trialJobSpec"])}


def _filled(job_spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
    filled = dict(_selected(("serviceAccount", "network"), defaults))
    if "baseOutputDirectory" in defaults:
        prefix = f"{defaults['baseOutputDirectory'].rstrip('/')}/{job_name}"
        filled["baseOutputDirectory"] = {"outputUriPrefix": prefix}
    merged = {**filled, **job_spec}
    if "timeout" in defaults:
        merged["scheduling"] = {"timeout": defaults["timeout"], **job_spec.get("scheduling", {})}
    return merged


def _pool_with(pool: JsonObject, uri: str) -> JsonObject:
    if "pythonPackageSpec" not in pool:
        return pool
    package = pool["pythonPackageSpec"]
    uris = [*package.get("packageUris", []), uri]
    return {**pool, "pythonPackageSpec": {**package, "packageUris": uris}}


def _selected(names: Iterable[str], resource: JsonObject) -> JsonObject:
    return {name: resource[name] for name in names if name in resource}


def _pools_changed(kind: str, spec: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    return _job_spec_changed(
        kind,
        spec,
        lambda job_spec: {**job_spec, "workerPoolSpecs": [change(p) for p in job_spec["workerPoolSpecs"]]},
    )


def _pool_without_staged(pool: JsonObject) -> JsonObject:
    if package := part_of(pool, "pythonPackageSpec"):
        return {**pool, "pythonPackageSpec": without_staged(package)}
    staged = staged_module(texts_in(part_of(pool, "containerSpec"), "command"))
    return _pool_with_command(pool, shown_command(*staged)) if staged else pool


def _pool_with_command(pool: JsonObject, command: Sequence[str]) -> JsonObject:
    if "containerSpec" not in pool:
        return pool
    return {**pool, "containerSpec": {**pool["containerSpec"], "command": [*command]}}
