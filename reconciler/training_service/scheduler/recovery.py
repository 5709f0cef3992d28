"""Brings the store to where the runs are, as their folders tell it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reconciler.training_service.state.records import (
    ML_JOBS,
    UNFINISHED,
    JobRecord,
    JobState,
    RunRecord,
    TrialRecord,
    TrialState,
)
from reconciler.training_service.state.run_folder import (
    CANCELLED,
    FAILED,
    RUNNING,
    STOPPED,
    Ending,
    RunFolder,
    read_measurements,
    run_folder,
)
from reconciler.training_service.state.store import Store
from reconciler.training_service.tuning.measurements import MOST_MEASUREMENTS, final_of
from reconciler.training_service.tuning.outcome import ending_of_job
from reconciler.training_service.tuning.study import Study, StudyError, study_of

_BEFORE_RUNNING = frozenset({JobState.QUEUED, JobState.PREPARING})
_TRIAL_BEFORE_RUNNING = frozenset({TrialState.QUEUED, TrialState.PREPARING})
_TOO_LONG = "The trial was ended: it ran for longer than scheduling.timeout."


def settle(store: Store, home: Path) -> None:
    """Bring the store to where the runs are, as their folders tell; nothing is started, ended or removed."""
    for job in store.unfinished():
        try:
            study = study_of(job)
        except StudyError:
            continue  # its next step in the service is its end
        last = {run.trial: run for run in store.runs(job.id)}
        if study is not None:
            _settle_trials(store, home, job, study, last)
        elif 0 in last:
            folder = run_folder(home, last[0].run_id)
            ending = folder.ending()  # first: what is read after it has the last phase
            take_over_phase(store, job, folder)
            if ending is not None and ending.state != STOPPED:
                take_over_end(store, job, ending)


def _settle_trials(
    store: Store, home: Path, job: JobRecord, study: Study, last: dict[int, RunRecord]
) -> None:
    for trial in store.trials(job.id):
        if trial.state.ended or trial.number not in last:
            continue
        folder = run_folder(home, last[trial.number].run_id)
        ending = folder.ending()
        take_over_phase(store, job, folder)
        now = with_measurements(with_phase(trial, folder), folder)
        if ending is not None and ending.state != STOPPED:
            if ending.state == CANCELLED and now.state is not TrialState.STOPPING:
                ending = took_too_long(store, job, ending)
            now = ended_trial(study, now, ending)
        if now != trial:
            store.save_trial(now)
    trials = store.trials(job.id)
    ending = ending_of_job(store.job(job.id) or job, study, trials, exhausted=False)
    if ending is not None and all(trial.state.ended for trial in trials):
        take_over_end(store, job, replace(ending, time=ending.time or _last_end(trials) or store.now()))


def _last_end(trials: list[TrialRecord]) -> str:
    return max((trial.end_time for trial in trials), default="")


def take_over_phase(store: Store, job: JobRecord, folder: RunFolder) -> None:
    """Note that the run has come to RUNNING, where it has."""
    phase = folder.phase()
    if phase is not None and phase.phase == RUNNING and job.state in _BEFORE_RUNNING:
        store.move(job.id, JobState.RUNNING, only_from=_BEFORE_RUNNING, at=phase.time)


def take_over_end(store: Store, job: JobRecord, ending: Ending) -> None:
    """Note how the job ended, where it hasn't ended."""
    store.move(
        job.id,
        JobState(ending.state),
        only_from=UNFINISHED,
        at=ending.time,
        error_code=ending.code,
        error_message=ending.message,
    )


def with_phase(trial: TrialRecord, folder: RunFolder) -> TrialRecord:
    """The trial as its run has come on."""
    phase = folder.phase()
    if phase is not None and phase.phase == RUNNING and not trial.start_time:
        trial = replace(trial, start_time=phase.time)
    if trial.state in _TRIAL_BEFORE_RUNNING:
        trial = replace(trial, state=TrialState.RUNNING if trial.start_time else TrialState.PREPARING)
    return trial


def with_measurements(trial: TrialRecord, folder: RunFolder) -> TrialRecord:
    """The trial with what its run has reported.

    A run that took the place of a lost one may have gone on from a checkpoint: what was reported of the
    steps before stays.
    """
    new = read_measurements(folder)
    if not new:
        return trial
    first = min(held.step for held in new)
    before = tuple(held for held in trial.measurements if held.step < first)
    return replace(trial, measurements=(before + new)[-MOST_MEASUREMENTS:])


def took_too_long(store: Store, job: JobRecord, ending: Ending) -> Ending:
    """The end of a trial's run that nobody asked to end: its time limit did.

    On AI Platform the limit is the whole job's, which is cancelled by it; on Vertex AI it is the trial's.
    """
    if job.collection != ML_JOBS:
        return replace(ending, state=FAILED, message=_TOO_LONG)
    unfinished = UNFINISHED - {JobState.CANCELLING}
    at = store.now()
    store.move(job.id, JobState.CANCELLING, only_from=unfinished, at=at, error_message=ending.message)
    return ending


def ended_trial(study: Study, trial: TrialRecord, ending: Ending) -> TrialRecord:
    """The trial after its run's end, STOPPED excepted."""
    trial = replace(trial, end_time=ending.time, final=final_of(study, trial.measurements))
    if ending.state == FAILED:
        return replace(trial, state=TrialState.FAILED, message=ending.message, stopped_early=False)
    if ending.state == CANCELLED and not trial.stopped_early:
        return replace(trial, state=TrialState.CANCELLED, message=ending.message)
    early = ending.state == CANCELLED
    return replace(trial, state=TrialState.SUCCEEDED, message=ending.message, stopped_early=early)
