"""Rules between the fields of a job: values that are right alone, and wrong or without effect together."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from reconciler.base.diagnostics import Finding, Keys, quote
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.written_forms import flow

_DOTS = re.compile(r"gs://[^/]+/(?:.*/)?\.\.(?:/.*)?", re.DOTALL)
_ROLES = ("worker", "parameterServer", "evaluator")
# https://cloud.google.com/vertex-ai/docs/training/schedule-jobs-dws: "Your custom training job requests L4,
# A100, H100, H200, or B200 GPUs." Of accelerators that are newer than the page, the service decides.
_NO_FLEX_START = frozenset(
    {
        *("NVIDIA_TESLA_K80", "NVIDIA_TESLA_P4", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_T4", "NVIDIA_TESLA_V100"),
        *("TPU_V2", "TPU_V3", "TPU_V4_POD", "TPU_V5_LITEPOD"),
    }
)
_WITH_GPU = {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
_SECONDS = re.compile(r"([0-9]{1,12})(?:\.[0-9]{1,9})?s")
_WEEK = 604_800  # seconds


def pool_findings(keys: Keys, job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about the pools of a CustomJobSpec beside its other fields; `keys` is its path."""
    output = job.get("baseOutputDirectory")
    if isinstance(output, dict):
        yield from path_findings(
            (*keys, "baseOutputDirectory", "outputUriPrefix"), output.get("outputUriPrefix")
        )
    scheduling = job.get("scheduling")
    if isinstance(scheduling, dict) and scheduling.get("strategy") == "FLEX_START":
        yield from _flex_start(keys, job, scheduling)


def _flex_start(keys: Keys, job: Mapping[str, Any], scheduling: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what keeps a job from being scheduled by FLEX_START; the page of `_NO_FLEX_START` says it."""
    # "Your custom training job has a maximum timeout of 7 days or less."
    timeout = scheduling.get("timeout")
    match = _SECONDS.fullmatch(timeout) if isinstance(timeout, str) else None
    if match and int(match[1]) > _WEEK:
        message = f"FLEX_START runs a job for at most seven days, not {timeout}"
        yield Finding((*keys, "scheduling", "timeout"), message, f'write timeout: "{_WEEK}s"')
    pools = job.get("workerPoolSpecs")
    machines = {
        index: pool["machineSpec"]
        for index, pool in enumerate(pools if isinstance(pools, list) else [])
        if isinstance(pool, dict) and isinstance(pool.get("machineSpec"), dict)
    }
    right = next(filter(_has_flex_gpu, machines.values()), _WITH_GPU)
    for index, machine in machines.items():
        if machine == right:
            continue
        # "Your custom training job uses the same machine configuration for all worker pools."
        message = "FLEX_START needs the same machine configuration in all worker pools"
        if not _has_flex_gpu(machine):
            has = machine.get("acceleratorType")
            has_not = f"not {has}" if has else "and this machine states none"
            message = f"FLEX_START is for L4, A100, H100, H200 and B200 GPUs, {has_not}"
        hint = f'write machineSpec: {flow(right)}\nor remove "strategy: FLEX_START"'
        yield Finding((*keys, "workerPoolSpecs", index, "machineSpec"), message, hint, of_key=True)


def _has_flex_gpu(machine: Mapping[str, Any]) -> bool:
    accelerator = machine.get("acceleratorType")
    return isinstance(accelerator, str) and accelerator not in ("", *_NO_FLEX_START)


def ml_field_findings(keys: Keys, training_input: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield warnings of fields of a `trainingInput` without effect; `keys` is its path."""
    is_custom = training_input.get("scaleTier") == "CUSTOM"
    # `masterType`: "You must specify this field when `scaleTier` is set to `CUSTOM`."
    if training_input.get("masterType") and not is_custom:
        message = '"masterType" counts only with "scaleTier: CUSTOM": other tiers bring their own machines'
        hint = 'write "scaleTier: CUSTOM", or remove "masterType"'
        yield Finding((*keys, "masterType"), message, hint, of_key=True, kind=WarningKind.NO_EFFECT)
    for role in _ROLES if is_custom else ():
        # `workerCount` and its like: "The default value is zero."
        if training_input.get(f"{role}Type") and f"{role}Count" not in training_input:
            message = f'"{role}Type" has no effect without "{role}Count", which is 0 by default'
            hint = f'add "{role}Count: 1", or remove "{role}Type"'
            yield Finding((*keys, f"{role}Type"), message, hint, of_key=True, kind=WarningKind.NO_EFFECT)
    if "jobDir" in training_input:
        yield from path_findings((*keys, "jobDir"), training_input["jobDir"])


def trial_findings(keys: Keys, tuning: Mapping[str, Any], most: str, at_once: str) -> Iterator[Finding]:
    """Yield a warning if a study runs more trials at once than it has.

    Args:
        keys: The path of `tuning`.
        tuning: What has the two fields.
        most, at_once: The names of the fields with the number of trials, and of those at the same time.
    """
    trials, parallel = tuning.get(most), tuning.get(at_once)
    if isinstance(trials, int) and isinstance(parallel, int) and 0 < trials < parallel:
        message = f'"{at_once}" is {parallel}, and there are only {trials} trials'
        hint = f"write {at_once}: {trials}"
        yield Finding((*keys, at_once), message, hint, kind=WarningKind.PARALLEL_TRIALS)


def ml_parameter_findings(keys: Keys, parameter: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield warnings of a `ParameterSpec` of AI Platform; `keys` is its path."""
    if has_dashes(name := parameter.get("parameterName")):
        yield dashes_finding((*keys, "parameterName"), name)
    # minValue and maxValue: "Required if type is `DOUBLE` or `INTEGER`."
    for bound in ("minValue", "maxValue") if parameter.get("type") == "DISCRETE" else ():
        if bound in parameter:
            message = f'"{bound}" has no effect: the values of a DISCRETE parameter are its "discreteValues"'
            keys_of_bound = (*keys, bound)
            yield Finding(keys_of_bound, message, "remove it", of_key=True, kind=WarningKind.NO_EFFECT)


def has_dashes(name: Any) -> TypeGuard[str]:
    """Return True if the name of a parameter begins with the dashes of a flag."""
    return isinstance(name, str) and name[:1] == "-" and bool(name.lstrip("-"))


def dashes_finding(keys: Keys, name: str) -> Finding:
    """Return the warning of a parameter's name that `has_dashes`.

    The service adds dashes: https://cloud.google.com/vertex-ai/docs/training/using-hyperparameter-tuning.
    """
    message = f"the trainer gets this parameter as {quote(f'--{name}')}, because the service adds dashes"
    return Finding(keys, message, f"write {name.lstrip('-')}", kind=WarningKind.PARAMETER_NAME)


def path_findings(keys: Keys, uri: Any) -> tuple[Finding, ...]:
    """Return a warning of `..` in a gs:// path, or nothing: Cloud Storage has no folders to go up in."""
    if not isinstance(uri, str) or ".." not in uri or not _DOTS.fullmatch(uri):
        return ()
    bucket, _, path = uri.removeprefix("gs://").partition("/")
    right = posixpath.normpath(f"/{path}").lstrip("/")
    message = f'Cloud Storage takes ".." for a name: {quote(uri)} is no folder above'
    return (Finding(keys, message, f"write gs://{bucket}/{right}", kind=WarningKind.DOTS_IN_PATH),)
