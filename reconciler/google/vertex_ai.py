"""Vertex AI: `aiplatform.googleapis.com/v1` `customJobs` and `hyperparameterTuningJobs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Annotated, Any

from msgspec import Meta, Struct

from reconciler.base.concurrency import call_all
from reconciler.base.http import HttpResponse
from reconciler.google.client import Connection, execute, filter_of, object_of, with_headers
from reconciler.google.container_command import shown_command, staged_module
from reconciler.google.listing import RecordPages, ResourcePages, listing
from reconciler.google.responses import (
    DEFAULT_TIMEOUT,
    about,
    count_of,
    hours,
    numbers_of,
    part_of,
    parts_of,
    text_of,
    texts_in,
    typed_record,
    unknown,
    values_of,
)
from reconciler.google.staging import without_staged
from reconciler.manifests import schemas
from reconciler.manifests.known_values import accelerators_of
from reconciler.model.cause import error_info
from reconciler.model.details import Goal, Measurement, Study, Trial, Workers
from reconciler.model.job import KEY, ActualJob, State, Trials
from reconciler.model.manifest import AIPLATFORM_V1, JsonObject

_COLLECTIONS = {"CustomJob": "customJobs", "HyperparameterTuningJob": "hyperparameterTuningJobs"}
_CONSOLE_PAGES = {"CustomJob": "training", "HyperparameterTuningJob": "hyperparameter-tuning-jobs"}
_LISTED = "name,displayName,state,labels,createTime,startTime,endTime,error"
# The service reduces a page size that is too large (AIP-158).
_PAGE_SIZE = 1000
_METHODS = "aiplatform.projects.locations"
_TOPOLOGY = re.compile("[0-9]{1,4}(?:x[0-9]{1,4}){1,2}")

# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState. PAUSED, UPDATING and unknown states
# count as RUNNING: only a known end may be reported as an end.
_STATES = {
    "JOB_STATE_QUEUED": State.QUEUED,
    "JOB_STATE_PENDING": State.PREPARING,
    "JOB_STATE_RUNNING": State.RUNNING,
    "JOB_STATE_SUCCEEDED": State.SUCCEEDED,
    "JOB_STATE_FAILED": State.FAILED,
    "JOB_STATE_CANCELLING": State.CANCELLING,
    "JOB_STATE_CANCELLED": State.CANCELLED,
    "JOB_STATE_EXPIRED": State.FAILED,
    "JOB_STATE_PARTIALLY_SUCCEEDED": State.FAILED,
}
# Not the live states: a filter by them would leave out a state that this version doesn't know. Jobs of the
# two rare ended states are listed, as the embedded service refuses their names.
_ENDED_STATES = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/Trial: states before the start of a trial.
_UNBEGUN_TRIALS = ("", "STATE_UNSPECIFIED", "REQUESTED")


class _Error(Struct, frozen=True, gc=False):
    code: int = 0
    message: str = ""
    details: list[Any] = []


class _Job(Struct, frozen=True, rename="camel", gc=False):
    """Fields `_LISTED` of a job of either kind."""

    name: Annotated[str, Meta(min_length=1)]
    display_name: str = ""
    state: str = ""
    labels: Mapping[str, str] = {}
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    error: _Error = _Error()


_PAGES = {kind: RecordPages(items, _Job) for kind, items in _COLLECTIONS.items()}


class VertexAi:
    """Custom jobs and hyper-parameter tuning jobs of one project and location."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @staticmethod
    def manifest_schema(kind: str) -> JsonObject | None:
        """Return the schema that ships with the reconciler."""
        return schemas.manifest_schema(AIPLATFORM_V1, kind)

    @staticmethod
    def module(kind: str, spec: JsonObject) -> str:
        """Return the first pool's Python module; "" if all pools run containers."""
        packages = (pool.get("pythonPackageSpec") for pool in _job_spec(kind, spec)["workerPoolSpecs"])
        return next((str(package["pythonModule"]) for package in packages if package), "")

    @staticmethod
    def accelerator_hours(kind: str, spec: JsonObject) -> float:
        """Return the accelerators of all replicas times `scheduling.timeout` times `maxTrialCount`."""
        job_spec = _job_spec(kind, spec)
        pools = sum(_accelerators(pool) for pool in job_spec["workerPoolSpecs"])
        timeout = job_spec.get("scheduling", {}).get("timeout", DEFAULT_TIMEOUT)
        return pools * int(spec.get("maxTrialCount", 1)) * hours(timeout)

    @staticmethod
    def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
        """Fill in missing `serviceAccount`, `network`, `timeout` and `baseOutputDirectory`."""
        return _job_spec_changed(kind, spec, lambda job_spec: _filled(job_spec, defaults, job_name))

    @staticmethod
    def with_package(kind: str, spec: JsonObject, uri: str) -> JsonObject:
        """Append `uri` to the package URIs of every pool that runs a Python package."""
        return _pools_changed(kind, spec, lambda pool: _pool_with(pool, uri))

    @staticmethod
    def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
        """Return a `CustomJob` or `HyperparameterTuningJob` resource."""
        head: dict[str, Any] = {"displayName": job_name, "labels": dict(labels)}
        if kind != "CustomJob":
            return {**head, **spec}
        job_spec = {name: value for name, value in spec.items() if name != "encryptionSpec"}
        encryption = {"encryptionSpec": spec["encryptionSpec"]} if "encryptionSpec" in spec else {}
        return {**head, "jobSpec": job_spec, **encryption}

    @staticmethod
    def replicas(kind: str, spec: JsonObject) -> Mapping[str, int]:
        """Return the replicas of each worker pool."""
        pools = parts_of(_job_spec(kind, spec), "workerPoolSpecs")
        # An empty pool only keeps the numbers of the pools behind it. Other pools default to one replica.
        counts = (count_of(pool, "replicaCount", 1) if pool else 0 for pool in pools)
        return {f"workerpool{number}-": count for number, count in enumerate(counts) if count}

    @staticmethod
    def trials(job: ActualJob) -> Trials | None:
        """Return the trials in the resource of a tuning job."""
        if job.kind == "CustomJob":
            return None
        trials = parts_of(job.body, "trials")
        begun = (text_of(trial, "id") for trial in trials if text_of(trial, "state") not in _UNBEGUN_TRIALS)
        return Trials(frozenset(begun), count_of(job.body, "maxTrialCount"))

    @staticmethod
    def log_directory(kind: str, spec: JsonObject) -> str:
        """Return AIP_TENSORBOARD_LOG_DIR; for a tuning job, the parent of all trials' folders."""
        base = VertexAi.output_directory(kind, spec)
        return f"{base}/logs" if base and kind == "CustomJob" else base

    @staticmethod
    def log_directory_field(kind: str) -> str:
        """Return the path of `outputUriPrefix`."""
        below = "" if kind == "CustomJob" else "trialJobSpec."
        return f"spec.{below}baseOutputDirectory.outputUriPrefix"

    @staticmethod
    def workers(kind: str, spec: JsonObject) -> list[Workers]:
        """Return the worker pools, without empty ones."""
        pools = enumerate(parts_of(_job_spec(kind, spec), "workerPoolSpecs"))
        return [_workers(number, pool) for number, pool in pools if pool]

    @staticmethod
    def limits(kind: str, spec: JsonObject) -> Mapping[str, str]:
        """Return the fields of the `CustomJobSpec` and of its `scheduling`."""
        job_spec = _job_spec(kind, spec)
        given = {**job_spec, "timeout": text_of(part_of(job_spec, "scheduling"), "timeout")}
        return {name: text_of(given, name) for name in ("serviceAccount", "network", "timeout")}

    @staticmethod
    def output_directory(kind: str, spec: JsonObject) -> str:
        """Return `baseOutputDirectory`, which contains a folder for each trial of a tuning job."""
        return text_of(part_of(_job_spec(kind, spec), "baseOutputDirectory"), "outputUriPrefix").rstrip("/")

    @staticmethod
    def study(job: ActualJob) -> Study | None:
        """Return the trials in the resource of a tuning job."""
        if job.kind == "CustomJob":
            return None
        metrics = parts_of(part_of(job.body, "studySpec"), "metrics")
        goals = (Goal(text_of(each, "metricId"), text_of(each, "goal") == "MAXIMIZE") for each in metrics)
        trials = (_trial(trial) for trial in parts_of(job.body, "trials"))
        parameters = parts_of(part_of(job.body, "studySpec"), "parameters")
        return Study(
            tuple(goals),
            tuple(trials),
            count_of(job.body, "maxTrialCount"),
            frozenset(_logarithmic(parameters)),
        )

    def jobs(self, labels: Mapping[str, str], base: str = "", *, live: bool = False) -> tuple[ActualJob, ...]:
        """List the jobs of both kinds with these labels; the other arguments are those of `Engine.jobs`."""
        wanted = filter_of(labels, f"{base}_" if base else "", "display_name", _ENDED_STATES if live else ())
        listings = [partial(self._listed, kind, labels, wanted) for kind in _COLLECTIONS]
        # A service on this machine answers concurrent requests no faster.
        if not self._connection.endpoint.distant:
            return tuple(job for listing in listings for job in listing())
        return tuple(job for jobs in call_all(listings) for job in jobs)

    def whole_jobs(self, wanted: str) -> list[ActualJob]:
        """List the jobs of both kinds that a filter selects, with their specs."""
        return [
            self._read(kind, resource)
            for kind, pages in _PAGES.items()
            for resource in listing(self._lister(kind, wanted, _items(kind)), ResourcePages(pages))
        ]

    def with_key(self, kind: str, key: str) -> tuple[ActualJob, ...]:
        """List the jobs of a kind with this key label."""
        return tuple(self._listed(kind, {KEY: key}, filter_of({KEY: key})))

    def read(self, kind: str, resource: str) -> ActualJob:
        """Read a job with its spec; raise NotFoundError."""
        answer = self._connection.get(f"{_METHODS}.{_items(kind)}.get", name=_checked_name(kind, resource))
        return self._read(kind, about(object_of(answer.body), "name"))

    @staticmethod
    def named(kind: str, job_name: str) -> None:
        """Return None: Vertex AI chooses the resource names of jobs."""

    def create(self, kind: str, body: JsonObject, headers: Mapping[str, str]) -> ActualJob:
        """Send one `create`."""
        # Vertex AI accepts no id from the caller: a second request would create a second job.
        request = self._collection(kind).create(parent=self._parent, body=body)
        answer = execute(request, with_headers(self._connection, headers))
        return self._read(kind, about(answer, "name", self._names(kind)))

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

    def _listed(self, kind: str, labels: Mapping[str, str], wanted: str) -> list[ActualJob]:
        """List the jobs of a kind that a filter selects; all must have the labels."""
        get = self._lister(kind, wanted, f"{_items(kind)}({_LISTED})")
        # A service that ignored the filter would return jobs of other repositories.
        found = (job for job in listing(get, _PAGES[kind]) if labels.items() <= job.labels.items())
        return [self._actual(kind, job, {}, {}) for job in found]

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
        return self._actual(kind, typed_record(_Job, resource), _spec_of(kind, resource), resource)

    def _actual(self, kind: str, job: _Job, spec: JsonObject, body: JsonObject) -> ActualJob:
        return ActualJob(
            resource=job.name,
            job_name=job.display_name,
            api_version=AIPLATFORM_V1,
            kind=kind,
            state=_STATES.get(job.state, State.RUNNING),
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
        )

    def _url(self, kind: str, name: str) -> str:
        endpoint = self._connection.endpoint
        if not endpoint.console:
            return ""
        page = f"locations/{endpoint.location}/{_CONSOLE_PAGES[kind]}/{name.rpartition('/')[2]}"
        return f"https://console.cloud.google.com/vertex-ai/{page}?project={endpoint.project}"


