"""What engines tell of a job's parts: its replicas, its trials, and the folder that it logs to."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.engines.spec import ai_platform, vertex_ai
from reconciler.model.job import ActualJob, State, Trials
from reconciler.model.manifest import AIPLATFORM_V1

TUNING = "HyperparameterTuningJob"


def pools(*counts: Any) -> dict[str, Any]:
    """Pools with these replica counts: None for an empty pool, "" for one that says none."""
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
    return ActualJob("a", "a", AIPLATFORM_V1, kind, State.RUNNING, "", body=body)


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
    assert vertex_ai.log_directory_field(TUNING) == ("spec.trialJobSpec.baseOutputDirectory.outputUriPrefix")
    assert ai_platform.log_directory("Job", {"trainingInput": {"jobDir": "gs://b/census"}}) == "gs://b/census"
    assert ai_platform.log_directory("Job", {"trainingInput": {}}) == ""
    assert ai_platform.log_directory_field("Job") == "spec.trainingInput.jobDir"
