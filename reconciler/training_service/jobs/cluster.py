"""Pools and replicas of a job, in one form for both APIs.

In Vertex AI a pool's position determines its role; AI Platform has separate fields for each role. Jobs of any
size run on this machine, even PREMIUM_1 with its 31 machines: replicas are processes, and a machine that is
too small for them is only slow.

Sources: the pages "Distributed training" (Vertex AI), "Specifying machine types or scale tiers" and "Using
containers for distributed training" (AI Platform Training).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.training_service.http.json_mapping import snake
from reconciler.training_service.jobs.machines import SCALE_TIERS, Machine, machine_of
from reconciler.training_service.state.records import ML_JOBS, TUNING_JOBS, JobRecord, JsonObject
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask, Role

RUNTIME_FIELD = "training_input.runtime_version"
PYTHON_FIELD = "training_input.python_version"
_SCALE_FIELD = "training_input.scale_tier"


@dataclass(frozen=True, slots=True)
class Pool:
    """A group of identical replicas.

    Attributes:
        label: Its name: `workerpool1`; `worker` (ml).
        size: The number of replicas, at least 1.
        accelerator: The accelerator type of each machine, "" for none; `accelerators` is their number.
        task: The task of each replica, with the job's arguments.
        env: The user's own variables, in order.
        size_field, machine_field, image_field: The fields of the request that decide these, for errors.
    """

    role: Role
    label: str
    size: int
    machine_type: str
    accelerator: str
    accelerators: int
    task: PythonTask | ContainerTask
    env: tuple[tuple[str, str], ...] = ()
    size_field: str = ""
    machine_field: str = ""
    image_field: str = ""

    @property
    def machine(self) -> Machine | None:
        """CPUs, memory and GPUs of each machine; None for an unknown machine type."""
        return machine_of(self.machine_type, self.accelerators)

    @property
    def gpus(self) -> int:
        """Number of GPUs of each machine."""
        return self.machine.gpus if self.machine else self.accelerators


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of a pool; `index` counts from 0, `port` is its own port on loopback."""

    pool: Pool
    index: int
    port: int

    @property
    def name(self) -> str:
        """Name in the cloud's errors: `workerpool1-0`, `worker 0`."""
        separator = "-" if self.pool.label.startswith("workerpool") else " "
        return f"{self.pool.label}{separator}{self.index}"

    @property
    def task_name(self) -> str:
        """Name in the cloud's log: `workerpool1-0`, `worker-replica-0`."""
        return self.name.replace(" ", "-replica-")


def pools_of(job: JobRecord) -> tuple[Pool, ...]:
    """Return the pools that have replicas, the primary's first."""
    if job.collection == ML_JOBS:
        return tuple(_ml_pools(job.body.get("trainingInput", {})))
    path = "trial_job_spec" if job.collection == TUNING_JOBS else "job_spec"
    return tuple(_vertex_pools(job_spec_of(job), f"{path}.worker_pool_specs"))


def job_spec_of(job: JobRecord) -> JsonObject:
    """Return the CustomJobSpec of a Vertex AI job, or of each trial of a tuning job."""
    spec: JsonObject = job.body.get("trialJobSpec" if job.collection == TUNING_JOBS else "jobSpec", {})
    return spec


def _vertex_pools(spec: JsonObject, path: str) -> Iterator[Pool]:
    # The roles are in the order of Vertex AI's pools.
    for index, (role, pool) in enumerate(zip(Role, spec.get("workerPoolSpecs", []), strict=False)):
        # An empty pool only fills its position, for the pools after it to have the right role.
        size = int(pool.get("replicaCount", 1)) if pool else 0
        if size < 1:
            continue
        machine = pool.get("machineSpec", {})
        accelerator = _accelerator(machine.get("acceleratorType", ""))
        given = pool.get("containerSpec") or pool.get("pythonPackageSpec") or {}
        in_container = "containerSpec" in pool
        executor = given.get("executorImageUri", "")
        image = "container_spec.image_uri" if in_container else "python_package_spec.executor_image_uri"
        yield Pool(
            role=role,
            label=f"workerpool{index}",
            size=size,
            machine_type=machine.get("machineType", ""),
            accelerator=accelerator,
            accelerators=int(machine.get("acceleratorCount", 1)) if accelerator else 0,
            task=_container(given) if in_container else _python_task(given, executor),
            env=tuple((entry["name"], entry.get("value", "")) for entry in given.get("env", ())),
            size_field=f"{path}[{index}].replica_count",
            machine_field=f"{path}[{index}].machine_spec",
            image_field=f"{path}[{index}].{image}",
        )


def _accelerator(name: str) -> str:
    return "" if name == "ACCELERATOR_TYPE_UNSPECIFIED" else name


def _container(spec: JsonObject) -> ContainerTask:
    return ContainerTask(
        spec.get("imageUri", ""), tuple(spec.get("command", ())), tuple(spec.get("args", ()))
    )


def _python_task(spec: JsonObject, image: str, python: str = "") -> PythonTask:
    """Return the task of a pythonPackageSpec or a trainingInput, which share these fields."""
    return PythonTask(
        image=image,
        override=None,
        python=python,
        packages=tuple(spec.get("packageUris", ())),
        module=spec.get("pythonModule", ""),
        args=tuple(spec.get("args", ())),
    )


# AI Platform's name of each role, and the prefix of the role's fields.
_ML_ROLES = {
    Role.PRIMARY: ("master", "master"),
    Role.WORKER: ("worker", "worker"),
    Role.PARAMETER_SERVER: ("ps", "parameterServer"),
    Role.EVALUATOR: ("evaluator", "evaluator"),
}


def _ml_pools(given: JsonObject) -> Iterator[Pool]:
    tier = SCALE_TIERS.get(given.get("scaleTier", "BASIC"))
    for role, (label, field) in _ML_ROLES.items():
        if tier is None:
            size = 1 if role is Role.PRIMARY else int(given.get(f"{field}Count", 0))
            machine = given.get(f"{field}Type", "")
            attached = given.get(f"{field}Config", {}).get("acceleratorConfig", {})
            accelerator, count = _accelerator(attached.get("type", "")), int(attached.get("count", 1))
        else:
            size, machine, accelerator = tier.get(role, (0, "", ""))
            count = 1
        if size > 0:
            yield Pool(
                role=role,
                label=label,
                size=size,
                machine_type=machine,
                accelerator=accelerator,
                accelerators=count if accelerator else 0,
                task=_ml_task(given, given.get(f"{field}Config", {})),
                size_field=_SCALE_FIELD if tier else f"training_input.{snake(field)}_count",
                machine_field=_SCALE_FIELD if tier else f"training_input.{snake(field)}_type",
                image_field=_ml_image_field(given, field),
            )


def _ml_image_field(given: JsonObject, field: str) -> str:
    for role in (field, "master"):
        if given.get(f"{role}Config", {}).get("imageUri"):
            return f"training_input.{snake(role)}_config.image_uri"
    return RUNTIME_FIELD


def _ml_task(given: JsonObject, config: JsonObject) -> PythonTask | ContainerTask:
    image = config.get("imageUri") or given.get("masterConfig", {}).get("imageUri", "")
    if image and not given.get("pythonModule"):
        # The API lets a job have arguments only in one of the two places.
        args = tuple(config.get("containerArgs", ())) or tuple(given.get("args", ()))
        return ContainerTask(image, tuple(config.get("containerCommand", ())), args)
    # AI Platform runs PyTorch trainers as Python packages in its prebuilt images.
    if image:
        return _python_task(given, image)
    return _python_task(given, given.get("runtimeVersion", ""), given.get("pythonVersion", ""))
