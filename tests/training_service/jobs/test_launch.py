from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.training_service.apis.unsupported import unsupported
from reconciler.training_service.jobs.environment_variables import for_google_clients
from reconciler.training_service.jobs.launch import (
    MOST_REPLICAS,
    Host,
    Refusal,
    demand,
    launch,
    max_wait,
    may_be_retried,
    parallel_trials,
    ports_wanted,
    priority,
)
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.state.records import JobRecord, number_of
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask, ReplicaSpec, Role, RunSpec
from reconciler.training_service.state.trial_records import TrialRecord
from tests.support.training_service import trainers

GIB = 2**30
SKLEARN = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
PORT = 4711


def here(job: JobRecord, cpus: int = 8, gpus: tuple[str, ...] = ()) -> Host:
    machine = Machine(cpus, 32 * GIB, len(gpus))
    ports = tuple(range(PORT, PORT + ports_wanted(job)))
    buckets = Path("/home/me/.reconciler/gcs")
    return Host("http://127.0.0.1:8080/jobs/s3cret", buckets, machine, ports, gpus)


def launched(
    job: JobRecord, trial: TrialRecord | None = None, cpus: int = 8, gpus: tuple[str, ...] = ()
) -> RunSpec:
    spec = launch(job, here(job, cpus, gpus), trial)
    assert isinstance(spec, RunSpec), spec
    return spec


def env_of(job: JobRecord, **more: Any) -> dict[str, str]:
    """Return the primary's variables."""
    return launched(job, **more).primary.env


def python(replica: ReplicaSpec) -> PythonTask:
    assert isinstance(replica.task, PythonTask)
    return replica.task


def refused(job: JobRecord) -> str:
    refusal = launch(job, here(job))
    assert isinstance(refusal, Refusal), refusal
    return refusal.message


def trial(number: int, **parameters: float | int | str) -> TrialRecord:
    return TrialRecord(1, number, parameters, "2026-01-02T03:04:05.000000Z")


def custom(**given: Any) -> JobRecord:
    return trainers.ml_job(scaleTier="CUSTOM", masterType="standard", **given)


def test_a_vertex_ai_trainer_gets_the_cloud_s_variables_and_arguments() -> None:
    job = trainers.custom_job(
        image=SKLEARN,
        args=["--epochs=3", "plain"],
        spec={"baseOutputDirectory": {"outputUriPrefix": "gs://models/census"}},
    )
    spec = launched(job)
    (replica,) = spec.replicas
    assert (python(replica).module, python(replica).args) == ("trainer.task", ("--epochs=3", "plain"))
    assert python(replica).packages == (trainers.URI,)
    assert (replica.name, replica.task_name, replica.role) == ("workerpool0-0", "workerpool0-0", Role.PRIMARY)
    assert (replica.cpus, replica.memory) == (4, 15 * GIB)
    assert spec.output_buckets == ("models",)
    env = dict(replica.env)
    assert json.loads(env.pop("CLOUD_ML_JOB")) == {
        "python_module": "trainer.task",
        "package_uris": [trainers.URI],
        "job_args": ["--epochs=3", "plain"],
    }
    assert json.loads(env.pop("CLUSTER_SPEC")) == {
        "cluster": {"workerpool0": ["127.0.0.1:4712"]},
        "environment": "cloud",
        "task": {"type": "workerpool0", "index": 0},
        "job": job.body["jobSpec"],
    }
    assert env == {
        "AIP_MODEL_DIR": "gs://models/census/model/",
        "AIP_CHECKPOINT_DIR": "gs://models/census/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": "gs://models/census/logs/",
        "CLOUD_ML_PROJECT_ID": number_of("my-project"),
        "CLOUD_ML_REGION": "us-central1",
        "CLOUD_ML_JOB_ID": "4242424242424242424",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "",
        **for_google_clients("http://127.0.0.1:8080/jobs/s3cret"),
        "RECONCILER_GCS_DIR": "/home/me/.reconciler/gcs",
    }


