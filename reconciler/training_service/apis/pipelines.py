"""Vertex AI: projects.locations.trainingPipelines.

A pipeline trains by its backing job, a customJob or a hyperparameterTuningJob, and then registers a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.training_service.apis.training import place_of
from reconciler.training_service.apis.unsupported import unsupported
from reconciler.training_service.apis.validation import (
    custom_job_mistakes,
    registration_mistakes,
    tuning_job_mistakes,
)
from reconciler.training_service.apis.vertex_ai import VertexJobs
from reconciler.training_service.http import filters
from reconciler.training_service.http.call import Call
from reconciler.training_service.http.json_mapping import read_message
from reconciler.training_service.http.message import ApiError, not_found
from reconciler.training_service.http.paging import Pages
from reconciler.training_service.jobs.cluster import job_spec_of
from reconciler.training_service.state.database import COPIED_LABELS, Store, new_number
from reconciler.training_service.state.models import (
    ModelExistsError,
    ModelName,
    ModelNotFoundError,
    ModelStore,
)
from reconciler.training_service.state.records import (
    CUSTOM_JOBS,
    PIPELINES,
    TUNING_JOBS,
    UNFINISHED,
    JobRecord,
    JobState,
    JsonObject,
    as_unreadable,
    details_of,
    resource_name,
)
from reconciler.training_service.state.trial_records import TrialRecord
from reconciler.training_service.tuning.checks import NOT_SET, Mistake

_FOLDER = "gs://google-cloud-aiplatform/schema/trainingjob/definition/"
_DEFINITION = re.compile(re.escape(_FOLDER) + r"([a-z0-9_]+?)_([0-9]+(?:\.[0-9]+)*)\.yaml")
_V1 = "GoogleCloudAiplatformV1"
_INPUTS = "training_task_inputs"
_NO_DATASETS = (
    "This service has no managed datasets. Leave it out, and read the data from Cloud Storage by arguments of"
    " the trainer."
)


@dataclass(frozen=True, slots=True)
class _Task:
    """Training task that this service runs.

    Attributes:
        inputs: The schema of its inputs.
        collection: The collection of the backing job.
        metadata: The field of the metadata that names the backing job.
        field: The field of the backing job that holds the inputs; "" if they are the job's own fields.
        suffix: The end of the backing job's name.
        mistakes: Validates the backing job.
    """

    inputs: str
    collection: str
    metadata: str
    field: str
    suffix: str
    mistakes: Callable[[JsonObject], Iterator[Mistake]]


_TASKS = {
    "custom_task": _Task(
        inputs=f"{_V1}CustomJobSpec",
        collection=CUSTOM_JOBS,
        metadata="backingCustomJob",
        field="jobSpec",
        # As reported: github.com/googleapis/python-aiplatform/issues/2997. The other one's isn't known.
        suffix="-custom-job",
        mistakes=custom_job_mistakes,
    ),
    "hyperparameter_tuning_task": _Task(
        inputs=f"{_V1}SchemaTrainingjobDefinitionHyperparameterTuningJobSpec",
        collection=TUNING_JOBS,
        metadata="backingHyperparameterTuningJob",
        field="",
        suffix="-hyperparameter-tuning-job",
        mistakes=tuning_job_mistakes,
    ),
}
_METADATA: Mapping[str, str] = {task.collection: task.metadata for task in _TASKS.values()}


class Pipelines(VertexJobs):
    """Handlers of projects.locations.trainingPipelines."""

    collection = PIPELINES
    state_prefix = "PIPELINE_STATE_"
    other_states = ("PAUSED",)

    def __init__(self, store: Store, home: Path, pages: Pages, wake: Callable[[], None]) -> None:
        super().__init__(store, home, pages, wake)
        self._models = ModelStore(store.database, store.clock)

    def _create(self, call: Call) -> JsonObject:
        body = call.body
        name = _task_name(body.get("trainingTaskDefinition", ""))
        task = _TASKS.get(name)
        mistakes = [*_mistakes(body), *([] if task else [("training_task_definition", _unknown(name))])]
        if "trainingTaskInputs" not in body:
            mistakes.append((_INPUTS, NOT_SET))
        if task is None or "trainingTaskInputs" not in body:
            raise self.refused(mistakes)
        backing = self._backing(call, task)
        mistakes += _mistakes_of_backing(task, backing, body)
        if mistakes:
            raise self.refused(mistakes)
        if "modelToUpload" in body:
            self._check_model(call)
        pipeline = self._new(call, PIPELINES, new_number(), body)
        return self._save(call, replace(pipeline, backing=f"{backing.collection}/{backing.job_id}"), backing)

    def _backing(self, call: Call, task: _Task) -> JobRecord:
        """Return the backing job of a new pipeline.

        Raises:
            ApiError: INVALID_ARGUMENT: The inputs aren't of the form that the task definition demands.
        """
        body = call.body
        # The API's field is of any type, but a definition's inputs are a message: its names may be in
        # snake_case too, as the SDK sends them.
        inputs = read_message(
            call.method.api, task.inputs, body["trainingTaskInputs"], f"training_pipeline.{_INPUTS}"
        )
        copied = ("encryptionSpec", *(("labels",) if self._store.setting(COPIED_LABELS) else ()))
        job = {
            "displayName": body.get("displayName", "") + task.suffix,
            **{name: body[name] for name in copied if name in body},
            **({task.field: inputs} if task.field else inputs),
        }
        return self._new(call, task.collection, new_number(), job)

    def _check_model(self, call: Call) -> None:
        """Raise NOT_FOUND or FAILED_PRECONDITION if the model can't be registered after the training."""
        parent, model_id = (call.body.get(name, "") for name in ("parentModel", "modelId"))
        try:
            self._models.check_new(*place_of(call), model_id=model_id, parent=parent)
        except ModelNotFoundError:
            text = f"The parentModel {parent} doesn't exist in the pipeline's project and location."
            raise not_found(f"{text} Upload it first, or leave parentModel out.") from None
        except ModelExistsError:
            name = ModelName(*place_of(call), model_id)
            text = f"The modelId {model_id} is already used. Take another, or write parentModel: {name}"
            # ALREADY_EXISTS would be about the pipeline.
            raise ApiError("FAILED_PRECONDITION", text) from None

    def _ask_to_cancel(self, job: JobRecord) -> JobRecord | None:
        # The pipeline's step cancels the backing job, and ends the pipeline after it.
        unfinished = UNFINISHED - {JobState.CANCELLING}
        return self._store.move(
            job.id,
            JobState.CANCELLING,
            only_from=unfinished,
            at=self._store.now(),
            error_message=self.cancel_message,
            error_details=details_of("REQUESTED"),
        )

    def resource(self, job: JobRecord, trials: Sequence[TrialRecord]) -> JsonObject:
        """Return the pipeline in the API's form."""
        pipeline = super().resource(self._following(job), trials)
        if "trainingTaskDefinition" in pipeline:
            pipeline["trainingTaskDefinition"] = _served_definition(job)
        if "modelToUpload" in pipeline:
            pipeline["modelToUpload"] = _model(job)
        collection = job.backing.partition("/")[0]
        if collection in _METADATA:
            parent = resource_name(job).rsplit("/", 2)[0]
            pipeline["trainingTaskMetadata"] = {_METADATA[collection]: f"{parent}/{job.backing}"}
        return pipeline

    def _following(self, job: JobRecord) -> JobRecord:
        """Return a pipeline with an unknown state while that of its backing job is unknown."""
        # A pipeline that ended then would be submitted again beside a job that may still run: it has to be
        # cancelled, which finds out how the job ended.
        follows = job.state in UNFINISHED - {JobState.CANCELLING} and "state" not in job.unreadable
        backing = self._store.find(*job.backing_place) if follows else None
        if backing is None or "state" not in backing.unreadable:
            return job
        return as_unreadable(replace(job, error_message=f"It is the record of {job.backing}."), "state")

    def filter_field(self, path: tuple[str, ...]) -> filters.Field[JobRecord] | None:
        """Return the field for a path in filters; None if there is none."""
        if path == ("training_task_definition",):
            return filters.text_field(_served_definition, "=", "!=", ":")
        return super().filter_field(path)


