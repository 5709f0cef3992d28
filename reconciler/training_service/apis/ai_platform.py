"""AI Platform Training: projects.jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from reconciler.training_service.apis import training as required
from reconciler.training_service.apis.training import Training, page_size
from reconciler.training_service.http import fields, filters
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.message import ApiError, invalid, not_found, violations
from reconciler.training_service.state.records import ML_JOBS, JobRecord, JobState, JsonObject, TrialRecord
from reconciler.training_service.state.store import AlreadyExistsError
from reconciler.training_service.tuning.resources import training_output
from reconciler.training_service.tuning.study import is_tuning

DEFAULT_PAGE = 20
LARGEST_PAGE = 100

# What only the service sets, though its discovery document doesn't mark it so.
_OUTPUTS = ("trainingOutput", "predictionOutput", "etag")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}")


class MlApi:
    """The handlers of projects.jobs."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def handlers(self) -> dict[str, Handler]:
        """By method id."""
        return {
            "ml.projects.jobs.create": self._create,
            "ml.projects.jobs.get": self._get,
            "ml.projects.jobs.list": self._list,
            "ml.projects.jobs.cancel": self._cancel,
            "ml.projects.jobs.patch": self._patch,
        }

    def _create(self, call: Call) -> JsonObject:
        _refuse([*required.ml_job(call.body), *self._not_resumable(call)])
        body = {name: value for name, value in call.body.items() if name not in _OUTPUTS}
        try:
            project, until = _project(call), call.access.until
            return resource(self._training.create(ML_JOBS, project, "", body["jobId"], body, until), ())
        except AlreadyExistsError as error:
            text = f"Field: job.job_id Error: A job with this id already exists: {body['jobId']}"
            raise ApiError("ALREADY_EXISTS", text) from error

    def _get(self, call: Call) -> JsonObject:
        return self._told(self._named(call))

    def _list(self, call: Call) -> JsonObject:
        whole = self._told if _wants_output(call) else _without_trials
        place = (ML_JOBS, _project(call), "")
        size = page_size(call, DEFAULT_PAGE, LARGEST_PAGE)
        return self._training.listed(call, place, _filter(call.text("filter")), size, whole)

    def _cancel(self, call: Call) -> JsonObject:
        self._training.cancel(self._named(call), "The job was cancelled by the user.")
        return {}

    def _patch(self, call: Call) -> JsonObject:
        job = self._named(call)
        paths = {path.strip() for path in call.text("updateMask").split(",")}
        if "labels" not in paths or paths - {"labels", "etag"}:
            raise violations(
                [("update_mask", "The update mask may hold labels and etag, and must hold labels.")]
            )
        _refuse(list(required.labels(call.body)))
        etag = str(call.body.get("etag", "")) if "etag" in paths else ""
        store = self._training.store
        changed = store.set_labels(job.id, call.body.get("labels", {}), only_etag=etag, at=store.now())
        if changed is None:
            raise ApiError("ABORTED", "The etag is not the job's: somebody else has changed it meanwhile.")
        return self._told(changed)

    def _told(self, job: JobRecord) -> JsonObject:
        return resource(job, self._training.store.trials(job.id) if is_tuning(job) else ())

    def _not_resumable(self, call: Call) -> Iterator[required.Mistake]:
        """A tuning job goes on with the trials of one that was there before."""
        spec = call.body.get("trainingInput", {}).get("hyperparameters", {})
        previous = spec.get("resumePreviousJobId")
        if not previous:
            return
        found = self._training.store.find(ML_JOBS, _project(call), "", previous)
        if found is None or not is_tuning(found):
            yield (
                "training_input.hyperparameters.resume_previous_job_id",
                f"There is no hyperparameter tuning job of this project with the id {previous}.",
            )

    def _named(self, call: Call) -> JobRecord:
        project, job_id = _project(call), call.path["jobsId"]
        job = self._training.store.find(ML_JOBS, project, "", job_id)
        if job is None:
            raise not_found(
                f"Field: name Error: The specified job was not found: projects/{project}/jobs/{job_id}"
            )
        return job


def resource(job: JobRecord, trials: Sequence[TrialRecord]) -> JsonObject:
    """The job as the API gives it."""
    times = {"startTime": job.start_time, "endTime": job.end_time}
    output = training_output(job, trials) if is_tuning(job) else {}
    return {
        **job.body,
        "createTime": job.create_time,
        **{name: time for name, time in times.items() if time},
        "state": str(job.state),
        **({"errorMessage": job.error_message} if job.error_message else {}),
        "trainingOutput": output,
        "etag": job.etag,
    }


def _wants_output(call: Call) -> bool:
    """Whether a list is to hold the jobs' outputs. Trials are most of a job: where not, they aren't read."""
    text = call.request.parameter("fields")
    wanted = fields.parsed(text) if text else {}
    for name in ("jobs", "trainingOutput"):
        if not wanted:
            return True
        found = wanted.get(name, wanted.get("*"))
        if found is None:
            return False
        wanted = found
    return True


def _without_trials(job: JobRecord) -> JsonObject:
    return resource(job, ())


def _project(call: Call) -> str:
    project = call.path["projectsId"]
    if not _PROJECT.fullmatch(project):
        raise invalid(f"Invalid resource name: projects/{project}")
    return project


def _refuse(mistakes: list[required.Mistake]) -> None:
    if mistakes:
        raise violations(mistakes, "\n".join(f"Field: {path} Error: {text}" for path, text in mistakes))


@lru_cache(maxsize=100)
def _filter(text: str) -> filters.Predicate[JobRecord]:
    return filters.compiled(filters.parse(text), _field)


def _field(path: tuple[str, ...]) -> filters.Field[JobRecord] | None:
    match path:
        case ("jobId" | "job_id",):
            return filters.text_field(lambda job: job.job_id, "=", "!=", ":")
        case ("state",):
            return filters.choice_field(lambda job: str(job.state), tuple(JobState), "=", "!=", ":")
        case ("createTime" | "create_time",):
            return filters.ordered_field(lambda job: filters.moment(job.create_time), filters.moment)
        case ("labels", *key) if key:
            return filters.map_field(lambda job: job.body.get("labels", {}), ".".join(key))
    return None
