"""Updates of the store from the folders of the runs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from reconciler.training_service.scheduler.pipelines import take_over
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import (
    ML_JOBS,
    UNFINISHED,
    JobRecord,
    JobState,
    RunRecord,
    details_of,
)
from reconciler.training_service.state.rows import UnreadableError
from reconciler.training_service.state.run_folder import (
    CANCELLED,
    FAILED,
    RUNNING,
    STOPPED,
    Ending,
    RunFolder,
    read_measurements,
    read_unusable_reports,
    run_folder,
)
from reconciler.training_service.state.trial_records import TrialRecord, TrialState, UnusableReports
from reconciler.training_service.tuning.measurements import MOST_MEASUREMENTS, final_of, why_without_metric
from reconciler.training_service.tuning.resources import ending_of_job
from reconciler.training_service.tuning.study import Study, StudyError, study_of

_BEFORE_RUNNING = frozenset({JobState.QUEUED, JobState.PREPARING})
_TRIAL_BEFORE_RUNNING = frozenset({TrialState.QUEUED, TrialState.PREPARING})
_TOO_LONG = "The trial was ended: it ran for longer than scheduling.timeout."


def recover_states(store: Store, home: Path) -> None:
    """Update the store from the folders of the runs; start, end and remove nothing."""
    for job in store.unfinished():
        if job.unreadable:
            continue  # as below
        try:
            study = study_of(job)
        except StudyError:
            continue  # the service ends such a job in the job's next step
        last = {run.trial: run for run in store.runs(job.id)}
        if study is not None:
            with suppress(UnreadableError):
                _recover_trials(store, home, job, study, last)
        elif 0 in last:
            folder = run_folder(home, last[0].run_id)
            # Read before the phase: a run that has recorded its ending no longer changes its phase.
            ending = folder.ending()
            take_over_phase(store, job, folder)
            if ending is not None and ending.state != STOPPED:
                take_over_end(store, job, ending)
    for pipeline in store.unfinished_pipelines():
        take_over(store, pipeline)  # the service registers the models


def _recover_trials(
    store: Store, home: Path, job: JobRecord, study: Study, last: dict[int, RunRecord]
) -> None:
    for trial in store.trials(job.id):
        if trial.state.ended or trial.number not in last:
            continue
        folder = run_folder(home, last[trial.number].run_id)
        ending = folder.ending()  # before the phase, as above
        take_over_phase(store, job, folder)
        updated = with_measurements(with_phase(trial, folder), folder)
        if ending is not None and ending.state != STOPPED:
            asked = updated.state is TrialState.STOPPING
            unusable = read_unusable_reports(folder)
            updated = ended_trial(store, job, study, updated, ending, unusable, asked=asked)
        if updated != trial:
            store.save_trial(updated)
    trials = store.trials(job.id)
    ending = ending_of_job(store.job(job.id) or job, study, trials, exhausted=False)
    if ending is not None and all(trial.state.ended for trial in trials):
        last_end = max((trial.end_time for trial in trials), default="")
        take_over_end(store, job, replace(ending, time=ending.time or last_end or store.now()))


def take_over_phase(store: Store, job: JobRecord, folder: RunFolder) -> None:
    """Record that the job is running once its run is RUNNING."""
    phase = folder.phase()
    if phase is not None and phase.phase == RUNNING and job.state in _BEFORE_RUNNING:
        store.move(job.id, JobState.RUNNING, only_from=_BEFORE_RUNNING, at=phase.time)


def take_over_end(store: Store, job: JobRecord, ending: Ending) -> None:
    """Record the ending of a job that hasn't ended yet."""
    # A job that is being cancelled knows the reason; its runner only knows that it was asked to end.
    is_known = ending.state == CANCELLED and job.error_details
    store.move(
        job.id,
        JobState(ending.state),
        only_from=UNFINISHED,
        at=ending.time,
        error_code=ending.code,
        error_message=ending.message,
        error_details=job.error_details if is_known else ending.details,
    )


def with_phase(trial: TrialRecord, folder: RunFolder) -> TrialRecord:
    """Return the trial with the state and start time of its run."""
    phase = folder.phase()
    if phase is not None and phase.phase == RUNNING and not trial.start_time:
        trial = replace(trial, start_time=phase.time)
    if trial.state in _TRIAL_BEFORE_RUNNING:
        trial = replace(trial, state=TrialState.RUNNING if trial.start_time else TrialState.PREPARING)
    return trial


def with_measurements(trial: TrialRecord, folder: RunFolder) -> TrialRecord:
    """Return the trial with the measurements that its run has reported."""
    new = read_measurements(folder)
    if not new:
        return trial
    # A run that replaces a lost run may go on from a checkpoint: keep the measurements of the steps before.
    first = min(measurement.step for measurement in new)
    before = tuple(measurement for measurement in trial.measurements if measurement.step < first)
    return replace(trial, measurements=(before + new)[-MOST_MEASUREMENTS:])


def ended_trial(
    store: Store,
    job: JobRecord,
    study: Study,
    trial: TrialRecord,
    ending: Ending,
    unusable: UnusableReports,
    *,
    asked: bool,
) -> TrialRecord:
    """Return the trial after the end of its run, unless that is STOPPED.

    Args:
        unusable: The reports of the run that gave no measurement.
        asked: True if the service or a user asked the run to end; if not, its time limit cancelled it.
    """
    if ending.state == CANCELLED and not asked:
        ending = _took_too_long(store, job, ending)
    final = final_of(study, trial.measurements)
    trial = replace(trial, end_time=ending.time or store.now(), message=ending.message, final=final)
    if ending.state == FAILED:
        details = ending.details
        return replace(trial, state=TrialState.FAILED, error_details=details, stopped_early=False)
    if ending.state == CANCELLED and not trial.stopped_early:
        return replace(trial, state=TrialState.CANCELLED)
    if ending.state != CANCELLED and final is None and study.metric_needed:
        names = [metric.name for metric in study.metrics]
        message, details = why_without_metric(names, trial.measurements, unusable)
        trial = replace(trial, message=message, error_details=details)
    return replace(trial, state=TrialState.SUCCEEDED, stopped_early=ending.state == CANCELLED)


def _took_too_long(store: Store, job: JobRecord, ending: Ending) -> Ending:
    """Return the ending of a trial whose run reached its time limit.

    On AI Platform the limit is the whole job's: this cancels the job. On Vertex AI it is the trial's.
    """
    if job.collection != ML_JOBS:
        return replace(ending, state=FAILED, message=_TOO_LONG, details=details_of("TRIAL_TIME_LIMIT"))
    store.move(
        job.id,
        JobState.CANCELLING,
        only_from=UNFINISHED - {JobState.CANCELLING},
        at=store.now(),
        error_message=ending.message,
        error_details=ending.details,
    )
    return ending
