"""Runs that succeeded, and the metrics files in their folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1
from tests.support.held_service import HeldService

FOLDER = "gs://models/census"


def put_file(service: HeldService, name: str, content: str | bytes = b"{}", *, size: int = 0) -> Path:
    """Write an object below `FOLDER`, padded by a hole up to `size` bytes."""
    path = service.home / "gcs" / FOLDER.removeprefix("gs://") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if size:
        os.truncate(path, size)
    return path


def custom_run(folder: str = FOLDER, **fields: Any) -> ActualJob:
    """Return a custom job that succeeded; `folder` is "" for none."""
    spec = {"baseOutputDirectory": {"outputUriPrefix": folder}} if folder else {}
    return _run("CustomJob", spec, {}, **fields)


def study_run(*values: float | None, metric: str = "accuracy", folder: str = FOLDER) -> ActualJob:
    """Return a tuning job whose trials have these values, from trial 1; None is a trial that failed."""
    trials = [
        {
            "id": str(number),
            "state": "INFEASIBLE" if value is None else "SUCCEEDED",
            "finalMeasurement": {"metrics": [] if value is None else [{"metricId": metric, "value": value}]},
        }
        for number, value in enumerate(values, 1)
    ]
    study = {"metrics": [{"metricId": metric, "goal": "MAXIMIZE"}], "parameters": []}
    spec = {
        "studySpec": study,
        "trialJobSpec": {"baseOutputDirectory": {"outputUriPrefix": folder}} if folder else {},
    }
    return _run("HyperparameterTuningJob", spec, {"studySpec": study, "trials": trials})


def _run(kind: str, spec: dict[str, Any], body: dict[str, Any], **fields: Any) -> ActualJob:
    known: dict[str, Any] = {
        "resource": "projects/acme-ml/locations/us-central1/customJobs/1",
        "job_name": "census_0123456789abcdef",
        "api_version": AIPLATFORM_V1,
        "kind": kind,
        "state": State.SUCCEEDED,
        "service_state": "JOB_STATE_SUCCEEDED",
        "spec": spec,
        "body": body,
        "create_time": "2020-01-02T00:00:00Z",
    }
    return ActualJob(**{**known, **fields})
