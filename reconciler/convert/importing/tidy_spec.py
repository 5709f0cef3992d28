"""The order and the forms of fields that a person would write, in place of those of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reconciler.manifests import schemas
from reconciler.manifests.plain_form import plain_form

_ORDER = (
    *("scaleTier", "region", "runtimeVersion", "pythonVersion", "masterType", "workerType", "workerCount"),
    *("parameterServerType", "parameterServerCount", "machineType", "acceleratorType", "acceleratorCount"),
    *(
        "displayName",
        "imageUri",
        "executorImageUri",
        "packageUris",
        "pythonModule",
        "command",
        "args",
        "name",
        "value",
    ),
    *("parameterName", "parameterId", "metricId", "goal", "type", "minValue", "maxValue"),
    *("trainingTaskDefinition", "trainingTaskInputs", "modelToUpload", "modelId", "parentModel"),
    *("studySpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount", "trialJobSpec"),
    *("workerPoolSpecs", "machineSpec", "replicaCount", "diskSpec", "containerSpec", "pythonPackageSpec"),
)
_RANK = {name: rank for rank, name in enumerate(_ORDER)}


def tidy(api_version: str, kind: str, spec: Any) -> Any:
    """Return a spec in plain form, with a list for a lone text, numbers for counts, and fields in order."""
    schema = schemas.manifest_schema(api_version, kind, spec=spec)
    assert schema is not None, "imported kinds have schemas"
    plain = plain_form({"spec": _with_lists(spec, schema["properties"]["spec"], schema["$defs"])}, schema)
    return _tidied(plain["spec"], schema["properties"]["spec"], schema["$defs"])


def _target(node: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    target: Mapping[str, Any] = definitions.get(name, node)
    return target


def _with_lists(value: Any, node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a value with a list of one for each lone text where the API repeats."""
    node = _target(node, definitions)
    if "items" in node:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list):
            return [_with_lists(item, node["items"], definitions) for item in value]
        return _with_lists(value, node["items"], definitions)
    if isinstance(value, dict) and "properties" in node:
        fields = node["properties"]
        return {key: _with_lists(part, fields.get(key, {}), definitions) for key, part in value.items()}
    return value


def _tidied(value: Any, node: Any, definitions: Mapping[str, Any]) -> Any:
    node = _target(node, definitions)
    if isinstance(value, dict):
        fields = node.get("properties", {})
        ordered = sorted(value, key=lambda key: _RANK.get(key, len(_RANK))) if fields else [*value]
        return {key: _tidied(value[key], fields.get(key, {}), definitions) for key in ordered}
    if isinstance(value, list):
        return [_tidied(item, node.get("items", {}), definitions) for item in value]
    is_whole = node.get("format") in ("int64", "int32") and isinstance(value, str)
    return int(value) if is_whole and value.isdecimal() and len(value) < 19 else value
