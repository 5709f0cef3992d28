"""Worker pools of a migrated job: machines by scale tier and machine name, and the task of each pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from reconciler.manifests.training_images import training_image_name, training_image_uri, training_images
from reconciler.operations.migrating.report import MachineRule, Report, mapping, rules

Json = dict[str, Any]
ROLES = ("master", "worker", "parameterServer", "evaluator")
"""AI Platform's roles, in the order of Vertex AI's pools."""

POOLS = "workerPoolSpecs"
_LOST_PODS, _OTHER_POD = ("TPU_V2_POD", "TPU_V3_POD"), "TPU_V4_POD"
_K80, _T4, _MOST_T4 = "NVIDIA_TESLA_K80", "NVIDIA_TESLA_T4", 4


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
        found = [
            Machines(role, pool.machine_type, pool.replica_count, _attached(pool))
            for role, pool in zip(ROLES, tier.pools, strict=False)
        ]
    else:
        found = _on_tpu_hosts([_custom(given, role, report) for role in ROLES if _count(given, role)])
    general = rules().fields["scale"]
    pools = f"{len(found)} worker pool{'' if len(found) == 1 else 's'}"
    sentence = tier.sentence or general.sentence.format(tier=name, pools=pools)
    report.add_row(general.source, general.target, tier.verdict, sentence, ("scaleTier",))
    report.move(("scaleTier",), (POOLS,))
    for role in ROLES:
        place = (POOLS, ROLES.index(role))
        report.move((f"{role}Type",), (*place, "machineSpec"))
        report.move((f"{role}Count",), (*place, "replicaCount"))
        report.move((f"{role}Config",), place)
    if any(machines.role == "evaluator" for machines in found):
        report.add("evaluator", ("evaluatorType",))
    return found


def _attached(rule: Any) -> tuple[str, int] | None:
    return (rule.accelerator_type, rule.accelerator_count) if rule.accelerator_type else None


def _count(given: Json, role: str) -> int:
    return 1 if role == "master" else int(given.get(f"{role}Count", 0))


def _custom(given: Json, role: str, report: Report) -> Machines:
    """Return the machines of a role with the tier CUSTOM."""
    name = str(given.get(f"{role}Type", ""))
    keys = (f"{role}Type",)
    rule = rules().machines.get(name)
    found = Machines(role, rule.machine_type if rule else name, _count(given, role))
    target = f"{POOLS}[{ROLES.index(role)}].machineSpec.machineType"
    if rule:
        found.accelerator = _attached(rule)
        sentence = _machine_sentence(name, rule)
        report.add_row(f"{role}Type", target, rule.verdict, sentence, keys)
    else:
        report.add_row(f"{role}Type", target, "exact", "", keys)
    if role != "master":
        report.add("count", (f"{role}Count",), role=role)
    config = mapping(mapping(given.get(f"{role}Config")).get("acceleratorConfig"))
    if config.get("type"):
        found.accelerator = _accelerator(role, config, report)
    return found


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


def _on_tpu_hosts(found: list[Machines]) -> list[Machines]:
    """Return the machines with the TPU's own host in place of a master and its TPU worker."""
    tpu = next((each for each in found if each.role == "worker" and each.has_tpu), None)
    if tpu is None:
        return found
    host = Machines("master", tpu.machine_type, 1, tpu.accelerator)
    return [host, *(each for each in found if each.role == "evaluator")]


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
    for each in machines:
        while len(pools) < ROLES.index(each.role):
            pools.append({})
        config = mapping(given.get(f"{each.role}Config"))
        pool: Json = {"machineSpec": {"machineType": each.machine_type}, "replicaCount": each.count}
        if each.accelerator:
            kind, count = each.accelerator
            pool["machineSpec"] |= {"acceleratorType": kind, "acceleratorCount": count}
        if "diskConfig" in config:
            pool["diskSpec"] = config["diskConfig"]
            report.add("disk", (f"{each.role}Config", "diskConfig"), role=each.role)
            report.move((f"{each.role}Config", "diskConfig"), (POOLS, len(pools), "diskSpec"))
        pool |= task_of(given, each, words, region)
        pools.append(pool)
    return pools


