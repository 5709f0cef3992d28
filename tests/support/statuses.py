"""A commit's statuses on GitHub."""

from __future__ import annotations

from typing import Any

from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.reporting.status import CommitStatus, status_of

TOKEN = "ghs_very-secret-token"


SHA = "6dcb09b5b57875f334f61aebed695e2e4193db5e"


HASH = "0123456789abcdef"


def job(state: State = State.RUNNING, attempt: int = 1, **more: Any) -> ActualJob:
    given = {
        "resource": "projects/1/locations/local/customJobs/1",
        "job_name": f"census_{HASH}" + (f"_{attempt}" if attempt > 1 else ""),
        "api_version": AIPLATFORM_V1,
        "kind": "CustomJob",
        "state": state,
        "service_state": f"JOB_STATE_{state}",
    }
    return ActualJob(**{**given, **more})


def status(state: State = State.RUNNING, name: str = "census", **more: Any) -> CommitStatus:
    return status_of(f"reconciler/prod/{name}", job(state, **more))
