"""Rules between the fields of a job: values that are right alone, and wrong or without effect together."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, TypeGuard

from reconciler.base.diagnostics import Finding, Keys, counted, quote
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.known_values import accelerators_of
from reconciler.manifests.written_forms import flow

_DOTS = re.compile(r"(?P<flag>--?[\w.-]+=)?gs://(?P<bucket>[^/]+)/(?P<path>(?:.*/)?\.\.(?:/.*)?)", re.DOTALL)
_ROLES = ("worker", "parameterServer", "evaluator")
_VALUE_SPECS = ("doubleValueSpec", "integerValueSpec", "categoricalValueSpec", "discreteValueSpec")
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
LONG_TIMEOUT = "a timeout of more than seven days"
"""What an environment gives whose default `timeout` is that long."""


def pool_findings(keys: Keys, job: Mapping[str, Any], filled: frozenset[str]) -> Iterator[Finding]:
    """Yield the findings about the pools of a CustomJobSpec beside its other fields; `keys` is its path.

    `filled` is what the environment gives, as `Environment.filled` has it.
    """
    output = job.get("baseOutputDirectory")
    if isinstance(output, dict):
        yield from path_findings(
            (*keys, "baseOutputDirectory", "outputUriPrefix"), output.get("outputUriPrefix")
        )
    scheduling = job.get("scheduling")
    if isinstance(scheduling, dict):
        if scheduling.get("strategy") == "FLEX_START":
            yield from _flex_timeout((*keys, "scheduling"), scheduling, filled)
            yield from _flex_machines(keys, job)
        elif scheduling.get("strategy") == "SPOT":
            yield from _spot_machines(keys, job)
        # `disableRetries`: "If true, overrides `Scheduling.restart_job_on_worker_restart` to false."
        if scheduling.get("disableRetries") is True and scheduling.get("restartJobOnWorkerRestart") is True:
            message = '"restartJobOnWorkerRestart" has no effect with "disableRetries"'
            restart_keys = (*keys, "scheduling", "restartJobOnWorkerRestart")
            yield Finding(
                restart_keys, message, "remove one of the two", of_key=True, kind=WarningKind.NO_EFFECT
            )
    # "A list of names for the reserved ip ranges under the VPC network that can be used for this job."
    if job.get("reservedIpRanges") and not job.get("network") and "network" not in filled:
        message = '"reservedIpRanges" has no effect without "network", which the ranges belong to'
        hint = 'add "network: projects/NUMBER/global/networks/NAME", or remove "reservedIpRanges"'
        yield Finding((*keys, "reservedIpRanges"), message, hint, of_key=True, kind=WarningKind.NO_EFFECT)
    if job.get("persistentResourceId"):
        yield from _persistent(keys, job)


def _persistent(keys: Keys, job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield warnings of fields that say where machines come from: a persistent resource has its own.

    `persistentResourceId`: "the job will be run on existing machines held by the PersistentResource instead
    of on-demand short-live machines."
    """
    why = 'has no effect with "persistentResourceId": the job runs on machines that the resource holds'
    scheduling = job.get("scheduling")
    strategy = scheduling.get("strategy") if isinstance(scheduling, dict) else None
    if strategy in ("SPOT", "FLEX_START", "LOW_COST"):
        strategy_keys = (*keys, "scheduling", "strategy")
        yield Finding(
            strategy_keys,
            f'"strategy: {strategy}" {why}',
            "remove it",
            of_key=True,
            kind=WarningKind.NO_EFFECT,
        )
    for index, machine in _machines(job).items():
        if "reservationAffinity" in machine:
            machine_keys = (*keys, "workerPoolSpecs", index, "machineSpec", "reservationAffinity")
            message = f'"reservationAffinity" {why}'
            yield Finding(machine_keys, message, "remove it", of_key=True, kind=WarningKind.NO_EFFECT)


def _flex_timeout(keys: Keys, scheduling: Mapping[str, Any], filled: frozenset[str]) -> Iterator[Finding]:
    """Yield an error if a job by FLEX_START may run too long; the page of `_NO_FLEX_START` says it."""
    # "Your custom training job has a maximum timeout of 7 days or less."
    timeout, hint = scheduling.get("timeout"), f'write timeout: "{_WEEK}s"'
    if is_above_week(timeout):
        message = f"FLEX_START runs a job for at most seven days, not {timeout}"
        yield Finding((*keys, "timeout"), message, hint)
    elif "timeout" not in scheduling and LONG_TIMEOUT in filled:
        message = "FLEX_START runs a job for at most seven days, and the environment's timeout is longer"
        yield Finding((*keys, "strategy"), message, hint.replace("write", "add"), of_key=True)


