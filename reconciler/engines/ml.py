"""AI Platform Training: `ml.googleapis.com/v1` `projects.jobs`.

Google switched the service off on 2025-01-31; its manifests run on the embedded service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler import schemas
from reconciler.engines.base import DEFAULT_TIMEOUT, Connection, created, execute, hours, pages
from reconciler.job import ActualJob, State
from reconciler.manifest import ML_V1, JsonObject
from reconciler.staged import without_staged

_LISTED = "jobId,state,labels,createTime,startTime,endTime,errorMessage"
_PAGE_SIZE = 100
_KIND = "Job"
_ROLES = ("master", "worker", "parameterServer", "evaluator")

# The accelerators that a legacy machine name stands for: https://cloud.google.com/ml-engine/docs/machine-types.
_LEGACY = {
    "standard_gpu": 1,
    "standard_p100": 1,
    "standard_v100": 1,
    "large_model_v100": 1,
    "complex_model_m_gpu": 4,
    "complex_model_m_p100": 4,
    "complex_model_m_v100": 4,
    "complex_model_l_gpu": 8,
    "complex_model_l_v100": 8,
    "cloud_tpu": 1,
}


class MlEngine:
    """Training jobs of one project."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @staticmethod
    def manifest_schema(kind: str) -> JsonObject | None:
        """The schema that ships with the reconciler."""
        return schemas.manifest_schema(ML_V1, kind)

    @staticmethod
    def module(kind: str, spec: JsonObject) -> str:
        """`pythonModule`; a container has none."""
        return str(spec["trainingInput"].get("pythonModule", ""))

    @staticmethod
    def accelerator_hours(kind: str, spec: JsonObject) -> float:
        """The accelerators of all replicas, times `scheduling.maxRunningTime`, times `maxTrials`."""
        training = spec["trainingInput"]
        trials = int(training.get("hyperparameters", {}).get("maxTrials", 1))
        timeout = training.get("scheduling", {}).get("maxRunningTime", DEFAULT_TIMEOUT)
        return _accelerators(training) * trials * hours(timeout)

    @staticmethod
    def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
        """The defaults where the manifest has none; `baseOutputDirectory` is called `jobDir` here."""
        training = spec["trainingInput"]
        filled: dict[str, Any] = {
            name: defaults[name] for name in ("serviceAccount", "network", "region") if name in defaults
        }
        if "baseOutputDirectory" in defaults:
            filled["jobDir"] = f"{defaults['baseOutputDirectory'].rstrip('/')}/{job_name}"
        merged = {**filled, **training}
        if "timeout" in defaults:
            merged["scheduling"] = {"maxRunningTime": defaults["timeout"], **training.get("scheduling", {})}
        return {**spec, "trainingInput": merged}

    @staticmethod
    def with_package(kind: str, spec: JsonObject, uri: str) -> JsonObject:
        """`uri` after the package URIs that the manifest gives."""
        training = spec["trainingInput"]
        return {
            **spec,
            "trainingInput": {**training, "packageUris": [*training.get("packageUris", []), uri]},
        }

    @staticmethod
    def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
        """A `Job` resource."""
        return {"jobId": job_name, "trainingInput": spec["trainingInput"], "labels": dict(labels)}

    def jobs(self, label: tuple[str, str]) -> Iterator[ActualJob]:
        """The jobs with this label."""
        name, value = label
        request = self._jobs.list(
            parent=self._parent,
            filter=f'labels.{name}="{value}"',
            pageSize=_PAGE_SIZE,
            fields=f"jobs({_LISTED}),nextPageToken",
        )
        for resource in pages(self._jobs, request, "jobs"):
            yield self._actual(resource)

    def read(self, job: ActualJob) -> ActualJob:
        """The job as it is now, with its spec."""
        return self._actual(execute(self._jobs.get(name=job.resource)))

    def create(self, kind: str, body: JsonObject) -> ActualJob:
        """One `create`; a jobId that is taken is refused with ALREADY_EXISTS."""
        answer = execute(self._jobs.create(parent=self._parent, body=body))
        return self._actual(created(answer, "jobId"))

    def cancel(self, job: ActualJob) -> None:
        """One `cancel`."""
        execute(self._jobs.cancel(name=job.resource, body={}))

    @property
    def _jobs(self) -> Any:
        return self._connection.ml.projects().jobs()

    @property
    def _parent(self) -> str:
        return f"projects/{self._connection.endpoint.project}"

    def _actual(self, resource: JsonObject) -> ActualJob:
        word = resource.get("state", "")
        training = resource.get("trainingInput")
        spec = {"trainingInput": without_staged(training)} if training else {}
        return ActualJob(
            resource=f"{self._parent}/jobs/{resource['jobId']}",
            job_name=resource["jobId"],
            api_version=ML_V1,
            kind=_KIND,
            # A word that isn't known counts as RUNNING: only an end that was seen may be told as an end.
            state=State(word) if word in State.__members__ else State.RUNNING,
            service_state=word,
            labels=resource.get("labels", {}),
            spec=spec,
            create_time=resource.get("createTime", ""),
            start_time=resource.get("startTime", ""),
            end_time=resource.get("endTime", ""),
            error=resource.get("errorMessage", ""),
        )


def _accelerators(training: JsonObject) -> int:
    if training.get("scaleTier") in ("BASIC_GPU", "BASIC_TPU"):
        return 1
    return sum(_role_accelerators(training, role) for role in _ROLES)


def _role_accelerators(training: JsonObject, role: str) -> int:
    replicas = 1 if role == "master" else int(training.get(f"{role}Count", 0))
    config = training.get(f"{role}Config", {}).get("acceleratorConfig", {})
    return replicas * int(config.get("count", _LEGACY.get(training.get(f"{role}Type", ""), 0)))
