"""Results of tuning jobs and their trials."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.training_service.state.records import Code, JobRecord, JobState, TrialRecord, TrialState
from reconciler.training_service.state.run_folder import CANCELLED, FAILED, SUCCEEDED, Ending
from reconciler.training_service.tuning.study import Study

NO_METRIC = "The trial has ended without reporting "

# The limit for jobs without their own: if as many trials fail before one succeeds, others would fail too.
_HOPELESS = 3


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
    return ending if ending and finished else Ending(CANCELLED, Code.CANCELLED, job.error_message)


def ending_of_study(study: Study, trials: Sequence[TrialRecord], *, exhausted: bool) -> Ending | None:
    """Return the job's ending; None if the job goes on with trials to start or to await.

    A job fails once it has its own limit of failed trials. Without such a limit it fails once its first three
    trials, or all if there are fewer, have failed. Other trials may still run then: their results change
    nothing, because cancelled trials have none and later results come too late.

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
    if failed and (hopeless or (over and len(failed) == len(counted))):
        return Ending(FAILED, Code.INVALID_ARGUMENT, _message(study, failed, len(counted)))
    return Ending(SUCCEEDED) if over else None


def has_failed(study: Study, trial: TrialRecord) -> bool:
    """Return True if the trial counts as failed."""
    return trial.state is TrialState.FAILED or (
        trial.state is TrialState.SUCCEEDED and trial.final is None and study.metric_needed
    )


def reason_of(study: Study, trial: TrialRecord) -> str:
    """Return the reason for a trial's failure; "" if there is none."""
    if trial.message or trial.state is not TrialState.SUCCEEDED:
        return trial.message
    return NO_METRIC + ", ".join(metric.name for metric in study.metrics) + "."


def _by_end(trial: TrialRecord) -> tuple[str, int]:
    return trial.end_time, trial.number


def _message(study: Study, failed: Sequence[TrialRecord], ended: int) -> str:
    limit = f", and the job fails with {study.max_failed}" if study.max_failed else ""
    last = max(failed, key=_by_end)
    return f"{len(failed)} of {ended} trials failed{limit}. Trial {last.number}: {reason_of(study, last)}"
