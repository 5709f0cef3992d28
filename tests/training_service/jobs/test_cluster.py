from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.training_service.jobs.cluster import pools_of
from reconciler.training_service.jobs.images import find_image
from reconciler.training_service.jobs.launch import replicas_of
from reconciler.training_service.jobs.machines import has_tpu, machine_of
from reconciler.training_service.state.records import JobRecord
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask, Role
from tests.support.training_service import trainers


def members(job: JobRecord) -> list[tuple[Role, str, str, str]]:
    """Return role, name, name in the log and machine of each replica."""
    pools = pools_of(job)
    replicas = replicas_of(pools, tuple(range(sum(pool.size for pool in pools))))
    return [
        (replica.pool.role, replica.name, replica.task_name, replica.pool.machine_type)
        for replica in replicas
    ]


def custom(**given: Any) -> JobRecord:
    return trainers.ml_job(scaleTier="CUSTOM", **given)


def test_vertex_ai_s_pools_have_their_roles_by_their_places() -> None:
    job = trainers.cluster_job({"replicaCount": "2"}, {"replicaCount": "1"}, {"replicaCount": "1"})
    assert [(role, name) for role, name, _, _ in members(job)] == [
        (Role.PRIMARY, "workerpool0-0"),
        (Role.WORKER, "workerpool1-0"),
        (Role.WORKER, "workerpool1-1"),
        (Role.PARAMETER_SERVER, "workerpool2-0"),
        (Role.EVALUATOR, "workerpool3-0"),
    ]
    assert all(name == task_name for _, name, task_name, _ in members(job))


def test_an_empty_pool_only_keeps_its_place() -> None:
    names = ["workerpool0-0", "workerpool2-0"]
    assert [name for _, name, _, _ in members(trainers.cluster_job({}, {"replicaCount": "1"}))] == names
    none = {"replicaCount": "0"}
    assert [name for _, name, _, _ in members(trainers.cluster_job(none, {"replicaCount": "1"}))] == names


def test_a_pool_without_a_count_has_one_replica() -> None:
    machine = {"machineSpec": {"machineType": "n1-standard-4"}}
    assert [name for _, name, _, _ in members(trainers.cluster_job(machine))][1:] == ["workerpool1-0"]


def test_every_pool_runs_what_is_its_own() -> None:
    container = {
        "imageUri": "gcr.io/me/reducer",
        "command": ["/reduce"],
        "args": ["--all"],
        "env": [{"name": "A", "value": "1"}, {"name": "B"}],
    }
    first, second = pools_of(
        trainers.cluster_job({"pythonPackageSpec": None, "containerSpec": container}, args=["--x"])
    )
    assert first.task == PythonTask(trainers.PLAIN, None, "", (trainers.URI,), "trainer.task", ("--x",))
    assert second.task == ContainerTask("gcr.io/me/reducer", ("/reduce",), ("--all",))
    assert second.env == (("A", "1"), ("B", ""))


@pytest.mark.parametrize(
    ("tier", "wanted"),
    [
        ("BASIC", {"master": (1, "n1-standard-4", 0)}),
        ("BASIC_GPU", {"master": (1, "n1-standard-8", 1)}),
        (
            "STANDARD_1",
            {
                "master": (1, "n1-highcpu-8", 0),
                "worker": (4, "n1-highcpu-8", 0),
                "ps": (3, "n1-standard-4", 0),
            },
        ),
        (
            "PREMIUM_1",
            {
                "master": (1, "n1-highcpu-16", 0),
                "worker": (19, "n1-highcpu-16", 0),
                "ps": (11, "n1-highmem-8", 0),
            },
        ),
    ],
)
def test_a_scale_tier_names_its_machines(tier: str, wanted: dict[str, tuple[int, str, int]]) -> None:
    pools = pools_of(trainers.ml_job(scaleTier=tier))
    assert {pool.label: (pool.size, pool.machine_type, pool.gpus) for pool in pools} == wanted


def test_basic_tpu_is_on_a_tpu() -> None:
    (pool,) = pools_of(trainers.ml_job(scaleTier="BASIC_TPU"))
    assert has_tpu(pool.machine_type, pool.accelerator)