def test_an_ml_trainer_gets_the_cloud_s_variables_and_its_job_dir_last() -> None:
    spec = launched(trainers.ml_job(jobDir="gs://models/census/", args=["--epochs", "3"]))
    (replica,) = spec.replicas
    assert python(replica).args == ("--epochs", "3", "--job-dir", "gs://models/census/")
    assert (replica.name, replica.task_name) == ("master 0", "master-replica-0")
    assert spec.output_buckets == ("models",)
    env = dict(replica.env)
    assert json.loads(env.pop("TF_CONFIG")) == {
        "cluster": {"chief": ["127.0.0.1:4712"]},
        "task": {"type": "chief", "index": 0, "cloud": "local"},
        "job": {
            "scale_tier": "BASIC",
            "region": "us-east1",
            "python_module": "trainer.task",
            "package_uris": [trainers.URI],
            "runtime_version": "2.11",
            "job_dir": "gs://models/census/",
            "args": ["--epochs", "3"],
        },
        "environment": "cloud",
    }
    assert json.loads(env.pop("CLOUD_ML_JOB"))["job_args"] == [
        "--epochs",
        "3",
        "--job-dir",
        "gs://models/census/",
    ]
    assert env == {
        "CLOUD_ML_PROJECT_ID": number_of("my-project"),
        "CLOUD_ML_REGION": "us-east1",
        "CLOUD_ML_JOB_ID": "census_1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "",
        **for_google_clients("http://127.0.0.1:8080/jobs/s3cret"),
        "RECONCILER_GCS_DIR": "/home/me/.reconciler/gcs",
    }


def test_without_a_place_for_output_nothing_names_one() -> None:
    assert not any(name.startswith("AIP_") for name in env_of(trainers.custom_job()))
    assert launched(trainers.ml_job()).primary.task.args == ()


def test_a_base_output_directory_may_end_in_a_slash() -> None:
    job = trainers.custom_job(spec={"baseOutputDirectory": {"outputUriPrefix": "gs://models/"}})
    assert env_of(job)["AIP_MODEL_DIR"] == "gs://models/model/"


# The cluster description for the replicas.


def test_vertex_ai_s_replicas_know_each_other() -> None:
    job = trainers.cluster_job({"replicaCount": "2"}, {"replicaCount": "1"}, {"replicaCount": "1"})
    replicas = launched(job).replicas
    cluster = {
        "workerpool0": ["127.0.0.1:4712"],
        "workerpool1": ["127.0.0.1:4713", "127.0.0.1:4714"],
        "workerpool2": ["127.0.0.1:4715"],
        "workerpool3": ["127.0.0.1:4716"],
    }
    places = [
        ("workerpool0", 0),
        ("workerpool1", 0),
        ("workerpool1", 1),
        ("workerpool2", 0),
        ("workerpool3", 0),
    ]
    assert [json.loads(replica.env["CLUSTER_SPEC"]) for replica in replicas] == [
        {
            "cluster": cluster,
            "environment": "cloud",
            "task": {"type": pool, "index": index},
            "job": job.body["jobSpec"],
        }
        for pool, index in places
    ]
    roles = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]
    assert [json.loads(replica.env["TF_CONFIG"]) for replica in replicas] == [
        {
            "cluster": {
                "chief": cluster["workerpool0"],
                "worker": cluster["workerpool1"],
                "ps": cluster["workerpool2"],
            },
            "environment": "cloud",
            "task": {"type": role, "index": index, "cloud": "local"},
            "job": job.body["jobSpec"],
        }
        for role, index in roles
    ]


def test_vertex_ai_sets_no_tf_config_for_one_replica() -> None:
    assert "TF_CONFIG" not in env_of(trainers.custom_job())
    assert "TF_CONFIG" not in env_of(trainers.cluster_job({}, {"replicaCount": "0"}))


def test_ai_platform_s_replicas_know_each_other() -> None:
    job = custom(
        workerType="standard",
        workerCount="2",
        parameterServerType="standard",
        parameterServerCount="1",
        evaluatorType="standard",
        evaluatorCount="1",
    )
    replicas = launched(job).replicas
    configs = [json.loads(replica.env["TF_CONFIG"]) for replica in replicas]
    cluster = {
        "chief": ["127.0.0.1:4712"],
        "worker": ["127.0.0.1:4713", "127.0.0.1:4714"],
        "ps": ["127.0.0.1:4715"],
    }
    assert all(config["cluster"] == cluster for config in configs)
    assert all(config["environment"] == "cloud" for config in configs)
    assert [(config["task"]["type"], config["task"]["index"]) for config in configs] == [
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
        ("ps", 0),
        ("evaluator", 0),
    ]
    assert configs[0]["job"]["parameter_server_type"] == "standard"
    assert not any("CLUSTER_SPEC" in replica.env for replica in replicas)