def _workers(number: int, pool: JsonObject) -> Workers:
    machine, package = part_of(pool, "machineSpec"), part_of(pool, "pythonPackageSpec")
    container = part_of(pool, "containerSpec")
    task = package or container
    command = texts_in(container, "command")
    staged = staged_module(command)
    return Workers(
        name=f"workerpool{number}",
        count=count_of(pool, "replicaCount", 1),
        machine=" ".join(filter(None, (text_of(machine, "machineType"), text_of(machine, "tpuTopology")))),
        accelerator=text_of(machine, "acceleratorType"),
        accelerator_count=count_of(machine, "acceleratorCount"),
        image=text_of(package, "executorImageUri") or text_of(container, "imageUri"),
        module=staged[0] if staged else text_of(package, "pythonModule"),
        command=() if staged else command,
        args=texts_in(task, "args"),
        env=tuple((text_of(each, "name"), text_of(each, "value")) for each in parts_of(task, "env")),
    )


def _trial(trial: JsonObject) -> Trial:
    return Trial(
        id=text_of(trial, "id"),
        state=text_of(trial, "state"),
        parameters=values_of(
            (text_of(each, "parameterId"), each.get("value")) for each in parts_of(trial, "parameters")
        ),
        metrics=_metrics(part_of(trial, "finalMeasurement")),
        start_time=text_of(trial, "startTime"),
        end_time=text_of(trial, "endTime"),
        reason=text_of(trial, "infeasibleReason"),
        measurements=tuple(
            Measurement(count_of(each, "stepCount") or number, _metrics(each))
            for number, each in enumerate(parts_of(trial, "measurements"), 1)
        ),
    )


