"""Specs of AI Platform Training: `Job` of `ml.googleapis.com/v1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reconciler.engines.spec.timeout import DEFAULT_TIMEOUT, hours
from reconciler.manifests.known_values import accelerators_of
from reconciler.model.details import Goal, Measurement, Study, Trial, Workers
from reconciler.model.fields import count_of, numbers_of, part_of, parts_of, text_of, texts_in, values_of
from reconciler.model.job import ActualJob, Trials
from reconciler.model.manifest import DEFAULT_METRIC, JsonObject
from reconciler.packaging.staged_uri import without_staged

_ROLES = ("master", "worker", "parameterServer", "evaluator")

# Accelerators of legacy machine types: https://cloud.google.com/ml-engine/docs/machine-types.
_LEGACY = {
    "standard_gpu": 1,
    "standard_p100": 1,
    "standard_v100": 1,
    "large_model_v100": 1,
    "complex_model_m_gpu": 4,
    "complex_model_m_p100": 4,
    "complex_model_m_v100": 4,
    "complex_model_l_gpu": 8,
    "complex_model_l_v100": 8,
    "cloud_tpu": 1,
}


# Names of the roles' replicas in the log, and their numbers in the scale tiers other than CUSTOM:
# https://cloud.google.com/ai-platform/training/docs/machine-types#scale_tiers.
_TASKS = {"worker": "worker", "parameterServer": "ps", "evaluator": "evaluator"}
_TIERS = {"STANDARD_1": {"worker": 4, "ps": 3}, "PREMIUM_1": {"worker": 19, "ps": 11}}
_UNBEGUN = ("", "STATE_UNSPECIFIED", "QUEUED")


def module(kind: str, spec: JsonObject) -> str:
    """Return `pythonModule`; "" for a container."""
    return str(spec["trainingInput"].get("pythonModule", ""))


def accelerator_hours(kind: str, spec: JsonObject) -> float:
    """Return the accelerators of all replicas times `scheduling.maxRunningTime` times `maxTrials`."""
    training = spec["trainingInput"]
    trials = int(training.get("hyperparameters", {}).get("maxTrials", 1))
    timeout = training.get("scheduling", {}).get("maxRunningTime", DEFAULT_TIMEOUT)
    return _accelerators(training) * trials * hours(timeout)


def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
    """Fill in missing fields; `baseOutputDirectory` becomes `jobDir`."""
    training = spec["trainingInput"]
    filled: dict[str, Any] = {
        name: defaults[name] for name in ("serviceAccount", "network", "region") if name in defaults
    }
    if "baseOutputDirectory" in defaults:
        filled["jobDir"] = f"{defaults['baseOutputDirectory'].rstrip('/')}/{job_name}"
    merged = {**filled, **training}
    if "timeout" in defaults:
        merged["scheduling"] = {"maxRunningTime": defaults["timeout"], **training.get("scheduling", {})}
    return {**spec, "trainingInput": merged}


def with_package(kind: str, spec: JsonObject, uri: str) -> JsonObject:
    """Append `uri` to the manifest's package URIs."""
    training = spec["trainingInput"]
    return {
        **spec,
        "trainingInput": {**training, "packageUris": [*training.get("packageUris", []), uri]},
    }


def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
    """Return a `Job` resource."""
    return {"jobId": job_name, "trainingInput": spec["trainingInput"], "labels": dict(labels)}


def spec_of(kind: str, resource: JsonObject) -> JsonObject:
    """Return `trainingInput`; empty for a listed resource."""
    training = part_of(resource, "trainingInput")
    return {"trainingInput": without_staged(training)} if training else {}


def replicas(kind: str, spec: JsonObject) -> Mapping[str, int]:
    """Return the replicas of each role, by the counts or by the scale tier."""
    training = part_of(spec, "trainingInput")
    counts = _TIERS.get(text_of(training, "scaleTier")) or {
        name: count_of(training, f"{role}Count") for role, name in _TASKS.items()
    }
    return {
        "master-replica-": 1,
        **{f"{name}-replica-": count for name, count in counts.items() if count},
    }


def trials(job: ActualJob) -> Trials | None:
    """Return the trials in the output of a tuning job."""
    tuning = part_of(part_of(job.body, "trainingInput"), "hyperparameters")
    if not tuning:
        return None
    trials = parts_of(part_of(job.body, "trainingOutput"), "trials")
    begun = (text_of(trial, "trialId") for trial in trials if text_of(trial, "state") not in _UNBEGUN)
    goes_on = bool(text_of(tuning, "resumePreviousJobId"))
    return Trials(frozenset(begun), count_of(tuning, "maxTrials", 1), goes_on)


def log_directory(kind: str, spec: JsonObject) -> str:
    """Return `jobDir`, which contains a folder for each trial."""
    return text_of(part_of(spec, "trainingInput"), "jobDir")


