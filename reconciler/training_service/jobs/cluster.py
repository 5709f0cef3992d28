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
from reconciler.training_service.jobs.machines import Machine, has_tpu, machine_of
from reconciler.training_service.state.records import ML_JOBS, TUNING_JOBS, JobRecord, JsonObject
from reconciler.training_service.state.run_folder import ContainerTask, PythonTask, Role

Variables = tuple[tuple[str, str], ...]

RUNTIME_FIELD = "training_input.runtime_version"
PYTHON_FIELD = "training_input.python_version"


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
    env: Variables = ()
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

    @property
    def on_tpu(self) -> bool:
        """True if the machines are TPUs or have any."""
        return has_tpu(self.machine_type, self.accelerator)


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


def replicas_of(pools: tuple[Pool, ...], ports: tuple[int, ...]) -> tuple[Replica, ...]:
    """Return all replicas in the order of the pools, each with one of the ports."""
    members = [(pool, index) for pool in pools for index in range(pool.size)]
    return tuple(Replica(pool, index, port) for (pool, index), port in zip(members, ports, strict=True))


def _vertex_pools(spec: JsonObject, path: str) -> Iterator[Pool]:
    # The roles are in the order of Vertex AI's pools.
    for place, (role, pool) in enumerate(zip(Role, spec.get("workerPoolSpecs", []), strict=False)):
        # An empty pool only fills its position, for the pools after it to have the right role.
        size = int(pool.get("replicaCount", 1)) if pool else 0
        if size < 1:
            continue
        machine = pool.get("machineSpec", {})
        accelerator = _accelerator(machine.get("acceleratorType", ""))
        given = pool.get("containerSpec") or pool.get("pythonPackageSpec") or {}
        yield Pool(
            role=role,
            label=f"workerpool{place}",
            size=size,
            machine_type=machine.get("machineType", ""),
            accelerator=accelerator,
            accelerators=int(machine.get("acceleratorCount", 1)) if accelerator else 0,
            task=_container(given) if "containerSpec" in pool else _python_package(given),
            env=tuple((entry["name"], entry.get("value", "")) for entry in given.get("env", ())),
            size_field=f"{path}[{place}].replica_count",
            machine_field=f"{path}[{place}].machine_spec",
            image_field=f"{path}[{place}].{_IMAGE_FIELDS['containerSpec' in pool]}",
        )


_IMAGE_FIELDS = ("python_package_spec.executor_image_uri", "container_spec.image_uri")


def _accelerator(name: str) -> str:
    return "" if name == "ACCELERATOR_TYPE_UNSPECIFIED" else name


def _container(spec: JsonObject) -> ContainerTask:
    return ContainerTask(
        spec.get("imageUri", ""), tuple(spec.get("command", ())), tuple(spec.get("args", ()))
    )


def _python_package(spec: JsonObject) -> PythonTask:
    return PythonTask(
        image=spec.get("executorImageUri", ""),
        override=None,
        python="",
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

_ML_SCALE = "training_input.scale_tier"

# The predefined scale tiers: number of machines, machine type, accelerator.
_TIERS: dict[str, dict[Role, tuple[int, str, str]]] = {
    "BASIC": {Role.PRIMARY: (1, "n1-standard-4", "")},
    "BASIC_GPU": {Role.PRIMARY: (1, "n1-standard-8", "NVIDIA_TESLA_K80")},
    "BASIC_TPU": {Role.PRIMARY: (1, "n1-standard-4", "TPU_V2")},
    "STANDARD_1": {
        Role.PRIMARY: (1, "n1-highcpu-8", ""),
        Role.WORKER: (4, "n1-highcpu-8", ""),
        Role.PARAMETER_SERVER: (3, "n1-standard-4", ""),
    },
    "PREMIUM_1": {
        Role.PRIMARY: (1, "n1-highcpu-16", ""),
        Role.WORKER: (19, "n1-highcpu-16", ""),
        Role.PARAMETER_SERVER: (11, "n1-highmem-8", ""),
    },
}


def _ml_pools(given: JsonObject) -> Iterator[Pool]:
    tier = _TIERS.get(given.get("scaleTier", "BASIC"))
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
                size_field=_ML_SCALE if tier else f"training_input.{snake(field)}_count",
                machine_field=_ML_SCALE if tier else f"training_input.{snake(field)}_type",
                image_field=_ml_image_field(given, field),
            )


def _ml_image_field(given: JsonObject, field: str) -> str:
    for role in (field, "master"):
        if given.get(f"{role}Config", {}).get("imageUri"):
            return f"training_input.{snake(role)}_config.image_uri"
    return RUNTIME_FIELD


def _ml_task(given: JsonObject, config: JsonObject) -> PythonTask | ContainerTask:
    image = config.get("imageUri") or given.get("masterConfig", {}).get("imageUri", "")
    args = tuple(given.get("args", ()))
    if image and not given.get("pythonModule"):
        # The API lets a job have arguments only in one of the two places.
        return ContainerTask(
            image, tuple(config.get("containerCommand", ())), tuple(config.get("containerArgs", ())) or args
        )
    # AI Platform runs PyTorch trainers as Python packages in its prebuilt images.
    return PythonTask(
        image=image or given.get("runtimeVersion", ""),
        override=None,
        python="" if image else given.get("pythonVersion", ""),
        packages=tuple(given.get("packageUris", ())),
        module=given.get("pythonModule", ""),
        args=args,
    )