IN_IMAGE = {"masterConfig": {"imageUri": "gcr.io/me/a"}, "pythonModule": "", "packageUris": []}
WITH_EVALUATOR = {"evaluatorType": "standard", "evaluatorCount": "1"}


@pytest.mark.parametrize(
    ("given", "primary"),
    [
        ({"runtimeVersion": "1.15"}, "master"),
        ({"runtimeVersion": "2.1"}, "chief"),
        ({"runtimeVersion": "2.11"}, "chief"),
        (IN_IMAGE, "master"),
        ({**IN_IMAGE, "useChiefInTfConfig": True}, "chief"),
        ({**IN_IMAGE, **WITH_EVALUATOR}, "chief"),
        ({"runtimeVersion": "1.15", **WITH_EVALUATOR}, "chief"),
    ],
)
def test_tf_config_calls_the_primary_as_ai_platform_does(given: dict[str, Any], primary: str) -> None:
    config = json.loads(env_of(custom(**given))["TF_CONFIG"])
    assert [*config["cluster"]] == [config["task"]["type"]] == [primary]


def test_ai_platform_s_containers_have_a_cluster_spec_too() -> None:
    job = custom(**IN_IMAGE, workerType="standard", workerCount="1", args=["--x"], jobDir="gs://b/d")
    first, second = launched(job).replicas
    assert first.task == second.task == ContainerTask("gcr.io/me/a", (), ("--x", "--job-dir", "gs://b/d"))
    assert json.loads(second.env["CLUSTER_SPEC"]) == {
        "cluster": {"master": ["127.0.0.1:4712"], "worker": ["127.0.0.1:4713"]},
        "environment": "cloud",
        "task": {"type": "worker", "index": 0},
        "job": json.loads(second.env["TF_CONFIG"])["job"],
    }
    assert json.loads(first.env["CLOUD_ML_JOB"])["job_args"] == ["--x", "--job-dir", "gs://b/d"]


@given(st.lists(st.integers(0, 3), max_size=3))
def test_each_replica_has_its_rank_and_its_address_once(sizes: list[int]) -> None:
    job = trainers.cluster_job(*({"replicaCount": str(size)} for size in sizes))
    environments = [replica.env for replica in launched(job).replicas]
    count = 1 + sum(sizes)
    assert [int(env["RANK"]) for env in environments] == [*range(count)]
    assert {env["WORLD_SIZE"] for env in environments} == {str(count)}
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in environments} == {("127.0.0.1", str(PORT))}
    specs = [json.loads(env["CLUSTER_SPEC"]) for env in environments]
    addresses = [address for pool in specs[0]["cluster"].values() for address in pool]
    assert len({*addresses}) == count
    assert f"127.0.0.1:{PORT}" not in addresses
    own = [spec["cluster"][spec["task"]["type"]][spec["task"]["index"]] for spec in specs]
    assert own == addresses
    assert all(spec["cluster"] == specs[0]["cluster"] for spec in specs)
    for config in (json.loads(env["TF_CONFIG"]) for env in environments if count > 1):
        assert "evaluator" not in config["cluster"]
        task = config["task"]
        assert task["type"] == "evaluator" or len(config["cluster"][task["type"]]) > task["index"]


# Trials.


