"""AI Platform Training: `ml.googleapis.com/v1` `projects.jobs`.

Google switched the service off on 2025-01-31; its manifests run on the embedded service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from reconciler.base.http import HttpResponse
from reconciler.google.client import Connection, execute, filter_of, object_of, with_headers
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
from reconciler.model.cause import marked_info
from reconciler.model.details import Goal, Measurement, Study, Trial, Workers
from reconciler.model.job import KEY, ActualJob, State, Trials
from reconciler.model.manifest import ML_V1, JsonObject

_LISTED = "jobId,state,labels,createTime,startTime,endTime,errorMessage"
_PAGE_SIZE = 100
_METHODS = "ml.projects.jobs"
_KIND = "Job"
_ROLES = ("master", "worker", "parameterServer", "evaluator")

# Accelerators of legacy machine types: https://cloud.google.com/ml-engine/docs/machine-types.
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


# Names of the roles' replicas in the log, and their numbers in the scale tiers other than CUSTOM:
# https://cloud.google.com/ai-platform/training/docs/machine-types#scale_tiers.
_TASKS = {"worker": "worker", "parameterServer": "ps", "evaluator": "evaluator"}
_TIERS = {"STANDARD_1": {"worker": 4, "ps": 3}, "PREMIUM_1": {"worker": 19, "ps": 11}}
_UNBEGUN = ("", "STATE_UNSPECIFIED", "QUEUED")

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

    @staticmethod
    def manifest_schema(kind: str) -> JsonObject | None:
        """Return the schema that ships with the reconciler."""
        return schemas.manifest_schema(ML_V1, kind)

    @staticmethod
    def module(kind: str, spec: JsonObject) -> str:
        """Return `pythonModule`; "" for a container."""
        return str(spec["trainingInput"].get("pythonModule", ""))

    @staticmethod
    def accelerator_hours(kind: str, spec: JsonObject) -> float:
        """Return the accelerators of all replicas times `scheduling.maxRunningTime` times `maxTrials`."""
        training = spec["trainingInput"]
        trials = int(training.get("hyperparameters", {}).get("maxTrials", 1))
        timeout = training.get("scheduling", {}).get("maxRunningTime", DEFAULT_TIMEOUT)
        return _accelerators(training) * trials * hours(timeout)

    @staticmethod
    def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
        """Fill in missing fields; `baseOutputDirectory` becomes `jobDir`."""
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
        """Append `uri` to the manifest's package URIs."""
        training = spec["trainingInput"]
        return {
            **spec,
            "trainingInput": {**training, "packageUris": [*training.get("packageUris", []), uri]},
        }

    @staticmethod
    def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
        """Return a `Job` resource."""
        return {"jobId": job_name, "trainingInput": spec["trainingInput"], "labels": dict(labels)}

    @staticmethod
    def replicas(kind: str, spec: JsonObject) -> Mapping[str, int]:
        """Return the replicas of each role, by the counts or by the scale tier."""
        training = part_of(spec, "trainingInput")
        counts = _TIERS.get(text_of(training, "scaleTier")) or {
            name: count_of(training, f"{role}Count") for role, name in _TASKS.items()
        }
        return {
            "master-replica-": 1,
            **{f"{name}-replica-": count for name, count in counts.items() if count},
        }

    @staticmethod
    def trials(job: ActualJob) -> Trials | None:
        """Return the trials in the output of a tuning job."""
        tuning = part_of(part_of(job.body, "trainingInput"), "hyperparameters")
        if not tuning:
            return None
        trials = parts_of(part_of(job.body, "trainingOutput"), "trials")
        begun = (text_of(trial, "trialId") for trial in trials if text_of(trial, "state") not in _UNBEGUN)
        goes_on = bool(text_of(tuning, "resumePreviousJobId"))
        return Trials(frozenset(begun), count_of(tuning, "maxTrials", 1), goes_on)

    @staticmethod
    def log_directory(kind: str, spec: JsonObject) -> str:
        """Return `jobDir`, which contains a folder for each trial."""
        return text_of(part_of(spec, "trainingInput"), "jobDir")

    @staticmethod
    def log_directory_field(kind: str) -> str:
        """Return the path of `jobDir`."""
        return "spec.trainingInput.jobDir"

    @staticmethod
    def workers(kind: str, spec: JsonObject) -> list[Workers]:
        """Return the roles that have replicas."""
        training = part_of(spec, "trainingInput")
        counts = AiPlatformTraining.replicas(kind, spec)
        names = {"master": "master", **_TASKS}
        return [
            _workers(training, role, count)
            for role in _ROLES
            if (count := counts.get(f"{names[role]}-replica-", 0))
        ]

    @staticmethod
    def limits(kind: str, spec: JsonObject) -> Mapping[str, str]:
        """Return the fields of `trainingInput` and of its `scheduling`."""
        training = part_of(spec, "trainingInput")
        given = {**training, "timeout": text_of(part_of(training, "scheduling"), "maxRunningTime")}
        return {name: text_of(given, name) for name in ("serviceAccount", "network", "timeout")}

    @staticmethod
    def output_directory(kind: str, spec: JsonObject) -> str:
        """Return `jobDir`, which contains a folder for each trial of a tuning job."""
        return text_of(part_of(spec, "trainingInput"), "jobDir").rstrip("/")

    @staticmethod
    def study(job: ActualJob) -> Study | None:
        """Return the trials in the output of a tuning job, by number: the service ranks them."""
        tuning = part_of(part_of(job.body, "trainingInput"), "hyperparameters")
        if not tuning:
            return None
        # "training/hptuning/metric" is the service's default.
        metric = text_of(tuning, "hyperparameterMetricTag") or "training/hptuning/metric"
        found = parts_of(part_of(job.body, "trainingOutput"), "trials")
        trials = sorted((_trial(metric, trial) for trial in found), key=lambda each: (len(each.id), each.id))
        goal = Goal(metric, text_of(tuning, "goal") != "MINIMIZE")
        scales = {
            text_of(each, "parameterName"): text_of(each, "scaleType") for each in parts_of(tuning, "params")
        }
        logarithmic = frozenset(name for name, scale in scales.items() if scale == "UNIT_LOG_SCALE")
        return Study((goal,), tuple(trials), count_of(tuning, "maxTrials", 1), logarithmic)

    def jobs(self, labels: Mapping[str, str], base: str = "", *, live: bool = False) -> tuple[ActualJob, ...]:
        """List the jobs with these labels; the other arguments are those of `Engine.jobs`."""
        wanted = filter_of(labels, f"{base}_" if base else "", "jobId", _ENDED_STATES if live else ())
        get = self._lister(wanted, f"jobs({_LISTED})")
        # A service that ignored the filter would return jobs of other repositories.
        found = (job for job in listing(get, _PAGES) if labels.items() <= job.labels.items())
        return tuple(self._actual(job, {}, {}) for job in found)

    def whole_jobs(self, wanted: str) -> list[ActualJob]:
        """List the jobs that a filter selects, with their specs."""
        found = listing(self._lister(wanted, "jobs"), ResourcePages(_PAGES))
        return [self._read(resource) for resource in found]

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
        training = part_of(resource, "trainingInput")
        spec = {"trainingInput": without_staged(training)} if training else {}
        return self._actual(typed_record(_Job, resource), spec, resource)

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
        )