def _spot_machines(keys: Keys, job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the slices of TPU pods, which no Spot VMs have.

    https://cloud.google.com/vertex-ai/docs/training/use-spot-vms: "Using Spot VMs with TPU Pods isn't
    supported."
    """
    for index, machine in _machines(job).items():
        name, topology = machine.get("machineType"), machine.get("tpuTopology")
        chips = accelerators_of(name) if isinstance(name, str) else 0
        if not isinstance(topology, str) or not re.fullmatch(
            "[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}", topology
        ):
            continue
        if 0 < chips < prod(map(int, topology.split("x"))):
            message = f"SPOT is for no slices of TPU pods, and {topology} has more chips than one {name}"
            hint = 'remove "strategy: SPOT", or write the topology of a single machine'
            yield Finding((*keys, "workerPoolSpecs", index, "machineSpec", "tpuTopology"), message, hint)


def is_above_week(timeout: Any) -> bool:
    """Return True for a duration of more than seven days, such as "700000s"."""
    match = _SECONDS.fullmatch(timeout) if isinstance(timeout, str) else None
    return match is not None and int(match[1]) > _WEEK


def _machines(job: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return the `machineSpec` of each pool that has one, by the pool's index."""
    pools = job.get("workerPoolSpecs")
    return {
        index: pool["machineSpec"]
        for index, pool in enumerate(pools if isinstance(pools, list) else [])
        if isinstance(pool, dict) and isinstance(pool.get("machineSpec"), dict)
    }


def _flex_machines(keys: Keys, job: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the machines that FLEX_START can't wait for; the page of `_NO_FLEX_START` says it."""
    machines = _machines(job)
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
        for field in (f"{role}Type", f"{role}Config"):
            if training_input.get(field) and f"{role}Count" not in training_input:
                message = f'"{field}" has no effect without "{role}Count", which is 0 by default'
                hint = f'add "{role}Count: 1", or remove "{field}"'
                yield Finding((*keys, field), message, hint, of_key=True, kind=WarningKind.NO_EFFECT)
                break
    if "jobDir" in training_input:
        yield from path_findings((*keys, "jobDir"), training_input["jobDir"])


def trial_findings(
    keys: Keys, tuning: Mapping[str, Any], most: str, at_once: str, default: int | None = None
) -> Iterator[Finding]:
    """Yield a warning if a study runs more trials at once than it has.

    Args:
        keys: The path of `tuning`.
        tuning: What has the two fields.
        most, at_once: The names of the fields with the number of trials, and of those at the same time.
        default: The number of trials of a study that doesn't say it; None if it has to.
    """
    trials, parallel = tuning.get(most, default), tuning.get(at_once)
    if isinstance(trials, int) and isinstance(parallel, int) and 0 < trials < parallel:
        there = f"there {'is' if trials == 1 else 'are'}" if most in tuning else f'without "{most}" there is'
        message = f'"{at_once}" is {parallel}, and {there} only {counted(trials, "trial")}'
        hint = f"write {at_once}: {trials}" if most in tuning else f"add {most}: {parallel}, or more"
        yield Finding((*keys, at_once), message, hint, kind=WarningKind.PARALLEL_TRIALS)


def default_value_findings(keys: Keys, parameter: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a warning of a study's parameter with a default value; `keys` is the parameter's path.

    `defaultValue`: "Currently only supported by the Vertex AI Vizier service. Not supported by
    HyperparameterTuningJob or TrainingPipeline."
    """
    for name in _VALUE_SPECS:
        spec = parameter.get(name)
        if isinstance(spec, dict) and "defaultValue" in spec:
            message = '"defaultValue" has no effect in a tuning job: the first trial may begin anywhere'
            yield Finding(
                (*keys, name, "defaultValue"), message, "remove it", of_key=True, kind=WarningKind.NO_EFFECT
            )


def ml_parameter_findings(keys: Keys, parameter: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield warnings of a `ParameterSpec` of AI Platform; `keys` is its path."""
    if has_dashes(name := parameter.get("parameterName")):
        yield dashes_finding((*keys, "parameterName"), name)
    for kind, field in (("CATEGORICAL", "categoricalValues"), ("DISCRETE", "discreteValues")):
        # "Required if type is `CATEGORICAL`.", and its like.
        if parameter.get(field) and parameter.get("type") not in (None, kind):
            message = f'"{field}" has no effect: it is for parameters of the type {kind}'
            hint = f'write "type: {kind}", or remove "{field}"'
            yield Finding((*keys, field), message, hint, of_key=True, kind=WarningKind.NO_EFFECT)
    # minValue and maxValue: "Required if type is `DOUBLE` or `INTEGER`."
    for bound in ("minValue", "maxValue") if parameter.get("type") == "DISCRETE" else ():
        if bound in parameter:
            message = f'"{bound}" has no effect: the values of a DISCRETE parameter are its "discreteValues"'
            yield Finding((*keys, bound), message, "remove it", of_key=True, kind=WarningKind.NO_EFFECT)


def has_dashes(name: Any) -> TypeGuard[str]:
    """Return True if the name of a parameter begins with the dashes of a flag."""
    return isinstance(name, str) and name[:1] == "-" and bool(name.lstrip("-"))


def dashes_finding(keys: Keys, name: str) -> Finding:
    """Return the warning of a parameter's name that `has_dashes`.

    The service adds dashes: https://cloud.google.com/vertex-ai/docs/training/using-hyperparameter-tuning.
    """
    message = f"the trainer gets this parameter as {quote(f'--{name}')}, because the service adds dashes"
    return Finding(keys, message, f"write {name.lstrip('-')}", kind=WarningKind.PARAMETER_NAME)


def path_findings(keys: Keys, text: Any) -> tuple[Finding, ...]:
    """Return a warning of `..` in a gs:// path, or nothing: Cloud Storage has no folders to go up in.

    The path may be the value of a flag: `--data=gs://…`.
    """
    if not isinstance(text, str) or ".." not in text or not (match := _DOTS.fullmatch(text)):
        return ()
    right = posixpath.normpath(f"/{match['path']}").lstrip("/")
    message = f'Cloud Storage takes ".." for a name: {quote(text)} is no folder above'
    hint = f"write {match['flag'] or ''}gs://{match['bucket']}/{right}"
    return (Finding(keys, message, hint, kind=WarningKind.DOTS_IN_PATH),)


def paths_findings(keys: Keys, texts: Any) -> Iterable[Finding]:
    """Return the warnings of `path_findings` about a list of text, none of others; `keys` is its path."""
    try:
        # Nearly all manifests end here.
        if texts.__class__ is not list or ".." not in "\n".join(texts):
            return ()
    except TypeError:
        return ()
    return [finding for index, text in enumerate(texts) for finding in path_findings((*keys, index), text)]