def test_a_trial_of_vertex_ai_has_its_parameters_last_and_its_own_folders() -> None:
    job = trainers.tuning_job(
        args=["--epochs", "3"], spec={"baseOutputDirectory": {"outputUriPrefix": "gs://models/census"}}
    )
    spec = launched(job, trial(7, learning_rate=0.001, layers=2, kind="relu"))
    words = ("--learning_rate", "0.001", "--layers", "2", "--kind", "relu")
    assert spec.primary.task.args == ("--epochs", "3", *words)
    assert (spec.trial, spec.metrics, spec.output_buckets) == (7, ("accuracy",), ("models",))
    env = spec.primary.env
    assert json.loads(env["CLOUD_ML_JOB"])["job_args"] == ["--epochs", "3", *words]
    assert {
        name: env[name] for name in env if name.startswith(("AIP_", "CLOUD_ML_TRIAL", "CLOUD_ML_HP"))
    } == {
        "AIP_MODEL_DIR": "gs://models/census/7/model/",
        "AIP_CHECKPOINT_DIR": "gs://models/census/7/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": "gs://models/census/7/logs/",
        "CLOUD_ML_TRIAL_ID": "7",
        "CLOUD_ML_HP_METRIC_TAG": "accuracy",
    }
    told = json.loads(env["CLUSTER_SPEC"])
    assert told["task"] == {"type": "workerpool0", "index": 0, "trial": "7"}
    assert told["job"] == job.body["trialJobSpec"]


def test_a_trial_of_ai_platform_has_its_job_dir_last() -> None:
    job = trainers.ml_job(args=["--epochs=3"], jobDir="gs://models/census/", hyperparameters={"params": []})
    spec = launched(job, trial(2, rate=0.5))
    assert spec.primary.task.args == ("--epochs=3", "--rate", "0.5", "--job-dir", "gs://models/census/2")
    assert spec.metrics == ("training/hptuning/metric",)
    assert spec.primary.env["CLOUD_ML_HP_METRIC_TAG"] == "training/hptuning/metric"
    assert json.loads(spec.primary.env["TF_CONFIG"])["task"]["trial"] == "2"
    own = trainers.ml_job(hyperparameters={"hyperparameterMetricTag": "loss"})
    assert launched(own, trial(1)).metrics == ("loss",)


def test_a_job_without_trials_knows_of_none() -> None:
    spec = launched(trainers.custom_job())
    assert (spec.trial, spec.metrics) == (0, ())
    assert not {"CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_TAG"} & {*spec.primary.env}
    assert "trial" not in json.loads(spec.primary.env["CLUSTER_SPEC"])["task"]


def test_every_replica_of_a_trial_has_its_parameters() -> None:
    container = {"pythonPackageSpec": None, "containerSpec": {"imageUri": "gcr.io/me/a", "args": ["--x"]}}
    tuned = trainers.tuning_job()
    tuned.body["trialJobSpec"] = trainers.cluster_job(container).body["jobSpec"]
    assert [replica.task.args for replica in launched(tuned, trial(1, rate=0.5)).replicas] == [
        ("--rate", "0.5"),
        ("--x", "--rate", "0.5"),
    ]


def test_the_user_s_variables_come_last_and_may_refer_to_others() -> None:
    given = {
        "FOLDER": "$(CLOUD_ML_JOB_ID)/$(NOT_SET)",
        "BELOW": "$(FOLDER)/x",
        "PRICE": "$$5, $$(FOLDER)",
        "OMP_NUM_THREADS": "1",
    }
    env = env_of(trainers.custom_job(env=given))
    assert {name: env[name] for name in given} == {
        "FOLDER": "4242424242424242424/$(NOT_SET)",
        "BELOW": "4242424242424242424/$(NOT_SET)/x",
        "PRICE": "$5, $(FOLDER)",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize(
    ("machine", "cpus", "threads"),
    [
        ("n1-standard-4", 8, "4"),
        ("n1-standard-32", 8, "8"),
        ("a2-highgpu-2g", 64, "24"),
        ("complex_model_m", 64, "16"),
        ("something-new", 6, "6"),
    ],
)
def test_threads_are_the_machine_s_cpus_as_far_as_there_are_any(
    machine: str, cpus: int, threads: str
) -> None:
    job = trainers.ml_job(scaleTier="CUSTOM", masterType=machine)
    assert env_of(job, cpus=cpus)["OMP_NUM_THREADS"] == threads


def test_replicas_share_this_machine_s_cpus() -> None:
    job = trainers.cluster_job({"replicaCount": "3"})
    assert env_of(job, cpus=8)["OMP_NUM_THREADS"] == "2"
    assert env_of(job, cpus=64)["OMP_NUM_THREADS"] == "4"
    assert env_of(job, cpus=2)["OMP_NUM_THREADS"] == "1"
    assert env_of(trainers.tuning_job(), cpus=4, trial=trial(1))["OMP_NUM_THREADS"] == "2"


def test_a_replica_has_at_most_what_this_machine_has() -> None:
    small = trainers.ml_job(scaleTier="CUSTOM", masterType="n1-highcpu-2")
    large = trainers.ml_job(scaleTier="CUSTOM", masterType="n1-highmem-96")
    unknown = trainers.ml_job(scaleTier="CUSTOM", masterType="something-new")
    parts = [(spec.primary.cpus, spec.primary.memory) for spec in map(launched, (small, large, unknown))]
    assert parts == [(2, int(1.8 * GIB)), (8, 32 * GIB), (8, 32 * GIB)]


def changed(job: JobRecord, **first_pool: Any) -> JobRecord:
    job.body["jobSpec"]["workerPoolSpecs"][0].update(first_pool)
    return job


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (trainers.ml_job(pythonModule=""), "pythonModule"),
        (trainers.custom_job(env={"A=B": "x"}), "'A=B'"),
        (trainers.custom_job(env={"": "x"}), "environment variable"),
        (trainers.custom_job(env={"A": "x\0y"}), "'A'"),
        (trainers.ml_job(runtimeVersion=""), "runtimeVersion"),
        (trainers.cluster_job({"pythonPackageSpec": None, "containerSpec": {}}), "imageUri"),
        (changed(trainers.custom_job(), replicaCount="0"), "primary"),
    ],
)
def test_what_can_t_run_here_is_refused_by_name(job: JobRecord, word: str) -> None:
    assert word in refused(job)


