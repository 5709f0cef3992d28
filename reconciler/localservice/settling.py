"""Brings the store to where the runs are, as their folders tell it."""

from __future__ import annotations

from pathlib import Path

from reconciler.localservice.records import UNFINISHED, JobRecord, JobState
from reconciler.localservice.run_folder import RUNNING, STOPPED, Ending, RunFolder, run_folder
from reconciler.localservice.store import Store

_BEFORE_RUNNING = frozenset({JobState.QUEUED, JobState.PREPARING})


def settle(store: Store, home: Path) -> None:
    """Bring the store to where the runs are, as their folders tell; nothing is started, ended or removed."""
    for job in store.unfinished():
        for run in store.runs(job.id)[-1:]:
            folder = run_folder(home, run.run_id)
            ending = folder.ending()  # first: what is read after it has the last phase
            take_over_phase(store, job, folder)
            if ending is not None and ending.state != STOPPED:
                take_over_end(store, job, ending)


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
