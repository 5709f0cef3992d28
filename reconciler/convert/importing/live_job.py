"""Jobs as the services' APIs return them.

The content of a live job is the body of the request that creates it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from reconciler.convert.importing.manifest import Json
from reconciler.convert.importing.placeholders import (
    SourceError,
    quoted,
)
from reconciler.manifests import schemas
from reconciler.manifests.pipelines import DEFINITION, INPUTS, definition_of, task_name, task_of
from reconciler.manifests.plain_form import keys_in_camel_case, plain_form, snake_case
from reconciler.model.diff import SWITCH, FieldChange, is_filled
from reconciler.model.fields import part_of, text_of
from reconciler.model.job import PREFIX
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, TRAINING_PIPELINE

_LISTS = ("customJobs", "hyperparameterTuningJobs", "jobs", "trainingPipelines")
_OUTPUT_ONLY = frozenset(
    {
        *("name", "state", "createTime", "startTime", "endTime", "updateTime"),
        *("error", "webAccessUris", "satisfiesPzs", "satisfiesPzi", "trials"),
        *("trainingOutput", "jobPosition", "etag", "errorMessage", "trainingTaskMetadata"),
    }
)
_SIGNS = {
    (AIPLATFORM_V1, "CustomJob"): "jobSpec",
    (AIPLATFORM_V1, "HyperparameterTuningJob"): "studySpec",
    (AIPLATFORM_V1, TRAINING_PIPELINE): INPUTS,
    (ML_V1, "Job"): "trainingInput",
}
_ENDED = re.compile(
    "(?:JOB_STATE_|PIPELINE_STATE_)?(?:SUCCEEDED|FAILED|CANCELLED|EXPIRED|PARTIALLY_SUCCEEDED)"
)
_STATE_NUMBERS = {4: "SUCCEEDED", 5: "FAILED", 7: "CANCELLED", 9: "EXPIRED"}
_RESOURCE = re.compile("projects/([^/]+)/locations/([^/]+)/.+")
_MODEL = "modelToUpload"
_OLD_STRATEGIES = {"ON_DEMAND": "STANDARD", "LOW_COST": "SPOT"}


class LiveJob(Struct):
    """One job of a service.

    Attributes:
        api_version: Of its manifest.
        kind: Of its manifest.
        body: The body that creates it again, without defaults.
        name: Its name as its creator wrote it.
        resource: Its resource name.
        state: Its end, such as "FAILED"; "" if it may be running.
        project: From its resource name.
        location: From its resource name.
        backing: The resource name of the job that trains for it; "" for a job that is no pipeline.
        lacks_container: True for a pipeline whose model has no `containerSpec`, which no service returns.
        notes: What is left out.
    """

    api_version: str
    kind: str
    body: Json
    name: str
    resource: str
    state: str
    project: str = ""
    location: str = ""
    backing: str = ""
    lacks_container: bool = False
    notes: list[str] = field(default_factory=list)


class ImportedJobs(Struct):
    """Jobs of a service.

    Attributes:
        jobs: The jobs to import.
        left_out: The pipelines of other tasks among them, each as its name with its task.
    """

    jobs: list[LiveJob]
    left_out: list[str] = field(default_factory=list)


def is_answer(value: Any) -> bool:
    """Return True for an answer of a service: a job with the service's own fields, or a list of jobs."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and is_answer(item) for item in value)
    if not isinstance(value, dict):
        return False
    if any(isinstance(value.get(name), list) for name in _LISTS):
        return True
    return bool({"name", "state", "createTime", "create_time"} & value.keys()) and (
        any(sign in value for sign in (*_SIGNS.values(), snake_case(INPUTS)))
    )


def is_pipeline_request(value: Any) -> bool:
    """Return True for the body of a pipeline's request, in camelCase or in snake_case."""
    return isinstance(value, dict) and bool({INPUTS, snake_case(INPUTS)} & value.keys())


