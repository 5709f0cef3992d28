"""Rules about a job that its schema can't express, or only with poor messages.

Those for documents accept any shape, and skip parts that the schema refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from reconciler.base.diagnostics import Finding, Keys, quote
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.command_words import variable_findings, word_findings
from reconciler.manifests.expectations import expectation_findings
from reconciler.manifests.field_relations import (
    dashes_finding,
    default_value_findings,
    has_dashes,
    ml_field_findings,
    ml_parameter_findings,
    path_findings,
    paths_findings,
    pool_findings,
    trial_findings,
)
from reconciler.manifests.job_fields import job_field_findings, network_findings, python_package_findings
from reconciler.manifests.known_values import (
    TABLES,
    Doubt,
    machine_doubt,
    python_doubt,
    region_doubt,
    runtime_doubt,
    undocumented_machine,
)
from reconciler.manifests.machines import (
    MachineMismatch,
    accelerator_mismatch,
    bundled_accelerator,
    machine_name_mismatch,
)
from reconciler.manifests.pipelines import INPUTS, TRIALS, job_in, pipeline_findings
from reconciler.manifests.publications import OWN_FOLDERS, publication_findings
from reconciler.manifests.secrets import exemption_findings
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

_ROLES = [
    (role, f"{role}Type", f"{role}Config") for role in ("master", "worker", "parameterServer", "evaluator")
]
_TASKS = ("containerSpec", "pythonPackageSpec")
_COMMAND_OF = {"containerSpec": "command", "pythonPackageSpec": ""}
# The accelerators of machines that come with them and that AI Platform knows (`AcceleratorConfig.type`).
_BUNDLED_ON_ML = ("NVIDIA_TESLA_A100",)
_VERSION = re.compile(r"[0-9]+\.[0-9]+")  # the schema refuses others
_LEAST_APART = 0.999e-10  # 1e-10, less the rounding of doubles
_GPU_FIELDS = ("acceleratorType", "acceleratorCount")


def domain_findings(manifest: Any, filled: frozenset[str] = frozenset()) -> Iterator[Finding]:
    """Yield the mistakes of a manifest, above all in `spec`, that a service refuses, or probably refuses.

    `filled` is what the environment gives, as `Environment.filled` has it.
    """
    fields = _mapping(manifest)
    spec = _mapping(fields.get("spec"))
    training_input = _mapping(spec.get("trainingInput"))
    above, job = job_in(spec)
    is_staged = "package" in fields
    yield from _custom_job(("spec", *above), job, filled, is_staged=is_staged)
    if TRIALS in job:
        yield from _custom_job(("spec", *above, TRIALS), _mapping(job[TRIALS]), filled, is_staged=is_staged)
    if "studySpec" in job:
        yield from _study(("spec", *above, "studySpec"), _mapping(job["studySpec"]))
        yield from trial_findings(("spec", *above), job, "maxTrialCount", "parallelTrialCount")
    if INPUTS in spec:
        has_folder, has_own_folder = "baseOutputDirectory" in filled, OWN_FOLDERS in filled
        yield from pipeline_findings(spec, has_folder=has_folder, has_own_folder=has_own_folder)
        model_keys = ("spec", "modelToUpload", "artifactUri")
        yield from path_findings(model_keys, _mapping(spec.get("modelToUpload")).get("artifactUri"))
    if training_input:
        yield from _training_input(("spec", "trainingInput"), training_input)
        yield from python_package_findings(("spec", "trainingInput"), training_input, is_staged=is_staged)
    yield from exemption_findings(manifest)
    if is_staged:
        yield from _package(_mapping(manifest["package"]), spec, training_input)
    if "expect" in fields:
        expect, has_folder = _mapping(manifest["expect"]), "baseOutputDirectory" in filled
        is_published = "publish" in fields
        yield from expectation_findings(expect, spec, has_folder=has_folder, is_published=is_published)
    if isinstance(publish := fields.get("publish"), dict):
        yield from publication_findings(publish, spec, filled)


def python_modules(manifest: Mapping[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield path and name of each module that has to come from the manifest's `package`.

    A module with `packageUris` beside it comes from those packages instead.
    """
    staged = _mapping(manifest.get("package")).get("module")
    if isinstance(staged, str):
        yield ("package", "module"), staged
    spec = _mapping(manifest.get("spec"))
    holders: list[tuple[Keys, Any]] = [(("spec", "trainingInput"), spec.get("trainingInput"))]
    above, job = job_in(spec)
    for below in ((), (TRIALS,)):
        pools = _mapping(job.get(TRIALS) if below else job).get("workerPoolSpecs")
        for index, pool in enumerate(_list(pools)):
            package_keys = ("spec", *above, *below, "workerPoolSpecs", index, "pythonPackageSpec")
            holders.append((package_keys, _mapping(pool).get("pythonPackageSpec")))
    for keys, holder in holders:
        module = _mapping(holder).get("pythonModule")
        if isinstance(module, str) and not _mapping(holder).get("packageUris"):
            yield (*keys, "pythonModule"), module


