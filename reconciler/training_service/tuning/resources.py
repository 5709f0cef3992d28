"""Trials in the form of the APIs' resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reconciler.training_service.state.records import (
    JobRecord,
    JsonObject,
    Measurement,
    TrialRecord,
    TrialState,
)
from reconciler.training_service.tuning.outcome import reason_of
from reconciler.training_service.tuning.study import Study, StudyError, as_argument, study_of

_VERTEX: Mapping[TrialState, str] = {
    TrialState.QUEUED: "REQUESTED",
    TrialState.PREPARING: "ACTIVE",
    TrialState.RUNNING: "ACTIVE",
    TrialState.STOPPING: "STOPPING",
    TrialState.SUCCEEDED: "SUCCEEDED",
    TrialState.FAILED: "INFEASIBLE",
    TrialState.CANCELLED: "INFEASIBLE",
}


def vertex_trials(job: JobRecord, trials: Sequence[TrialRecord]) -> list[JsonObject]:
    """Return `HyperparameterTuningJob.trials` in the order of their numbers."""
    study = _study(job)
    return [] if study is None else [_vertex_trial(study, trial) for trial in trials]


def training_output(job: JobRecord, trials: Sequence[TrialRecord]) -> JsonObject:
    """Return the `trainingOutput` of an ml tuning job.

    Trials with an objective value come first, the best at the top, then the others by number. The field
    `trials` is left out if it is empty, as protocol buffers do.
    """
    output: JsonObject = {"isHyperparameterTuningJob": True}
    study = _study(job)
    if study is None:
        return output
    (metric,) = study.metrics
    output["hyperparameterMetricTag"] = metric.name
    completed = sum(trial.state is TrialState.SUCCEEDED for trial in trials)
    if completed:
        output["completedTrialCount"] = str(completed)
    ranked = [(_merit(study, trial), trial) for trial in trials]
    ranked.sort(key=lambda each: (each[0] is None, -(each[0] or 0.0)))  # stable: equal values stay in order
    if ranked:
        output["trials"] = [_ml_trial(metric.name, trial) for _, trial in ranked]
    return output


def _study(job: JobRecord) -> Study | None:
    try:
        return study_of(job)
    except StudyError:  # a study that can't be carried out has no trials either
        return None


def _vertex_trial(study: Study, trial: TrialRecord) -> JsonObject:
    infeasible = trial.state.ended and (trial.state is not TrialState.SUCCEEDED or trial.final is None)
    reason = reason_of(study, trial) if infeasible else ""
    # The API lists measurements in strict order of steps and time, whatever the order of the reports.
    ordered = {(each.step, each.elapsed): each for each in trial.measurements}
    resource: JsonObject = {
        "id": str(trial.number),
        "state": "INFEASIBLE" if infeasible else _VERTEX[trial.state],
        "parameters": [{"parameterId": name, "value": value} for name, value in trial.parameters.items()],
        "finalMeasurement": _vertex_measurement(trial.final) if trial.final and not infeasible else None,
        "measurements": [_vertex_measurement(ordered[place]) for place in sorted(ordered)],
        "startTime": trial.start_time,
        "endTime": trial.end_time,
        "infeasibleReason": reason,
    }
    return {name: value for name, value in resource.items() if value}


def _vertex_measurement(measurement: Measurement) -> JsonObject:
    step = {"stepCount": str(measurement.step)} if measurement.step else {}
    return {
        "elapsedDuration": f"{measurement.elapsed:.6f}s",
        **step,
        "metrics": [{"metricId": name, "value": value} for name, value in measurement.metrics.items()],
    }


def _merit(study: Study, trial: TrialRecord) -> float | None:
    """Return the objective value, larger for better; None without one."""
    (metric,) = study.metrics
    if trial.state is not TrialState.SUCCEEDED or trial.final is None:
        return None
    return metric.merit(trial.final.metrics[metric.name])


def _ml_trial(tag: str, trial: TrialRecord) -> JsonObject:
    resource: JsonObject = {
        "trialId": str(trial.number),
        "hyperparameters": {name: as_argument(value) for name, value in trial.parameters.items()},
        "finalMetric": _ml_metric(tag, trial.final) if trial.final else None,
        "allMetrics": [_ml_metric(tag, each) for each in trial.measurements if tag in each.metrics],
        "isTrialStoppedEarly": trial.stopped_early,
        "state": "CANCELLING" if trial.state is TrialState.STOPPING else str(trial.state),
        "startTime": trial.start_time,
        "endTime": trial.end_time,
    }
    return {name: value for name, value in resource.items() if value}


def _ml_metric(tag: str, measurement: Measurement) -> JsonObject:
    step = {"trainingStep": str(measurement.step)} if measurement.step else {}
    return {**step, "objectiveValue": measurement.metrics[tag]}