def test_a_custom_tier_has_what_its_fields_say() -> None:
    job = custom(
        masterType="n1-highcpu-16",
        workerType="complex_model_m",
        workerCount="2",
        parameterServerType="n1-highmem-8",
        parameterServerCount="1",
        evaluatorType="standard",
        evaluatorCount="1",
    )
    assert members(job) == [
        (Role.PRIMARY, "master 0", "master-replica-0", "n1-highcpu-16"),
        (Role.WORKER, "worker 0", "worker-replica-0", "complex_model_m"),
        (Role.WORKER, "worker 1", "worker-replica-1", "complex_model_m"),
        (Role.PARAMETER_SERVER, "ps 0", "ps-replica-0", "n1-highmem-8"),
        (Role.EVALUATOR, "evaluator 0", "evaluator-replica-0", "standard"),
    ]
    assert all(
        pool.task == PythonTask("2.11", None, "", (trainers.URI,), "trainer.task", ())
        for pool in pools_of(job)
    )


def test_accelerators_are_those_of_each_machine() -> None:
    attached = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "2"}}
    master, worker = pools_of(
        custom(masterType="n1-standard-8", masterConfig=attached, workerType="standard", workerCount="1")
    )
    assert (master.gpus, worker.gpus) == (2, 0)
    assert master.machine == machine_of("n1-standard-8", 2)
    unspecified = {"machineType": "n1-standard-4", "acceleratorType": "ACCELERATOR_TYPE_UNSPECIFIED"}
    assert pools_of(trainers.cluster_job({"machineSpec": unspecified}))[1].gpus == 0
    bundled = {"machineType": "a2-highgpu-2g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 2}
    assert pools_of(trainers.cluster_job({"machineSpec": bundled}))[1].gpus == 2


def test_ai_platform_s_containers_are_the_master_s_unless_they_name_their_own() -> None:
    job = custom(
        pythonModule="",
        packageUris=[],
        masterType="standard",
        masterConfig={"imageUri": "gcr.io/me/a", "containerCommand": ["/run"], "containerArgs": ["--x"]},
        workerType="standard",
        workerCount="1",
        parameterServerType="standard",
        parameterServerCount="1",
        parameterServerConfig={"imageUri": "gcr.io/me/b"},
    )
    assert [pool.task for pool in pools_of(job)] == [
        ContainerTask("gcr.io/me/a", ("/run",), ("--x",)),
        ContainerTask("gcr.io/me/a"),
        ContainerTask("gcr.io/me/b"),
    ]


def test_the_job_s_arguments_go_to_every_container() -> None:
    job = custom(
        pythonModule="",
        masterType="standard",
        masterConfig={"imageUri": "gcr.io/me/a"},
        workerType="standard",
        workerCount="1",
        args=["--epochs", "3"],
    )
    assert [pool.task.args for pool in pools_of(job)] == [("--epochs", "3")] * 2


def test_packages_in_an_image_run_as_python() -> None:
    job = custom(masterType="standard", masterConfig={"imageUri": trainers.PLAIN}, pythonVersion="3.7")
    assert pools_of(job)[0].task == PythonTask(trainers.PLAIN, None, "", (trainers.URI,), "trainer.task", ())


def test_packages_in_the_published_image_of_pytorch_run_as_python() -> None:
    image = "gcr.io/cloud-ml-public/training/pytorch-gpu.1-10"
    (task,) = (
        pool.task for pool in pools_of(custom(masterType="standard", masterConfig={"imageUri": image}))
    )
    assert isinstance(task, PythonTask)
    assert find_image(task.image) == find_image(
        "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-10:latest"
    )


@given(st.lists(st.integers(0, 4), max_size=3))
def test_each_replica_has_a_name_and_a_port_of_its_own(sizes: list[int]) -> None:
    pools = pools_of(trainers.cluster_job(*({"replicaCount": str(size)} for size in sizes)))
    count = 1 + sum(sizes)
    replicas = replicas_of(pools, tuple(range(5000, 5000 + count)))
    assert len({replica.name for replica in replicas}) == count
    assert [replica.port for replica in replicas] == [*range(5000, 5000 + count)]
    assert [replica.pool.role for replica in replicas].count(Role.PRIMARY) == 1
    assert replicas[0].pool.role is Role.PRIMARY
