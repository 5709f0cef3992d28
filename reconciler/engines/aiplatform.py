"""Vertex AI: `aiplatform.googleapis.com/v1` `customJobs` and `hyperparameterTuningJobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from reconciler import schemas
from reconciler.engines.base import DEFAULT_TIMEOUT, Connection, created, execute, hours, pages
from reconciler.job import ActualJob, State
from reconciler.manifest import AIPLATFORM_V1, JsonObject
from reconciler.staged import without_staged

_COLLECTIONS = {"CustomJob": "customJobs", "HyperparameterTuningJob": "hyperparameterTuningJobs"}
_CONSOLE_PAGES = {"CustomJob": "training", "HyperparameterTuningJob": "hyperparameter-tuning-jobs"}
_LISTED = "name,displayName,state,labels,createTime,startTime,endTime,error"
_PAGE_SIZE = 100

# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState. A word that is not here, PAUSED and
# UPDATING count as RUNNING: nothing but an end that was seen may be told as an end.
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


class AiPlatformEngine:
    """Custom jobs and hyper-parameter tuning jobs of one project and location."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @staticmethod
    def manifest_schema(kind: str) -> JsonObject | None:
        """The schema that ships with the reconciler."""
        return schemas.manifest_schema(AIPLATFORM_V1, kind)

    @staticmethod
    def module(kind: str, spec: JsonObject) -> str:
        """The first pool's module that there is."""
        packages = (pool.get("pythonPackageSpec") for pool in _job_spec(kind, spec)["workerPoolSpecs"])
        return next((str(package["pythonModule"]) for package in packages if package), "")

    @staticmethod
    def accelerator_hours(kind: str, spec: JsonObject) -> float:
        """`acceleratorCount` of all replicas, times `scheduling.timeout`, times `maxTrialCount`."""
        job_spec = _job_spec(kind, spec)
        pools = sum(_accelerators(pool) for pool in job_spec["workerPoolSpecs"])
        timeout = job_spec.get("scheduling", {}).get("timeout", DEFAULT_TIMEOUT)
        return pools * int(spec.get("maxTrialCount", 1)) * hours(timeout)

    @staticmethod
    def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
        """`serviceAccount`, `network`, `timeout` and `baseOutputDirectory` where the manifest has none."""
        return _job_spec_changed(kind, spec, lambda job_spec: _filled(job_spec, defaults, job_name))

    @staticmethod
    def with_package(kind: str, spec: JsonObject, uri: str) -> JsonObject:
        """`uri` after the package URIs of every pool that runs a Python package."""
        return _pools_changed(kind, spec, lambda pool: _pool_with(pool, uri))

    @staticmethod
    def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
        """A `CustomJob` or `HyperparameterTuningJob` resource."""
        head: dict[str, Any] = {"displayName": job_name, "labels": dict(labels)}
        if kind != "CustomJob":
            return {**head, **spec}
        job_spec = {name: value for name, value in spec.items() if name != "encryptionSpec"}
        encryption = {"encryptionSpec": spec["encryptionSpec"]} if "encryptionSpec" in spec else {}
        return {**head, "jobSpec": job_spec, **encryption}

    def jobs(self, label: tuple[str, str]) -> Iterator[ActualJob]:
        """The jobs of both kinds with this label."""
        name, value = label
        for kind, key in _COLLECTIONS.items():
            collection = self._collection(kind)
            request = collection.list(
                parent=self._parent,
                filter=f'labels.{name}="{value}"',
                pageSize=_PAGE_SIZE,
                fields=f"{key}({_LISTED}),nextPageToken",
            )
            for resource in pages(collection, request, key):
                yield self._actual(kind, resource)

    def read(self, job: ActualJob) -> ActualJob:
        """The job as it is now, with its spec."""
        return self._actual(job.kind, execute(self._collection(job.kind).get(name=job.resource)))

    def create(self, kind: str, body: JsonObject) -> ActualJob:
        """One `create`; Vertex AI takes no id from the caller, so that a second one would be a second job."""
        answer = execute(self._collection(kind).create(parent=self._parent, body=body))
        return self._actual(kind, created(answer, "name"))

    def cancel(self, job: ActualJob) -> None:
        """One `cancel`: best effort, says the service."""
        execute(self._collection(job.kind).cancel(name=job.resource, body={}))

    @property
    def _parent(self) -> str:
        endpoint = self._connection.endpoint
        return f"projects/{endpoint.project}/locations/{endpoint.location}"

    def _collection(self, kind: str) -> Any:
        locations = self._connection.aiplatform.projects().locations()
        return getattr(locations, _COLLECTIONS[kind])()

    def _actual(self, kind: str, resource: JsonObject) -> ActualJob:
        word = resource.get("state", "")
        return ActualJob(
            resource=resource["name"],
            job_name=resource.get("displayName", ""),
            api_version=AIPLATFORM_V1,
            kind=kind,
            state=_STATES.get(word, State.RUNNING),
            service_state=word,
            labels=resource.get("labels", {}),
            spec=_spec_of(kind, resource),
            create_time=resource.get("createTime", ""),
            start_time=resource.get("startTime", ""),
            end_time=resource.get("endTime", ""),
            error=resource.get("error", {}).get("message", ""),
            url=self._url(kind, resource["name"]),
        )

    def _url(self, kind: str, name: str) -> str:
        endpoint = self._connection.endpoint
        if not endpoint.console:
            return ""
        job_id = name.rpartition("/")[2]
        page = f"locations/{endpoint.location}/{_CONSOLE_PAGES[kind]}/{job_id}"
        return f"https://console.cloud.google.com/vertex-ai/{page}?project={endpoint.project}"


def _job_spec(kind: str, spec: JsonObject) -> JsonObject:
    """The `CustomJobSpec`: all of a custom job's spec, a tuning job's `trialJobSpec`."""
    part: JsonObject = spec if kind == "CustomJob" else spec["trialJobSpec"]
    return part


def _accelerators(pool: JsonObject) -> int:
    machine = pool.get("machineSpec", {})
    return int(pool.get("replicaCount", 1)) * int(machine.get("acceleratorCount", 0))


def _job_spec_changed(kind: str, spec: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """`spec` with its `CustomJobSpec` changed."""
    if kind == "CustomJob":
        return change(spec)
    return {**spec, "trialJobSpec": change(spec["trialJobSpec"])}


def _filled(job_spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
    filled: dict[str, Any] = {
        name: defaults[name] for name in ("serviceAccount", "network") if name in defaults
    }
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
    """The part of a resource that a manifest's `spec` stands for; empty where the listing left it out."""
    names = ("studySpec", "trialJobSpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount")
    own = resource.get("jobSpec", {}) if kind == "CustomJob" else _of_names(names, resource)
    spec = {**own, **_of_names(("encryptionSpec",), resource)}
    if "workerPoolSpecs" not in spec and "trialJobSpec" not in spec:
        return spec
    return _pools_changed(kind, spec, _pool_without_staged)


def _of_names(names: Iterable[str], resource: JsonObject) -> JsonObject:
    return {name: resource[name] for name in names if name in resource}


def _pools_changed(kind: str, spec: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    return _job_spec_changed(
        kind,
        spec,
        lambda job_spec: {**job_spec, "workerPoolSpecs": [change(p) for p in job_spec["workerPoolSpecs"]]},
    )


def _pool_without_staged(pool: JsonObject) -> JsonObject:
    if "pythonPackageSpec" not in pool:
        return pool
    return {**pool, "pythonPackageSpec": without_staged(pool["pythonPackageSpec"])}
