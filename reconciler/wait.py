"""Waiting for jobs to end, and telling how they stand meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from reconciler.job import ActualJob
from reconciler.session import Session

_LOCAL_PAUSE = 0.2
_GOOGLE_PAUSE = 15.0

Listener = Callable[[tuple[ActualJob, ...]], None]


def wait(session: Session, names: Collection[str], tell: Listener) -> tuple[ActualJob, ...]:
    """The jobs called `names` once all of them have ended; `tell` gets them after every look.

    A job whose record is gone counts as ended: it is left out of the answer.
    """
    pause = _LOCAL_PAUSE if session.environment.engine == "local" else _GOOGLE_PAUSE
    while True:
        found = (job for job in session.runs() if job.job_name in names)
        jobs = tuple(sorted(found, key=lambda job: (job.job_name, job.resource)))
        tell(jobs)
        if all(job.state.ended for job in jobs):
            return jobs
        time.sleep(pause)
