"""Results of tuning jobs and their trials, also in the form of the APIs' resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reconciler.training_service.state.records import (
    Code,
    JobRecord,
    JobState,
    JsonObject,
    details_of,
    is_failed_set_up,
)
from reconciler.training_service.state.run_folder import CANCELLED, FAILED, SUCCEEDED, Ending
from reconciler.training_service.state.trial_records import Measurement, TrialRecord, TrialState
from reconciler.training_service.tuning.study import Study, StudyError, as_argument, study_of

# The limit for jobs without their own: if as many trials fail before one succeeds, others would fail too.
_HOPELESS = 3

# The states that Vertex AI names otherwise; unsuccessful trials are INFEASIBLE there.
_VERTEX = {TrialState.QUEUED: "REQUESTED", TrialState.PREPARING: "ACTIVE", TrialState.RUNNING: "ACTIVE"}


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
    ranked.sort(key=lambda pair: (pair[0] is None, -(pair[0] or 0.0)))  # stable: equal values stay in order
    if ranked:
        output["trials"] = [_ml_trial(metric.name, trial) for _, trial in ranked]
    return output


def ending_of_job(
    job: JobRecord, study: Study, trials: Sequence[TrialRecord], *, exhausted: bool
) -> Ending | None:
    """Return the job's ending once none of its trials runs; None if the job goes on.

    A job that is being cancelled ends as CANCELLED, unless all its trials ended without being cancelled and
    the study is finished. The arguments are those of `ending_of_study`.
    """
    ending = ending_of_study(study, trials, exhausted=exhausted)
    if job.state is not JobState.CANCELLING:
        return ending
    finished = all(trial.state.ended and trial.state is not TrialState.CANCELLED for trial in trials)
    if ending and finished:
        return ending
    details = job.error_details or details_of("REQUESTED")
    return Ending(CANCELLED, Code.CANCELLED, job.error_message, details=details)


def ending_of_study(study: Study, trials: Sequence[TrialRecord], *, exhausted: bool) -> Ending | None:
    """Return the job's ending; None if the job goes on with trials to start or to await.

    A job fails once it has its own limit of failed trials. Without such a limit it fails once its first three
    trials, or all if there are fewer, have failed; at once if a trial reported other tags than the study's,
    as every further trial would. Other trials may still run then: their results change nothing, because
    cancelled trials have none and later results come too late.

    Args:
        trials: The job's own trials, without those of a resumed job.
        exhausted: True if the search has no further points.
    """
    failed = [trial for trial in trials if has_failed(study, trial)]
    # A cancelled trial shows neither success nor failure.
    counted = [trial for trial in trials if trial.state.ended and trial.state is not TrialState.CANCELLED]
    over = all(trial.state.ended for trial in trials) and (exhausted or len(trials) >= study.max_trials)
    if study.max_failed is not None:
        hopeless = len(failed) >= study.max_failed
    else:
        first = sorted(counted, key=_by_end)[:_HOPELESS]
        hopeless = len(first) == _HOPELESS and all(has_failed(study, trial) for trial in first)
        hopeless |= len(failed) == len(counted) and any(_has_other_tags(trial) for trial in failed)
    if failed and (hopeless or (over and len(failed) == len(counted))):
        message = _failure_message(study, failed, len(counted))
        return Ending(FAILED, Code.INVALID_ARGUMENT, message, details=_cause(trials, failed))
    return Ending(SUCCEEDED) if over else None


def has_failed(study: Study, trial: TrialRecord) -> bool:
    """Return True if the trial counts as failed."""
    return trial.state is TrialState.FAILED or (
        trial.state is TrialState.SUCCEEDED and trial.final is None and study.metric_needed
    )


def _has_other_tags(trial: TrialRecord) -> bool:
    """Return True if a trial ended well and reported only tags that its study doesn't have."""
    return trial.state is TrialState.SUCCEEDED and bool(trial.error_details.get("reported"))