def task_of(given: Json, machines: Machines, words: list[str], region: str) -> Json:
    """Return the task of one pool: its `containerSpec` or `pythonPackageSpec`."""
    args = [*given.get("args", ()), *words]
    config = mapping(given.get(f"{machines.role}Config"))
    own_image = config.get("imageUri") or mapping(given.get("masterConfig")).get("imageUri", "")
    if own_image and "pythonModule" not in given:
        return {"containerSpec": _container(own_image, config, given, words)}
    return {"pythonPackageSpec": _python_package(given, machines, args, own_image, region)}


def _container(image: str, config: Mapping[str, Any], given: Json, words: list[str]) -> Json:
    args = [*(config.get("containerArgs") or given.get("args", ())), *words]
    command = {"command": config["containerCommand"]} if config.get("containerCommand") else {}
    return {"imageUri": image, **command, **({"args": args} if args else {})}


def _python_package(given: Json, machines: Machines, args: list[str], own_image: str, region: str) -> Json:
    image = own_image or executor_image(given, machines, region)
    if name := training_image_name(own_image):
        image = training_image_uri(name, region)  # AI Platform had its own copies of these images
    uris = {"packageUris": given["packageUris"]} if given.get("packageUris") else {}
    package = {"executorImageUri": image, **uris, "pythonModule": given.get("pythonModule", "")}
    return {**package, **({"args": args} if args else {})}


def executor_image(given: Json, machines: Machines, region: str) -> str:
    """Return the URI of the prebuilt image for a runtime version; that of TensorFlow 2.11 if it has none."""
    rule = rules().runtimes.get(given.get("runtimeVersion", ""), rules().runtimes["2.11"])
    return training_image_uri(f"tf-{'gpu' if machines.has_gpu else 'cpu'}.{rule.image}", region)


def report_task(given: Json, machines: list[Machines], region: str, report: Report) -> None:
    """Report the fields about images, packages, commands and arguments."""
    for field in ("packageUris", "pythonModule", "args", "runtimeVersion", "pythonVersion"):
        spec = "pythonPackageSpec" if "pythonModule" in given else "containerSpec"
        target = "executorImageUri" if field.endswith("Version") else field
        report.move((field,), (POOLS, 0, spec, target))
    is_package = "pythonModule" in given
    for role in ROLES:
        config, keys = mapping(given.get(f"{role}Config")), (f"{role}Config",)
        pool = (POOLS, ROLES.index(role))
        if "imageUri" in config:
            report.add("executor" if is_package else "image", (*keys, "imageUri"), role=role)
            new = ("pythonPackageSpec", "executorImageUri") if is_package else ("containerSpec", "imageUri")
            report.move((*keys, "imageUri"), (*pool, *new))
        if "containerCommand" in config or "containerArgs" in config:
            report.add("command", (*keys, "containerArgs"), role=role)
            report.move((*keys, "containerCommand"), (*pool, "containerSpec", "command"))
            report.move((*keys, "containerArgs"), (*pool, "containerSpec", "args"))
        if "tpuTfVersion" in config:
            report.add("tpuTfVersion", (*keys, "tpuTfVersion"), role=role)
    if is_package:
        report.add("package", ("pythonModule",))
    elif "args" in given:
        report.add("container args", ("args",))
    if "runtimeVersion" in given:
        _report_runtime(given, machines, region, report)


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
    names = {training_image_name(executor_image(given, each, region)) for each in machines}
    date = max(training_images()[name].end_of_availability for name in names)
    values = {"runtime": runtime, "image": " and ".join(sorted(names)), "date": date}
    report.add(
        "runtime" if rule.verdict == "translated" else "nearest runtime",
        ("runtimeVersion",),
        **values,
        wayOut=rules().way_out,
    )
    libraries = rules().libraries.get(runtime)
    report.add("libraries", libraries=f", {libraries}" if libraries else "")


def primary_was_master(given: Json) -> bool:
    """Return True if AI Platform called the primary "master" in TF_CONFIG."""
    # TensorFlow refuses an evaluator in a cluster with a "master".
    if given.get("useChiefInTfConfig") or int(given.get("evaluatorCount", 0)):
        return False
    if mapping(given.get("masterConfig")).get("imageUri"):
        return True
    return str(given.get("runtimeVersion", "")).startswith("1.")
