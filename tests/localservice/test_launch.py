from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trainers

from reconciler.localservice.launch import Here, Refusal, launch, max_wait, may_be_retried
from reconciler.localservice.records import TUNING_JOBS, JobRecord, number_of
from reconciler.localservice.run_spec import RunSpec

HERE = Here("http://127.0.0.1:8080/jobs/s3cret", Path("/home/me/.reconciler/gcs"), cpus=8, port=4711)
SKLEARN = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"


def launched(job: JobRecord, here: Here = HERE) -> RunSpec:
    spec = launch(job, here)
    assert isinstance(spec, RunSpec), spec
    return spec


def refused(job: JobRecord) -> str:
    refusal = launch(job, HERE)
    assert isinstance(refusal, Refusal), refusal
    return refusal.message


def test_a_vertex_ai_trainer_gets_the_cloud_s_variables_and_arguments() -> None:
    job = trainers.custom_job(
        image=SKLEARN,
        args=["--epochs=3", "plain"],
        spec={"baseOutputDirectory": {"outputUriPrefix": "gs://models/census"}},
    )
    spec = launched(job)
    assert (spec.module, spec.args) == ("trainer.task", ("--epochs=3", "plain"))
    assert spec.packages == (trainers.URI,)
    assert spec.replica == "workerpool0-0"
    assert spec.output_buckets == ("models",)
    env = dict(spec.env)
    assert json.loads(env.pop("CLOUD_ML_JOB")) == {
        "python_module": "trainer.task",
        "package_uris": [trainers.URI],
        "job_args": ["--epochs=3", "plain"],
    }
    assert json.loads(env.pop("CLUSTER_SPEC")) == {
        "cluster": {"workerpool0": ["127.0.0.1:4711"]},
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
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:8080/jobs/s3cret",
        "RECONCILER_GCS_DIR": "/home/me/.reconciler/gcs",
    }


def test_an_ml_trainer_gets_the_cloud_s_variables_and_its_job_dir_last() -> None:
    spec = launched(trainers.ml_job(jobDir="gs://models/census/", args=["--epochs", "3"]))
    assert spec.args == ("--epochs", "3", "--job-dir", "gs://models/census/")
    assert spec.replica == "master 0"
    assert spec.output_buckets == ("models",)
    env = dict(spec.env)
    assert json.loads(env.pop("TF_CONFIG")) == {
        "cluster": {"chief": ["127.0.0.1:4711"]},
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
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:8080/jobs/s3cret",
        "RECONCILER_GCS_DIR": "/home/me/.reconciler/gcs",
    }


def test_without_a_place_for_output_nothing_names_one() -> None:
    assert not any(name.startswith("AIP_") for name in launched(trainers.custom_job()).env)
    assert launched(trainers.ml_job()).args == ()


def test_a_base_output_directory_may_end_in_a_slash() -> None:
    job = trainers.custom_job(spec={"baseOutputDirectory": {"outputUriPrefix": "gs://models/"}})
    assert launched(job).env["AIP_MODEL_DIR"] == "gs://models/model/"


@pytest.mark.parametrize(("runtime", "primary"), [("1.15", "master"), ("2.1", "chief"), ("2.11", "chief")])
def test_tf_config_calls_the_primary_as_the_runtime_does(runtime: str, primary: str) -> None:
    config = json.loads(launched(trainers.ml_job(runtimeVersion=runtime)).env["TF_CONFIG"])
    assert [*config["cluster"]] == [config["task"]["type"]] == [primary]


def test_vertex_ai_sets_no_tf_config_for_one_replica() -> None:
    assert "TF_CONFIG" not in launched(trainers.custom_job()).env


def test_the_user_s_variables_come_last_and_may_refer_to_others() -> None:
    given = {
        "FOLDER": "$(CLOUD_ML_JOB_ID)/$(NOT_SET)",
        "BELOW": "$(FOLDER)/x",
        "PRICE": "$$5, $$(FOLDER)",
        "OMP_NUM_THREADS": "1",
    }
    env = launched(trainers.custom_job(env=given)).env
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
    here = Here(HERE.storage_url, HERE.buckets, cpus, HERE.port)
    assert launched(job, here).env["OMP_NUM_THREADS"] == threads


def changed(job: JobRecord, **first_pool: Any) -> JobRecord:
    job.body["jobSpec"]["workerPoolSpecs"][0].update(first_pool)
    return job


