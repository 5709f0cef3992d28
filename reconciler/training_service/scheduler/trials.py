"""Carries tuning jobs through their trials: which one is tried next, which is stopped, and how the job ends.

What is to be tried is in the store before it is started: after a crash that trial is started, and no other
in its place. A trial whose run was lost is run again; one that has ended never is.
"""

from __future__ import annotations

import os
from dataclasses import replace

from reconciler.training_service.jobs.launch import parallel_trials
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.scheduler.jobs import Attempts, Work
from reconciler.training_service.scheduler.recovery import (
    ended_trial,
    take_over_phase,
    took_too_long,
    with_measurements,
    with_phase,
)
from reconciler.training_service.state.records import ML_JOBS, Code, JobRecord, TrialRecord, TrialState
from reconciler.training_service.state.run_folder import CANCELLED, FAILED, Ending, RunFolder
from reconciler.training_service.state.store import Store
from reconciler.training_service.tuning.outcome import ending_of_job
from reconciler.training_service.tuning.search import suggest
from reconciler.training_service.tuning.stopping import to_stop
from reconciler.training_service.tuning.study import Study, StudyError, study_of

_STOPPED_EARLY = "The trial was stopped early."
_OVER = "The job has ended."


class _Progress:
    """What is known of a job's trials without asking the store each time; only this process changes them.

    Attributes:
        earlier: The trials of the jobs that this one resumes.
        trials: Its own by their numbers, first to last.
        exhausted: Whether there is nothing left to try.
        looks: What the files of measurements were like when they were last read.
        news: Whether trials were changed since early stopping was last asked.
        failure: That the job has failed, as soon as it has: whatever its last trials come to meanwhile.
    """

    def __init__(self, study: Study, earlier: list[TrialRecord], trials: list[TrialRecord]) -> None:
        self.study = study
        self.earlier = earlier
        self.trials = {trial.number: trial for trial in trials}
        self.exhausted = False
        self.looks: dict[int, tuple[str, int, int] | None] = {}
        self.news = True
        self.failure: Ending | None = None

    @property
    def all(self) -> list[TrialRecord]:
        return [*self.trials.values()]

    @property
    def unended(self) -> list[TrialRecord]:
        return [trial for trial in self.trials.values() if not trial.state.ended]