TPU_POOL = {"machineSpec": {"machineType": "n1-standard-4", "acceleratorType": "TPU_V3"}}
IMAGE_FIELD = "job_spec.worker_pool_specs[0].python_package_spec.executor_image_uri"
MACHINE_FIELD = "job_spec.worker_pool_specs[0].machine_spec"
RUNTIME = "training_input.runtime_version"


@pytest.mark.parametrize(
    ("job", "field", "words"),
    [
        (
            changed(trainers.custom_job(), machineSpec={"machineType": "ct5lp-hightpu-1t"}),
            MACHINE_FIELD,
            "has no TPUs",
        ),
        (changed(trainers.custom_job(), **TPU_POOL), MACHINE_FIELD, "n1-standard-8"),
        (trainers.ml_job(scaleTier="BASIC_TPU"), "training_input.scale_tier", "has no TPUs"),
        (trainers.ml_job(scaleTier="CUSTOM", masterType="cloud_tpu"), "training_input.master_type", "TPUs"),
        (trainers.cluster_job(TPU_POOL), "job_spec.worker_pool_specs[1].machine_spec", "has no TPUs"),
        (
            trainers.custom_job(image="gcr.io/me/mine:3"),
            IMAGE_FIELD,
            'say under images in reconciler.yaml what to run it as: "gcr.io/me/mine:3": {python:',
        ),
        (trainers.ml_job(runtimeVersion="1.14"), RUNTIME, 'what to run it as: "1.14": {python:'),
        (trainers.ml_job(runtimeVersion="2.12"), RUNTIME, "never a runtime version 2.12"),
        (trainers.ml_job(pythonVersion="3.10"), "training_input.python_version", "write 3.7"),
    ],
)
def test_what_can_t_run_here_is_unsupported_by_its_field_and_with_a_remedy(
    job: JobRecord, field: str, words: str
) -> None:
    found = dict(unsupported(replace(job, images={})))
    assert words in found[field]


def test_image_or_runtime_with_an_entry_is_supported() -> None:
    entry = {"python": "3.11", "requirements": []}
    for job, name in (
        (trainers.custom_job(image="gcr.io/me/mine:3"), "gcr.io/me/mine"),
        (trainers.ml_job(runtimeVersion="1.14"), "1.14"),
        (trainers.ml_job(pythonVersion="3.10"), "2.11"),
    ):
        assert list(unsupported(replace(job, images={name: entry}))) == []


def test_container_with_any_image_is_supported() -> None:
    pool = {"pythonPackageSpec": None, "containerSpec": {"imageUri": "gcr.io/me/mine:3"}}
    assert list(unsupported(changed(trainers.custom_job(), **pool))) == []


