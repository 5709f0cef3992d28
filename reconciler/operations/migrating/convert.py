"""Conversion of AI Platform's `trainingInput` to the `spec` of a Vertex AI job."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from reconciler.manifests.findings import Keys
from reconciler.operations.migrating.pools import (
    POOLS,
    Machines,
    fits_flex_start,
    machines_of,
    report_environment,
    report_region,
    report_task,
    worker_pools,
)
from reconciler.operations.migrating.report import Report, mapping

Json = dict[str, Any]
_TRIAL = "trialJobSpec"
_DEFAULT_METRIC = "training/hptuning/metric"
_SCALES = "scaleType"


class Converted(Struct, frozen=True):
    """A migrated job.

    Attributes:
        kind: `CustomJob` or `HyperparameterTuningJob`.
        spec: The new `spec`.
        replicas: Number of replicas, of a trial for a tuning job.
        report: About each field.
    """

    kind: str
    spec: Json
    replicas: int
    report: Report


def convert(
    given: Json,
    name: str,
    *,
    has_labels: bool,
    location: str = "",
    overridden: Collection[str] = (),
    image: str = "",
) -> Converted:
    """Convert a valid `trainingInput` in plain form.

    Args:
        given: The `trainingInput`.
        name: The manifest's base name.
        has_labels: True if the manifest has labels.
        location: The environment's; "" if it has none.
        overridden: The images and runtimes that `images` of `reconciler.yaml` has.
        image: The image that will replace the runtime's, for the report; "" for none.
    """
    report = Report()
    report.add("name", name=name)
    if has_labels:
        report.add("labels")
        report.add("later labels")
    region = str(given.get("region") or location)
    if given.get("region"):
        report_region(region, location, report)
    machines = machines_of(given, report)
    report_task(given, machines, region, report, overridden=overridden, image=image)
    words = _job_dir(given, report)
    spec: Json = {POOLS: worker_pools(given, machines, words, region, report)}
    _add_scheduling(given, machines, spec, report)
    _add_rest(given, spec, report)
    replicas = sum(each.count for each in machines)
    report_environment(given, machines, replicas, report)
    key = mapping(given.get("encryptionConfig")).get("kmsKeyName")
    encryption = {"encryptionSpec": {"kmsKeyName": key}} if key else {}
    if key:
        report.add("key", ("encryptionConfig", "kmsKeyName"))
    if "hyperparameters" in given:
        # What moved into the job's spec moves once more.
        report.moves = {old: (_TRIAL, *new) for old, new in report.moves.items()}
        whole = {**_study(dict(given["hyperparameters"]), report), _TRIAL: spec, **encryption}
        return Converted("HyperparameterTuningJob", whole, replicas, report)
    return Converted("CustomJob", {**spec, **encryption}, replicas, report)


def _job_dir(given: Json, report: Report) -> list[str]:
    """Report `jobDir`, and return the arguments that AI Platform appended for it."""
    if not (folder := given.get("jobDir")):
        return []
    rule = "job-dir of trials" if "hyperparameters" in given else "job-dir"
    report.add(rule, ("jobDir",), ("baseOutputDirectory",))
    report.add("output variables", ("jobDir",), base=f"{folder.rstrip('/')}/")
    return ["--job-dir", folder]


def _add_scheduling(given: Json, machines: list[Machines], spec: Json, report: Report) -> None:
    scheduling, new = mapping(given.get("scheduling")), {}
    keys = ("scheduling",)
    report.move(keys, keys)
    if "maxRunningTime" in scheduling:
        new["timeout"] = scheduling["maxRunningTime"]
        report.add("timeout", (*keys, "maxRunningTime"), (*keys, "timeout"))
    if "maxWaitTime" in scheduling:
        place = (*keys, "maxWaitTime")
        if fits_flex_start(machines, scheduling):
            new |= {"strategy": "FLEX_START", "maxWaitDuration": scheduling["maxWaitTime"]}
            report.add("wait", place, (*keys, "maxWaitDuration"))
        else:
            report.add("lost wait", place, machines="L4, A100, H100, H200 and B200")
    if "priority" in scheduling:
        report.add("priority", (*keys, "priority"))
    if new:
        spec["scheduling"] = new


def _add_rest(given: Json, spec: Json, report: Report) -> None:
    """Add the fields that both services have."""
    rules = {"network": "network", "serviceAccount": "account", "enableWebAccess": "web access"}
    for field in rules:
        if field in given:
            spec[field] = given[field]
            report.add(rules[field], (field,), (field,))
    if given.get("jobDir"):
        spec["baseOutputDirectory"] = {"outputUriPrefix": given["jobDir"]}


# --- Tuning ---------------------------------------------------------------------------------------------


def _study(tuning: Json, report: Report) -> Json:
    """Return the parts of a HyperparameterTuningJob beside its trials' job."""
    keys, place = ("hyperparameters",), ("studySpec",)
    report.add("tuning", keys, place)
    metric = tuning.get("hyperparameterMetricTag", _DEFAULT_METRIC)
    report.add("goal", (*keys, "goal"), (*place, "metrics", 0, "goal"))
    metric_place = (*place, "metrics", 0, "metricId")
    report.add("metric", (*keys, "hyperparameterMetricTag"), metric_place, metric=metric)
    report.move((*keys, "params"), (*place, "parameters"))
    parameters = enumerate(tuning.get("params", ()))
    study: Json = {
        "metrics": [{"metricId": metric, "goal": tuning.get("goal", "MAXIMIZE")}],
        "parameters": [_parameter(dict(each), index, report) for index, each in parameters],
    }
    if "algorithm" in tuning:
        study["algorithm"] = tuning["algorithm"]
        report.add("algorithm", (*keys, "algorithm"), (*place, "algorithm"))
    if tuning.get("enableTrialEarlyStopping"):
        stopping = "medianAutomatedStoppingSpec"
        study[stopping] = {}
        report.add("early stopping", (*keys, "enableTrialEarlyStopping"), (*place, stopping))
    whole: Json = {"studySpec": study, "maxTrialCount": tuning.get("maxTrials", 1)}
    report.add("trials", (*keys, "maxTrials"), ("maxTrialCount",))
    whole["parallelTrialCount"] = tuning.get("maxParallelTrials", 1)
    report.move((*keys, "maxParallelTrials"), ("parallelTrialCount",))
    if "maxFailedTrials" in tuning:
        whole["maxFailedTrialCount"] = tuning["maxFailedTrials"]
        report.add("failed trials", (*keys, "maxFailedTrials"), ("maxFailedTrialCount",))
    if "resumePreviousJobId" in tuning:
        report.add("resume", (*keys, "resumePreviousJobId"))
    return whole