class TuningJobs:
    """The steps of tuning jobs.

    Attributes:
        machine: What this machine has.
    """

    def __init__(self, store: Store, attempts: Attempts, machine: Machine) -> None:
        self._store = store
        self._attempts = attempts
        self._machine = machine
        self._progress: dict[int, _Progress] = {}

    def step(self, job: JobRecord) -> Ending | None:
        """Do what is to be done next; how the job ended, once nothing of it lives, or None before."""
        try:
            progress = self._progress_of(job)
        except StudyError as error:
            return Ending(FAILED, Code.INVALID_ARGUMENT, str(error)) if self.abandon(job) else None
        verdict = _verdict(job, progress)
        for trial in progress.unended:
            self._follow(job, progress, trial, verdict)
        # By now it may be on the way to its end: nothing more is started then.
        job = self._store.job(job.id) or job
        verdict = _verdict(job, progress)
        if verdict is None:
            self._stop_early(job, progress)
            self._start_more(job, progress)
            verdict = _verdict(job, progress)
        return None if progress.unended else verdict

    def abandon(self, job: JobRecord) -> bool:
        """Kill whatever runs for a job, tuning or not; whether nothing does any more."""
        if not self._attempts.abandon(job):
            return False
        for trial in self._store.trials(job.id):
            if not trial.state.ended:
                now = self._store.now()
                self._store.save_trial(replace(trial, state=TrialState.FAILED, end_time=now, message=_OVER))
        return True

    def forget(self, job: JobRecord) -> None:
        """The job has ended."""
        self._progress.pop(job.id, None)

    def _progress_of(self, job: JobRecord) -> _Progress:
        progress = self._progress.get(job.id)
        if progress is None:
            study = study_of(job)
            assert study is not None, "only a job with a study has trials"
            progress = _Progress(study, self._earlier(job, study), self._store.trials(job.id))
            self._progress[job.id] = progress
        return progress

    def _earlier(self, job: JobRecord, study: Study) -> list[TrialRecord]:
        """The trials of the job that is resumed, and of those that this one has resumed."""
        if not study.resumes:
            return []
        former = self._store.find(ML_JOBS, job.project, job.location, study.resumes)
        if former is None or former.id >= job.id:
            raise StudyError(f"resumePreviousJobId: there is no earlier job {study.resumes}.")
        former_study = study_of(former)
        if former_study is None:
            raise StudyError(f"resumePreviousJobId: {study.resumes} is no hyper-parameter tuning job.")
        if not former.state.ended:
            raise StudyError(f"resumePreviousJobId: {study.resumes} hasn't ended yet.")
        return [*self._earlier(former, former_study), *self._store.trials(former.id)]

    def _follow(
        self, job: JobRecord, progress: _Progress, trial: TrialRecord, verdict: Ending | None
    ) -> None:
        """Bring a trial, in the store, to where its run is; end it where the job is to end."""
        asked = _STOPPED_EARLY if trial.stopped_early else None
        if verdict is not None:
            asked = verdict.message or _OVER
        if asked is not None and trial.state is not TrialState.STOPPING:
            trial = self._save(progress, replace(trial, state=TrialState.STOPPING))
        work = Work(job, trial, asked)
        ending = self._attempts.step(work)
        folder = self._attempts.folder(work)
        now = trial
        if folder is not None:
            take_over_phase(self._store, job, folder)
            now = with_phase(now, folder)
            look = _look(folder)
            if look != progress.looks.get(trial.number):
                now = with_measurements(now, folder)
                progress.looks[trial.number] = look
        if ending is not None:
            if asked is None and ending.state == CANCELLED:
                ending = took_too_long(self._store, job, ending)
            ending = ending if ending.time else replace(ending, time=self._store.now())
            now = ended_trial(progress.study, now, ending)
        if now != trial:
            self._save(progress, now)

    def _stop_early(self, job: JobRecord, progress: _Progress) -> None:
        if not progress.news:
            return
        progress.news = False
        for number in to_stop(progress.study, progress.all):
            trial = progress.trials[number]
            if trial.state is TrialState.RUNNING:
                stopping = self._save(progress, replace(trial, state=TrialState.STOPPING, stopped_early=True))
                self._follow(job, progress, stopping, None)

    def _start_more(self, job: JobRecord, progress: _Progress) -> None:
        room = parallel_trials(job, self._machine) - len(progress.unended)
        room = min(room, progress.study.max_trials - len(progress.trials))
        # The numbers go on from those of the jobs before, because the search is theirs.
        after = max((trial.number for trial in progress.earlier), default=0)
        for _ in range(0 if progress.exhausted else room):
            parameters = suggest(progress.study, [*progress.earlier, *progress.all])
            if parameters is None:
                progress.exhausted = True
                return
            trial = self._store.add_trial(job.id, parameters, after=after)
            progress.trials[trial.number] = trial
            self._follow(job, progress, trial, None)

    def _save(self, progress: _Progress, trial: TrialRecord) -> TrialRecord:
        self._store.save_trial(trial)
        progress.trials[trial.number] = trial
        progress.news = True
        return trial


def _verdict(job: JobRecord, progress: _Progress) -> Ending | None:
    """How the job ends, once nothing of it lives, or None where it goes on."""
    ending = ending_of_job(job, progress.study, progress.all, exhausted=progress.exhausted)
    if ending is not None and ending.state == FAILED:
        progress.failure = ending
    return ending or progress.failure


def _look(folder: RunFolder) -> tuple[str, int, int] | None:
    """What tells one version of the file of measurements from another; None where there is none."""
    try:
        found: os.stat_result = folder.measurements.stat()
    except FileNotFoundError:
        return None
    return folder.run_id, found.st_ino, found.st_mtime_ns
