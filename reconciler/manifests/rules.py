"""Rules about a job that its schema can't express, or only with poor messages.

Those for documents accept any shape, and skip parts that the schema refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.diagnostics import WARNING, Finding, Keys, quote
from reconciler.manifests.command_words import variable_findings, word_findings
from reconciler.manifests.expectations import expectation_findings
from reconciler.manifests.job_fields import job_field_findings, network_findings, python_package_findings
from reconciler.manifests.known_values import (
    CACHED,
    TABLES,
    Doubt,
    join_or,
    machine_doubt,
    python_doubt,
    region_doubt,
    runtime_doubt,
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
    spec = _mapping(_mapping(manifest).get("spec"))
    training_input = _mapping(spec.get("trainingInput"))
    above, job = job_in(spec)
    is_staged = "package" in _mapping(manifest)
    yield from _custom_job(("spec", *above), job, filled, is_staged=is_staged)
    if TRIALS in job:
        yield from _custom_job(("spec", *above, TRIALS), _mapping(job[TRIALS]), filled, is_staged=is_staged)
    if "studySpec" in job:
        yield from _study(("spec", *above, "studySpec"), _mapping(job["studySpec"]))
    if INPUTS in spec:
        has_folder, has_own_folder = "baseOutputDirectory" in filled, OWN_FOLDERS in filled
        yield from pipeline_findings(spec, has_folder=has_folder, has_own_folder=has_own_folder)
    if training_input:
        yield from _training_input(("spec", "trainingInput"), training_input)
        yield from python_package_findings(("spec", "trainingInput"), training_input, is_staged=is_staged)
    yield from exemption_findings(manifest)
    if is_staged:
        yield from _package(_mapping(manifest["package"]), spec, training_input)
    if "expect" in _mapping(manifest):
        expect, has_folder = _mapping(manifest["expect"]), "baseOutputDirectory" in filled
        is_published = "publish" in _mapping(manifest)
        yield from expectation_findings(expect, spec, has_folder=has_folder, is_published=is_published)
    if isinstance(publish := _mapping(manifest).get("publish"), dict):
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
    yield from job_field_findings(keys, job, filled)
    for index, pool in enumerate(_list(job.get("workerPoolSpecs"))):
        if not isinstance(pool, dict):
            continue
        pool_keys = (*keys, "workerPoolSpecs", index)
        machine = _mapping(pool.get("machineSpec"))
        if finding := _machine_spec(machine) or _doubtful_machine(AIPLATFORM_V1, machine):
            yield replace(finding, keys=(*pool_keys, "machineSpec", *finding.keys))
        for task in _TASKS:
            spec = _mapping(pool.get(task))
            if "env" in spec:
                yield from _repeated((*pool_keys, task, "env"), _list(spec["env"]), "name")
                yield from variable_findings((*pool_keys, task, "env"), _list(spec["env"]))
            if "args" in spec or "command" in spec:
                yield from word_findings((*pool_keys, task), spec, _COMMAND_OF[task])
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
    doubt = machine_doubt(api_version, machine) if machine and isinstance(machine, str) else None
    return _finding((field,), doubt) if doubt else None


def _finding(keys: Keys, doubt: Doubt) -> Finding:
    return Finding(keys, doubt.message, doubt.hint, level=doubt.level)


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
        machine = training_input.get(type_field, "")
        config = _mapping(training_input.get(config_field))
        replica_findings: list[Finding] = []
        if "containerCommand" in config or "containerArgs" in config:
            yield from word_findings((*keys, config_field), config, "containerCommand", "containerArgs")
        if isinstance(machine, str) and (machine or config):
            replica_findings = [*_replica(keys, role, machine, config.get("acceleratorConfig"))]
        yield from replica_findings
        if not replica_findings and (doubtful := _doubtful_machine(ML_V1, training_input, type_field)):
            yield replace(doubtful, keys=(*keys, *doubtful.keys))
    if "scaleTier" not in training_input:
        message = '"scaleTier" is missing, so the job runs as BASIC: one machine without accelerators'
        hint = 'write "scaleTier: BASIC", or the tier that you want; gcloud takes it from --scale-tier'
        yield Finding(keys, message, hint, of_key=True, level=WARNING)
    yield from _region_and_runtime(keys, training_input)
    if "args" in training_input:
        yield from word_findings(keys, training_input, "")
    if "network" in training_input:
        yield from network_findings((*keys, "network"), training_input["network"])
    if "packageUris" in training_input:
        yield from _package_uris((*keys, "packageUris"), training_input["packageUris"])
    if "hyperparameters" not in training_input:
        return
    parameters = _list(_mapping(training_input["hyperparameters"]).get("params"))
    # parameterName: "must be unique amongst all ParameterConfigs in a HyperparameterSpec message"
    yield from _repeated((*keys, "hyperparameters", "params"), parameters, "parameterName")
    for index, parameter in enumerate(parameters):
        parameter_keys = (*keys, "hyperparameters", "params", index)
        yield from _bounds(parameter_keys, _mapping(parameter))
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


# --- Machines and their accelerators --------------------------------------------------------------------

_MACHINE_NAME = r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)+|standard"
_CPUS = r"n1-(?:custom-([0-9]+)-[0-9]+|[a-z]+-([0-9]+))"
_TPU_MACHINE = r"cloud[-_]tpu|ct[0-9]+[a-z]*-.*|tpu[0-9].*"
# Series of Compute Engine that accept no accelerator.
_NO_ACCELERATORS = r"(?:c2d?|c3d?|c4[ad]?|e2|h3|m[1-4]|n2d?|n4[ad]?|t2[ad]|x4|z3)-.+"

Part = Literal["machine", "type", "count"]


class MachineMismatch(Struct, frozen=True):
    """Fields that don't fit together.

    Attributes:
        part: The field to change.
        message: The mistake.
        hint: Advice; "" if `right` gives it or if it is unknown.
        right: The accelerator and count that the machine requires.
    """

    part: Part
    message: str
    hint: str = ""
    right: tuple[str, int] | None = None


@lru_cache(CACHED)
def machine_name_mismatch(machine: str) -> MachineMismatch | None:
    """Return the mistake in a name that no machine type can have, or None."""
    if re.fullmatch(_MACHINE_NAME, machine):
        return None
    lower = machine.strip().lower().replace(" ", "-")
    hint = f"write {lower}" if re.fullmatch(_MACHINE_NAME, lower) else "write one such as n1-standard-4"
    return MachineMismatch("machine", f"{quote(machine)} can't be a machine type", hint)


@lru_cache(CACHED)
def accelerator_mismatch(machine: str, accelerator: str, number: int) -> MachineMismatch | None:
    """Return the reason why a machine can't have `number` of an accelerator, or None.

    `accelerator` is the API's name of it, "" for none.
    """
    if machine in TABLES.bundled:
        return _bundled_mismatch(machine, accelerator, number)
    if not accelerator:
        return None
    if accelerator.startswith("TPU_") or re.fullmatch(_TPU_MACHINE, machine):
        return _tpu_mismatch(machine, accelerator)
    if machine in TABLES.own_names or re.fullmatch(_NO_ACCELERATORS, machine):
        return MachineMismatch("type", f"{machine} takes no accelerators", _machines_for(accelerator, number))
    return _attached_mismatch(machine, accelerator, number) if machine.startswith("n1-") else None


def _bundled_mismatch(machine: str, accelerator: str, count: int) -> MachineMismatch | None:
    right = bundled, bundled_count = TABLES.bundled[machine]
    if (accelerator, count) == right:
        return None
    if not accelerator:
        return MachineMismatch(
            "machine", f"{machine} comes with {bundled_count} {bundled}, which must be stated", right=right
        )
    part: Part = "count" if accelerator == bundled else "type"
    return MachineMismatch(
        part, f"{machine} has {bundled_count} {bundled}, not {count} {accelerator}", right=right
    )


def _tpu_mismatch(machine: str, accelerator: str) -> MachineMismatch | None:
    is_tpu = accelerator.startswith("TPU_")
    is_tpu_machine = bool(re.fullmatch(_TPU_MACHINE, machine))
    if is_tpu_machine and not is_tpu:
        return MachineMismatch(
            "type", f"{machine} has TPUs, not {accelerator}", "name the TPU, or another machine"
        )
    if is_tpu and (re.fullmatch(_NO_ACCELERATORS, machine) or machine.startswith("n1-")):
        return MachineMismatch(
            "machine", f"{accelerator} can't be attached to {machine}", "use a machine with TPUs"
        )
    return None


def _attached_mismatch(machine: str, accelerator: str, count: int) -> MachineMismatch | None:
    most_cpus = TABLES.attachable.get(accelerator)
    if most_cpus is None:
        if not _machines_for(accelerator, count):
            return None  # an unknown accelerator may be new
        message = f"{accelerator} can't be attached to {machine}"
        return MachineMismatch("type", message, _machines_for(accelerator, count))
    if count not in most_cpus:
        message = f"a machine can have {join_or(most_cpus)} {accelerator}, not {count}"
        return MachineMismatch("count", message, f"write {join_or(most_cpus)}")
    match = re.fullmatch(_CPUS, machine)
    # A new kind of name has no known number of CPUs: the service decides.
    cpus = int(match[1] or match[2]) if match else 0
    if cpus > most_cpus[count]:
        enough = [number for number, most in most_cpus.items() if most >= cpus]
        hint = f"write {join_or(enough)}, or use a smaller machine" if enough else "use a smaller machine"
        return MachineMismatch(
            "count", f"{machine} has {cpus} CPUs, too many for {count} {accelerator}", hint
        )
    return None


def _machines_for(accelerator: str, count: int) -> str:
    """Return a hint that names the machines with the accelerator; "" if the tables have none."""
    if accelerator in TABLES.attachable:
        return f"{accelerator} needs a machine of the N1 series"
    having = {
        machine: number for machine, (bundled, number) in TABLES.bundled.items() if bundled == accelerator
    }
    fitting = [machine for machine, number in having.items() if number == count] or list(having)
    return f"{accelerator} comes with {join_or(fitting)}" if fitting else ""


def bundled_accelerator(machine: str) -> str:
    """Return the accelerator that is part of a machine type, or ""."""
    return TABLES.bundled.get(machine, ("", 0))[0]


# --- Both services --------------------------------------------------------------------------------------


def _package_uris(keys: Keys, uris: Any) -> Iterator[Finding]:
    """Yield packages that share a file name: downloading one would overwrite the other."""
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