def test_an_override_goes_with_the_run() -> None:
    own = python(launched(trainers.custom_job()).primary)
    assert own.override == {"python": trainers.OWN_PYTHON, "requirements": ()}
    assert python(launched(trainers.custom_job(image=SKLEARN)).primary).override is None


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (
            trainers.custom_job(image="us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-12.py310:latest"),
            "tf-gpu",
        ),
        (
            changed(trainers.custom_job(), machineSpec={"acceleratorType": "NVIDIA_TESLA_T4"}),
            "NVIDIA_TESLA_T4",
        ),
        (trainers.ml_job(scaleTier="BASIC_GPU"), "NVIDIA_TESLA_K80"),
    ],
)
def test_accelerators_are_warned_of_once(job: JobRecord, word: str) -> None:
    (warning,) = launched(job).warnings
    assert word in warning
    assert "CPU" in warning


NETWORK = "projects/1/global/networks/n"


def test_each_field_without_effect_is_one_warning() -> None:
    job = changed(trainers.custom_job(), diskSpec={"bootDiskSizeGb": 200}, nfsMounts=[])
    job.body["encryptionSpec"] = {"kmsKeyName": "k"}
    job.body["jobSpec"].update(
        network=NETWORK,
        serviceAccount="me@x.test",
        enableWebAccess=False,
        scheduling={"strategy": "SPOT", "timeout": "60s"},
    )
    ended = " has no effect here: the job runs as if it weren't set."
    assert sorted(launched(job).warnings) == sorted(
        f"{field}{ended}"
        for field in (
            "encryptionSpec",
            "network",
            "serviceAccount",
            "scheduling.strategy SPOT",
            "workerPoolSpecs[0].diskSpec",
        )
    )


def test_fields_of_ai_platform_without_effect_are_warned_of() -> None:
    job = trainers.ml_job(network=NETWORK, masterConfig={"diskConfig": {"bootDiskSizeGb": 200}})
    assert [line.partition(" ")[0] for line in launched(job).warnings] == [
        "trainingInput.network",
        "trainingInput.masterConfig.diskConfig",
    ]


def test_job_with_effective_fields_alone_has_no_warning() -> None:
    job = changed(trainers.custom_job(), replicaCount="1")
    job.body["jobSpec"]["scheduling"] = {"strategy": "STANDARD", "timeout": "60s", "disableRetries": True}
    assert launched(job).warnings == launched(trainers.tuning_job(), trial(1)).warnings == ()


def test_a_job_without_accelerators_has_no_warning_and_sees_nobody_s_gpus() -> None:
    spec = launched(trainers.custom_job(), gpus=("0", "1"))
    assert spec.warnings == ()
    assert spec.primary.env["CUDA_VISIBLE_DEVICES"] == ""


def with_gpus(first: int, *others: int) -> JobRecord:
    specs = [
        {
            "machineType": "n1-standard-8",
            **({"acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": count} if count else {}),
        }
        for count in (first, *others)
    ]
    pools = ({"machineSpec": spec, "replicaCount": "1"} for spec in specs[1:])
    return changed(trainers.cluster_job(*pools), machineSpec=specs[0])


@pytest.mark.parametrize(
    ("job", "gpus", "dealt", "warning"),
    [
        (with_gpus(1), "5", ["5"], ""),
        (with_gpus(2, 1), "012", ["0,1", "2"], ""),
        (with_gpus(1, 0, 1), "03", ["0", "", "3"], ""),
        (with_gpus(4), "7", ["7"], "has 1 here"),
        (with_gpus(4, 4), "0123", ["0,1", "2,3"], "has 4 here"),
        (with_gpus(1, 4), "0123", ["0", "1,2"], "has 4 here"),
        (with_gpus(1, 1), "0", ["", ""], "on the CPU here"),
        (with_gpus(1), "", [""], "on the CPU here"),
    ],
)
def test_gpus_are_dealt_to_those_who_ask(job: JobRecord, gpus: str, dealt: list[str], warning: str) -> None:
    spec = launched(job, gpus=tuple(gpus))
    assert [replica.env["CUDA_VISIBLE_DEVICES"] for replica in spec.replicas] == dealt
    assert len(spec.warnings) == bool(warning)
    assert warning in "".join(spec.warnings)


