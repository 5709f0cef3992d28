"""Steps of tuning jobs: choose the next trial, stop trials early, and end the job.

The store records a new trial before it starts: after a crash the same trial starts, and no other in its
place. A trial whose run was lost is run again; a trial that has ended is never run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reconciler.training_service.jobs.launch import parallel_trials
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.scheduler.jobs import RunStarter, Work
from reconciler.training_service.scheduler.recovery import (
    ended_trial,
    take_over_phase,
    with_measurements,
    with_phase,
)
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import ML_JOBS, Code, JobRecord, details_of
from reconciler.training_service.state.run_folder import FAILED, Ending, read_unusable_reports
from reconciler.training_service.state.trial_records import TrialRecord, TrialState, UnusableReports
from reconciler.training_service.tuning.resources import ending_of_job
from reconciler.training_service.tuning.search import suggest, to_stop
from reconciler.training_service.tuning.study import Study, StudyError, study_of

_STOPPED_EARLY = "The trial was stopped early."
_OVER = "The job has ended."


@dataclass(eq=False, slots=True)
class _Progress:
    """Trials of a job in memory; only this process changes them, so the store needn't be read each time.

    Attributes:
        earlier: The trials of the jobs that this job resumes.
        trials: The job's own trials by number, in order.
        exhausted: True if the search space has no further values to try.
        file_versions: The versions of the measurement files at the last read, by trial number.
        changed: True if trials changed since the last check for early stopping.
        failure: The job's failure, kept from its first appearance: later results of trials don't change it.
    """

    study: Study
    earlier: list[TrialRecord]
    trials: dict[int, TrialRecord]
    exhausted: bool = False
    file_versions: dict[int, tuple[str, int, int] | None] = field(default_factory=dict)
    changed: bool = True
    failure: Ending | None = None

    @property
    def all(self) -> list[TrialRecord]:
        return [*self.trials.values()]

    @property
    def unended(self) -> list[TrialRecord]:
        return [trial for trial in self.trials.values() if not trial.state.ended]


class TuningRunner:
    """Runner of tuning jobs.

    Attributes:
        machine: The capacity of this machine.
    """

    def __init__(self, store: Store, starter: RunStarter, machine: Machine) -> None:
        self._store = store
        self._starter = starter
        self._machine = machine
        self._progress: dict[int, _Progress] = {}

    def step(self, job: JobRecord) -> Ending | None:
        """Take the next step; return the ending once all processes are dead, and None before."""
        try:
            progress = self._progress_of(job)
        except StudyError as error:
            ending = Ending(FAILED, Code.INVALID_ARGUMENT, str(error), details=details_of("INVALID_JOB"))
            return ending if self.abandon(job) else None
        verdict = _verdict(job, progress)
        for trial in progress.unended:
            self._follow(job, progress, trial, verdict)
        # A time limit or a user may have cancelled the job since: then start no further trial.
        job = self._store.job(job.id) or job
        verdict = _verdict(job, progress)
        if verdict is None:
            self._stop_early(job, progress)
            self._start_more(job, progress)
            verdict = _verdict(job, progress)
        return None if progress.unended else verdict

    def abandon(self, job: JobRecord) -> bool:
        """Kill all processes of any job, tuning or not; return True once all are dead."""
        if not self._starter.abandon(job):
            return False
        for trial in self._store.trials(job.id):
            if not trial.state.ended:
                now = self._store.now()
                self._store.save_trial(replace(trial, state=TrialState.FAILED, end_time=now, message=_OVER))
        return True

    def forget(self, job: JobRecord) -> None:
        """Drop the job's progress after the job's end."""
        self._progress.pop(job.id, None)

    def _progress_of(self, job: JobRecord) -> _Progress:
        if job.id not in self._progress:
            study = study_of(job)
            assert study is not None, "only a job with a study has trials"
            trials = {trial.number: trial for trial in self._store.trials(job.id)}
            self._progress[job.id] = _Progress(study, self._earlier(job, study), trials)
        return self._progress[job.id]

    def _earlier(self, job: JobRecord, study: Study) -> list[TrialRecord]:
        """Return the trials of the resumed job and of the jobs that it resumed itself."""
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
        """Update a trial from its run, and stop it if the job is to end."""
        cancelled = _STOPPED_EARLY if trial.stopped_early else None
        if verdict is not None:
            cancelled = verdict.message or _OVER
        # Saved before the run is cancelled: after a crash a cancelled run of a trial that isn't STOPPING
        # would count as one that reached its time limit.
        if cancelled is not None and trial.state is not TrialState.STOPPING:
            trial = self._save(progress, replace(trial, state=TrialState.STOPPING))
        work = Work(job, trial, cancelled)
        ending = self._starter.step(work)
        folder = self._starter.folder(work)
        updated = trial
        if folder is not None:
            take_over_phase(self._store, job, folder)
            updated = with_phase(updated, folder)
            version = folder.measurements_version()
            if version != progress.file_versions.get(trial.number):
                updated = with_measurements(updated, folder)
                progress.file_versions[trial.number] = version
        if ending is not None:
            asked = cancelled is not None
            unusable = read_unusable_reports(folder) if folder else UnusableReports()
            updated = ended_trial(self._store, job, progress.study, updated, ending, unusable, asked=asked)
        if updated != trial:
            self._save(progress, updated)

    def _stop_early(self, job: JobRecord, progress: _Progress) -> None:
        if not progress.changed:
            return
        progress.changed = False
        for number in to_stop(progress.study, progress.all):
            trial = progress.trials[number]
            if trial.state is TrialState.RUNNING:
                stopping = self._save(progress, replace(trial, state=TrialState.STOPPING, stopped_early=True))
                self._follow(job, progress, stopping, None)

    def _start_more(self, job: JobRecord, progress: _Progress) -> None:
        room = parallel_trials(job, self._machine) - len(progress.unended)
        room = min(room, progress.study.max_trials - len(progress.trials))
        # Numbers continue those of the resumed jobs, because this job continues their search.
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
        progress.changed = True
        return trial


def _verdict(job: JobRecord, progress: _Progress) -> Ending | None:
    """Return the job's ending; None if the job goes on."""
    ending = ending_of_job(job, progress.study, progress.all, exhausted=progress.exhausted)
    if ending is not None and ending.state == FAILED:
        progress.failure = ending
    return ending or progress.failure