def _package(
    package: Mapping[str, Any], spec: Mapping[str, Any], training_input: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield the mistakes in what runs the code of `package`."""
    module = ("package", "module")
    if "requirements" in package and "module" not in package:
        message = '"requirements" is for containers, which need "module" too'
        hint = (
            'add "module"; a "pythonPackageSpec" takes what requirements.txt at the top of the folder lists'
        )
        yield Finding(("package", "requirements"), message, hint, of_key=True)
    elif training_input:
        if "module" in package:
            message = '"module" is for the containers of Vertex AI\'s jobs'
            yield Finding(module, message, 'write "pythonModule" in "trainingInput"', of_key=True)
        elif "pythonModule" not in training_input:  # needed without an image of one's own, says the schema
            yield _unused_code('add "pythonModule" to "trainingInput", such as trainer.task')
    else:
        yield from _vertex_package(package, spec)


def _vertex_package(package: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Finding]:
    above, job = job_in(spec)
    if TRIALS in job:
        above, job = (*above, TRIALS), _mapping(job[TRIALS])
    pools = _list(job.get("workerPoolSpecs"))
    if "module" in package:
        for index, pool in enumerate(pools):
            yield from _runs_module(("spec", *above, "workerPoolSpecs", index), _mapping(pool))
    elif pools and not any("pythonPackageSpec" in _mapping(pool) for pool in pools):
        yield _unused_code('add "module" to "package", for example trainer.task, or remove "package"')


def _unused_code(hint: str) -> Finding:
    message = "the job runs no Python package, so the code is not used"
    return Finding(("package",), message, hint, of_key=True)


def _runs_module(keys: Keys, pool: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what keeps a worker pool's container from running the package's module."""
    if "pythonPackageSpec" in pool:
        message = '"pythonPackageSpec" names its own module, and "package" has one too'
        hint = 'write "containerSpec: {imageUri: …}" in its place, or remove "module" under "package"'
        yield Finding((*keys, "pythonPackageSpec"), message, hint, of_key=True)
    if "command" in _mapping(pool.get("containerSpec")):
        message = '"command" can\'t be set: the reconciler sets it to run "module" of "package"'
        hint = 'remove "command" ("args" reach the module), or remove "module"'
        yield Finding((*keys, "containerSpec", "command"), message, hint, of_key=True)


# --- Vertex AI ------------------------------------------------------------------------------------------


def _custom_job(
    keys: Keys, job: Mapping[str, Any], filled: frozenset[str], *, is_staged: bool
) -> Iterator[Finding]:
    if "tensorboard" in job or "network" in job:
        yield from job_field_findings(keys, job, filled)
    yield from pool_findings(keys, job, filled)
    for index, pool in enumerate(_list(job.get("workerPoolSpecs"))):
        if not isinstance(pool, dict):
            continue
        pool_keys = (*keys, "workerPoolSpecs", index)
        machine = _mapping(pool.get("machineSpec"))
        finding = _machine_spec(machine) or _doubtful_machine(AIPLATFORM_V1, machine)
        if not finding and "acceleratorType" in machine:
            finding = _retired(machine)
        if finding:
            yield replace(finding, keys=(*pool_keys, "machineSpec", *finding.keys))
        for task in _TASKS:
            if task not in pool:
                continue
            spec = _mapping(pool[task])
            if "env" in spec:
                yield from _repeated((*pool_keys, task, "env"), _list(spec["env"]), "name")
                yield from variable_findings((*pool_keys, task, "env"), _list(spec["env"]))
                for at, variable in enumerate(_list(spec["env"])):
                    if isinstance(variable, dict) and ".." in str(variable.get("value")):
                        yield from path_findings((*pool_keys, task, "env", at, "value"), variable["value"])
            if "args" in spec or "command" in spec:
                yield from word_findings((*pool_keys, task), spec, _COMMAND_OF[task])
                yield from paths_findings((*pool_keys, task, "args"), spec.get("args"))
            if task == "pythonPackageSpec" and spec:
                yield from python_package_findings((*pool_keys, task), spec, is_staged=is_staged)
            if "packageUris" in spec:
                yield from _package_uris((*pool_keys, task, "packageUris"), spec["packageUris"])


def _machine_spec(spec: Mapping[str, Any]) -> Finding | None:
    """Return the mistake in a `machineSpec`, with its path from there."""
    machine = spec.get("machineType")
    accelerator, count = spec.get("acceleratorType", ""), spec.get("acceleratorCount", 0)
    if not isinstance(machine, str) or not isinstance(accelerator, str) or not isinstance(count, int | float):
        return None
    mismatch = machine_name_mismatch(machine) if machine else None
    if not mismatch and bool(accelerator) != bool(count):
        return _incomplete_accelerator((), accelerator, _GPU_FIELDS)
    mismatch = mismatch or accelerator_mismatch(machine, accelerator, int(count))
    if not mismatch:
        return None
    field = {"machine": "machineType", "type": "acceleratorType", "count": "acceleratorCount"}[mismatch.part]
    return Finding((field,), mismatch.message, _hint(mismatch, _GPU_FIELDS))


def _doubtful_machine(
    api_version: str, spec: Mapping[str, Any], field: str = "machineType"
) -> Finding | None:
    """Return the doubt about the name of a machine type under `field`, or None."""
    machine = spec.get(field)
    if not machine or not isinstance(machine, str):
        return None
    doubt = machine_doubt(api_version, machine)
    if not doubt and api_version == AIPLATFORM_V1:
        doubt = undocumented_machine(machine)
    return _finding((field,), doubt) if doubt else None


def _retired(spec: Mapping[str, Any]) -> Finding | None:
    """Return the warning of an accelerator that Google has no more, or None."""
    accelerator, count = spec.get("acceleratorType"), spec.get("acceleratorCount")
    successor = TABLES.retired.get(accelerator) if isinstance(accelerator, str) else None
    if not successor:
        return None
    fitting = [number for number in TABLES.attachable[successor] if number <= (_number(count) or 1)]
    hint = f"write\nacceleratorType: {successor}\nacceleratorCount: {max(fitting, default=1)}"
    message = f"Google has no {accelerator} any more"
    return Finding(("acceleratorType",), message, hint, kind=WarningKind.RETIRED_ACCELERATOR)


def _finding(keys: Keys, doubt: Doubt) -> Finding:
    return Finding(keys, doubt.message, doubt.hint, kind=doubt.kind)


def _incomplete_accelerator(keys: Keys, accelerator: str, fields: tuple[str, str]) -> Finding:
    # "Both `accelerator_type` and `accelerator_count` should be specified or none." (the service's error)
    there, other = fields if accelerator else fields[::-1]
    message = f"{quote(there)} and {quote(other)} need each other"
    return Finding((*keys, there), message, f"add {quote(other)}, or remove {quote(there)}", of_key=True)


def _hint(mismatch: MachineMismatch, fields: tuple[str, str]) -> str:
    if mismatch.right is None:
        return mismatch.hint
    accelerator, count = mismatch.right
    return f"write\n{fields[0]}: {accelerator}\n{fields[1]}: {count}"


def _study(keys: Keys, study: Mapping[str, Any]) -> Iterator[Finding]:
    parameters, metrics = _list(study.get("parameters")), _list(study.get("metrics"))
    # metricId, parameterId: "must be unique amongst all" of its list.
    yield from _repeated((*keys, "metrics"), metrics, "metricId")
    yield from _repeated((*keys, "parameters"), parameters, "parameterId")
    for index, parameter in enumerate(parameters):
        yield from _parameter((*keys, "parameters", index), _mapping(parameter))


def _parameter(keys: Keys, parameter: Mapping[str, Any]) -> Iterator[Finding]:
    if has_dashes(parameter.get("parameterId")):
        yield dashes_finding((*keys, "parameterId"), parameter["parameterId"])
    yield from default_value_findings(keys, parameter)
    for name in ("doubleValueSpec", "integerValueSpec"):
        yield from _bounds((*keys, name), _mapping(parameter.get(name)))
    # "The list should be in increasing order and at least 1e-10 apart." (`DiscreteValueSpec.values`)
    values = _mapping(parameter.get("discreteValueSpec")).get("values")
    yield from _increasing((*keys, "discreteValueSpec", "values"), _list(values), _LEAST_APART)
    # Conditional parameters nest: a parameter's value may enable further parameters.
    for index, conditional in enumerate(_list(parameter.get("conditionalParameterSpecs"))):
        parameter_keys = (*keys, "conditionalParameterSpecs", index, "parameterSpec")
        yield from _parameter(parameter_keys, _mapping(_mapping(conditional).get("parameterSpec")))


# --- AI Platform ----------------------------------------------------------------------------------------


def _training_input(keys: Keys, training_input: Mapping[str, Any]) -> Iterator[Finding]:
    for role, type_field, config_field in _ROLES:
        if type_field not in training_input and config_field not in training_input:
            continue
        machine = training_input.get(type_field, "")
        config = _mapping(training_input.get(config_field))
        replica_findings: list[Finding] = []
        if "containerCommand" in config or "containerArgs" in config:
            yield from word_findings((*keys, config_field), config, "containerCommand", "containerArgs")
            yield from paths_findings((*keys, config_field, "containerArgs"), config.get("containerArgs"))
        if isinstance(machine, str) and (machine or config):
            replica_findings = [*_replica(keys, role, machine, config.get("acceleratorConfig"))]
        yield from replica_findings
        if not replica_findings and (doubtful := _doubtful_machine(ML_V1, training_input, type_field)):
            yield replace(doubtful, keys=(*keys, *doubtful.keys))
    if "scaleTier" not in training_input:
        message = '"scaleTier" is missing, so the job runs as BASIC: one machine without accelerators'
        hint = 'write "scaleTier: BASIC", or the tier that you want; gcloud takes it from --scale-tier'
        yield Finding(keys, message, hint, of_key=True, kind=WarningKind.SCALE_TIER)
    yield from _region_and_runtime(keys, training_input)
    if "args" in training_input:
        yield from word_findings(keys, training_input, "")
        yield from paths_findings((*keys, "args"), training_input["args"])
    if "network" in training_input:
        yield from network_findings((*keys, "network"), training_input["network"])
    if "packageUris" in training_input:
        yield from _package_uris((*keys, "packageUris"), training_input["packageUris"])
    yield from ml_field_findings(keys, training_input)
    if "hyperparameters" not in training_input:
        return
    tuning = _mapping(training_input["hyperparameters"])
    # `maxTrials`: "Defaults to one."
    yield from trial_findings((*keys, "hyperparameters"), tuning, "maxTrials", "maxParallelTrials", 1)
    parameters = _list(tuning.get("params"))
    # parameterName: "must be unique amongst all ParameterConfigs in a HyperparameterSpec message"
    yield from _repeated((*keys, "hyperparameters", "params"), parameters, "parameterName")
    for index, parameter in enumerate(parameters):
        parameter_keys = (*keys, "hyperparameters", "params", index)
        yield from _bounds(parameter_keys, _mapping(parameter))
        yield from ml_parameter_findings(parameter_keys, _mapping(parameter))
        # "The list should be in strictly increasing order." (`ParameterSpec.discreteValues`)
        values = _mapping(parameter).get("discreteValues")
        yield from _increasing((*parameter_keys, "discreteValues"), _list(values))


def _region_and_runtime(keys: Keys, training_input: Mapping[str, Any]) -> Iterator[Finding]:
    region, runtime = training_input.get("region"), training_input.get("runtimeVersion")
    python = training_input.get("pythonVersion")
    if isinstance(region, str) and (doubt := region_doubt(ML_V1, region)):
        yield _finding((*keys, "region"), doubt)
    if not isinstance(runtime, str) or not _VERSION.fullmatch(runtime):
        return
    if doubt := runtime_doubt(runtime):
        yield _finding((*keys, "runtimeVersion"), doubt)
    elif isinstance(python, str) and (doubt := python_doubt(runtime, python)):
        yield _finding((*keys, "pythonVersion"), doubt)


def _replica(keys: Keys, role: str, machine: str, accelerator_config: Any) -> Iterator[Finding]:
    config = _mapping(accelerator_config)
    accelerator, count = config.get("type", ""), _whole_number(config.get("count", 0))
    if not isinstance(accelerator, str) or count is None:
        return
    machine_keys = (*keys, f"{role}Type")
    gpu_keys = (*keys, f"{role}Config", "acceleratorConfig")
    bundled = bundled_accelerator(machine)
    mismatch = machine_name_mismatch(machine) if machine else None
    if not mismatch and bundled and bundled not in _BUNDLED_ON_ML:
        message = f"AI Platform has no {bundled}, which {machine} comes with"
        yield Finding(machine_keys, message, "use a machine of the N1 or A2 series, or Vertex AI's CustomJob")
    elif not mismatch and bool(accelerator) != bool(count):
        yield _incomplete_accelerator(gpu_keys, accelerator, ("type", "count"))
    elif not mismatch and accelerator and not machine:
        # masterConfig and its like: "You should only set … if … is set to a Compute Engine machine type."
        message = f"an accelerator needs a machine to be attached to: {quote(f'{role}Type')}"
        yield Finding(gpu_keys, message, f'add "{role}Type: n1-standard-8"', of_key=True)
    elif mismatch := mismatch or accelerator_mismatch(machine, accelerator, count):
        field_keys = machine_keys if mismatch.part == "machine" else (*gpu_keys, mismatch.part)
        yield Finding(field_keys, mismatch.message, _replica_hint(role, mismatch))


def _replica_hint(role: str, mismatch: MachineMismatch) -> str:
    if mismatch.part != "machine" or mismatch.right is None:
        return _hint(mismatch, ("type", "count"))
    accelerator, count = mismatch.right
    return f'write\n{role}Config:\n  acceleratorConfig: {{type: {accelerator}, count: "{count}"}}'


# --- Both services --------------------------------------------------------------------------------------


def _package_uris(keys: Keys, uris: Any) -> Iterator[Finding]:
    """Yield doubtful paths, and packages that share a file name: one would overwrite the other."""
    yield from paths_findings(keys, uris)
    names = [uri.rpartition("/")[2] if isinstance(uri, str) else "" for uri in _list(uris)]
    for index in _repeats(names):
        message = f"there are two packages with the file name {quote(names[index])}"
        yield Finding((*keys, index), message, "rename one of the two")


def _repeated(keys: Keys, items: list[Any], field: str) -> Iterator[Finding]:
    names = [_mapping(item).get(field) for item in items]
    for index in _repeats([name if isinstance(name, str) else "" for name in names]):
        message = f"{quote(str(names[index]))} is listed twice"
        yield Finding((*keys, index, field), message, "remove one of the two, or rename it")


def _repeats(names: list[str]) -> Iterator[int]:
    """Yield the index of each repeated name."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name and name in seen:
            yield index
        seen.add(name)


def _bounds(keys: Keys, parameter: Mapping[str, Any]) -> Iterator[Finding]:
    least, most = _number(parameter.get("minValue")), _number(parameter.get("maxValue"))
    if least is not None and most is not None and least > most:
        yield Finding((*keys, "minValue"), f'"minValue" is above "maxValue": {least} > {most}', "swap them")


def _increasing(keys: Keys, values: list[Any], least_apart: float = 0.0) -> Iterator[Finding]:
    """Yield the first of a parameter's discrete values that isn't above the one before it."""
    for index, (first, second) in enumerate(pairwise(map(_number, values)), start=1):
        if first is None or second is None:
            return
        if second <= first or second - first < least_apart:
            message = f"discrete values must increase, but {second} comes after {first}"
            yield Finding((*keys, index), message, "sort the values, and write each one once")
            return


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> int | float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return _whole_number(value)


def _whole_number(value: Any) -> int | None:
    """Return a 64-bit integer from its JSON forms, a number or its digits; None for other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return (
        int(value) if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal() else None
    )
