"""AI Platform Training: `ml.googleapis.com/v1` `projects.jobs`.

Google switched the service off on 2025-01-31; its manifests run on the embedded service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from reconciler.base.errors import NotFoundError
from reconciler.base.http import HttpResponse
from reconciler.engines.spec import ai_platform
from reconciler.google.client import Connection, execute, filter_of, object_of, with_headers
from reconciler.google.listing import RecordPages, ResourcePages, listing
from reconciler.google.responses import about, typed_record, unknown
from reconciler.model.cause import marked_info
from reconciler.model.fields import part_of, text_of
from reconciler.model.job import KEY, ActualJob, State
from reconciler.model.manifest import ML_V1, JsonObject
from reconciler.model.reason import Reason, ReasonCode, because

_LISTED = "jobId,state,labels,createTime,startTime,endTime,errorMessage"
_PAGE_SIZE = 100
_METHODS = "ml.projects.jobs"
_KIND = "Job"
_RESOURCE = re.compile(r"projects/[\w.:-]+/jobs/[\w-]+", re.ASCII)

# Unknown states count as RUNNING: only a known end may be reported as an end.
_STATES = {str(state): state for state in State}
_ENDED_STATES = tuple(name for name, state in _STATES.items() if state.ended)


class _Job(Struct, frozen=True, rename="camel", gc=False):
    """Fields `_LISTED` of a job."""

    job_id: Annotated[str, Meta(min_length=1)]
    state: str = ""
    labels: Mapping[str, str] = {}
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    error_message: str = ""


_PAGES = RecordPages("jobs", _Job)


class AiPlatformTraining:
    """Training jobs of one project."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def jobs(self, labels: Mapping[str, str], base: str = "", *, live: bool = False) -> tuple[ActualJob, ...]:
        """List the jobs with these labels; arguments as in `EngineClient.jobs`."""
        wanted = filter_of(labels, f"{base}_" if base else "", "jobId", _ENDED_STATES if live else ())
        get = self._lister(wanted, f"jobs({_LISTED})")
        # A service that ignored the filter would return jobs of other repositories.
        jobs = (job for job in listing(get, _PAGES) if labels.items() <= job.labels.items())
        return tuple(self._actual(job, {}, {}) for job in jobs)

    def whole_jobs(self, wanted: str) -> list[ActualJob]:
        """List the jobs that a filter selects, with their specs."""
        resources = listing(self._lister(wanted, "jobs"), ResourcePages(_PAGES))
        return [self._read(resource) for resource in resources]

    def _lister(self, wanted: str, fields: str) -> Callable[..., HttpResponse]:
        """Return a function that requests a page of a listing."""
        return partial(
            self._connection.get,
            f"{_METHODS}.list",
            parent=self._parent,
            filter=wanted or None,
            pageSize=_PAGE_SIZE,
            fields=f"{fields},nextPageToken",
        )

    def with_key(self, kind: str, key: str) -> tuple[ActualJob, ...]:
        """List the jobs with this key label."""
        _check_kind(kind)
        return self.jobs({KEY: key})

    def read(self, kind: str, resource: str) -> ActualJob:
        """Read a job with its spec; raise NotFoundError."""
        _check_kind(kind)
        answer = self._connection.get(f"{_METHODS}.get", name=_checked_name(resource))
        return self._read(about(object_of(answer.body), "jobId"))

    def named(self, kind: str, job_name: str) -> str:
        """Return the resource name of the job with this `jobId`."""
        return f"{self._parent}/jobs/{job_name}"

    def create(self, kind: str, body: JsonObject, headers: Mapping[str, str]) -> ActualJob:
        """Send one `create`; the service refuses an existing jobId with ALREADY_EXISTS."""
        request = self._jobs.create(parent=self._parent, body=body)
        answer = execute(request, with_headers(self._connection, headers))
        return self._read(about(answer, "jobId", re.compile(re.escape(body["jobId"]))))

    def obstacle(self, kind: str, spec: JsonObject) -> Reason | None:
        """Return a reason if there is no tuning job with the id in `resumePreviousJobId`."""
        previous = text_of(_tuning_of(spec), "resumePreviousJobId")
        if not previous or self._has_trials(kind, self.named(kind, previous)):
            return None
        return because(ReasonCode.RESUMED_JOB_MISSING, job=previous)

    def _has_trials(self, kind: str, resource: str) -> bool:
        if not _RESOURCE.fullmatch(resource):
            return False  # it would become a part of an address
        try:
            return bool(_tuning_of(self.read(kind, resource).spec))
        except NotFoundError:
            return False

    def cancel(self, job: ActualJob) -> None:
        """Send one `cancel`."""
        execute(self._jobs.cancel(name=_checked_name(job.resource), body={}))

    @property
    def _jobs(self) -> Any:
        return self._connection.client(_METHODS)

    @property
    def _parent(self) -> str:
        return f"projects/{self._connection.endpoint.project}"

    def _read(self, resource: JsonObject) -> ActualJob:
        return self._actual(typed_record(_Job, resource), ai_platform.spec_of(_KIND, resource), resource)

    def _actual(self, job: _Job, spec: JsonObject, body: JsonObject) -> ActualJob:
        info, error = marked_info(job.error_message)
        return ActualJob(
            resource=self.named(_KIND, job.job_id),
            job_name=job.job_id,
            api_version=ML_V1,
            kind=_KIND,
            state=_STATES.get(job.state, State.RUNNING),
            service_state=job.state,
            labels=job.labels,
            spec=spec,
            body=body,
            create_time=job.create_time,
            start_time=job.start_time,
            end_time=job.end_time,
            error=error,
            info=info,
            on_runner=self._connection.endpoint.on_runner,
            buckets=self._connection.endpoint.buckets,
        )


def _tuning_of(spec: JsonObject) -> Mapping[str, Any]:
    return part_of(part_of(spec, "trainingInput"), "hyperparameters")


def _check_kind(kind: str) -> None:
    if kind != _KIND:
        raise unknown(f"AI Platform has no jobs of the kind {kind!r}")


def _checked_name(resource: str) -> str:
    # The name comes from a claim or a listing and becomes a part of an address.
    if not _RESOURCE.fullmatch(resource):
        raise unknown(f"{resource!r} is not a job of AI Platform")
    return resource