def best_trial(job: JobRecord, trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial with the best value of the first metric; None if no trial has one."""
    study = _study(job)
    merits = {trial.number: _merit(study, trial) for trial in trials} if study else {}
    return max(
        (trial for trial in trials if merits.get(trial.number) is not None),
        key=lambda trial: merits[trial.number] or 0.0,
        default=None,
    )


def _reason(study: Study, trial: TrialRecord) -> str:
    """Return the reason for a trial's failure; "" if there is none."""
    if trial.message or trial.state is not TrialState.SUCCEEDED:
        return trial.message
    return f"The trial has ended without reporting {', '.join(metric.name for metric in study.metrics)}."


def _by_end(trial: TrialRecord) -> tuple[str, int]:
    return trial.end_time, trial.number


def _failure_message(study: Study, failed: Sequence[TrialRecord], ended: int) -> str:
    limit = f", and the job fails with {study.max_failed}" if study.max_failed else ""
    last = max(failed, key=_by_end)
    return f"{len(failed)} of {ended} trials failed{limit}. Trial {last.number}: {_reason(study, last)}"


def _cause(trials: Sequence[TrialRecord], failed: Sequence[TrialRecord]) -> Mapping[str, str]:
    """Return the cause of the last failed trial; of set-up only if no trial's trainer ever started."""
    last = max(failed, key=_by_end)
    if last.state is TrialState.SUCCEEDED:
        return last.error_details or details_of("NO_METRIC")
    is_started = any(trial.start_time and not is_failed_set_up(trial.error_details) for trial in trials)
    return (
        details_of("MACHINE_FAILED")
        if is_started and is_failed_set_up(last.error_details)
        else last.error_details
    )


def _study(job: JobRecord) -> Study | None:
    try:
        return study_of(job)
    except StudyError:  # a study that can't be carried out has no trials either
        return None


def _vertex_trial(study: Study, trial: TrialRecord) -> JsonObject:
    infeasible = trial.state.ended and (trial.state is not TrialState.SUCCEEDED or trial.final is None)
    reason = _reason(study, trial) if infeasible else ""
    # The API lists measurements in strict order of steps and time, whatever the order of the reports.
    ordered = {(measurement.step, measurement.elapsed): measurement for measurement in trial.measurements}
    resource: JsonObject = {
        "id": str(trial.number),
        "state": "INFEASIBLE" if infeasible else _VERTEX.get(trial.state, str(trial.state)),
        "parameters": [{"parameterId": name, "value": value} for name, value in trial.parameters.items()],
        "finalMeasurement": _vertex_measurement(trial.final) if trial.final and not infeasible else None,
        "measurements": [_vertex_measurement(ordered[key]) for key in sorted(ordered)],
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
    """Return the value of the first metric, larger for better; None without one."""
    metric = study.metrics[0]
    if trial.state is not TrialState.SUCCEEDED or trial.final is None:
        return None
    return metric.merit(trial.final.metrics[metric.name])


def _ml_trial(tag: str, trial: TrialRecord) -> JsonObject:
    resource: JsonObject = {
        "trialId": str(trial.number),
        "hyperparameters": {name: as_argument(value) for name, value in trial.parameters.items()},
        "finalMetric": _ml_metric(tag, trial.final) if trial.final else None,
        "allMetrics": [
            _ml_metric(tag, measurement) for measurement in trial.measurements if tag in measurement.metrics
        ],
        "isTrialStoppedEarly": trial.stopped_early,
        "state": "CANCELLING" if trial.state is TrialState.STOPPING else str(trial.state),
        "startTime": trial.start_time,
        "endTime": trial.end_time,
    }
    return {name: value for name, value in resource.items() if value}


def _ml_metric(tag: str, measurement: Measurement) -> JsonObject:
    step = {"trainingStep": str(measurement.step)} if measurement.step else {}
    return {**step, "objectiveValue": measurement.metrics[tag]}