def workers(kind: str, spec: JsonObject) -> list[Workers]:
    """Return the roles that have replicas."""
    training = part_of(spec, "trainingInput")
    counts = replicas(kind, spec)
    names = {"master": "master", **_TASKS}
    return [
        _workers(training, role, count)
        for role in _ROLES
        if (count := counts.get(f"{names[role]}-replica-", 0))
    ]


def limits(kind: str, spec: JsonObject) -> Mapping[str, str]:
    """Return the fields of `trainingInput` and of its `scheduling`."""
    training = part_of(spec, "trainingInput")
    given = {**training, "timeout": text_of(part_of(training, "scheduling"), "maxRunningTime")}
    return {name: text_of(given, name) for name in ("serviceAccount", "network", "timeout")}


def output_directory(kind: str, spec: JsonObject) -> str:
    """Return `jobDir`, which contains a folder for each trial of a tuning job."""
    return text_of(part_of(spec, "trainingInput"), "jobDir").rstrip("/")


def output_directory_field(kind: str, spec: JsonObject) -> tuple[str, ...]:
    """Return the keys of `jobDir`."""
    return ("spec", "trainingInput", "jobDir")


def with_output_directory(kind: str, spec: JsonObject, uri: str) -> JsonObject:
    """Set `jobDir`."""
    return {**spec, "trainingInput": {**spec["trainingInput"], "jobDir": uri}}


def registered_model(job: ActualJob) -> str:
    """Return "": a job of AI Platform registers no model."""
    return ""


def has_trials(kind: str, spec: JsonObject) -> bool:
    """Return True for a job with `hyperparameters`."""
    return bool(part_of(part_of(spec, "trainingInput"), "hyperparameters"))


def study(job: ActualJob) -> Study | None:
    """Return the trials in the output of a tuning job, by number: the service ranks them."""
    tuning = part_of(part_of(job.body, "trainingInput"), "hyperparameters")
    if not tuning:
        return None
    metric = text_of(tuning, "hyperparameterMetricTag") or DEFAULT_METRIC
    resources = parts_of(part_of(job.body, "trainingOutput"), "trials")
    trials = sorted(
        (_trial(metric, trial) for trial in resources), key=lambda trial: (len(trial.id), trial.id)
    )
    goal = Goal(metric, text_of(tuning, "goal") != "MINIMIZE")
    scales = {
        text_of(param, "parameterName"): text_of(param, "scaleType") for param in parts_of(tuning, "params")
    }
    logarithmic = frozenset(name for name, scale in scales.items() if scale == "UNIT_LOG_SCALE")
    return Study((goal,), tuple(trials), count_of(tuning, "maxTrials", 1), logarithmic)


def _workers(training: JsonObject, role: str, count: int) -> Workers:
    config, master = part_of(training, f"{role}Config"), part_of(training, "masterConfig")
    accelerators = part_of(config, "acceleratorConfig")
    shared = text_of(master, "imageUri")  # a package runs in it, if the job has one
    image = text_of(config, "imageUri") or shared
    python = text_of(training, "pythonVersion")
    runtime = f"runtime {text_of(training, 'runtimeVersion')}" + (f", Python {python}" if python else "")
    return Workers(
        name=role,
        count=count,
        machine=text_of(training, f"{role}Type") or text_of(training, "scaleTier"),
        accelerator=text_of(accelerators, "type"),
        accelerator_count=count_of(accelerators, "count"),
        image=image or runtime,
        module=text_of(training, "pythonModule") if image == shared else "",
        command=texts_in(config, "containerCommand"),
        args=texts_in(config, "containerArgs") or texts_in(training, "args"),
    )


def _trial(metric: str, trial: JsonObject) -> Trial:
    final = part_of(trial, "finalMetric")
    return Trial(
        id=text_of(trial, "trialId"),
        state=text_of(trial, "state"),
        parameters=values_of(part_of(trial, "hyperparameters").items()),
        metrics=_value_of(metric, final) if final else {},
        start_time=text_of(trial, "startTime"),
        end_time=text_of(trial, "endTime"),
        measurements=tuple(
            Measurement(count_of(measurement, "trainingStep") or number, _value_of(metric, measurement))
            for number, measurement in enumerate(parts_of(trial, "allMetrics"), 1)
        ),
    )


def _value_of(metric: str, measurement: JsonObject) -> Mapping[str, float]:
    return numbers_of([(metric, measurement.get("objectiveValue", 0.0))])


def _accelerators(training: JsonObject) -> int:
    if training.get("scaleTier") in ("BASIC_GPU", "BASIC_TPU"):
        return 1
    return sum(_role_accelerators(training, role) for role in _ROLES)


def _role_accelerators(training: JsonObject, role: str) -> int:
    replicas = 1 if role == "master" else int(training.get(f"{role}Count", 0))
    config = training.get(f"{role}Config", {}).get("acceleratorConfig", {})
    machine = training.get(f"{role}Type", "")
    return replicas * int(config.get("count", _LEGACY.get(machine, accelerators_of(machine))))