def _parameter(given: Json, index: int, report: Report) -> Json:
    keys: Keys = ("hyperparameters", "params", index)
    place: Keys = ("studySpec", "parameters", index)
    report.move(keys, place)
    report.add("parameter", (*keys, "parameterName"), (*place, "parameterId"))
    kind, scale = given.get("type", ""), given.get(_SCALES)
    field = f"{kind.lower()}ValueSpec"
    new: Json = {"parameterId": given.get("parameterName", "")}
    if kind in ("CATEGORICAL", "DISCRETE"):
        source = f"{kind.lower()}Values"
        new[field] = {"values": given.get(source, [])}
        report.add("values", (*keys, source), (*place, field, "values"))
    else:
        bounds = {bound: given.get(bound, 0) for bound in ("minValue", "maxValue")}
        wholes = {bound: _whole(value) for bound, value in bounds.items()}
        new[field] = wholes if kind == "INTEGER" else bounds
        report.add(kind, (*keys, "type"))
        for bound in bounds:
            report.move((*keys, bound), (*place, field, bound))
    if scale == "NONE":
        report.add("no scale", (*keys, _SCALES))
    elif scale:
        new[_SCALES] = scale
        report.add("parameter scale", (*keys, _SCALES), (*place, _SCALES))
    return new


def _whole(value: Any) -> Any:
    """Return a bound as an integer, if it is one in another form."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value