def _task_name(definition: str) -> str:
    """Return the name of a definition's task without its version; the URI itself if it has another form."""
    match = _DEFINITION.fullmatch(definition)
    return match[1] if match else definition


def _served_definition(job: JobRecord) -> str:
    """Return the URI of the pipeline's definition in answers: of its first version, whichever was sent.

    Vertex AI answers with a URI of its own too, and Google's SDK knows the first version's alone.
    """
    return f"{_FOLDER}{_task_name(job.body.get('trainingTaskDefinition', ''))}_1.0.0.yaml"


def _model(job: JobRecord) -> JsonObject:
    """Return `modelToUpload` without the container, which is input only, and with its name if it has one."""
    sent = job.body["modelToUpload"].items()
    given = {name: value for name, value in sent if name not in ("containerSpec", "name")}
    name, _, version = job.model.rpartition("@")
    return {**given, "name": name, "versionId": version} if name else given


def _unknown(task: str) -> str:
    if not task:
        return NOT_SET
    known = " and ".join(f"{name}_1.0.0.yaml" for name in _TASKS)
    return f"This service runs {known} of {_FOLDER}, but not {task}: train by code of your own, or at Google."


def _mistakes(body: JsonObject) -> Iterator[Mistake]:
    """Yield the mistakes of a new pipeline outside of its inputs."""
    if "inputDataConfig" in body:
        yield "input_data_config", _NO_DATASETS
    if "modelToUpload" in body:
        yield from registration_mistakes(body, "modelToUpload")


def _mistakes_of_backing(task: _Task, backing: JobRecord, body: JsonObject) -> Iterator[Mistake]:
    """Yield the mistakes of a new pipeline's name, labels and inputs, and what of it can't run here."""
    own = ("displayName", "labels")
    given = {name: value for name, value in backing.body.items() if name not in own}
    given |= {name: body[name] for name in own if name in body}
    for path, text in [*task.mistakes(given)] or unsupported(backing):
        is_own = path.partition(".")[0] in ("display_name", "labels")
        yield path if is_own else f"{_INPUTS}.{path.removeprefix('job_spec.')}", text
    folder = job_spec_of(backing).get("baseOutputDirectory", {}).get("outputUriPrefix")
    if "modelToUpload" in body and not body["modelToUpload"].get("artifactUri") and not folder:
        prefix = "trial_job_spec." if backing.collection == TUNING_JOBS else ""
        yield (
            f"{_INPUTS}.{prefix}base_output_directory.output_uri_prefix",
            "Required for a model without artifact_uri: the trainer writes it to AIP_MODEL_DIR, below this.",
        )
