"""The published schemas of manifests: the plain ones, widened by the forms that gcloud takes too.

In `spec`, a null field without `x-not-null` counts as absent, so does an enum's `…_UNSPECIFIED` value, and a
single mapping where the API repeats counts as a list of one. A published schema accepts exactly the manifests
whose plain form (`reconciler/manifests/plain_form.py`) the plain schema accepts. So its rules treat such a
field as absent, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from words import Schema

_NESTED = ("if", "then", "else", "not")
_COMBINED = ("allOf", "anyOf", "oneOf")


def lenient(document: Schema) -> Schema:
    """A plain schema of manifests, widened."""
    return _Widening(document).document()


class _Widening:
    """The widening of one document; `absent` are the values by field that count as none."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._absent: dict[str, list[Any]] = {}
        for name, field in _fields(document):
            known = self._absent.setdefault(name, [None])
            known += [value for value in field.get("x-unspecified", ()) if value not in known]

    def document(self) -> Schema:
        """The whole document."""
        defs = {name: self._definition(name, node) for name, node in self._document.get("$defs", {}).items()}
        return {**self._envelope(self._document), "$defs": defs}

    def _definition(self, name: str, node: Schema) -> Schema:
        if "." not in name:  # a kind, in the schema for all kinds
            return self._envelope(node)
        return self._object(node) if "type" in node else self._rule(node)

    def _envelope(self, node: Schema) -> Schema:
        """A whole manifest: only its `spec`, and the rules about that, are widened."""
        properties = node.get("properties", {})
        if "spec" not in properties:
            return node
        spec = properties["spec"]
        widened = self._object(spec) if "properties" in spec else spec
        rules = [self._rule(rule) for rule in node["allOf"]]
        return {**node, "properties": {**properties, "spec": widened}, "allOf": rules}

    def _object(self, node: Schema) -> Schema:
        """An object of the API."""
        required = node.get("required", ())
        fields = {
            name: self._field(name, field, optional=name not in required)
            for name, field in node["properties"].items()
        }
        rules = {"allOf": [self._rule(rule) for rule in node["allOf"]]} if "allOf" in node else {}
        return {**node, "properties": fields, **rules}

    def _field(self, name: str, field: Schema, *, optional: bool) -> Schema:
        if "$ref" in field:
            if not optional or "x-not-null" in field:
                return field
            described = {key: value for key, value in field.items() if key != "$ref"}
            return {**described, "if": {"not": {"type": "null"}}, "then": {"$ref": field["$ref"]}}
        types = _listed(field.get("type", ()))
        if "$ref" in field.get("items", {}):
            types.append("object")
            field = {**field, "allOf": [*field.get("allOf", ()), _one(field["items"])]}
        if not optional:
            return {**field, "type": types} if len(types) > 1 else field
        if not types and "enum" not in field:
            return field  # any value
        if "enum" in field:
            absent = self._absent[name]
            told = [*field.get("enumDescriptions", ()), *["Counts as absent."] * len(absent)]
            more = {"enumDescriptions": told} if "enumDescriptions" in field else {}
            return {**field, "enum": [*field["enum"], *absent], **more}
        return {**field, "type": [*types, "null"]}

    def _rule(self, node: Schema) -> Schema:
        """A rule or a condition, in which an absent field may be written."""
        rule = {key: value for key, value in node.items() if key not in ("minProperties", "prefixItems")}
        for key in _NESTED:
            if key in rule:
                rule[key] = self._rule(rule[key])
        for key in _COMBINED:
            if key in rule:
                rule[key] = [self._rule(each) for each in rule[key]]
        properties = {
            name: self._part(name, part, optional=name not in node.get("required", ()))
            for name, part in node.get("properties", {}).items()
        }
        for name in node.get("required", ()):
            properties[name] = {**properties.get(name, {}), "not": {"enum": self._absent_of(name)}}
        if properties:
            rule["properties"] = properties
        if "minProperties" in node:
            rule["not"] = {"additionalProperties": {"enum": self._all_absent()}}
        ones = [("items", node["items"])] if "items" in node else []
        if "prefixItems" in node:
            ones = [("prefixItems", node["prefixItems"][0])]
        for key, item in ones:
            widened = self._rule(item)
            rule[key] = widened if key == "items" else [widened]
            rule["allOf"] = [*rule.get("allOf", ()), _one(widened)]
        return rule

    def _part(self, name: str, part: Schema, *, optional: bool) -> Schema:
        """A rule about one field."""
        if part.get("not") == {}:
            # The field is forbidden.
            return {**part, "not": {"not": {"enum": self._absent_of(name)}}}
        if optional and "enum" in part:
            return {**part, "enum": [*part["enum"], *self._absent_of(name)]}
        return self._rule(part)

    def _absent_of(self, name: str) -> Sequence[Any]:
        return self._absent.get(name, [None])

    def _all_absent(self) -> Sequence[Any]:
        values = {value for known in self._absent.values() for value in known if value is not None}
        return [None, *sorted(values)]


def _fields(node: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every field of every object."""
    if isinstance(node, dict):
        yield from ((name, field) for name, field in node.get("properties", {}).items() if "type" in node)
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _fields(part)


def _one(item: Schema) -> Schema:
    """The rule that a mapping in place of a list is an item of it."""
    return {"if": {"type": "object"}, "then": item}


def _listed(types: Any) -> list[str]:
    return [types] if isinstance(types, str) else [*types]