def _workers(training: JsonObject, role: str, count: int) -> Workers:
    config, master = part_of(training, f"{role}Config"), part_of(training, "masterConfig")
    accelerators = part_of(config, "acceleratorConfig")
    shared = text_of(master, "imageUri")  # a package runs in it, if the job has one
    image = text_of(config, "imageUri") or shared
    python = text_of(training, "pythonVersion")
    runtime = f"runtime {text_of(training, 'runtimeVersion')}" + (f", Python {python}" if python else "")
    return Workers(
        name=role,
        count=count,
        machine=text_of(training, f"{role}Type") or text_of(training, "scaleTier"),
        accelerator=text_of(accelerators, "type"),
        accelerator_count=count_of(accelerators, "count"),
        image=image or runtime,
        module=text_of(training, "pythonModule") if image == shared else "",
        command=texts_in(config, "containerCommand"),
        args=texts_in(config, "containerArgs") or texts_in(training, "args"),
    )


def _trial(metric: str, trial: JsonObject) -> Trial:
    final = part_of(trial, "finalMetric")
    return Trial(
        id=text_of(trial, "trialId"),
        state=text_of(trial, "state"),
        parameters=values_of(part_of(trial, "hyperparameters").items()),
        metrics=_value_of(metric, final) if final else {},
        start_time=text_of(trial, "startTime"),
        end_time=text_of(trial, "endTime"),
        measurements=tuple(
            Measurement(count_of(each, "trainingStep") or number, _value_of(metric, each))
            for number, each in enumerate(parts_of(trial, "allMetrics"), 1)
        ),
    )


def _value_of(metric: str, measurement: JsonObject) -> Mapping[str, float]:
    return numbers_of([(metric, measurement.get("objectiveValue", 0.0))])


def _check_kind(kind: str) -> None:
    if kind != _KIND:
        raise unknown(f"AI Platform has no jobs of the kind {kind!r}")


def _checked_name(resource: str) -> str:
    # The name comes from a claim or a listing and becomes a part of an address.
    if not re.fullmatch(r"projects/[\w.:-]+/jobs/[\w-]+", resource, re.ASCII):
        raise unknown(f"{resource!r} is not a job of AI Platform")
    return resource


def _accelerators(training: JsonObject) -> int:
    if training.get("scaleTier") in ("BASIC_GPU", "BASIC_TPU"):
        return 1
    return sum(_role_accelerators(training, role) for role in _ROLES)


def _role_accelerators(training: JsonObject, role: str) -> int:
    replicas = 1 if role == "master" else int(training.get(f"{role}Count", 0))
    config = training.get(f"{role}Config", {}).get("acceleratorConfig", {})
    machine = training.get(f"{role}Type", "")
    return replicas * int(config.get("count", _LEGACY.get(machine, accelerators_of(machine))))
