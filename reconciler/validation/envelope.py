"""Which kind of manifest a document is; where that can't be told, what it lacks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reconciler import schemas
from reconciler.diagnostics import quote
from reconciler.manifest import AIPLATFORM_V1, ML_V1
from reconciler.validation.findings import Finding
from reconciler.validation.sentences import choices
from reconciler.validation.suggest import same_word, similar_word

_API_VERSIONS = list(dict.fromkeys(api_version for api_version, _ in schemas.KINDS))
_PAIRS = "\n".join(f"apiVersion: {api_version}, kind: {kind}" for api_version, kind in schemas.KINDS)
# What gcloud's --config files, and what the APIs take and give, have at the top, and where that goes.
_PASTED = {
    "trainingInput": (ML_V1, "Job"),
    "studySpec": (AIPLATFORM_V1, "HyperparameterTuningJob"),
    "trialJobSpec": (AIPLATFORM_V1, "HyperparameterTuningJob"),
    "workerPoolSpecs": (AIPLATFORM_V1, "CustomJob"),
    "jobSpec": (AIPLATFORM_V1, "CustomJob"),
}


def schema_of(value: Any, filled: frozenset[str] = frozenset()) -> dict[str, Any] | Finding:
    """The schema of a manifest's kind, by its `apiVersion` and `kind`, or why there is none.

    `filled` is as in `schemas.manifest_schema`.
    """
    if not isinstance(value, dict):
        return _no_mapping(value)
    api_version, kind = _text(value, "apiVersion"), _text(value, "kind")
    schema = schemas.manifest_schema(api_version, kind, filled)
    if schema is not None:
        return schema
    pasted = next((same_word(key, _PASTED) for key in value if same_word(key, _PASTED)), "")
    if pasted and not api_version and "spec" not in value:
        return _pasted(pasted)
    if api_version in _API_VERSIONS:
        return _wrong_kind(value, api_version, kind)
    return _wrong_api_version(value, api_version, kind)


def _text(value: Mapping[str, Any], name: str) -> str:
    """The text under a key, its name misspelt in no more than case and signs."""
    found = value[name] if name in value else value.get(same_word(name, value))
    return found if isinstance(found, str) else ""


def _no_mapping(value: Any) -> Finding:
    if isinstance(value, list):
        message = "a manifest is a mapping, not a list"
        return Finding((), message, "write each job as a document of its own, with a line --- between them")
    return Finding((), "this is no manifest", _example(AIPLATFORM_V1, "CustomJob", "workerPoolSpecs"))


def _pasted(key: str) -> Finding:
    api_version, kind = _PASTED[key]
    below = "workerPoolSpecs" if key == "jobSpec" else key
    message = f"{quote(key)} is a part of a job, and the manifest around it is missing"
    return Finding((key,), message, _example(api_version, kind, below), of_key=True)


def _example(api_version: str, kind: str, below: str) -> str:
    return f"write\napiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: NAME\nspec:\n  {below}: …"


def _wrong_kind(value: Mapping[str, Any], api_version: str, kind: str) -> Finding:
    kinds = [known for version, known in schemas.KINDS if version == api_version]
    listed = f"one of: {choices(kinds)}" if len(kinds) > 1 else f"write kind: {kinds[0]}"
    if not kind:
        return _missing(value, "kind", listed)
    others = [version for version, known in schemas.KINDS if known == kind]
    if others:
        hint = f"{kind} is of {others[0]}; with {api_version}, {listed}"
    else:
        meant = same_word(kind, kinds) or similar_word(kind, kinds)
        hint = f"did you mean {meant}?" if meant else listed
    return Finding(("kind",), f"{api_version} has no kind {quote(kind)}", hint)


def _wrong_api_version(value: Mapping[str, Any], api_version: str, kind: str) -> Finding:
    fitting = [version for version, known in schemas.KINDS if known == kind]
    if not api_version:
        return _missing(value, "apiVersion", f"write apiVersion: {fitting[0]}" if fitting else _pairs())
    meant = similar_word(api_version, _API_VERSIONS)
    hint = f"did you mean {meant}?" if meant else _pairs()
    return Finding(("apiVersion",), f"unknown apiVersion {quote(api_version)}", hint)


def _pairs() -> str:
    return f"there are\n{_PAIRS}"


def _missing(value: Mapping[str, Any], name: str, hint: str) -> Finding:
    if name not in value:
        return Finding((), f"{quote(name)} is missing", hint)
    state = "has no value" if value[name] is None else "must be text"
    return Finding((name,), f"{quote(name)} {state}", hint)
