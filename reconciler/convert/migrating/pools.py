"""Worker pools of a migrated job: their machines by scale tier and machine name, tasks and environment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from reconciler.convert.migrating.report import Report, mapping
from reconciler.convert.migrating.rules import MachineRule, rules
from reconciler.manifests.known_values import region_doubt
from reconciler.manifests.training_images import (
    built_in_algorithm,
    training_image_name,
    training_image_uri,
    training_images,
)
from reconciler.model.manifest import AIPLATFORM_V1

Json = dict[str, Any]
ROLES = ("master", "worker", "parameterServer", "evaluator")
"""AI Platform's roles, in the order of Vertex AI's pools."""

POOLS = "workerPoolSpecs"
TRIAL, PACKAGE, CONTAINER = "trialJobSpec", "pythonPackageSpec", "containerSpec"
_LOST_PODS, _OTHER_POD = ("TPU_V2_POD", "TPU_V3_POD"), "TPU_V4_POD"
_K80, _T4, _MOST_T4 = "NVIDIA_TESLA_K80", "NVIDIA_TESLA_T4", 4
_WEEK = 7 * 24 * 3600
# Google's page "Schedule training jobs based on resource availability".
_FLEX_START = {"NVIDIA_L4", "NVIDIA_TESLA_A100", "NVIDIA_A100_80GB", "NVIDIA_H100_80GB"}
_SMALL = ("n1-standard-1", "n1-standard-2", "n1-standard-4", "n1-highcpu-2", "n1-highcpu-4", "n1-highmem-2")


# --- Machines -------------------------------------------------------------------------------------------


class Machines(Struct):
    """Machines of one role.

    Attributes:
        count: Number of replicas.
        accelerator: Its type and number; None for none.
    """

    role: str
    machine_type: str
    count: int
    accelerator: tuple[str, int] | None = None

    @property
    def has_gpu(self) -> bool:
        """True with a GPU."""
        return self.accelerator is not None and not self.accelerator[0].startswith("TPU")

    @property
    def has_tpu(self) -> bool:
        """True with a TPU."""
        return self.accelerator is not None and self.accelerator[0].startswith("TPU")


def machines_of(given: Json, report: Report) -> list[Machines]:
    """Return the machines of each role that has any, the master's first, and report the fields about them."""
    name = given.get("scaleTier", "BASIC")
    tier = rules().tiers[name]
    if tier.pools:
        all_machines = [
            Machines(role, pool.machine_type, pool.replica_count, _attached(pool))
            for role, pool in zip(ROLES, tier.pools, strict=False)
        ]
    else:
        all_machines = _on_tpu_hosts([_custom(given, role, report) for role in ROLES if _count(given, role)])
    general = rules().fields["scale"]
    pools = f"{len(all_machines)} worker pool{'' if len(all_machines) == 1 else 's'}"
    sentence = tier.sentence or general.sentence.format(tier=name, pools=pools)
    report.add_row(general.source, general.target, tier.verdict, sentence, ("scaleTier",))
    report.move(("scaleTier",), (POOLS,))
    for role in ROLES:
        pool_keys = (POOLS, ROLES.index(role))
        report.move((f"{role}Type",), (*pool_keys, "machineSpec"))
        report.move((f"{role}Count",), (*pool_keys, "replicaCount"))
        report.move((f"{role}Config",), pool_keys)
    if any(machines.role == "evaluator" for machines in all_machines):
        report.add("evaluator", ("evaluatorType",))
    return all_machines


def _attached(rule: Any) -> tuple[str, int] | None:
    return (rule.accelerator_type, rule.accelerator_count) if rule.accelerator_type else None


def _count(given: Json, role: str) -> int:
    return 1 if role == "master" else int(given.get(f"{role}Count", 0))


def _custom(given: Json, role: str, report: Report) -> Machines:
    """Return the machines of a role with the tier CUSTOM."""
    name = str(given.get(f"{role}Type", ""))
    keys = (f"{role}Type",)
    rule = rules().machines.get(name)
    machines = Machines(role, rule.machine_type if rule else name, _count(given, role))
    target = f"{POOLS}[{ROLES.index(role)}].machineSpec.machineType"
    if rule:
        machines.accelerator = _attached(rule)
        sentence = _machine_sentence(name, rule)
        report.add_row(f"{role}Type", target, rule.verdict, sentence, keys)
    else:
        report.add_row(f"{role}Type", target, "exact", "", keys)
    if role != "master":
        report.add("count", (f"{role}Count",), role=role)
    config = mapping(mapping(given.get(f"{role}Config")).get("acceleratorConfig"))
    if config.get("type"):
        machines.accelerator = _accelerator(role, config, report)
    return machines