def _metrics(measurement: JsonObject) -> Mapping[str, float]:
    found = parts_of(measurement, "metrics")
    return numbers_of((text_of(each, "metricId"), each.get("value", 0.0)) for each in found)


def _logarithmic(parameters: Iterable[JsonObject]) -> Iterator[str]:
    """Yield the ids of the parameters with a logarithmic scale, those below a condition too."""
    for parameter in parameters:
        if text_of(parameter, "scaleType") == "UNIT_LOG_SCALE":
            yield text_of(parameter, "parameterId")
        children = parts_of(parameter, "conditionalParameterSpecs")
        yield from _logarithmic(part_of(child, "parameterSpec") for child in children)


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


def _job_spec(kind: str, spec: JsonObject) -> JsonObject:
    """Return the `CustomJobSpec`: a custom job's whole spec, or a tuning job's `trialJobSpec`."""
    return spec if kind == "CustomJob" else part_of(spec, "trialJobSpec")


def _accelerators(pool: JsonObject) -> int:
    machine, replicas = pool.get("machineSpec", {}), int(pool.get("replicaCount", 1))
    name, given = machine.get("machineType", ""), int(machine.get("acceleratorCount", 0))
    # A slice may be a whole pool: its topology then determines the machines, whatever `replicaCount` is.
    return max(replicas * (given or accelerators_of(name)), _chips(machine.get("tpuTopology", "")))


