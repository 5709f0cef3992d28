"""From a discovery document's schemas to JSON Schema 2020-12, with the rules of `rules.py` on top."""

from __future__ import annotations

import re
from collections.abc import Mapping

import rules
from rules import Rule
from trim import Json, is_output_only, reached, references, shipped
from words import DURATION, INT64, TIME

# What our $defs call the schemas of a document: "aiplatform.CustomJobSpec", "ml.TrainingInput".
_PREFIXES = {"aiplatform": "GoogleCloudAiplatformV1", "ml": "GoogleCloudMlV1__"}
_POINTER = "#/$defs/"
_SITE = "https://cloud.google.com"

_FORMATS: dict[str, Json] = {
    "int64": INT64,
    "int32": {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1},
    "double": {"type": "number", "format": "double"},
    "float": {"type": "number", "format": "double"},  # JSON has one kind of number
    "google-duration": DURATION,
    "google-datetime": TIME,
}


def definitions() -> dict[str, Json]:
    """All $defs that a manifest may need, by name."""
    defs = {**_of_document("aiplatform", "v1"), **_of_document("ml", "v1"), **rules.EXTRA_DEFINITIONS}
    defs["aiplatform.CustomTaskInputs"] = {
        **defs["aiplatform.CustomJobSpec"],
        "x-refused": rules.CUSTOM_TASK_REFUSED,
    }
    defs["aiplatform.TuningTaskInputs"] = _tuning_inputs(defs["aiplatform.HyperparameterTuningJob"])
    unused = rules.OBJECTS.keys() - defs.keys()
    if unused:
        raise LookupError(f"rules for what isn't in the discovery documents: {sorted(unused)}")
    return defs


def with_definitions(schema: Json, defs: Mapping[str, Json]) -> Json:
    """`schema` with those of `defs` that it reaches."""
    kept = reached({f"{_POINTER}{name}": node for name, node in defs.items()}, references(schema))
    return {**schema, "$defs": {name: defs[name] for name in sorted(p.removeprefix(_POINTER) for p in kept)}}


def ref(name: str) -> str:
    """The pointer to a definition."""
    return _POINTER + name


def _of_document(api: str, version: str) -> dict[str, Json]:
    nodes = shipped(f"{api}.{version}")["schemas"]
    prefix = _PREFIXES[api]
    roots = [prefix + name.removeprefix(f"{api}.") for name in rules.ROOTS if name.startswith(f"{api}.")]
    settable = {name: _settable(node, _rule(_named(api, name))) for name, node in nodes.items()}
    names = sorted(reached(settable, roots))
    return {_named(api, name): _definition(_named(api, name), api, nodes[name]) for name in names}


def _tuning_inputs(job: Json) -> Json:
    """A tuning job as the inputs of a pipeline, whose key encrypts the backing job too."""
    properties = {key: part for key, part in job["properties"].items() if key != "encryptionSpec"}
    refused = {**job["x-refused"], **rules.TUNING_TASK_REFUSED}
    return {**job, "properties": properties, "x-refused": refused}


def _rule(name: str) -> Rule:
    return rules.OBJECTS.get(name, Rule())


def _settable(node: Json, rule: Rule) -> Json:
    """The fields that a manifest may set."""
    others = {*rule.output_only, *rule.set_by_reconciler, *rule.refused}
    properties: Json = node.get("properties", {})
    return {
        key: value for key, value in properties.items() if key not in others and not is_output_only(value)
    }


def _named(api: str, name: str) -> str:
    return f"{api}.{name.removeprefix(_PREFIXES[api])}"


def _definition(name: str, api: str, node: Json) -> Json:
    """The schema of one object."""
    rule = _rule(name)
    fields = _settable(node, rule)
    unknown = {*rule.fields, *rule.required} - fields.keys()
    if unknown:
        raise LookupError(f"rules for fields that {name} doesn't have: {sorted(unknown)}")
    properties = {key: _field(api, key, value, rule) for key, value in fields.items()}
    not_mine = node["properties"].keys() - fields.keys() - {*rule.set_by_reconciler, *rule.refused}
    parts: Json = {
        "description": _prose(node["description"]),
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(rule.required),
        "x-gcloud-flag": dict(rule.gcloud),
        "x-output-only": sorted(not_mine),
        "x-set-by-reconciler": list(rule.set_by_reconciler),
        "x-refused": dict(rule.refused),
        "allOf": list(rule.rules),
    }
    return {key: value for key, value in parts.items() if value or key == "additionalProperties"}


def _field(api: str, name: str, node: Json, rule: Rule) -> Json:
    """The schema of one field, rules included."""
    more = rule.fields.get(name, {})
    schema = {"description": _prose(node["description"]), **_type(api, node), **_not_empty(node, name, rule)}
    if "items" in more:
        more = {**more, "items": {**schema["items"], **more["items"]}}
    if "enum" in more:
        del schema["type"]
    return {**schema, **more}


def _not_empty(node: Json, name: str, rule: Rule) -> Json:
    """To proto3's JSON the empty value is the missing one, so a required one isn't empty."""
    if name not in rule.required or "allOf" in rule.fields.get(name, {}):
        return {}
    if node.get("type") == "array":
        return {"minItems": 1}
    return {"minLength": 1} if node.get("type") == "string" and not {"enum", "format"} & node.keys() else {}


def _type(api: str, node: Json) -> Json:
    """The schema of a value."""
    if "$ref" in node:
        return {"$ref": ref(_named(api, node["$ref"]))}
    if "enum" in node:
        return _enum(node)
    if "format" in node:
        return dict(_FORMATS[node["format"]])
    if node["type"] == "array":
        return {"type": "array", "items": _type(api, node["items"])}
    if node["type"] == "object":
        return {"type": "object", "additionalProperties": _type(api, node["additionalProperties"])}
    return {"type": node["type"]} if node["type"] != "any" else {}


def _enum(node: Json) -> Json:
    """The values without the one for "nothing said"; a `type` beside them would tell a mistake twice."""
    told = zip(node["enum"], node["enumDescriptions"], strict=True)
    kept = [(value, prose) for value, prose in told if not value.endswith("UNSPECIFIED")]
    none = [value for value in node["enum"] if value.endswith("UNSPECIFIED")]
    return {
        "enum": [value for value, _ in kept],
        "enumDescriptions": [_prose(prose) for _, prose in kept],
        **({"x-unspecified": none} if none else {}),
    }


def _prose(text: str) -> str:
    """A description whose links work outside Google's site, and without what `required` says already."""
    absolute = re.sub(r"\]\s?\(/", f"]({_SITE}/", text)
    return re.sub(r"^((Required|Optional|Immutable)\. )+", "", absolute)