def live_jobs(answer: Any) -> ImportedJobs:
    """Return the jobs of an answer; raise SourceError for an item that is not a training job.

    Pipelines of other tasks are left out, unless the answer has nothing else.
    """
    items = answer if isinstance(answer, list) else [answer]
    if isinstance(answer, dict):
        listed = [answer[name] for name in _LISTS if isinstance(answer.get(name), list)]
        items = [item for one in listed for item in one] if listed else items
    for item in items:
        if not isinstance(item, dict):
            raise SourceError("an item of the list is not a job", hint="save `gcloud … list --format=json`")
    foreign = [name for item in items if (name := foreign_pipeline(item))]
    if len(foreign) == len(items):
        foreign = []  # the first of them is the mistake
    return ImportedJobs(
        [live_job(item) for item in items if not (foreign and foreign_pipeline(item))], foreign
    )


def foreign_pipeline(resource: Mapping[str, Any]) -> str:
    """Return the name and the task of a pipeline that runs no code of the user's; "" for any other job."""
    fields = _in_camel_case(resource)
    if not (INPUTS in fields or DEFINITION in fields) or task_of(fields):
        return ""
    name = fields.get("displayName") or str(fields.get("name", "")).rpartition("/")[2]
    return f"{quoted(str(name))} ({task_name(text_of(fields, DEFINITION))})"


def live_job(resource: Mapping[str, Any]) -> LiveJob:
    """Return a job as the service describes it; raise SourceError if it is not a training job."""
    resource = _in_camel_case(resource)
    name = str(resource.get("name") or resource.get("jobId") or "")
    if "predictionInput" in resource:
        raise SourceError(f"{quoted(name)} is a batch prediction", hint="import training jobs only")
    notes: list[str] = []
    is_pipeline = INPUTS in resource or DEFINITION in resource
    request = pipeline_request(resource) if is_pipeline else resource
    body = {key: part for key, part in request.items() if key not in _OUTPUT_ONLY}
    if model := part_of(body, _MODEL):
        # The service adds fields of its own to the model.
        fields = _pipeline_schema(body)["$defs"]["aiplatform.Model"]["properties"]
        body[_MODEL] = {key: part for key, part in model.items() if key in fields}
    elif body.get(_MODEL) is None:
        body.pop(_MODEL, None)
    pair = next((key for key, sign in _SIGNS.items() if isinstance(body.get(sign), dict)), None)
    if pair is None:
        hint = "import a CustomJob, a HyperparameterTuningJob, a TrainingPipeline or a Job of AI Platform"
        raise SourceError(f"{quoted(name)} is not a training job", hint=hint)
    api_version, kind = pair
    labels = body.pop("labels", None)
    if isinstance(labels, dict):
        labels = {key: text for key, text in labels.items() if not str(key).startswith(PREFIX)}
    if labels:
        body["labels"] = labels
    body = _without_defaults(body, _SIGNS[pair], notes)
    written = str(resource.get("displayName") or resource.get("jobId") or name.rpartition("/")[2])
    match = _RESOURCE.fullmatch(name)
    project, location = match.groups() if match else ("", "")
    state, backing = _end_of(resource), backing_job(resource)
    lacks_container = bool(part_of(body, _MODEL)) and "containerSpec" not in body[_MODEL]
    return LiveJob(
        api_version, kind, body, written, name, state, project, location, backing, lacks_container, notes
    )


def backing_job(resource: Mapping[str, Any]) -> str:
    """Return the resource name of the job that trains for a pipeline; "" for others, and before its start."""
    metadata = part_of(resource, "trainingTaskMetadata")
    return text_of(metadata, "backingCustomJob") or text_of(metadata, "backingHyperparameterTuningJob")


def _end_of(resource: Mapping[str, Any]) -> str:
    state = resource.get("state", "")
    text = _STATE_NUMBERS.get(state, "") if isinstance(state, int) else str(state)
    return text.rpartition("STATE_")[2] if _ENDED.fullmatch(text) else ""