def with_pool(pool: dict[str, Any]) -> JobRecord:
    job = trainers.custom_job()
    job.body["jobSpec"]["workerPoolSpecs"].append(pool)
    return job


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (changed(trainers.custom_job(), replicaCount="2"), "several replicas"),
        (with_pool({"replicaCount": "1"}), "several replicas"),
        (with_pool({"machineSpec": {"machineType": "n1-standard-4"}}), "several replicas"),
        (changed(trainers.custom_job(), machineSpec={"machineType": "ct5lp-hightpu-1t"}), "TPU"),
        (changed(trainers.custom_job(), machineSpec={"acceleratorType": "TPU_V3"}), "TPU"),
        (trainers.ml_job(scaleTier="STANDARD_1"), "several replicas"),
        (trainers.ml_job(scaleTier="CUSTOM", masterType="standard", workerCount="1"), "several replicas"),
        (trainers.ml_job(scaleTier="CUSTOM", masterType="standard", evaluatorCount="1"), "several replicas"),
        (trainers.ml_job(hyperparameters={"params": []}), "hyper-parameter tuning"),
        (trainers.ml_job(scaleTier="BASIC_TPU"), "TPU"),
        (trainers.ml_job(scaleTier="CUSTOM", masterType="cloud_tpu"), "TPU"),
        (trainers.ml_job(masterConfig={"imageUri": "gcr.io/me/trainer"}), "containers"),
        (trainers.ml_job(pythonModule=""), "pythonModule"),
        (trainers.custom_job(env={"A=B": "x"}), "'A=B'"),
        (trainers.custom_job(env={"": "x"}), "environment variable"),
        (trainers.custom_job(env={"A": "x\0y"}), "'A'"),
        (trainers.ml_job(runtimeVersion=""), "runtimeVersion"),
    ],
)
def test_what_can_t_run_here_is_refused_by_name(job: JobRecord, word: str) -> None:
    assert word in refused(job)


def test_containers_and_tuning_jobs_are_refused() -> None:
    container = trainers.custom_job()
    container.body["jobSpec"]["workerPoolSpecs"] = [{"containerSpec": {"imageUri": "gcr.io/me/trainer"}}]
    assert "containers" in refused(container)
    tuning = JobRecord(TUNING_JOBS, "p", "us-central1", "1", {"trialJobSpec": {}}, "s", "", "")
    assert "hyper-parameter tuning" in refused(tuning)


def test_an_empty_second_pool_is_none() -> None:
    assert launched(with_pool({}))
    assert launched(with_pool({"replicaCount": "0"}))


def test_an_unknown_image_is_refused_with_what_to_write() -> None:
    message = refused(trainers.custom_job(image="gcr.io/me/mine:3"))
    assert "gcr.io/me/mine:3" in message
    assert 'images: {"gcr.io/me/mine:3": {python:' in message


def test_an_override_goes_with_the_run() -> None:
    spec = launched(trainers.custom_job())
    assert spec.override == {"python": trainers.OWN_PYTHON, "requirements": ()}
    assert launched(trainers.custom_job(image=SKLEARN)).override is None


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


def test_a_job_without_accelerators_has_no_warning() -> None:
    assert launched(trainers.custom_job()).warnings == ()


def test_time_limits_are_a_week_unless_the_job_says_otherwise() -> None:
    assert launched(trainers.custom_job()).time_limit == 7 * 86_400
    limited = trainers.custom_job(spec={"scheduling": {"timeout": "90.5s"}})
    assert (launched(limited).time_limit, launched(limited).time_limit_field) == (90.5, "scheduling.timeout")
    limited = trainers.ml_job(scheduling={"maxRunningTime": "7200s", "maxWaitTime": "1800s"})
    assert (launched(limited).time_limit, max_wait(limited)) == (7200, 1800)
    assert max_wait(trainers.custom_job()) is None


def test_retries_can_be_disabled() -> None:
    assert may_be_retried(trainers.custom_job())
    assert not may_be_retried(trainers.custom_job(spec={"scheduling": {"disableRetries": True}}))
    assert may_be_retried(trainers.ml_job())


def test_a_run_s_spec_survives_its_file() -> None:
    spec = launched(
        trainers.custom_job(args=["a"], spec={"baseOutputDirectory": {"outputUriPrefix": "gs://b"}})
    )
    assert launched(trainers.custom_job(image=SKLEARN, args=["a"])) != spec
    restored = RunSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert restored.env == spec.env
    assert (restored.args, restored.packages, restored.output_buckets) == (("a",), (trainers.URI,), ("b",))
