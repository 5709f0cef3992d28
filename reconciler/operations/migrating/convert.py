"""Conversion of AI Platform's `trainingInput` to the `spec` of a Vertex AI job."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from reconciler.manifests.findings import Keys
from reconciler.manifests.known_values import region_doubt
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.operations.migrating.pools import (
    POOLS,
    Machines,
    executor_image,
    machines_of,
    primary_was_master,
    report_task,
    worker_pools,
)
from reconciler.operations.migrating.report import Report, mapping

Json = dict[str, Any]
_TRIAL = "trialJobSpec"
_DEFAULT_METRIC = "training/hptuning/metric"
_WEEK = 7 * 24 * 3600
# Google's page "Schedule training jobs based on resource availability".
_FLEX_START = {"NVIDIA_L4", "NVIDIA_TESLA_A100", "NVIDIA_A100_80GB", "NVIDIA_H100_80GB"}
_FLEX_MACHINES = "L4, A100, H100, H200 and B200"
_SMALL = ("n1-standard-1", "n1-standard-2", "n1-standard-4", "n1-highcpu-2", "n1-highcpu-4", "n1-highmem-2")
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
    _report_region(given, location, report)
    machines = machines_of(given, report)
    report_task(given, machines, region, report)
    runtime = given.get("runtimeVersion", "")
    if runtime in overridden and "pythonModule" in given:
        image = image or executor_image(given, machines[0], region)
        report.add("images", ("runtimeVersion",), runtime=runtime, image=image)
    words = _job_dir(given, report)
    spec: Json = {POOLS: worker_pools(given, machines, words, region, report)}
    _add_scheduling(given, machines, spec, report)
    _add_rest(given, spec, report)
    replicas = sum(each.count for each in machines)
    _report_environment(given, machines, replicas, report)
    key = _key(given, report)
    if "hyperparameters" in given:
        # What moved into the job's spec moves once more.
        report.moves = {old: (_TRIAL, *new) for old, new in report.moves.items()}
        whole = {**_study(dict(given["hyperparameters"]), report), _TRIAL: spec, **key}
        return Converted("HyperparameterTuningJob", whole, replicas, report)
    return Converted("CustomJob", {**spec, **key}, replicas, report)


def _report_region(given: Json, location: str, report: Report) -> None:
    region = given.get("region")
    if not region:
        return
    rule = "region" if location in ("", region) else "other region"
    rule = "unknown region" if region_doubt(AIPLATFORM_V1, region) else rule
    report.add(rule, ("region",), region=region, location=location)


def _job_dir(given: Json, report: Report) -> list[str]:
    """Report `jobDir`, and return the arguments that AI Platform appended for it."""
    folder = given.get("jobDir")
    if not folder:
        return []
    report.add("job-dir of trials" if "hyperparameters" in given else "job-dir", ("jobDir",))
    report.add("output variables", ("jobDir",), base=f"{folder.rstrip('/')}/")
    report.move(("jobDir",), ("baseOutputDirectory",))
    return ["--job-dir", folder]


def _add_scheduling(given: Json, machines: list[Machines], spec: Json, report: Report) -> None:
    scheduling, new = mapping(given.get("scheduling")), {}
    keys = ("scheduling",)
    report.move(keys, keys)
    if "maxRunningTime" in scheduling:
        new["timeout"] = scheduling["maxRunningTime"]
        report.add("timeout", (*keys, "maxRunningTime"))
        report.move((*keys, "maxRunningTime"), (*keys, "timeout"))
    if "maxWaitTime" in scheduling:
        place = (*keys, "maxWaitTime")
        if _fits_flex_start(machines, scheduling.get("maxRunningTime", f"{_WEEK}s")):
            new |= {"strategy": "FLEX_START", "maxWaitDuration": scheduling["maxWaitTime"]}
            report.add("wait", place)
            report.move(place, (*keys, "maxWaitDuration"))
        else:
            report.add("lost wait", place, machines=_FLEX_MACHINES)
    if "priority" in scheduling:
        report.add("priority", (*keys, "priority"))
    if new:
        spec["scheduling"] = new


def _fits_flex_start(machines: list[Machines], limit: str) -> bool:
    kinds = {each.accelerator[0] if each.accelerator else "" for each in machines}
    is_same = len({(each.machine_type, each.accelerator) for each in machines}) == 1
    return kinds <= _FLEX_START and is_same and float(limit.removesuffix("s")) <= _WEEK


def _add_rest(given: Json, spec: Json, report: Report) -> None:
    """Add the fields that both services have."""
    for field, rule in (
        ("network", "network"),
        ("serviceAccount", "account"),
        ("enableWebAccess", "web access"),
    ):
        if field in given:
            spec[field] = given[field]
            report.add(rule, (field,))
            report.move((field,), (field,))
    if given.get("jobDir"):
        spec["baseOutputDirectory"] = {"outputUriPrefix": given["jobDir"]}


def _key(given: Json, report: Report) -> Json:
    key = mapping(given.get("encryptionConfig")).get("kmsKeyName")
    if not key:
        return {}
    report.add("key", ("encryptionConfig", "kmsKeyName"))
    return {"encryptionSpec": {"kmsKeyName": key}}


def _report_environment(given: Json, machines: list[Machines], replicas: int, report: Report) -> None:
    """Report the behaviour that no field names."""
    was_master = primary_was_master(given)
    if replicas > 1:
        before = ', and was "master" before' if was_master else ", as before"
        report.add("TF_CONFIG of several", before=before)
    else:
        report.add("TF_CONFIG of one")
    had_spec = "pythonModule" not in given
    report.add("CLUSTER_SPEC", before=", as containers did before" if had_spec else "")
    if "useChiefInTfConfig" in given:
        before = '; on AI Platform it was "master" without this' if was_master else ", as this job wants it"
        report.add("chief", ("useChiefInTfConfig",), before=before)
    if "serviceAccount" not in given:
        report.add("identity")
    report.add("retries")
    small = sorted({each.machine_type for each in machines if each.machine_type in _SMALL})
    if small:
        report.add("memory", machines=" or ".join(small))


# --- Tuning ---------------------------------------------------------------------------------------------


def _study(tuning: Json, report: Report) -> Json:
    """Return the parts of a HyperparameterTuningJob beside its trials' job."""
    keys: Keys = ("hyperparameters",)
    report.add("tuning", keys)
    report.move(keys, ("studySpec",))
    metric = tuning.get("hyperparameterMetricTag", _DEFAULT_METRIC)
    report.add("goal", (*keys, "goal"))
    report.add("metric", (*keys, "hyperparameterMetricTag"), metric=metric)
    study: Json = {
        "metrics": [{"metricId": metric, "goal": tuning.get("goal", "MAXIMIZE")}],
        "parameters": [
            _parameter(dict(each), index, report) for index, each in enumerate(tuning.get("params", ()))
        ],
    }
    report.move((*keys, "hyperparameterMetricTag"), ("studySpec", "metrics", 0, "metricId"))
    report.move((*keys, "goal"), ("studySpec", "metrics", 0, "goal"))
    report.move((*keys, "params"), ("studySpec", "parameters"))
    if "algorithm" in tuning:
        study["algorithm"] = tuning["algorithm"]
        report.add("algorithm", (*keys, "algorithm"))
        report.move((*keys, "algorithm"), ("studySpec", "algorithm"))
    if tuning.get("enableTrialEarlyStopping"):
        study["medianAutomatedStoppingSpec"] = {}
        report.add("early stopping", (*keys, "enableTrialEarlyStopping"))
        report.move((*keys, "enableTrialEarlyStopping"), ("studySpec", "medianAutomatedStoppingSpec"))
    whole: Json = {"studySpec": study}
    counts = (
        ("maxTrials", "maxTrialCount", 1),
        ("maxParallelTrials", "parallelTrialCount", 1),
        ("maxFailedTrials", "maxFailedTrialCount", None),
    )
    for field, target, default in counts:
        if (value := tuning.get(field, default)) is not None:
            whole[target] = value
            report.move((*keys, field), (target,))
    report.add("trials", (*keys, "maxTrials"))
    if "maxFailedTrials" in tuning:
        report.add("failed trials", (*keys, "maxFailedTrials"))
    if "resumePreviousJobId" in tuning:
        report.add("resume", (*keys, "resumePreviousJobId"))
    return whole