def test_time_limits_are_a_week_unless_the_job_says_otherwise() -> None:
    assert launched(trainers.custom_job()).time_limit == 7 * 86_400
    limited = trainers.custom_job(spec={"scheduling": {"timeout": "90.5s"}})
    assert (launched(limited).time_limit, launched(limited).time_limit_field) == (90.5, "scheduling.timeout")
    limited = trainers.ml_job(scheduling={"maxRunningTime": "7200s", "maxWaitTime": "1800s"})
    assert (launched(limited).time_limit, max_wait(limited)) == (7200, 1800)
    assert max_wait(trainers.custom_job()) is None


def test_only_flexible_starts_of_vertex_ai_wait_for_so_long() -> None:
    def waits(**scheduling: Any) -> float | None:
        return max_wait(trainers.custom_job(spec={"scheduling": scheduling}))

    assert waits(strategy="FLEX_START") == 86_400
    assert waits(strategy="FLEX_START", maxWaitDuration="90s") == 90
    assert waits(strategy="FLEX_START", maxWaitDuration="0s") is None
    assert waits(strategy="SPOT", maxWaitDuration="90s") is None
    assert max_wait(trainers.tuning_job(spec={"scheduling": {"strategy": "FLEX_START"}})) == 86_400


def test_retries_can_be_disabled() -> None:
    disabled = {"scheduling": {"disableRetries": True}}
    for job, retried in (
        (trainers.custom_job(), True),
        (trainers.custom_job(spec=disabled), False),
        (trainers.tuning_job(spec=disabled), False),
        (trainers.ml_job(), True),
    ):
        assert may_be_retried(job) is retried
        assert launched(job, trial(1)).restarts is retried


def test_replicas_restart_together_where_the_job_says_so() -> None:
    together = trainers.custom_job(spec={"scheduling": {"restartJobOnWorkerRestart": True}})
    assert launched(together).restarts_together
    assert not launched(trainers.custom_job()).restarts_together
    assert not launched(trainers.ml_job()).restarts_together


def test_only_ai_platform_has_priorities() -> None:
    assert priority(trainers.ml_job(scheduling={"priority": 7})) == 7
    assert priority(trainers.ml_job()) == 0
    assert priority(trainers.custom_job()) == 0


# A job's demands on the machine.

WHOLE = Machine(16, 64 * GIB, 2)


def test_a_job_asks_for_all_its_replicas() -> None:
    assert demand(trainers.custom_job(), WHOLE) == Machine(4, 15 * GIB, 0)
    assert demand(trainers.cluster_job({"replicaCount": "2"}), WHOLE) == Machine(12, 45 * GIB, 0)
    assert demand(with_gpus(1, 0), WHOLE) == Machine(16, 60 * GIB, 1)


def test_a_job_asks_for_no_more_than_there_is() -> None:
    assert demand(trainers.ml_job(scaleTier="PREMIUM_1"), WHOLE) == Machine(16, 64 * GIB, 0)
    assert demand(with_gpus(4), WHOLE) == Machine(8, 30 * GIB, 2)
    unknown = trainers.ml_job(scaleTier="CUSTOM", masterType="something-new")
    assert demand(unknown, WHOLE) == replace(WHOLE, gpus=0)


def test_trials_run_side_by_side_as_far_as_there_are_cpus() -> None:
    tuned = trainers.tuning_job()
    assert (parallel_trials(tuned, WHOLE), demand(tuned, WHOLE)) == (2, Machine(8, 30 * GIB, 0))
    assert parallel_trials(tuned, Machine(1, GIB)) == 1
    tuned.body["trialJobSpec"] = trainers.cluster_job({"replicaCount": "8"}).body["jobSpec"]
    assert parallel_trials(tuned, WHOLE) == 1
    assert parallel_trials(trainers.ml_job(hyperparameters={"maxParallelTrials": 3}), WHOLE) == 3
    assert parallel_trials(trainers.ml_job(hyperparameters={}), WHOLE) == 1
    assert parallel_trials(trainers.custom_job(), WHOLE) == 1


