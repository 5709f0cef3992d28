"""Vertex AI: projects.locations.customJobs and projects.locations.hyperparameterTuningJobs.

Training pipelines, which have the same methods, are in `pipelines.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from reconciler.training_service.apis.training import JobHandlers, created, times_of
from reconciler.training_service.apis.validation import custom_job_mistakes, tuning_job_mistakes
from reconciler.training_service.apis.vertex_answers import deletion, refused
from reconciler.training_service.http import field_masks, filters
from reconciler.training_service.http.call import Call, Handler
from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state.database import new_number
from reconciler.training_service.state.records import (
    CUSTOM_JOBS,
    TUNING_JOBS,
    JobRecord,
    JobState,
    JsonObject,
    error_of,
    error_status,
    resource_name,
)
from reconciler.training_service.state.trial_records import TrialRecord
from reconciler.training_service.tuning.checks import Mistake
from reconciler.training_service.tuning.resources import vertex_trials

_ENUM_NAMES = {state: "PENDING" if state is JobState.PREPARING else str(state) for state in JobState}


class VertexJobs(JobHandlers):
    """Handlers of one collection.

    Attributes:
        mistakes: Validates a new resource.
        state_prefix: The beginning of its states' names.
        other_states: The names of the states that no job here is ever in.
    """

    cancel_message = "CANCELED"
    not_found_message = "The resource {} is not found."
    default_page = 100
    largest_page = 1000
    mistakes: Callable[[JsonObject], Iterator[Mistake]]
    state_prefix = "JOB_STATE_"
    other_states: tuple[str, ...] = ("PAUSED", "EXPIRED", "UPDATING")

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by method id."""
        prefix = f"aiplatform.projects.locations.{self.collection}"
        return {
            f"{prefix}.create": self._create,
            f"{prefix}.get": self._get,
            f"{prefix}.list": self._list,
            f"{prefix}.cancel": self._cancel,
            f"{prefix}.delete": self._delete,
        }

    def _create(self, call: Call) -> JsonObject:
        if mistakes := list(self.mistakes(call.body)):
            raise self.refused(mistakes)
        return self._add(call, new_number(), call.body)

    def refused(self, mistakes: Sequence[Mistake]) -> ApiError:
        """Return the API's error for a request with mistakes."""
        return refused(mistakes)

    def listed_resource(self, call: Call) -> Callable[[JobRecord], JsonObject]:
        """Return the function that makes an item of a list, with the fields of the read mask."""
        mask = field_masks.mask_of_paths(call.text("readMask")) if call.text("readMask") else {}
        # Trials are most of a tuning job's size: a mask without them saves reading them.
        whole = not mask or "trials" in mask or "*" in mask
        resource = self._with_trials if whole else self._without_trials
        return lambda job: field_masks.masked(resource(job), mask)

    def _delete(self, call: Call) -> JsonObject:
        job = self._named(call)
        if not job.state.ended:
            raise ApiError(
                "FAILED_PRECONDITION",
                f"The job is in state {self._state_name(job)}: only a job that has ended can be deleted.",
            )
        self._remove(job)
        return deletion(resource_name(job).rsplit("/", 2)[0], self._store.now())

    def resource(self, job: JobRecord, trials: Sequence[TrialRecord]) -> JsonObject:
        """Return the job in the API's form."""
        shown = vertex_trials(job, trials) if trials else []
        code, message, details = error_of(job)
        state = f"{self.state_prefix}UNSPECIFIED" if "state" in job.unreadable else self._state_name(job)
        return {
            "name": resource_name(job),
            "displayName": job.name,
            **job.body,
            **({"trials": shown} if shown else {}),
            "state": state,
            **times_of(job),
            **({"error": error_status(code, message, details)} if code else {}),
        }

    def filter_field(self, path: tuple[str, ...]) -> filters.Field[JobRecord] | None:
        """Return the field for a path in filters; None if there is none."""
        match path:
            case ("display_name",):
                return filters.text_field(lambda job: str(job.body.get("displayName", "")), "=", "!=", ":")
            case ("state",):
                names = [self.state_prefix + name for name in (*_ENUM_NAMES.values(), *self.other_states)]
                return filters.choice_field(self._state_name, tuple(names), "=", "!=")
            case ("create_time",):
                return filters.ordered_field(created, filters.moment)
            case ("labels", *key) if key:
                return filters.map_field(lambda job: job.body.get("labels", {}), ".".join(key))
        return None

    def _state_name(self, job: JobRecord) -> str:
        return self.state_prefix + _ENUM_NAMES[job.state]


class CustomJobs(VertexJobs):
    """Handlers of projects.locations.customJobs."""

    collection = CUSTOM_JOBS
    mistakes = staticmethod(custom_job_mistakes)


class TuningJobs(VertexJobs):
    """Handlers of projects.locations.hyperparameterTuningJobs."""

    collection = TUNING_JOBS
    mistakes = staticmethod(tuning_job_mistakes)
