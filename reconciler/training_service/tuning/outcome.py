"""What a tuning job comes to."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.training_service.state.records import Code, JobRecord, JobState, TrialRecord, TrialState
from reconciler.training_service.state.run_folder import CANCELLED, FAILED, SUCCEEDED, Ending
from reconciler.training_service.tuning.study import Study

NO_METRIC = "The trial has ended without reporting "

# Where the job doesn't say how many: as many trials that fail before one succeeds show that none will.
_HOPELESS = 3


def ending_of_job(
    job: JobRecord, study: Study, trials: Sequence[TrialRecord], *, exhausted: bool
) -> Ending | None:
    """How the job ends once none of its trials runs, None where it goes on.

    A job that is being cancelled is CANCELLED, unless its trials had come to its end by themselves. For the
    arguments see `ending_of_study`.
    """
    ending = ending_of_study(study, trials, exhausted=exhausted)
    if job.state is not JobState.CANCELLING:
        return ending
    by_itself = all(trial.state.ended and trial.state is not TrialState.CANCELLED for trial in trials)
    return ending if ending and by_itself else Ending(CANCELLED, Code.CANCELLED, job.error_message)


def ending_of_study(study: Study, trials: Sequence[TrialRecord], *, exhausted: bool) -> Ending | None:
    """How the job ends now, None where it goes on: more trials to start, or to wait for.

    A job fails once as many trials have failed as it says; where it doesn't say, once the first three, or all
    there are to be, have failed and none has succeeded. Trials may be running then: they are of no use, and
    what becomes of them changes nothing: cancelled ones tell nothing, and others come too late.

    Args:
        trials: The job's own, without those of a job that it resumes.
        exhausted: Whether there is nothing left to try.
    """
    failed = [trial for trial in trials if has_failed(study, trial)]
    telling = [trial for trial in trials if trial.state.ended and trial.state is not TrialState.CANCELLED]
    over = all(trial.state.ended for trial in trials) and (exhausted or len(trials) >= study.max_trials)
    if study.max_failed is not None:
        hopeless = len(failed) >= study.max_failed
    else:
        first = sorted(telling, key=_by_end)[:_HOPELESS]
        hopeless = len(first) == _HOPELESS and all(has_failed(study, trial) for trial in first)
    if failed and (hopeless or (over and len(failed) == len(telling))):
        return Ending(FAILED, Code.INVALID_ARGUMENT, _told(study, failed, len(telling)))
    return Ending(SUCCEEDED) if over else None


def has_failed(study: Study, trial: TrialRecord) -> bool:
    """Whether the trial counts as a failed one."""
    return trial.state is TrialState.FAILED or (
        trial.state is TrialState.SUCCEEDED and trial.final is None and study.metric_needed
    )


def reason_of(study: Study, trial: TrialRecord) -> str:
    """Why a trial that is of no use is of none, "" for nothing to say."""
    if trial.message or trial.state is not TrialState.SUCCEEDED:
        return trial.message
    return NO_METRIC + ", ".join(metric.name for metric in study.metrics) + "."


def _by_end(trial: TrialRecord) -> tuple[str, int]:
    return trial.end_time, trial.number


def _told(study: Study, failed: Sequence[TrialRecord], ended: int) -> str:
    limit = f", and the job fails with {study.max_failed}" if study.max_failed else ""
    last = max(failed, key=_by_end)
    return f"{len(failed)} of {ended} trials failed{limit}. Trial {last.number}: {reason_of(study, last)}"