def _machine_sentence(name: str, rule: MachineRule) -> str:
    if rule.sentence or rule.verdict == "exact":
        return rule.sentence.format(name=name)
    return f"{name} is {rule.machine_type} with {rule.accelerator_count} {rule.accelerator_type}."


def _accelerator(role: str, config: Mapping[str, Any], report: Report) -> tuple[str, int] | None:
    kind, count = str(config["type"]), int(config.get("count", 1))
    keys = (f"{role}Config", "acceleratorConfig")
    report.move(keys, (POOLS, ROLES.index(role), "machineSpec"))
    if kind in _LOST_PODS:
        report.add("TPU pod", keys, role=role, type=kind)
        hint = "write machines that Vertex AI has, or leave this job where it is"
        report.refuse((*keys, "type"), f"Vertex AI has no accelerator {kind}", hint)
        return None
    if kind == _K80:
        report.add("K80", keys, role=role, before=count, count=min(count, _MOST_T4))
        return _T4, min(count, _MOST_T4)
    report.add("accelerator", keys, role=role, type=kind, count=count)
    if kind == _OTHER_POD:
        hint = "write a CustomJob with the machine type ct4p-hightpu-4t"
        report.refuse((*keys, "type"), f"{kind} needs machines of another type on Vertex AI", hint)
    return kind, count


def _on_tpu_hosts(machines: list[Machines]) -> list[Machines]:
    """Return the machines with the TPU's own host in place of a master and its TPU worker."""
    tpu = next((group for group in machines if group.role == "worker" and group.has_tpu), None)
    if tpu is None:
        return machines
    host = Machines("master", tpu.machine_type, 1, tpu.accelerator)
    return [host, *(group for group in machines if group.role == "evaluator")]


def fits_flex_start(machines: list[Machines], scheduling: Mapping[str, Any]) -> bool:
    """Return True if Vertex AI's FLEX_START can wait for these machines, by `scheduling` of AI Platform."""
    kinds = {group.accelerator[0] if group.accelerator else "" for group in machines}
    is_same = len({(group.machine_type, group.accelerator) for group in machines}) == 1
    limit = scheduling.get("maxRunningTime", f"{_WEEK}s")
    return kinds <= _FLEX_START and is_same and float(limit.removesuffix("s")) <= _WEEK


# --- Worker pools and their tasks -----------------------------------------------------------------------


def worker_pools(
    given: Json, machines: list[Machines], words: list[str], region: str, report: Report
) -> list[Json]:
    """Return the worker pools of a job.

    Args:
        given: The `trainingInput`.
        machines: From `machines_of`.
        words: The arguments behind the job's own.
        region: The region whose repository of images is used.
    """
    pools: list[Json] = []
    for group in machines:
        while len(pools) < ROLES.index(group.role):
            pools.append({})
        config = mapping(given.get(f"{group.role}Config"))
        pool: Json = {"machineSpec": {"machineType": group.machine_type}, "replicaCount": group.count}
        if group.accelerator:
            kind, count = group.accelerator
            pool["machineSpec"] |= {"acceleratorType": kind, "acceleratorCount": count}
        if "diskConfig" in config:
            pool["diskSpec"] = config["diskConfig"]
            keys = (f"{group.role}Config", "diskConfig")
            report.add("disk", keys, (POOLS, len(pools), "diskSpec"), role=group.role)
        pool |= task_of(given, group, words, region)
        pools.append(pool)
    return pools


def task_of(given: Json, machines: Machines, words: list[str], region: str) -> Json:
    """Return the task of one pool: its `containerSpec` or `pythonPackageSpec`."""
    args = [*given.get("args", ()), *words]
    config = mapping(given.get(f"{machines.role}Config"))
    own_image = config.get("imageUri") or mapping(given.get("masterConfig")).get("imageUri", "")
    if own_image and "pythonModule" not in given:
        return {CONTAINER: _container(own_image, config, given, words)}
    return {PACKAGE: _python_package(given, machines, args, own_image, region)}


def _container(image: str, config: Mapping[str, Any], given: Json, words: list[str]) -> Json:
    args = [*(config.get("containerArgs") or given.get("args", ())), *words]
    command = {"command": config["containerCommand"]} if config.get("containerCommand") else {}
    return {"imageUri": image, **command, **({"args": args} if args else {})}


def _python_package(given: Json, machines: Machines, args: list[str], own_image: str, region: str) -> Json:
    image = own_image or _executor_image(given, machines, region)
    if name := training_image_name(own_image):
        image = training_image_uri(name, region)  # AI Platform had its own copies of these images
    uris = {"packageUris": given["packageUris"]} if given.get("packageUris") else {}
    package = {"executorImageUri": image, **uris, "pythonModule": given.get("pythonModule", "")}
    return {**package, **({"args": args} if args else {})}


