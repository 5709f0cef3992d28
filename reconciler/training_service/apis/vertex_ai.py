"""Vertex AI: projects.locations.customJobs and projects.locations.hyperparameterTuningJobs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from reconciler.training_service.apis import training as required
from reconciler.training_service.apis.training import Training, page_size
from reconciler.training_service.http import fields, filters
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.message import ApiError, invalid, not_found, violations
from reconciler.training_service.state.records import (
    CUSTOM_JOBS,
    TUNING_JOBS,
    JobRecord,
    JobState,
    JsonObject,
    TrialRecord,
    number_of,
)
from reconciler.training_service.tuning.resources import vertex_trials
from reconciler.training_service.tuning.study import is_tuning

DEFAULT_PAGE = 100
LARGEST_PAGE = 1000

STATES: Mapping[JobState, str] = {
    state: "JOB_STATE_PENDING" if state is JobState.PREPARING else f"JOB_STATE_{state}" for state in JobState
}
_STATE_NAMES = (*STATES.values(), "JOB_STATE_PAUSED", "JOB_STATE_EXPIRED", "JOB_STATE_UPDATING")
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}")


@dataclass(frozen=True, slots=True)
class _Kind:
    collection: str
    mistakes: Callable[[JsonObject], Iterator[required.Mistake]]


_KINDS = (_Kind(CUSTOM_JOBS, required.custom_job), _Kind(TUNING_JOBS, required.tuning_job))


class AiPlatformApi:
    """The handlers of both collections; they differ in nothing but their messages."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def handlers(self) -> dict[str, Handler]:
        """By method id."""
        return {
            f"aiplatform.projects.locations.{kind.collection}.{verb}": partial(handler, kind)
            for kind in _KINDS
            for verb, handler in (
                ("create", self._create),
                ("get", self._get),
                ("list", self._list),
                ("cancel", self._cancel),
                ("delete", self._delete),
            )
        }

    def _create(self, kind: _Kind, call: Call) -> JsonObject:
        mistakes = list(kind.mistakes(call.body))
        if mistakes:
            told = "".join(
                f"{n}.Field: {path}; Message: {text}\t" for n, (path, text) in enumerate(mistakes, 1)
            )
            raise violations(mistakes, f"List of found errors:\t{told}")
        project, location = _place(call)
        job_id = str(secrets.randbelow(8 * 10**18) + 10**18)
        return resource(
            self._training.create(kind.collection, project, location, job_id, call.body, call.access.until),
            (),
        )

    def _get(self, kind: _Kind, call: Call) -> JsonObject:
        job = self._named(kind, call)
        return resource(job, self._trials(job))

    def _list(self, kind: _Kind, call: Call) -> JsonObject:
        place = (kind.collection, *_place(call))
        mask = fields.parse_paths(call.text("readMask")) if call.text("readMask") else {}
        # Trials are most of a job: they aren't even read where nobody wants them.
        trials = not mask or "trials" in mask or "*" in mask

        def whole(job: JobRecord) -> JsonObject:
            selected: JsonObject = fields.select(resource(job, self._trials(job) if trials else ()), mask)
            return selected

        size = page_size(call, DEFAULT_PAGE, LARGEST_PAGE)
        return self._training.listed(call, place, _filter(call.text("filter")), size, whole)

    def _cancel(self, kind: _Kind, call: Call) -> JsonObject:
        self._training.cancel(self._named(kind, call), "CANCELED")
        return {}

    def _delete(self, kind: _Kind, call: Call) -> JsonObject:
        job = self._named(kind, call)
        if not job.state.ended:
            raise ApiError(
                "FAILED_PRECONDITION",
                f"The job is in state {STATES[job.state]}: only a job that has ended can be deleted.",
            )
        self._training.delete(job)
        return _deletion(job, self._training.store.now())

    def _trials(self, job: JobRecord) -> Sequence[TrialRecord]:
        return self._training.store.trials(job.id) if is_tuning(job) else ()

    def _named(self, kind: _Kind, call: Call) -> JobRecord:
        job_id = call.path[f"{kind.collection}Id"]
        project, location = _place(call)
        job = self._training.store.find(kind.collection, project, location, job_id)
        if job is None:
            name = f"projects/{project}/locations/{location}/{kind.collection}/{job_id}"
            raise not_found(f"The resource {name} is not found.")
        return job


def name_of(job: JobRecord) -> str:
    """The job's resource name, in which the project stands by its number."""
    return f"projects/{number_of(job.project)}/locations/{job.location}/{job.collection}/{job.job_id}"


def resource(job: JobRecord, trials: Sequence[TrialRecord]) -> JsonObject:
    """The job as the API gives it."""
    told = vertex_trials(job, trials) if trials else []
    times = {"startTime": job.start_time, "endTime": job.end_time}
    error = {"code": job.error_code, "message": job.error_message}
    return {
        "name": name_of(job),
        **job.body,
        **({"trials": told} if told else {}),
        "state": STATES[job.state],
        "createTime": job.create_time,
        **{name: time for name, time in times.items() if time},
        "updateTime": job.update_time,
        **({"error": error} if job.error_code else {}),
    }


def _place(call: Call) -> tuple[str, str]:
    project, location = call.path["projectsId"], call.path["locationsId"]
    if not _PLACE.fullmatch(project) or not _PLACE.fullmatch(location):
        raise invalid(f"Invalid resource name: projects/{project}/locations/{location}")
    return project, location


def _deletion(job: JobRecord, at: str) -> JsonObject:
    """The long-running operation that a delete answers with; it is over."""
    metadata = "type.googleapis.com/google.cloud.aiplatform.v1.DeleteOperationMetadata"
    return {
        "name": f"{name_of(job).rsplit('/', 2)[0]}/operations/{secrets.randbelow(8 * 10**18) + 10**18}",
        "metadata": {"@type": metadata, "genericMetadata": {"createTime": at, "updateTime": at}},
        "done": True,
        "response": {"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}},
    }


@lru_cache(maxsize=100)
def _filter(text: str) -> filters.Predicate[JobRecord]:
    return filters.compiled(filters.parse(text), _field)


def _field(path: tuple[str, ...]) -> filters.Field[JobRecord] | None:
    match path:
        case ("display_name",):
            return filters.text_field(lambda job: str(job.body.get("displayName", "")), "=", "!=", ":")
        case ("state",):
            return filters.choice_field(lambda job: STATES[job.state], _STATE_NAMES, "=", "!=")
        case ("create_time",):
            return filters.ordered_field(lambda job: filters.moment(job.create_time), filters.moment)
        case ("labels", *key) if key:
            return filters.map_field(lambda job: job.body.get("labels", {}), ".".join(key))
    return None