def test_a_run_needs_a_port_for_each_replica_and_one_for_pytorch() -> None:
    assert ports_wanted(trainers.custom_job()) == 2
    assert ports_wanted(trainers.ml_job(scaleTier="STANDARD_1")) == 9


@pytest.mark.parametrize("replicas", [MOST_REPLICAS, 2000, 10**9, 2**63 - 1])
def test_job_of_too_many_replicas_is_unsupported_and_nothing_is_made_for_them(replicas: int) -> None:
    """A list of that many replicas would exhaust the service's memory."""
    many = str(replicas)
    jobs = {
        "job_spec.worker_pool_specs[1].replica_count": trainers.cluster_job({"replicaCount": many}),
        "training_input.worker_count": custom(workerType="standard", workerCount=many),
        "training_input.parameter_server_count": custom(
            parameterServerType="standard", parameterServerCount=many
        ),
    }
    for field, job in jobs.items():
        message = f"The job has {replicas + 1} replicas: the embedded training service runs 200 at most."
        assert (field, message) in unsupported(job)
        assert (parallel_trials(job, WHOLE), demand(job, WHOLE)) == (1, replace(WHOLE, gpus=0))


def test_as_many_replicas_as_the_service_runs_are_launched() -> None:
    job = trainers.cluster_job({"replicaCount": str(MOST_REPLICAS - 1)})
    assert not [field for field, _ in unsupported(job) if "replica_count" in field]
    assert len(launched(job).replicas) == 200


IN_A_CONTAINER: dict[str, Any] = {"runtimeVersion": "", "pythonModule": "", "packageUris": []}


@pytest.mark.parametrize(
    "job",
    [
        trainers.custom_job(args=["--a", "x\0"]),
        trainers.custom_job(pythonModule="trainer\0.task"),
        trainers.custom_job(packages=["gs://code/x\0.whl"]),
        trainers.cluster_job(
            {"pythonPackageSpec": None, "containerSpec": {"imageUri": "a", "args": ["x\0"]}}
        ),
        trainers.custom_job(spec={"baseOutputDirectory": {"outputUriPrefix": "gs://b/x\0"}}),
        trainers.ml_job(region="x\0"),
        trainers.ml_job(jobDir="gs://b/x\0"),
        custom(**IN_A_CONTAINER, masterConfig={"imageUri": "x\0"}),
        custom(**IN_A_CONTAINER, masterConfig={"imageUri": "a", "containerCommand": ["x\0"]}),
    ],
)
def test_a_word_that_no_program_can_be_given_is_refused(job: JobRecord) -> None:
    refusal = launch(job, here(job))
    assert isinstance(refusal, Refusal)
    assert refusal.code == 3
    assert "it contains a NUL character." in refusal.message
    assert "\0" not in refusal.message


@pytest.mark.parametrize("parameters", [{"rate\0": 0.1}, {"kind": "x\0"}])
def test_a_trial_s_words_are_looked_at_too(parameters: dict[str, Any]) -> None:
    job = trainers.tuning_job()
    refusal = launch(job, here(job), trial(1, **parameters))
    assert isinstance(refusal, Refusal)
    assert refusal.code == 3


def test_a_run_s_spec_survives_its_file() -> None:
    container = {"pythonPackageSpec": None, "containerSpec": {"imageUri": "a", "command": ["b"]}}
    spec = launched(
        trainers.cluster_job(
            container, args=["a"], spec={"baseOutputDirectory": {"outputUriPrefix": "gs://b"}}
        )
    )
    restored = RunSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert restored.replicas[1] == spec.replicas[1]
    assert restored.primary.env == spec.primary.env
    task = python(restored.primary)
    assert (task.args, task.packages, restored.output_buckets) == (("a",), (trainers.URI,), ("b",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("location", "region"), [("local", "us-central1"), ("europe-west4", "europe-west4"), ("", "us-central1")]
)
def test_the_sdk_takes_the_region_that_a_vertex_job_is_told(location: str, region: str) -> None:
    from google.cloud import aiplatform  # two seconds, which a run of other tests needn't wait for

    assert env_of(replace(trainers.custom_job(), location=location))["CLOUD_ML_REGION"] == region
    aiplatform.utils.validate_region(region)
