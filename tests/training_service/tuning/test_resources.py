"""Trials as the two APIs give them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import JobRecord
from reconciler.training_service.state.trial_records import Measurement, TrialRecord, TrialState
from reconciler.training_service.tuning.resources import training_output, vertex_trials
from tests.support.training_service.studies import ml_job, trial, vertex_job

VERTEX = vertex_job(
    {
        "metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}],
        "parameters": [{"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}],
    }
)
POINT = {"rate": 0.1, "units": 3, "kernel": "rbf"}
TIMES = {"start_time": "2026-01-02T03:04:05.000000Z", "end_time": "2026-01-02T03:04:09.000000Z"}


def ml(**more: Any) -> JobRecord:
    param = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}
    return ml_job({"params": [param], "hyperparameterMetricTag": "accuracy", **more})


def test_a_trial_of_vertex_ai() -> None:
    done = trial(7, [0.5, 0.25], parameters=POINT, **TIMES)
    assert vertex_trials(VERTEX, [done]) == [
        {
            "id": "7",
            "state": "SUCCEEDED",
            "parameters": [
                {"parameterId": "rate", "value": 0.1},
                {"parameterId": "units", "value": 3},
                {"parameterId": "kernel", "value": "rbf"},
            ],
            "finalMeasurement": {
                "elapsedDuration": "4.000000s",
                "stepCount": "2",
                "metrics": [{"metricId": "accuracy", "value": 0.25}],
            },
            "measurements": [
                {
                    "elapsedDuration": "2.000000s",
                    "stepCount": "1",
                    "metrics": [{"metricId": "accuracy", "value": 0.5}],
                },
                {
                    "elapsedDuration": "4.000000s",
                    "stepCount": "2",
                    "metrics": [{"metricId": "accuracy", "value": 0.25}],
                },
            ],
            "startTime": TIMES["start_time"],
            "endTime": TIMES["end_time"],
        }
    ]


@pytest.mark.parametrize(
    ("state", "vertex", "on_ml"),
    [
        (TrialState.QUEUED, "REQUESTED", "QUEUED"),
        (TrialState.PREPARING, "ACTIVE", "PREPARING"),
        (TrialState.RUNNING, "ACTIVE", "RUNNING"),
        (TrialState.STOPPING, "STOPPING", "CANCELLING"),
        (TrialState.SUCCEEDED, "SUCCEEDED", "SUCCEEDED"),
        (TrialState.FAILED, "INFEASIBLE", "FAILED"),
        (TrialState.CANCELLED, "INFEASIBLE", "CANCELLED"),
    ],
)
def test_the_states_of_a_trial(state: TrialState, vertex: str, on_ml: str) -> None:
    found = trial(1, [0.5], state, POINT)
    assert [each["state"] for each in vertex_trials(VERTEX, [found])] == [vertex]
    assert [each["state"] for each in training_output(ml(), [found])["trials"]] == [on_ml]


def test_a_trial_that_is_of_no_use_says_why() -> None:
    failed = trial(1, [], TrialState.FAILED, POINT, message="It broke.")
    silent = trial(2, [], TrialState.SUCCEEDED, POINT)
    told = vertex_trials(VERTEX, [failed, silent])
    assert [each["infeasibleReason"] for each in told] == [
        "It broke.",
        "The trial has ended without reporting accuracy.",
    ]
    assert [each["state"] for each in told] == ["INFEASIBLE", "INFEASIBLE"]
    assert not any("finalMeasurement" in each for each in told)


def test_measurements_are_in_strict_order_whatever_was_reported() -> None:
    found = tuple(Measurement(step, at, {"accuracy": 0.5}) for step, at in ((2, 1), (1, 2), (1, 2), (1, 1)))
    (told,) = vertex_trials(VERTEX, [replace(trial(1, [0.5]), measurements=found)])
    order = [(each["stepCount"], each["elapsedDuration"]) for each in told["measurements"]]
    assert order == [("1", "1.000000s"), ("1", "2.000000s"), ("2", "1.000000s")]


def test_the_output_of_ai_platform_has_the_best_trial_first() -> None:
    trials = [
        trial(1, [0.3], parameters=POINT, **TIMES),
        trial(2, [], TrialState.FAILED, POINT),
        trial(3, [0.1, 0.9], parameters=POINT, stopped_early=True),
        trial(4, [0.99], TrialState.RUNNING, POINT),
        trial(5, [0.3], parameters=POINT),
        trial(6, [0.0], parameters=POINT, steps=[0]),
    ]
    output = training_output(ml(), trials)
    assert {name: value for name, value in output.items() if name != "trials"} == {
        "isHyperparameterTuningJob": True,
        "hyperparameterMetricTag": "accuracy",
        "completedTrialCount": "4",
    }
    assert [each["trialId"] for each in output["trials"]] == ["3", "1", "5", "6", "2", "4"]
    assert output["trials"][0] == {
        "trialId": "3",
        "hyperparameters": {"rate": "0.1", "units": "3", "kernel": "rbf"},
        "finalMetric": {"trainingStep": "2", "objectiveValue": 0.9},
        "allMetrics": [
            {"trainingStep": "1", "objectiveValue": 0.1},
            {"trainingStep": "2", "objectiveValue": 0.9},
        ],
        "isTrialStoppedEarly": True,
        "state": "SUCCEEDED",
    }
    assert output["trials"][1]["endTime"] == TIMES["end_time"]
    assert output["trials"][3]["finalMetric"] == {"objectiveValue": 0.0}
    worst_first = training_output(ml(goal="MINIMIZE"), trials)["trials"]
    assert [each["trialId"] for each in worst_first] == ["6", "1", "5", "3", "2", "4"]


def test_a_job_whose_search_cannot_be_carried_out_still_has_a_resource() -> None:
    assert training_output(ml_job({}), []) == {"isHyperparameterTuningJob": True}
    assert vertex_trials(vertex_job({}), []) == []


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
MEASUREMENTS = st.builds(
    Measurement,
    st.integers(0, 2**63 - 1),
    st.floats(0, 1e9),
    st.dictionaries(TEXTS, FLOATS, min_size=1, max_size=2),
)
RECORDS = st.builds(
    TrialRecord,
    job=st.just(1),
    number=st.integers(1, 1000),
    parameters=st.dictionaries(TEXTS, FLOATS | st.integers(-(2**63), 2**63 - 1) | TEXTS, max_size=3),
    create_time=st.just("2026-01-02T03:04:05.000000Z"),
    state=st.sampled_from(TrialState),
    start_time=TEXTS,
    measurements=st.lists(MEASUREMENTS, max_size=3).map(tuple),
    final=st.none() | MEASUREMENTS,
    stopped_early=st.booleans(),
    message=TEXTS,
)


@settings(max_examples=40)
@given(record=RECORDS)
def test_a_trial_is_the_same_from_the_store(tmp_path_factory: pytest.TempPathFactory, record: Any) -> None:
    store = Store(database.open_file(Path(tmp_path_factory.mktemp("store"), "state.db")))
    job = store.add_job(replace(VERTEX, id=0))
    store.save_trial(replace(record, job=job.id))
    (found,) = store.trials(job.id)
    store.database.close()
    assert found == replace(record, job=job.id)
    assert [(name, type(value)) for name, value in found.parameters.items()] == [
        (name, type(value)) for name, value in record.parameters.items()
    ]
    json.dumps(found.parameters, allow_nan=False)
