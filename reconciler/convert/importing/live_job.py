"""Jobs as the services' APIs return them.

The content of a live job is the body of the request that creates it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from reconciler.convert.importing.manifest import Json
from reconciler.convert.importing.placeholders import (
    SourceError,
    quoted,
)
from reconciler.manifests import schemas
from reconciler.manifests.pipelines import INPUTS, definition_of, task_of
from reconciler.manifests.plain_form import plain_form
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
    notes: list[str] = field(default_factory=list)


def is_answer(value: Any) -> bool:
    """Return True for an answer of a service: a job with the service's own fields, or a list of jobs."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and is_answer(item) for item in value)
    if not isinstance(value, dict):
        return False
    if any(isinstance(value.get(name), list) for name in _LISTS):
        return True
    return bool({"name", "state", "createTime"} & value.keys()) and (
        any(sign in value for sign in _SIGNS.values())
    )


def live_jobs(answer: Any) -> Iterator[LiveJob]:
    """Yield each job of an answer; raise SourceError for an item that is not a training job."""
    items = answer if isinstance(answer, list) else [answer]
    if isinstance(answer, dict):
        listed = [answer[name] for name in _LISTS if isinstance(answer.get(name), list)]
        items = [item for one in listed for item in one] if listed else items
    for item in items:
        if not isinstance(item, dict):
            raise SourceError("an item of the list is not a job", hint="save `gcloud … list --format=json`")
        yield live_job(item)


def live_job(resource: Mapping[str, Any]) -> LiveJob:
    """Return a job as the service describes it; raise SourceError if it is not a training job."""
    name = str(resource.get("name") or resource.get("jobId") or "")
    if "predictionInput" in resource:
        raise SourceError(f"{quoted(name)} is a batch prediction", hint="import training jobs only")
    notes: list[str] = []
    body = {key: part for key, part in resource.items() if key not in _OUTPUT_ONLY}
    if INPUTS in resource:
        body = _pipeline(body, notes)
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
    return LiveJob(api_version, kind, body, written, name, state, project, location, backing, notes)


def backing_job(resource: Mapping[str, Any]) -> str:
    """Return the resource name of the job that trains for a pipeline; "" for others, and before its start."""
    metadata = part_of(resource, "trainingTaskMetadata")
    return text_of(metadata, "backingCustomJob") or text_of(metadata, "backingHyperparameterTuningJob")


def _end_of(resource: Mapping[str, Any]) -> str:
    state = resource.get("state", "")
    text = _STATE_NUMBERS.get(state, "") if isinstance(state, int) else str(state)
    return text.rpartition("STATE_")[2] if _ENDED.fullmatch(text) else ""


def _pipeline(body: Json, notes: list[str]) -> Json:
    """Return the body of a pipeline as a request has it; raise SourceError if it trains no custom code."""
    if not task_of(body):
        hint = "import pipelines of custom training and hyperparameter tuning only"
        raise SourceError("the training pipeline runs no code of yours", hint=hint)
    schema = schemas.manifest_schema(AIPLATFORM_V1, TRAINING_PIPELINE, spec=body)
    assert schema is not None, "the kind has a schema"
    pipeline: Json = plain_form({"spec": body}, schema)["spec"]
    pipeline["trainingTaskDefinition"] = definition_of(text_of(body, "trainingTaskDefinition"))
    if model := part_of(pipeline, _MODEL):
        fields = schema["$defs"]["aiplatform.Model"]["properties"]
        pipeline[_MODEL] = {key: part for key, part in model.items() if key in fields}
        if "containerSpec" not in model:
            notes.append("The service doesn't return the model's containerSpec: add it.")
    return pipeline


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
