"""AI Platform Training: projects.jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from reconciler.training_service.apis.training import JobHandlers, created, place_of, times_of
from reconciler.training_service.apis.validation import label_mistakes, ml_job_mistakes
from reconciler.training_service.http import field_masks, filters
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.message import ApiError, violations
from reconciler.training_service.state.database import AlreadyExistsError
from reconciler.training_service.state.records import (
    ML_JOBS,
    UNREADABLE,
    JobRecord,
    JobState,
    JsonObject,
    error_of,
    is_failed_set_up,
)
from reconciler.training_service.state.trial_records import TrialRecord
from reconciler.training_service.storage.files import bucket_of, is_bucket_name
from reconciler.training_service.tuning.checks import Mistake
from reconciler.training_service.tuning.resources import training_output
from reconciler.training_service.tuning.study import is_tuning

# Output-only fields that the discovery document doesn't mark as such.
_OUTPUTS = ("trainingOutput", "predictionOutput", "etag")


class MlJobs(JobHandlers):
    """Handlers of projects.jobs."""

    collection = ML_JOBS
    cancel_message = "The job was cancelled by the user."
    not_found_message = "Field: name Error: The specified job was not found: {}"
    default_page = 20
    largest_page = 100

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by method id."""
        return {
            "ml.projects.jobs.create": self._create,
            "ml.projects.jobs.get": self._get,
            "ml.projects.jobs.list": self._list,
            "ml.projects.jobs.cancel": self._cancel,
            "ml.projects.jobs.patch": self._patch,
            "ml.projects.jobs.getIamPolicy": self._policy,
        }

    def _create(self, call: Call) -> JsonObject:
        self._check([*ml_job_mistakes(call.body), *self._bucket_mistakes(call), *self._resume_mistakes(call)])
        body = {name: value for name, value in call.body.items() if name not in _OUTPUTS}
        try:
            return self._add(call, body["jobId"], body)
        except AlreadyExistsError as error:
            text = f"Field: job.job_id Error: A job with this id already exists: {body['jobId']}"
            raise ApiError("ALREADY_EXISTS", text) from error

    def refused(self, mistakes: Sequence[Mistake]) -> ApiError:
        """Return the API's error for a request with mistakes."""
        return violations(mistakes, "\n".join(f"Field: {path} Error: {text}" for path, text in mistakes))

    def _check(self, mistakes: Sequence[Mistake]) -> None:
        if mistakes:
            raise self.refused(mistakes)

    def listed_resource(self, call: Call) -> Callable[[JobRecord], JsonObject]:
        """Return the function that makes an item of a list, without trials if `fields` excludes them."""
        return self._with_trials if _selects_output(call) else self._without_trials

    def _patch(self, call: Call) -> JsonObject:
        job = self._named(call)
        if "body" in job.unreadable:  # the labels are a part of it
            raise ApiError("FAILED_PRECONDITION", error_of(job)[1])
        paths = {path.strip() for path in call.text("updateMask").split(",")}
        if "labels" not in paths or paths - {"labels", "etag"}:
            raise violations(
                [("update_mask", "The update mask may hold labels and etag, and must hold labels.")]
            )
        self._check(list(label_mistakes(call.body)))
        etag = str(call.body.get("etag", "")) if "etag" in paths else ""
        changed = self._store.set_labels(
            job.id, call.body.get("labels", {}), only_etag=etag, at=self._store.now()
        )
        if changed is None:
            raise ApiError("ABORTED", "The etag is not the job's: somebody else has changed it meanwhile.")
        return self._with_trials(changed)

    def _policy(self, call: Call) -> JsonObject:
        """Return the policy of a job for which nobody has set one: the service keeps none."""
        self._named(call)
        return {"etag": "ACAB"}  # the etag of Google's empty policy

    def _bucket_mistakes(self, call: Call) -> Iterator[Mistake]:
        # Google validated the path of `jobDir` before the job was queued, as
        # https://github.com/vijaykyr/tensorflow_teaching_examples/issues/2 reports.
        bucket = bucket_of(call.body.get("trainingInput", {}).get("jobDir", ""))
        if bucket and not (is_bucket_name(bucket) and (self._home / "gcs" / bucket).is_dir()):
            text = f"There is no bucket {bucket}: correct its name, or create it first."
            yield "training_input.job_dir", text

    def _resume_mistakes(self, call: Call) -> Iterator[Mistake]:
        # A tuning job may continue with the trials of an earlier one, which must still exist.
        spec = call.body.get("trainingInput", {}).get("hyperparameters", {})
        previous = spec.get("resumePreviousJobId")
        if not previous:
            return
        job = self._store.find(ML_JOBS, *place_of(call), previous)
        if job is None or not is_tuning(job):
            yield (
                "training_input.hyperparameters.resume_previous_job_id",
                f"There is no hyperparameter tuning job of this project with the id {previous}.",
            )

    def resource(self, job: JobRecord, trials: Sequence[TrialRecord]) -> JsonObject:
        """Return the job in the API's form."""
        output = training_output(job, trials) if is_tuning(job) else {}
        return {
            "jobId": job.job_id,
            **job.body,
            **times_of(job),
            "state": "STATE_UNSPECIFIED" if "state" in job.unreadable else str(job.state),
            **({"errorMessage": message} if (message := _error_message(job)) else {}),
            "trainingOutput": output,
            "etag": job.etag,
        }

    def filter_field(self, path: tuple[str, ...]) -> filters.Field[JobRecord] | None:
        """Return the field for a path in filters; None if there is none."""
        match path:
            case ("jobId" | "job_id",):
                return filters.text_field(lambda job: job.job_id, "=", "!=", ":")
            case ("state",):
                return filters.choice_field(lambda job: str(job.state), tuple(JobState), "=", "!=", ":")
            case ("createTime" | "create_time",):
                return filters.ordered_field(created, filters.moment)
            case ("labels", *key) if key:
                return filters.map_field(lambda job: job.body.get("labels", {}), ".".join(key))
        return None


def _error_message(job: JobRecord) -> str:
    """Return the job's message, with a cause before it that no field of the API has.

    It is that of a failed set-up, or of a record that can't be read.
    """
    _, message, details = error_of(job)
    if details.get("reason") == UNREADABLE:
        return f"Unreadable ({details['columns']}): {message}"
    if not (job.state is JobState.FAILED and is_failed_set_up(details)):
        return message
    named = (f"; {name}={details[name]}" for name in ("image", "entry") if details.get(name))
    return f"Set-up failed ({details['reason']}{''.join(named)}): {message}"


def _selects_output(call: Call) -> bool:
    # Trials are most of a tuning job's size: a list whose `fields` exclude the output saves reading them.
    text = call.request.parameter("fields")
    mask = field_masks.cached_mask(text) if text else {}
    for name in ("jobs", "trainingOutput"):
        if not mask:
            return True
        below = mask.get(name, mask.get("*"))
        if below is None:
            return False
        mask = below
    return True
