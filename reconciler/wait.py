"""Waiting for jobs to end, and telling how they stand meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from reconciler.job import ActualJob
from reconciler.session import Session

_LOCAL_PAUSE = 0.2
_GOOGLE_PAUSE = 15.0
_APPEARS_WITHIN = 60.0

Listener = Callable[[tuple[ActualJob, ...]], None]


def wait(session: Session, names: Collection[str], tell: Listener) -> tuple[ActualJob, ...]:
    """The jobs called `names` once all of them have ended; `tell` gets them after every look.

    A new job may be missing from a listing for a while. One that is gone, or doesn't appear within a minute,
    is left out of the answer: its end was not seen.
    """
    pause = _LOCAL_PAUSE if session.environment.engine == "local" else _GOOGLE_PAUSE
    seen: set[str] = set()
    until = time.monotonic() + _APPEARS_WITHIN
    while True:
        found = (job for job in session.runs() if job.job_name in names)
        jobs = tuple(sorted(found, key=lambda job: (job.job_name, job.resource)))
        tell(jobs)
        seen |= {job.job_name for job in jobs}
        all_seen = seen.issuperset(names) or time.monotonic() > until
        if all_seen and all(job.state.ended for job in jobs):
            return jobs
        time.sleep(pause)