def _chips(topology: str) -> int:
    """Return the TPU chips of a topology such as "4x4"; 0 for none."""
    return prod(map(int, topology.split("x"))) if _TOPOLOGY.fullmatch(topology) else 0


def _job_spec_changed(kind: str, spec: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    if kind == "CustomJob":
        return change(spec)
    return {**spec, "trialJobSpec": change(spec["trialJobSpec"])}


def _filled(job_spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
    filled = dict(_selected(("serviceAccount", "network"), defaults))
    if "baseOutputDirectory" in defaults:
        prefix = f"{defaults['baseOutputDirectory'].rstrip('/')}/{job_name}"
        filled["baseOutputDirectory"] = {"outputUriPrefix": prefix}
    merged = {**filled, **job_spec}
    if "timeout" in defaults:
        merged["scheduling"] = {"timeout": defaults["timeout"], **job_spec.get("scheduling", {})}
    return merged


def _pool_with(pool: JsonObject, uri: str) -> JsonObject:
    if "pythonPackageSpec" not in pool:
        return pool
    package = pool["pythonPackageSpec"]
    uris = [*package.get("packageUris", []), uri]
    return {**pool, "pythonPackageSpec": {**package, "packageUris": uris}}


def _spec_of(kind: str, resource: JsonObject) -> JsonObject:
    """Return the part of a resource that corresponds to a manifest's `spec`; empty for a listed resource."""
    names = ("studySpec", "trialJobSpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount")
    own = part_of(resource, "jobSpec") if kind == "CustomJob" else _selected(names, resource)
    spec = {**own, **_selected(("encryptionSpec",), resource)}
    pools = _job_spec(kind, spec).get("workerPoolSpecs")
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        return spec
    return _pools_changed(kind, spec, _pool_without_staged)


def _selected(names: Iterable[str], resource: JsonObject) -> JsonObject:
    return {name: resource[name] for name in names if name in resource}


def _pools_changed(kind: str, spec: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    return _job_spec_changed(
        kind,
        spec,
        lambda job_spec: {**job_spec, "workerPoolSpecs": [change(p) for p in job_spec["workerPoolSpecs"]]},
    )


def _pool_without_staged(pool: JsonObject) -> JsonObject:
    if package := part_of(pool, "pythonPackageSpec"):
        return {**pool, "pythonPackageSpec": without_staged(package)}
    staged = staged_module(texts_in(part_of(pool, "containerSpec"), "command"))
    return _pool_with_command(pool, shown_command(*staged)) if staged else pool


def with_command(kind: str, spec: JsonObject, command: Sequence[str]) -> JsonObject:
    """Return `spec` with a command for every container."""
    return _pools_changed(kind, spec, lambda pool: _pool_with_command(pool, command))


def _pool_with_command(pool: JsonObject, command: Sequence[str]) -> JsonObject:
    if "containerSpec" not in pool:
        return pool
    return {**pool, "containerSpec": {**pool["containerSpec"], "command": [*command]}}