def _parameter(given: Json, index: int, report: Report) -> Json:
    keys: Keys = ("hyperparameters", "params", index)
    place: Keys = ("studySpec", "parameters", index)
    report.move(keys, place)
    report.move((*keys, "parameterName"), (*place, "parameterId"))
    report.add("parameter", (*keys, "parameterName"))
    new: Json = {"parameterId": given.get("parameterName", "")}
    kind = given.get("type", "")
    if kind in ("CATEGORICAL", "DISCRETE"):
        field, source = f"{kind.lower()}ValueSpec", f"{kind.lower()}Values"
        new[field] = {"values": given.get(source, [])}
        report.add("values", (*keys, source))
        report.move((*keys, source), (*place, field, "values"))
    else:
        field = f"{kind.lower()}ValueSpec"
        bounds = (given.get("minValue", 0), given.get("maxValue", 0))
        if kind == "INTEGER":
            bounds = (_whole(bounds[0]), _whole(bounds[1]))
        new[field] = {"minValue": bounds[0], "maxValue": bounds[1]}
        report.add(kind, (*keys, "type"))
        for bound in ("minValue", "maxValue"):
            report.move((*keys, bound), (*place, field, bound))
    scale = given.get(_SCALES)
    if scale == "NONE":
        report.add("no scale", (*keys, _SCALES))
    elif scale:
        new[_SCALES] = scale
        report.add("parameter scale", (*keys, _SCALES))
        report.move((*keys, _SCALES), (*place, _SCALES))
    return new


def _whole(value: Any) -> Any:
    """Return a bound as an integer, if it is one in another form."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value
