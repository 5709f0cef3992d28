"""Client of Vertex AI: `aiplatform.googleapis.com/v1`.

`customJobs`, `hyperparameterTuningJobs` and `trainingPipelines`. A pipeline's backing job, which trains for
it, is no run, like a trial: the pipeline is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from reconciler.base.concurrency import call_all
from reconciler.base.errors import NotFoundError
from reconciler.base.http import HttpResponse
from reconciler.engines.spec import vertex_ai
from reconciler.google.client import Connection, execute, filter_of, object_of, with_headers
from reconciler.google.listing import RecordPages, ResourcePages, listing
from reconciler.google.responses import about, typed_record, unknown
from reconciler.model.cause import error_info
from reconciler.model.fields import text_of
from reconciler.model.job import KEY, ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1, TRAINING_PIPELINE, JsonObject
from reconciler.model.reason import Reason, ReasonCode, because

_COLLECTIONS = {
    "CustomJob": "customJobs",
    "HyperparameterTuningJob": "hyperparameterTuningJobs",
    TRAINING_PIPELINE: "trainingPipelines",
}
_CONSOLE_PAGES = {
    "CustomJob": "training",
    "HyperparameterTuningJob": "hyperparameter-tuning-jobs",
    TRAINING_PIPELINE: "training",
}
_LISTED = "name,displayName,state,labels,createTime,startTime,endTime,error"
_LISTED_OF_PIPELINE = f"{_LISTED},trainingTaskMetadata"
# The service reduces a page size that is too large (AIP-158).
_PAGE_SIZE = 1000
_METHODS = "aiplatform.projects.locations"
_MODEL = re.compile(r"projects/[\w.:-]+/locations/[\w-]+/models/[\w-]+(?:@[\w-]+)?", re.ASCII)

# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState and …/PipelineState, which share these
# endings. PAUSED, UPDATING and unknown states count as RUNNING: only a known end may be reported as an end.
_STATES = {
    "QUEUED": State.QUEUED,
    "PENDING": State.PREPARING,
    "RUNNING": State.RUNNING,
    "SUCCEEDED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "CANCELLING": State.CANCELLING,
    "CANCELLED": State.CANCELLED,
    "EXPIRED": State.FAILED,
    "PARTIALLY_SUCCEEDED": State.FAILED,
}
# Not the live states: a filter by them would leave out a state that this version doesn't know. Jobs of the
# two rare ended states are listed, as the embedded service refuses their names.
_ENDED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")


class _Error(Struct, frozen=True, gc=False):
    code: int = 0
    message: str = ""
    details: list[Any] = []


class _Job(Struct, frozen=True, rename="camel", gc=False):
    """Fields `_LISTED` of a job of any kind, and a pipeline's metadata."""

    name: Annotated[str, Meta(min_length=1)]
    display_name: str = ""
    state: str = ""
    labels: Mapping[str, str] = {}
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    error: _Error = _Error()
    training_task_metadata: Mapping[str, str] = {}


_PAGES = {kind: RecordPages(items, _Job) for kind, items in _COLLECTIONS.items()}


