"""Pipelines: each follows its backing job, an ordinary job, and registers a model after its success.

The row of the pipeline and that of its backing job are added together, and a model version is added together
with its pipeline's end: a service that is killed at any moment leaves neither a pipeline without a job nor a
second version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from reconciler.training_service.http.message import ApiError
from reconciler.training_service.jobs.cluster import job_spec_of
from reconciler.training_service.jobs.job_variables import MODEL_DIR, output_folders
from reconciler.training_service.state.database import PUBLIC, Store
from reconciler.training_service.state.models import (
    ModelExistsError,
    ModelName,
    ModelNotFoundError,
    ModelStore,
    UnreadableModelError,
)
from reconciler.training_service.state.records import (
    TUNING_JOBS,
    Code,
    JobRecord,
    JobState,
    JsonObject,
    details_of,
    error_of,
    readable_time,
    resource_name,
)
from reconciler.training_service.state.rows import UnreadableError
from reconciler.training_service.storage.files import TICK_NS, Wanted
from reconciler.training_service.storage.objects import Objects
from reconciler.training_service.tuning.resources import best_trial

CANCELLED = "CANCELED"
"""The message of a cancelled pipeline and of its backing job, as of any cancelled job of Vertex AI."""

_DELETED = "The pipeline's backing job {} was deleted before the pipeline had taken over its end."
_NOT_REGISTERED = "The training succeeded, but the model could not be registered: {}"


_BEFORE_RUNNING = frozenset({JobState.QUEUED, JobState.PREPARING})


class _RegisterError(Exception):
    """Failure to register a model; `str()` is the reason."""


def take_over(store: Store, pipeline: JobRecord) -> JobRecord | None:
    """Take over the state and the times of a pipeline's backing job.

    Returns:
        The backing job if one step is left: to register the model of a training that succeeded.
    """
    backing = store.find(*pipeline.backing_place)
    if backing is None:
        code, message, details = error_of(pipeline)
        if "backing" not in pipeline.unreadable:
            code, message = Code.NOT_FOUND, _DELETED.format(pipeline.backing)
            details = details_of("INTERNAL")
        _move(store, pipeline, JobState.FAILED, "", code, message, details)
        return None
    if backing.start_time and pipeline.state in _BEFORE_RUNNING:
        pipeline = _move(store, pipeline, JobState.RUNNING, backing.start_time) or pipeline
    if backing.state.ended:
        return _take_over_end(store, pipeline, backing)
    if pipeline.state is JobState.CANCELLING or "body" in pipeline.unreadable:
        # The pipeline's own state comes first: a service that is killed in between reads the cancel here.
        store.cancel(backing.id, CANCELLED)
    elif backing.state is not pipeline.state:
        message, details = backing.error_message, backing.error_details
        _move(store, pipeline, backing.state, backing.update_time, 0, message, details)
    return None


def _take_over_end(store: Store, pipeline: JobRecord, backing: JobRecord) -> JobRecord | None:
    end = partial(_move, store, pipeline, at=backing.end_time)
    if "body" in pipeline.unreadable:
        code, message, details = error_of(replace(pipeline, error_message="So the pipeline was ended."))
        end(JobState.FAILED, code=code, message=message, details=details)
    elif backing.state is not JobState.SUCCEEDED:
        code, message, details = error_of(backing)
        end(backing.state, code=code, message=message, details=details)
    elif pipeline.state is JobState.CANCELLING:
        end(JobState.CANCELLED, code=Code.CANCELLED, message=CANCELLED, details=details_of("REQUESTED"))
    elif "modelToUpload" in pipeline.body:
        return backing
    else:
        end(JobState.SUCCEEDED)
    return None


def _move(
    store: Store,
    pipeline: JobRecord,
    to: JobState,
    at: str,
    code: int = 0,
    message: str = "",
    details: Mapping[str, str] | None = None,
) -> JobRecord | None:
    """Change the pipeline's state unless a client has changed it since the pipeline was read."""
    return store.move(
        pipeline.id,
        to,
        only_from={pipeline.state},
        at=readable_time(at) or store.now(),
        error_code=code,
        error_message=message,
        error_details=details,
    )


