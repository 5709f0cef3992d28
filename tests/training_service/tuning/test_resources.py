"""Trials in the answers of the two APIs, and the end of a tuning job."""

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
from reconciler.training_service.state.records import JobRecord, JobState
from reconciler.training_service.state.trial_records import Measurement, TrialRecord, TrialState
from reconciler.training_service.tuning.resources import (
    ending_of_job,
    ending_of_study,
    has_failed,
    training_output,
    vertex_trials,
)
from tests.support.training_service.studies import ml_job, study, trial, vertex_job

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


@pytest.mark.slow
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


# --- the end of a tuning job ------------------------------------------------------------------------------

STATES = {
    "s": TrialState.SUCCEEDED,
    "f": TrialState.FAILED,
    "r": TrialState.RUNNING,
    "q": TrialState.QUEUED,
    "t": TrialState.STOPPING,
    "c": TrialState.CANCELLED,
}


def trials(text: str) -> list[TrialRecord]:
    """Return a trial for each letter."""
    return [
        trial(number, [0.5], STATES[letter], message="It broke." if letter == "f" else "")
        for number, letter in enumerate(text, 1)
    ]


@pytest.mark.parametrize(
    ("text", "max_failed", "exhausted", "state"),
    [
        ("", None, False, None),
        ("ssss", None, False, None),  # the fifth trial is still to be started
        ("sssss", None, False, "SUCCEEDED"),
        ("ssssr", None, False, None),
        ("ssss", None, True, "SUCCEEDED"),
        ("sssr", None, True, None),
        ("ssst", None, True, None),
        ("ssf", None, True, "SUCCEEDED"),
        ("ff", None, False, None),
        ("fff", None, False, "FAILED"),
        ("fffrq", None, False, "FAILED"),
        ("fsff", None, False, None),  # a single success shows that the trainer works
        ("fsfff", None, False, "SUCCEEDED"),
        ("ff", None, True, "FAILED"),
        ("f", 1, False, "FAILED"),
        ("sfr", 2, False, None),
        ("sffr", 2, False, "FAILED"),
        ("fff", 4, False, None),
        ("fffff", 9, False, "FAILED"),
        ("ffffs", 9, False, "SUCCEEDED"),
        # The remaining trials of a failed job are cancelled, or succeed before that: the job has failed.
        ("fffc", None, False, "FAILED"),
        ("cfff", None, False, "FAILED"),
        ("fffs", None, False, "FAILED"),
        ("fffcs", None, False, "FAILED"),
        ("sfc", 1, False, "FAILED"),
    ],
)
def test_how_a_study_ends(text: str, max_failed: int | None, exhausted: bool, state: str | None) -> None:
    found = study(max_trials=5, max_failed=max_failed)
    ending = ending_of_study(found, trials(text), exhausted=exhausted)
    assert (ending.state if ending else None) == state


def test_the_first_trials_are_those_that_ended_first() -> None:
    first, *others = trials("sfff")  # of five
    late = [replace(first, end_time="9"), *(replace(each, end_time=str(each.number)) for each in others)]
    assert ending_of_study(study(), late, exhausted=False)
    early = [replace(first, end_time="1"), *late[1:]]
    assert ending_of_study(study(), early, exhausted=False) is None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", "CANCELLED"),
        ("ssr", "CANCELLED"),
        ("sssss", "SUCCEEDED"),
        ("ssssc", "CANCELLED"),
        ("fff", "FAILED"),
    ],
)
def test_a_cancelled_job_ends_as_such_unless_it_had_come_to_its_end(text: str, state: str) -> None:
    job = replace(vertex_job({}), state=JobState.CANCELLING, error_message="Enough.")
    ending = ending_of_job(job, study(max_trials=5), trials(text), exhausted=False)
    assert ending
    assert ending.state == state
    assert state != "CANCELLED" or ending.message == "Enough."


def test_the_error_names_a_trial_and_what_was_wrong_with_it() -> None:
    ending = ending_of_study(study(max_failed=2), trials("sff"), exhausted=False)
    assert ending
    assert ending.code == 3
    assert ending.message == "2 of 3 trials failed, and the job fails with 2. Trial 3: It broke."
    ending = ending_of_study(study(), trials("fff"), exhausted=False)
    assert ending
    assert ending.message == "3 of 3 trials failed. Trial 3: It broke."


def test_a_trial_without_a_metric_has_failed_on_vertex_ai_only() -> None:
    silent = [replace(each, final=None, measurements=()) for each in trials("sss")]
    vertex, ml = study(metric_needed=True), study()
    assert [has_failed(each, silent[0]) for each in (vertex, ml)] == [True, False]
    ending = ending_of_study(vertex, silent, exhausted=False)
    assert ending
    assert ending.state == "FAILED"
    assert "without reporting accuracy." in ending.message
    assert ending_of_study(ml, silent, exhausted=False) is None


def test_job_ends_with_the_first_trial_that_reported_another_tag() -> None:
    vertex = study(metric_needed=True, max_trials=9)
    details = {"reason": "NO_METRIC", "class": "user-code", "metric": "accuracy", "reported": "score"}
    (silent,) = (replace(each, final=None, measurements=()) for each in trials("s"))
    other = replace(silent, message="It reported score.", error_details=details)
    ending = ending_of_study(vertex, [other], exhausted=False)
    assert ending
    assert (ending.message, ending.details) == ("1 of 1 trials failed. Trial 1: It reported score.", details)
    assert ending_of_study(vertex, [silent], exhausted=False) is None
    patient = study(metric_needed=True, max_trials=9, max_failed=2)
    assert ending_of_study(patient, [other], exhausted=False) is None, "the manifest has its own limit"