def pipeline_request(body: Mapping[str, Any]) -> Json:
    """Return the body of a pipeline as a request of this tool has it, in plain form.

    Raises:
        SourceError: It trains no custom code, or its inputs are no mapping.
    """
    fields = _in_camel_case(body)
    if foreign := foreign_pipeline(fields):
        hint = "import pipelines of custom training and hyperparameter tuning only"
        raise SourceError(f"the training pipeline {foreign} runs no code of yours", hint=hint)
    inputs = fields.get(INPUTS)
    if not isinstance(inputs, dict):
        name = str(fields.get("name") or fields.get("displayName") or "")
        what = {str: "a text", list: "a list", type(None): "empty"}.get(type(inputs), "no mapping")
        message = f"the {INPUTS} of the training pipeline {quoted(name)} can't be read: they are {what}"
        hint = 'write them as a mapping, {"workerPoolSpecs": […]}'
        if isinstance(inputs, str):
            hint += "; if the text is JSON, decode it, as fromjson of jq does"
        raise SourceError(message, hint=hint)
    pipeline: Json = plain_form({"spec": fields}, _pipeline_schema(fields))["spec"]
    pipeline[DEFINITION] = definition_of(text_of(fields, DEFINITION))
    return pipeline


def _pipeline_schema(body: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = schemas.manifest_schema(AIPLATFORM_V1, TRAINING_PIPELINE, spec=body)
    assert schema is not None, "the kind has a schema"
    return schema


def _in_camel_case(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a resource with its fields in camelCase, if it is a pipeline in snake_case, as Python has it."""
    if snake_case(INPUTS) not in resource or INPUTS in resource:
        return resource
    fields = {str(keys_in_camel_case((key,))[0]): part for key, part in resource.items()}
    schema = _pipeline_schema(fields)
    spec = {**schema["properties"]["spec"], "x-snake-case": True}
    schema = {**schema, "properties": {**schema["properties"], "spec": spec}}
    in_plain_form: Json = plain_form({"spec": fields}, schema)["spec"]
    return in_plain_form


def _without_defaults(body: Json, sign: str, notes: list[str]) -> Json:
    left_out: list[str] = []
    result = {key: _cleaned(part, key, left_out) for key, part in body.items()}
    if sign not in result or not isinstance(result[sign], dict):
        result[sign] = {}
    if left_out:
        names = ", ".join(sorted(set(left_out)))
        notes.append(f"Fields with the service's default are left out: {names}.")
    return result


def _cleaned(value: Any, path: str, left_out: list[str]) -> Any:
    """Return a value without the fields that a service may have filled in."""
    name = path.rpartition(".")[2]
    if name == "strategy" and isinstance(value, str):
        return _OLD_STRATEGIES.get(value, value)
    if isinstance(value, list):
        return [_cleaned(item, path, left_out) for item in value]
    if not isinstance(value, dict):
        return value
    if name in ("labels", "env", "metadata"):
        return value
    result = {}
    for key, part in value.items():
        if _is_default(path, key, part):
            left_out.append(key)
            continue
        cleaned = _cleaned(part, f"{path}.{key}", left_out)
        if key.endswith(SWITCH) or not (isinstance(cleaned, dict) and not cleaned and part):
            result[key] = cleaned
    return result


def _is_default(path: str, key: str, value: Any) -> bool:
    """Return True for a default that doesn't have to be written."""
    # These are required, or say what a reader looks for.
    if key in ("replicaCount", "goal", "scaleType", "maxTrialCount", "parallelTrialCount", "maxTrials"):
        return False
    if isinstance(value, dict | list):
        return not value and not key.endswith(SWITCH)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return False if not key.startswith("boot") else is_filled(FieldChange(f"/{key}", value, None))
    return is_filled(FieldChange(f"/{key}", value, None))