class PipelineRunner:
    """Follower of the pipelines of a home, which registers their models."""

    def __init__(self, store: Store, home: Path) -> None:
        self._store = store
        self._models = ModelStore(store.database, store.clock)
        self._objects = Objects(home, store.database, store.clock)

    def step(self, pipeline: JobRecord) -> None:
        """Take the next step of a pipeline that hasn't ended."""
        backing = take_over(self._store, pipeline)
        if backing is not None:
            self._register(self._store.job(pipeline.id) or pipeline, backing)

    def _register(self, pipeline: JobRecord, backing: JobRecord) -> None:
        """Register the model of a training that succeeded, and end the pipeline."""
        model: JsonObject = dict(pipeline.body["modelToUpload"])
        if "encryptionSpec" in pipeline.body:
            model.setdefault("encryptionSpec", pipeline.body["encryptionSpec"])
        try:
            self._check_folder(model, backing)
            self._store.finish_pipeline(pipeline.id, partial(self._registered, pipeline, model))
        except _RegisterError as error:
            self._fail(pipeline, model, Code.FAILED_PRECONDITION, str(error))
        except ModelNotFoundError as error:
            self._fail(pipeline, model, Code.NOT_FOUND, f"the parentModel {error} doesn't exist any more.")
        except ModelExistsError as error:
            name = ModelName(pipeline.project, pipeline.location, str(error))
            text = f"the modelId {error} is used by now. Take another, or write parentModel: {name}"
            self._fail(pipeline, model, Code.ALREADY_EXISTS, text)
        except UnreadableModelError as error:
            name, columns = error.args
            self._fail(pipeline, model, Code.DATA_LOSS, f"the record of {name} can't be read: {columns}.")

    def _fail(self, pipeline: JobRecord, model: JsonObject, code: Code, reason: str) -> None:
        name = pipeline.body.get("parentModel") or pipeline.body.get("modelId", "")
        details = details_of("MODEL_NOT_REGISTERED", model=name, folder=model.get("artifactUri", ""))
        message = _NOT_REGISTERED.format(reason)
        _move(self._store, pipeline, JobState.FAILED, "", code, message, details)

    def _registered(self, pipeline: JobRecord, model: JsonObject, connection: sqlite3.Connection) -> str:
        version = self._models.register(
            connection,
            pipeline.project,
            pipeline.location,
            model,
            model_id=pipeline.body.get("modelId", ""),
            parent=pipeline.body.get("parentModel", ""),
            pipeline=resource_name(pipeline),
        )
        return f"{version.name}@{version.version_id}"

    def _model_folder(self, backing: JobRecord) -> str:
        """Return the AIP_MODEL_DIR of a job that succeeded, of a tuning job its best trial's; "" for none."""
        prefix = job_spec_of(backing).get("baseOutputDirectory", {}).get("outputUriPrefix", "")
        if backing.collection != TUNING_JOBS:
            return output_folders(prefix).get(MODEL_DIR, "").rstrip("/")
        try:
            best = best_trial(backing, self._store.trials(backing.id))
        except UnreadableError as error:
            raise _RegisterError(f"the best trial isn't known: {error}.") from None
        if best is None:
            raise _RegisterError("no trial has reported the metric.")
        return output_folders(prefix, best.number).get(MODEL_DIR, "").rstrip("/")

    def _check_folder(self, model: JsonObject, backing: JobRecord) -> None:
        """Set the model's `artifactUri` unless it is written, and check that the folder has its files.

        Of the folder that the trainer was given, which other runs may share, files from before the training
        don't count.

        Raises:
            _RegisterError: They are missing.
        """
        written, own = model.get("artifactUri", "").rstrip("/"), ""
        try:
            own = self._model_folder(backing)
        except _RegisterError:
            if not written:
                raise
        uri = model["artifactUri"] = model.get("artifactUri") or own
        bucket, _, path = uri.removeprefix("gs://").partition("/")
        if bucket in (self._store.setting(PUBLIC) or ()):
            return  # Google's; whoever loads the model finds out what it holds
        try:
            entries = [*self._objects.walk(bucket, Wanted(f"{path.rstrip('/')}/"))]
        except ApiError:  # there is no such bucket
            entries = []
        times = [entry.status.st_ctime_ns for entry in entries if entry.status and entry.name[-1:] != "/"]
        is_own = written in ("", own)
        if max(times, default=-1) < (_began(backing) if is_own else 0):
            held = "only files from before this training" if times else "no files"
            remedy = (
                "The trainer has to write its model there." if is_own else "Correct or remove artifactUri."
            )
            raise _RegisterError(f"{uri} holds {held}. {remedy}")


def _began(job: JobRecord) -> int:
    """Return the time in nanoseconds from which on a file is the job's own; 0 if it isn't known."""
    began = readable_time(job.start_time) or readable_time(job.create_time)
    # The time of a file is that of the clock's last tick.
    return int(datetime.fromisoformat(began).timestamp() * 1e9) - TICK_NS if began else 0
