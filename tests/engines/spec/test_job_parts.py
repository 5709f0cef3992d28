"""Details of a job in the resources of both APIs: workers, replicas, output folder, trials."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.base.http import HttpRequest, HttpResponse
from reconciler.engines.api.vertex_ai import VertexAi
from reconciler.engines.spec import ai_platform, vertex_ai
from reconciler.google.client import Connection, Endpoint
from reconciler.model.details import Trial, Workers
from reconciler.model.job import ActualJob, State, Trials
from reconciler.model.manifest import AIPLATFORM_V1

CONSOLE = "https://console.cloud.google.com/vertex-ai/locations/us-central1/training/2?project=acme-ml"
POOLS = [
    {
        "machineSpec": {
            "machineType": "a2-highgpu-2g",
            "acceleratorType": "NVIDIA_TESLA_A100",
            "acceleratorCount": 2,
        },
        "replicaCount": "1",
        "containerSpec": {
            "imageUri": "europe-docker.pkg.dev/p/r/trainer@sha256:0",
            "command": ["python", "-m", "trainer"],
            "args": ["--epochs=3"],
            "env": [{"name": "MODE", "value": "fast"}, {"name": "EMPTY"}],
        },
        "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
    },
    {},
    {
        "machineSpec": {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"},
        "replicaCount": "4",
        "pythonPackageSpec": {
            "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-14.py310:latest",
            "packageUris": ["gs://b/p.tar.gz"],
            "pythonModule": "trainer.task",
        },
    },
]
# The shape in which the API returns a finished job.
TUNED = {
    "name": "projects/1/locations/us-central1/hyperparameterTuningJobs/2",
    "displayName": "census_0123456789abcdef",
    "studySpec": {
        "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
        "parameters": [{"parameterId": "lr", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}],
    },
    "maxTrialCount": 4,
    "parallelTrialCount": 2,
    "trialJobSpec": {"workerPoolSpecs": POOLS, "baseOutputDirectory": {"outputUriPrefix": "gs://b/census/"}},
    "trials": [
        {
            "id": "1",
            "state": "SUCCEEDED",
            "parameters": [{"parameterId": "lr", "value": 0.5}, {"parameterId": "kind", "value": "a"}],
            "finalMeasurement": {"stepCount": "7", "metrics": [{"metricId": "loss", "value": 0.25}]},
            "startTime": "2026-01-02T03:04:05.123Z",
            "endTime": "2026-01-02T03:14:05Z",
        },
        {
            "id": "2",
            "state": "SUCCEEDED",
            "parameters": [{"parameterId": "lr", "value": 0.75}],
            "finalMeasurement": {"metrics": [{"metricId": "loss"}]},  # a zero is left out
        },
        {"id": "3", "state": "INFEASIBLE", "infeasibleReason": "NaN", "finalMeasurement": {}},
        {
            "id": "4",
            "state": "ACTIVE",
            "parameters": "odd",
            "finalMeasurement": {"metrics": [{"value": "odd"}]},
        },
    ],
}


def vertex(kind: str, body: dict[str, Any]) -> ActualJob:
    spec = vertex_ai.spec_of(kind, body)
    return ActualJob("r", "n", AIPLATFORM_V1, kind, State.SUCCEEDED, "", spec=spec, body=body)


def test_pools_of_vertex_ai() -> None:
    spec = {"workerPoolSpecs": POOLS, "serviceAccount": "a@b", "scheduling": {"timeout": "60s"}}
    first, second = vertex_ai.workers("CustomJob", spec)
    assert first == Workers(
        name="workerpool0",
        count=1,
        machine="a2-highgpu-2g",
        accelerator="NVIDIA_TESLA_A100",
        accelerator_count=2,
        image="europe-docker.pkg.dev/p/r/trainer@sha256:0",
        command=("python", "-m", "trainer"),
        args=("--epochs=3",),
        env=(("MODE", "fast"), ("EMPTY", "")),
    )
    assert (second.name, second.count, second.machine) == ("workerpool2", 4, "ct5lp-hightpu-4t 4x4")
    assert second.module == "trainer.task"
    assert vertex_ai.limits("CustomJob", spec) == {"serviceAccount": "a@b", "network": "", "timeout": "60s"}
    assert vertex_ai.output_directory("CustomJob", spec) == ""


def test_study_of_vertex_ai() -> None:
    study = vertex_ai.study(vertex("HyperparameterTuningJob", TUNED))
    assert study is not None
    assert (study.planned, study.goals[0].metric, study.goals[0].is_maximum) == (4, "loss", False)
    assert study.trials[0] == Trial(
        "1",
        "SUCCEEDED",
        {"lr": 0.5, "kind": "a"},
        {"loss": 0.25},
        "2026-01-02T03:04:05.123Z",
        "2026-01-02T03:14:05Z",
    )
    assert [trial.metrics for trial in study.trials[1:]] == [{"loss": 0.0}, {}, {}]
    assert study.best is study.trials[1]
    assert study.trials[2].reason == "NaN"
    assert vertex_ai.output_directory("HyperparameterTuningJob", TUNED) == "gs://b/census"
    assert vertex_ai.study(vertex("CustomJob", {})) is None


def test_roles_and_study_of_ai_platform() -> None:
    tuning = {"maxTrials": "3", "params": []}
    training = {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-4",
        "masterConfig": {"acceleratorConfig": {"count": "1", "type": "NVIDIA_TESLA_T4"}},
        "workerType": "n1-highcpu-8",
        "workerCount": "2",
        "workerConfig": {"imageUri": "gcr.io/p/worker", "containerArgs": ["--w"]},
        "runtimeVersion": "2.11",
        "pythonVersion": "3.7",
        "pythonModule": "task",
        "args": ["--m"],
        "jobDir": "gs://b/census/",
        "scheduling": {"maxRunningTime": "3600s"},
        "hyperparameters": tuning,
    }
    spec = {"trainingInput": training}
    master, worker = ai_platform.workers("Job", spec)
    assert master == Workers(
        "master", 1, "n1-standard-4", "NVIDIA_TESLA_T4", 1, "runtime 2.11, Python 3.7", "task", (), ("--m",)
    )
    assert worker == Workers("worker", 2, "n1-highcpu-8", image="gcr.io/p/worker", args=("--w",))
    assert ai_platform.output_directory("Job", spec) == "gs://b/census"
    assert ai_platform.limits("Job", spec)["timeout"] == "3600s"
    (basic,) = ai_platform.workers("Job", {"trainingInput": {"scaleTier": "BASIC_GPU"}})
    assert basic.machine == "BASIC_GPU"

    # The service ranks the trials, and writes their parameters as text.
    trials = [
        {
            "trialId": "10",
            "hyperparameters": {"c": "0.5"},
            "finalMetric": {"objectiveValue": 0.9},
            "state": "SUCCEEDED",
        },
        {
            "trialId": "2",
            "hyperparameters": {"c": "1"},
            "finalMetric": {"trainingStep": "1"},
            "state": "SUCCEEDED",
        },
        {"trialId": "1", "state": "FAILED"},
    ]
    body = {**spec, "trainingOutput": {"trials": trials}}
    study = ai_platform.study(ActualJob("r", "n", "ml", "Job", State.SUCCEEDED, "", body=body))
    assert study is not None
    assert [trial.id for trial in study.trials] == ["1", "2", "10"]
    assert [trial.metrics for trial in study.trials] == [
        {},
        {"training/hptuning/metric": 0.0},
        {"training/hptuning/metric": 0.9},
    ]
    assert (study.planned, study.best) == (3, study.trials[2])
    plain = ActualJob("r", "n", "ml", "Job", State.SUCCEEDED, "", body={"trainingInput": {}})
    assert ai_platform.study(plain) is None


def test_the_console_shows_jobs_of_google_alone() -> None:
    body = b'{"name": "projects/1/locations/us-central1/customJobs/2", "displayName": "census"}'

    class Answers:
        """A transport with a fixed answer."""

        def send(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(200, {}, body)

    for console, url in ((True, CONSOLE), (False, "")):
        endpoint = Endpoint(
            Answers(), dict, "acme-ml", "us-central1", {"aiplatform": "https://a.test/"}, console=console
        )
        job = VertexAi(Connection(endpoint)).read(
            "CustomJob", "projects/1/locations/us-central1/customJobs/2"
        )
        assert job.url == url


@pytest.mark.parametrize("odd", [{}, {"workerPoolSpecs": 3}, {"workerPoolSpecs": [3, {"replicaCount": []}]}])
def test_odd_specs_are_no_errors(odd: dict[str, Any]) -> None:
    assert all(isinstance(each, Workers) for each in vertex_ai.workers("CustomJob", odd))
    assert vertex_ai.workers("HyperparameterTuningJob", {"trialJobSpec": odd}) == vertex_ai.workers(
        "CustomJob", odd
    )
    assert ai_platform.workers("Job", odd)[0].count == 1


# --- the parts of a job -----------------------------------------------------------------------------------

TUNING = "HyperparameterTuningJob"


def pools(*counts: Any) -> dict[str, Any]:
    """Return pools with these replica counts: None for an empty pool, "" for a pool without a count."""
    given = [
        {} if count is None else {"machineSpec": {}} | ({"replicaCount": count} if count != "" else {})
        for count in counts
    ]
    return {"workerPoolSpecs": given}


@pytest.mark.parametrize(
    ("counts", "replicas"),
    [
        ([1], {"workerpool0-": 1}),
        ([""], {"workerpool0-": 1}),
        (["1", "3", None, 2], {"workerpool0-": 1, "workerpool1-": 3, "workerpool3-": 2}),
        ([1, "0"], {"workerpool0-": 1}),
        (["many"], {"workerpool0-": 1}),
        ([], {}),
    ],
)
def test_replicas_of_worker_pools(counts: list[Any], replicas: dict[str, int]) -> None:
    assert vertex_ai.replicas("CustomJob", pools(*counts)) == replicas
    assert vertex_ai.replicas(TUNING, {"trialJobSpec": pools(*counts)}) == replicas


@pytest.mark.parametrize(
    ("training", "replicas"),
    [
        ({"scaleTier": "BASIC"}, {"master-replica-": 1}),
        ({"scaleTier": "STANDARD_1"}, {"master-replica-": 1, "worker-replica-": 4, "ps-replica-": 3}),
        ({"scaleTier": "PREMIUM_1"}, {"master-replica-": 1, "worker-replica-": 19, "ps-replica-": 11}),
        (
            {"scaleTier": "CUSTOM", "workerCount": "2", "parameterServerCount": 1, "evaluatorCount": "1"},
            {"master-replica-": 1, "worker-replica-": 2, "ps-replica-": 1, "evaluator-replica-": 1},
        ),
        ({}, {"master-replica-": 1}),
    ],
)
def test_replicas_of_ai_platform(training: dict[str, Any], replicas: dict[str, int]) -> None:
    assert ai_platform.replicas("Job", {"trainingInput": training}) == replicas


@pytest.mark.parametrize("broken", [None, 3, "x", [], {}, {"workerPoolSpecs": 5}, {"workerPoolSpecs": [3]}])
def test_replicas_of_an_answer_that_is_not_as_it_should_be(broken: Any) -> None:
    spec = broken if isinstance(broken, dict) else {}
    assert vertex_ai.replicas("CustomJob", spec) == {}
    assert vertex_ai.replicas(TUNING, {"trialJobSpec": broken}) == {}
    assert ai_platform.replicas("Job", {"trainingInput": broken}) == {"master-replica-": 1}


def job(kind: str, body: dict[str, Any]) -> ActualJob:
    spec = {} if kind == "Job" else vertex_ai.spec_of(kind, body)
    return ActualJob("a", "a", AIPLATFORM_V1, kind, State.RUNNING, "", spec=spec, body=body)


def test_trials() -> None:
    states = {"1": "SUCCEEDED", "2": "ACTIVE", "3": "REQUESTED", "4": "INFEASIBLE"}
    body = {"maxTrialCount": 5, "trials": [{"id": id, "state": state} for id, state in states.items()]}
    assert vertex_ai.trials(job(TUNING, body)) == Trials(frozenset("124"), 5)
    assert vertex_ai.trials(job(TUNING, {"maxTrialCount": 5})) == Trials(frozenset(), 5)
    assert vertex_ai.trials(job("CustomJob", {})) is None


def test_trials_of_ai_platform() -> None:
    states = {"1": "SUCCEEDED", "2": "RUNNING", "3": "QUEUED"}
    trials = [{"trialId": id, "state": state} for id, state in states.items()]
    body = {
        "trainingInput": {"hyperparameters": {"goal": "MAXIMIZE", "maxTrials": 4}},
        "trainingOutput": {"trials": trials},
    }
    assert ai_platform.trials(job("Job", body)) == Trials(frozenset("12"), 4)
    assert ai_platform.trials(job("Job", {"trainingInput": {}})) is None


def test_the_folder_that_a_job_logs_to() -> None:
    output = {"baseOutputDirectory": {"outputUriPrefix": "gs://b/census/"}}
    assert vertex_ai.log_directory("CustomJob", output) == "gs://b/census/logs"
    assert vertex_ai.log_directory(TUNING, {"trialJobSpec": output}) == "gs://b/census"
    assert vertex_ai.log_directory("CustomJob", {}) == ""
    assert ".".join(vertex_ai.output_directory_field(TUNING, {})) == (
        "spec.trialJobSpec.baseOutputDirectory.outputUriPrefix"
    )
    assert ai_platform.log_directory("Job", {"trainingInput": {"jobDir": "gs://b/census"}}) == "gs://b/census"
    assert ai_platform.log_directory("Job", {"trainingInput": {}}) == ""
    assert ".".join(ai_platform.output_directory_field("Job", {})) == "spec.trainingInput.jobDir"