def _executor_image(given: Json, machines: Machines, region: str) -> str:
    """Return the URI of the prebuilt image for a runtime version; that of TensorFlow 2.11 if it has none."""
    rule = rules().runtimes.get(given.get("runtimeVersion", ""), rules().runtimes["2.11"])
    return training_image_uri(f"tf-{'gpu' if machines.has_gpu else 'cpu'}.{rule.image}", region)


# --- Report of region, task and environment -------------------------------------------------------------


def report_region(region: str, location: str, report: Report) -> None:
    """Report the job's region beside the location of the environment, "" for none."""
    rule = "region" if location in ("", region) else "other region"
    rule = "unknown region" if region_doubt(AIPLATFORM_V1, region) else rule
    report.add(rule, ("region",), region=region, location=location)


def report_task(
    given: Json,
    machines: list[Machines],
    region: str,
    report: Report,
    *,
    overridden: Collection[str],
    image: str,
) -> None:
    """Report the fields about images, packages, commands and arguments.

    `overridden` and `image` are those of `convert`.
    """
    for field in ("packageUris", "pythonModule", "args", "runtimeVersion", "pythonVersion"):
        spec = PACKAGE if "pythonModule" in given else CONTAINER
        target = "executorImageUri" if field.endswith("Version") else field
        report.move((field,), (POOLS, 0, spec, target))
    is_package = "pythonModule" in given
    for role in ROLES:
        config, keys = mapping(given.get(f"{role}Config")), (f"{role}Config",)
        pool = (POOLS, ROLES.index(role))
        if "imageUri" in config:
            rule = "executor" if is_package else "image"
            new = (PACKAGE, "executorImageUri") if is_package else (CONTAINER, "imageUri")
            report.add(rule, (*keys, "imageUri"), (*pool, *new), role=role)
            if algorithm := built_in_algorithm(config["imageUri"]):
                report.add("built-in algorithm", (*keys, "imageUri"), algorithm=algorithm)
        if "containerCommand" in config or "containerArgs" in config:
            report.add("command", (*keys, "containerArgs"), role=role)
            report.move((*keys, "containerCommand"), (*pool, CONTAINER, "command"))
            report.move((*keys, "containerArgs"), (*pool, CONTAINER, "args"))
        if "tpuTfVersion" in config:
            report.add("tpuTfVersion", (*keys, "tpuTfVersion"), role=role)
    if is_package:
        report.add("package", ("pythonModule",))
    elif "args" in given:
        report.add("container args", ("args",))
    if "runtimeVersion" in given:
        _report_runtime(given, machines, region, report)
    runtime = given.get("runtimeVersion", "")
    if is_package and runtime in overridden:
        image = image or _executor_image(given, machines[0], region)
        report.add("images", ("runtimeVersion",), runtime=runtime, image=image)


def _report_runtime(given: Json, machines: list[Machines], region: str, report: Report) -> None:
    runtime, python = given["runtimeVersion"], given.get("pythonVersion", "3.7")
    rule = rules().runtimes.get(runtime)
    if rule is None or python in ("2.7", "3.5"):
        name = "Python 2.7" if rule else "no runtime"
        report.add(name, ("runtimeVersion",), runtime=runtime, python=python)
        hint = 'port the code to Python 3.7, then write runtimeVersion: "1.15" and pythonVersion: "3.7"'
        message = f"runtime {runtime} with Python {python} has no image on Vertex AI"
        report.refuse(("runtimeVersion",), message, f"{hint}; or name an image of your own in masterConfig")
        return
    names = {training_image_name(_executor_image(given, group, region)) for group in machines}
    end = max(training_images()[name].end_of_availability for name in names)
    values = {"runtime": runtime, "image": " and ".join(sorted(names)), "date": end}
    report.add(
        "runtime" if rule.verdict == "translated" else "nearest runtime",
        ("runtimeVersion",),
        **values,
        wayOut=rules().way_out,
    )
    libraries = rules().libraries.get(runtime)
    report.add("libraries", libraries=f", {libraries}" if libraries else "")


def report_environment(given: Json, machines: list[Machines], replicas: int, report: Report) -> None:
    """Report the behaviour that no field names."""
    was_master = _primary_was_master(given)
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
    small = sorted({group.machine_type for group in machines if group.machine_type in _SMALL})
    if small:
        report.add("memory", machines=" or ".join(small))


def _primary_was_master(given: Json) -> bool:
    """Return True if AI Platform called the primary "master" in TF_CONFIG."""
    # TensorFlow refuses an evaluator in a cluster with a "master".
    if given.get("useChiefInTfConfig") or int(given.get("evaluatorCount", 0)):
        return False
    if mapping(given.get("masterConfig")).get("imageUri"):
        return True
    return str(given.get("runtimeVersion", "")).startswith("1.")