class VertexAi:
    """Custom jobs, hyper-parameter tuning jobs and training pipelines of one project and location."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def jobs(self, labels: Mapping[str, str], base: str = "", *, live: bool = False) -> tuple[ActualJob, ...]:
        """List the runs of all kinds with these labels; arguments as in `EngineClient.jobs`."""
        prefix = f"{base}_" if base else ""
        listings = [
            partial(
                self._listed,
                kind,
                labels,
                filter_of(labels, prefix, "display_name", _ended_states(kind) if live else ()),
            )
            for kind in _COLLECTIONS
        ]
        # A service on this machine answers concurrent requests no faster.
        if not self._connection.endpoint.distant:
            return _without_backing(job for listing in listings for job in listing())
        return _without_backing(job for jobs in call_all(listings) for job in jobs)

    def whole_jobs(self, wanted: str) -> Sequence[ActualJob]:
        """List the runs of all kinds that a filter selects, with their specs."""
        return _without_backing(
            self._read(kind, resource)
            for kind, pages in _PAGES.items()
            for resource in listing(self._lister(kind, wanted, _items(kind)), ResourcePages(pages))
        )

    def with_key(self, kind: str, key: str) -> tuple[ActualJob, ...]:
        """List the jobs of a kind with this key label."""
        return tuple(self._listed(kind, {KEY: key}, filter_of({KEY: key})))

    def read(self, kind: str, resource: str) -> ActualJob:
        """Read a job with its spec, and a pipeline's backing job; raise NotFoundError."""
        job = self._read(kind, self._resource(kind, resource))
        backing = vertex_ai.backing_job(job.body) if kind == TRAINING_PIPELINE else None
        if backing is None:
            return job
        try:
            return replace(job, backing_body=self._resource(*backing))
        except NotFoundError:
            return job  # somebody has deleted it: it is a resource of its own

    @staticmethod
    def named(kind: str, job_name: str) -> None:
        """Return None: Vertex AI chooses the resource names of jobs."""

    def create(self, kind: str, body: JsonObject, headers: Mapping[str, str]) -> ActualJob:
        """Send one `create`."""
        # Vertex AI accepts no id from the caller: a second request would create a second job.
        request = self._collection(kind).create(parent=self._parent, body=body)
        answer = execute(request, with_headers(self._connection, headers))
        return self._read(kind, about(answer, "name", self._names(kind)))

    def obstacle(self, kind: str, spec: JsonObject) -> Reason | None:
        """Return a reason if a pipeline's `parentModel` is missing, or its `modelId` is that of a model."""
        if kind != TRAINING_PIPELINE or "modelToUpload" not in spec:
            return None
        if parent := text_of(spec, "parentModel"):
            missing = because(ReasonCode.PARENT_MODEL_MISSING, model=parent)
            return None if self._has_model(parent) else missing
        if not (model_id := text_of(spec, "modelId")):
            return None
        model = f"{self._parent}/models/{model_id}"
        return because(ReasonCode.MODEL_ID_TAKEN, model=model) if self._has_model(model) else None

    def _has_model(self, name: str) -> bool:
        if not _MODEL.fullmatch(name):
            return False  # it would become a part of an address
        try:
            self._connection.get(f"{_METHODS}.models.get", name=name, fields="name")
        except NotFoundError:
            return False
        return True

    def cancel(self, job: ActualJob) -> None:
        """Send one `cancel`, which the service carries out by best effort."""
        execute(self._collection(job.kind).cancel(name=_checked_name(job.kind, job.resource), body={}))

    @property
    def _parent(self) -> str:
        endpoint = self._connection.endpoint
        return f"projects/{endpoint.project}/locations/{endpoint.location}"

    def _names(self, kind: str) -> re.Pattern[str]:
        """Return the pattern of the resource names of this target's jobs."""
        endpoint = self._connection.endpoint
        # Vertex AI writes a project as its number.
        project, location = re.escape(endpoint.project), re.escape(endpoint.location)
        return re.compile(f"projects/(?:{project}|[0-9]+)/locations/{location}/{_items(kind)}/[0-9]+")

    def _resource(self, kind: str, name: str) -> JsonObject:
        answer = self._connection.get(f"{_METHODS}.{_items(kind)}.get", name=_checked_name(kind, name))
        return about(object_of(answer.body), "name")

    def _listed(self, kind: str, labels: Mapping[str, str], wanted: str) -> list[ActualJob]:
        """List the jobs of a kind that a filter selects; all must have the labels."""
        fields = _LISTED_OF_PIPELINE if kind == TRAINING_PIPELINE else _LISTED
        get = self._lister(kind, wanted, f"{_items(kind)}({fields})")
        # A service that ignored the filter would return jobs of other repositories.
        jobs = (job for job in listing(get, _PAGES[kind]) if labels.items() <= job.labels.items())
        return [self._actual(kind, job, {}, {}) for job in jobs]

    def _lister(self, kind: str, wanted: str, fields: str) -> Callable[..., HttpResponse]:
        """Return a function that requests a page of a kind's listing."""
        return partial(
            self._connection.get,
            f"{_METHODS}.{_items(kind)}.list",
            parent=self._parent,
            filter=wanted or None,
            pageSize=_PAGE_SIZE,
            fields=f"{fields},nextPageToken",
        )

    def _collection(self, kind: str) -> Any:
        return self._connection.client(f"{_METHODS}.{_items(kind)}")

    def _read(self, kind: str, resource: JsonObject) -> ActualJob:
        body = vertex_ai.resource_in_form(kind, resource)
        return self._actual(kind, typed_record(_Job, resource), vertex_ai.spec_of(kind, body), body)

    def _actual(self, kind: str, job: _Job, spec: JsonObject, body: JsonObject) -> ActualJob:
        backing = vertex_ai.backing_job({"trainingTaskMetadata": job.training_task_metadata})
        return ActualJob(
            resource=job.name,
            job_name=job.display_name,
            api_version=AIPLATFORM_V1,
            kind=kind,
            state=_STATES.get(job.state.removeprefix(_state_prefix(kind)), State.RUNNING),
            service_state=job.state,
            labels=job.labels,
            spec=spec,
            body=body,
            create_time=job.create_time,
            start_time=job.start_time,
            end_time=job.end_time,
            error=job.error.message,
            error_code=job.error.code,
            info=error_info(job.error.details),
            url=self._url(kind, job.name),
            on_runner=self._connection.endpoint.on_runner,
            buckets=self._connection.endpoint.buckets,
            backing=backing[1] if backing else "",
        )

    def _url(self, kind: str, name: str) -> str:
        endpoint = self._connection.endpoint
        if not endpoint.console:
            return ""
        page = f"locations/{endpoint.location}/{_CONSOLE_PAGES[kind]}/{name.rpartition('/')[2]}"
        return f"https://console.cloud.google.com/vertex-ai/{page}?project={endpoint.project}"


def _without_backing(jobs: Iterable[ActualJob]) -> tuple[ActualJob, ...]:
    """Return the runs: the jobs without those that train for one of the listed pipelines."""
    listed = tuple(jobs)
    # Without the project, which the service may write as its id or as its number.
    backing = {_collection_and_id(job.backing) for job in listed if job.backing}
    return tuple(job for job in listed if _collection_and_id(job.resource) not in backing)


def _collection_and_id(resource: str) -> tuple[str, ...]:
    return tuple(resource.split("/")[-2:])


def _state_prefix(kind: str) -> str:
    return "PIPELINE_STATE_" if kind == TRAINING_PIPELINE else "JOB_STATE_"


def _ended_states(kind: str) -> list[str]:
    return [f"{_state_prefix(kind)}{state}" for state in _ENDED_STATES]


def _items(kind: str) -> str:
    """Return the API's name for the collection of a kind."""
    if kind not in _COLLECTIONS:
        raise unknown(f"Vertex AI has no jobs of the kind {kind!r}")
    return _COLLECTIONS[kind]


def _checked_name(kind: str, resource: str) -> str:
    # The name comes from a claim or a listing and becomes a part of an address.
    pattern = rf"projects/[\w.:-]+/locations/[\w-]+/{_items(kind)}/[\w-]+"
    if not re.fullmatch(pattern, resource, re.ASCII):
        raise unknown(f"{resource!r} is not a {kind} of Vertex AI")
    return resource
