"""Training pipelines in manifests: their task, the job that trains, and mistakes that no schema expresses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.base.diagnostics import Finding, Keys, quote, same_word
from reconciler.base.warning_kinds import WarningKind
from reconciler.model.fields import part_of, text_of

CUSTOM_TASK = "custom_task"
TUNING_TASK = "hyperparameter_tuning_task"
TASK_DEFINITIONS = "gs://google-cloud-aiplatform/schema/trainingjob/definition"
"""The folder of the definitions of tasks."""
INPUTS = "trainingTaskInputs"
MODEL_ID: Keys = ("spec", "modelId")
DEFINITION = "trainingTaskDefinition"
TRIALS = "trialJobSpec"

_MODEL = "modelToUpload"
_FOLDER = "baseOutputDirectory"
_NAMED = re.compile(rf"(?:^|/)({CUSTOM_TASK}|{TUNING_TASK})_([0-9]+(?:\.[0-9]+)*)?[^/]*$")
_VERSION = re.compile(r"_[0-9][0-9.]*\.ya?ml\b.*$")
_WRITE_TASK = (
    "this tool runs custom training and hyperparameter tuning: write\n"
    f"{DEFINITION}: {TASK_DEFINITIONS}/{CUSTOM_TASK}_1.0.0.yaml\n"
    f"or {TUNING_TASK}_1.0.0.yaml in its place"
)
_WRITE_PARENT = 'write "parentModel: projects/PROJECT/locations/LOCATION/models/ID" beside it'


def task_of(spec: Any) -> str:
    """Return the task of a pipeline's `spec`: of its definition, else of its inputs; "" for another task."""
    if not isinstance(spec, dict):
        return ""
    definition = _field(spec, DEFINITION)
    if isinstance(definition, str) and definition:
        named = _NAMED.search(definition)
        return named[1] if named else ""
    inputs = _field(spec, INPUTS)
    fields = inputs if isinstance(inputs, dict) else {}
    is_tuning = any(same_word(name, fields) for name in ("studySpec", TRIALS))
    return TUNING_TASK if is_tuning else CUSTOM_TASK


def definition_of(uri: str) -> str:
    """Return the definition that a request names for a task; the service answers with another URI of it."""
    named = _NAMED.search(uri)
    return f"{TASK_DEFINITIONS}/{named[1]}_{named[2]}.yaml" if named and named[2] else uri


def task_name(definition: str) -> str:
    """Return the name of the task that a definition's URI ends with, without its version."""
    return _VERSION.sub("", definition.rpartition("/")[2])


def foreign_task(spec: Any) -> Finding | None:
    """Return the mistake of a pipeline whose task is another than the two that train custom code."""
    if task_of(spec) or not isinstance(spec, dict):
        return None
    key = DEFINITION if DEFINITION in spec else same_word(DEFINITION, spec)
    message = f"the pipeline's task is {quote(task_name(spec[key]))}"
    return Finding(("spec", key), message, _WRITE_TASK)


def job_in(spec: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return the spec of the job that trains, and its path in a `spec`: for a pipeline its inputs."""
    return ((INPUTS,), part_of(spec, INPUTS)) if INPUTS in spec else ((), spec)


def new_model_id(spec: Mapping[str, Any]) -> str:
    """Return the id of the new model that a valid pipeline registers; "" for none, and for other jobs."""
    return text_of(spec, "modelId") if _MODEL in spec and "parentModel" not in spec else ""


def pipeline_findings(
    spec: Mapping[str, Any], *, has_folder: bool, has_own_folder: bool
) -> Iterator[Finding]:
    """Yield what is wrong, or probably wrong, with the model that a pipeline registers.

    Args:
        spec: The manifest's; what the schema refuses in it is skipped.
        has_folder: True if the environment's defaults give the job an output folder.
        has_own_folder: True if the environment gives each run a folder of its own.
    """
    named = [name for name in ("modelId", "parentModel") if name in spec]
    if _MODEL not in spec:
        for name in named:
            message = f'{quote(name)} has no effect without "{_MODEL}": the pipeline registers no model'
            yield _doubt(WarningKind.NO_EFFECT, (name,), message, f'add "{_MODEL}", or remove it')
        return
    model, inputs = part_of(spec, _MODEL), part_of(spec, INPUTS)
    if not named:
        message = "each new content of this manifest registers a new model"
        hint = f"{_WRITE_PARENT}, so that it becomes a version of that model"
        yield _doubt(WarningKind.NEW_MODEL, (_MODEL,), message, hint)
    elif len(named) > 1:
        message = '"modelId" names a new model, and "parentModel" one that exists already'
        hint = 'keep "parentModel" for another version of that model'
        yield _doubt(WarningKind.MODEL_ID, ("modelId",), message, hint)
    parent, _, version = text_of(spec, "parentModel").partition("@")
    if version:
        message = f"{quote(f'@{version}')} has no effect: the run becomes a new version of the model"
        keys: Keys = ("spec", "parentModel")
        yield Finding(keys, message, f'write "{parent}"', kind=WarningKind.NO_EFFECT)
    if "versionAliases" in model:
        message = 'the service moves these aliases as soon as the run succeeds, whatever "expect" says'
        hint = "remove it, and move an alias once you have seen what the run achieved"
        yield _doubt(WarningKind.VERSION_ALIASES, (_MODEL, "versionAliases"), message, hint)
    if model and "containerSpec" not in model:
        message = "the model can't be deployed, because it has no container that serves it"
        hint = 'add "containerSpec: {imageUri: …}" to it'
        yield _doubt(WarningKind.MODEL_CONTAINER, (_MODEL,), message, hint)
    is_tuning = TRIALS in inputs
    job = part_of(inputs, TRIALS) if is_tuning else inputs
    folder = text_of(part_of(job, _FOLDER), "outputUriPrefix").rstrip("/")
    artifacts = text_of(model, "artifactUri")
    if not artifacts and job and _FOLDER not in job and not has_folder:
        message = f"the model is registered from the run's output folder, and {quote(_FOLDER)} is missing"
        keys = (INPUTS, TRIALS) if is_tuning else (INPUTS,)
        hint = f'add "{_FOLDER}: {{outputUriPrefix: gs://BUCKET/FOLDER}}"'
        yield Finding(("spec", *keys), message, hint, of_key=True)
    # Of a tuning job's trials, the best one's folder counts, and of own folders that with the run's name:
    # no manifest knows either.
    if artifacts and (is_tuning or has_own_folder or artifacts.rstrip("/") != f"{folder}/model"):
        message = "this isn't the run's own AIP_MODEL_DIR, so the model may have the files of another run"
        hint = 'remove "artifactUri": the model then has what the run wrote to AIP_MODEL_DIR'
        yield Finding(("spec", _MODEL, "artifactUri"), message, hint, kind=WarningKind.ARTIFACT_URI)


def _doubt(kind: WarningKind, keys: Keys, message: str, hint: str) -> Finding:
    return Finding(("spec", *keys), message, hint, of_key=True, kind=kind)


def _field(spec: Mapping[str, Any], name: str) -> Any:
    """Return a field, even if its key differs in case and separators."""
    return spec[name] if name in spec else spec.get(same_word(name, spec))
