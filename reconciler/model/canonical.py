"""The canonical form of values: equal meaning, equal bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from operator import is_not
from typing import Any

from msgspec import Struct

from reconciler.model.manifest import JsonObject

_SAME_PLACE = ("allOf", "anyOf", "oneOf", "then", "else")
_LOCAL = "#/"
_DECIMAL = re.compile(r"(-?)0*([0-9]+)")

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def canonical_json(value: Any) -> bytes:
    """Return `value` as JSON in UTF-8 with sorted keys and no blanks; floats in the form of Python's `repr`.

    Args:
        value: Mappings with text keys, lists, tuples, text, integers of any size, floats, booleans and None;
            subclasses of these too, such as a `StrEnum`.

    Raises:
        ValueError: NaN, an infinity, a lone surrogate or a cyclic value: these have no JSON form.
    """
    # Job names depend on these bytes, so they are those of Python's `json` for ever. Faster encoders write
    # floats in other forms, such as 1e16 for 1e+16.
    return _encode(value).encode("utf-8")


def canonical_spec(spec: JsonObject, schema: JsonObject) -> dict[str, Any]:
    """Return a valid manifest's `spec` with every number in the canonical form of its type.

    int64 fields become decimal strings without leading zeros, as the APIs themselves write them; int32 fields
    become integers; double fields floats, 0.0 for -0.0. Other values stay as they are.

    Args:
        spec: Never modified; the result shares its unchanged parts.
        schema: The schema of the whole manifest, with local references only. It is compiled once, so it must
            not be changed afterwards.
    """
    compiled = _compiled.get(id(schema))
    if compiled is None:
        # The schema is kept with its form, so that its id can't be reused for another schema.
        compiled = _compiled[id(schema)] = (schema, _compile(schema))
    canonical: dict[str, Any] = _apply(compiled[1], spec)
    return canonical


class _Form(Struct):
    """Conversions at a place of a document and below; None or missing for none.

    Attributes:
        convert: Converts a number at this place to its canonical form.
        fields: By key of an object.
        named: All keys that the schema names.
        values: For the keys that it doesn't name.
        items: For each item of a list.
    """

    convert: Callable[[Any], Any] | None = None
    fields: dict[str, _Form] = {}
    named: frozenset[str] = frozenset()
    values: _Form | None = None
    items: _Form | None = None

    def below(self) -> Iterator[_Form]:
        yield from self.fields.values()
        yield from (form for form in (self.values, self.items) if form is not None)


_compiled: dict[int, tuple[JsonObject, _Form]] = {}


def _apply(form: _Form, value: Any) -> Any:
    """Return the value in its canonical form; the same object if it is unchanged."""
    if isinstance(value, dict):
        return _apply_to_object(form, value)
    if isinstance(value, list):
        return _apply_to_list(form.items, value) if form.items is not None else value
    return form.convert(value) if form.convert is not None else value


def _apply_to_object(form: _Form, value: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key in form.fields.keys() & value.keys():
        part = value[key]
        new = _apply(form.fields[key], part)
        if new is not part:
            changed[key] = new
    if form.values is not None:
        for key, part in value.items():
            if key not in form.named:
                changed[key] = _apply(form.values, part)
    return {**value, **changed} if changed else value


def _apply_to_list(form: _Form, items: list[Any]) -> list[Any]:
    applied = [_apply(form, item) for item in items]
    # Compare by identity: 1 == 1.0.
    return applied if any(map(is_not, applied, items)) else items


def _int64(value: Any) -> Any:
    if isinstance(value, str):
        return _without_leading_zeros(value)
    whole = _int32(value)
    return str(whole) if isinstance(whole, int) and not isinstance(whole, bool) else value


def _without_leading_zeros(text: str) -> str:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return text
    sign, digits = match.groups()
    canonical: str = digits if digits == "0" else sign + digits
    return text if canonical == text else canonical


def _int32(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _double(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    # Adding 0.0 turns -0.0 into 0.0 and changes nothing else.
    return value if isinstance(value, float) and value else float(value) + 0.0


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"int64": _int64, "int32": _int32, "double": _double}
"""By `format`, the API's word for a number's type (https://developers.google.com/discovery/v1/type-format)."""


def _compile(schema: JsonObject) -> _Form:
    """Return the form of a manifest's `spec`, with only the places that lead to a number."""
    compiler = _Compiler(schema)
    form = compiler.form([schema["properties"]["spec"]])
    compiler.prune()
    return form


class _Compiler:
    """Compiler of a schema's forms; each place once, since schemas may refer to themselves."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._forms: dict[frozenset[int], _Form] = {}

    def form(self, schemas: Iterable[Any]) -> _Form:
        """Return the form of a place described by all of `schemas`."""
        parts = self._parts(schemas)
        key = frozenset(parts)
        if key not in self._forms:
            self._forms[key] = _Form()
            self._fill(self._forms[key], list(parts.values()))
        return self._forms[key]

    def _parts(self, schemas: Iterable[Any]) -> dict[int, JsonObject]:
        """Return the schemas and all that they refer to or combine, by id."""
        parts: dict[int, JsonObject] = {}
        todo = [*schemas]
        while todo:
            schema = todo.pop()
            if isinstance(schema, dict) and id(schema) not in parts:
                parts[id(schema)] = schema
                todo += self._others(schema)
        return parts

    def _others(self, schema: JsonObject) -> Iterator[Any]:
        if "$ref" in schema:
            yield self._target(schema["$ref"])
        for keyword in _SAME_PLACE:
            others = schema.get(keyword, [])
            yield from others if isinstance(others, list) else [others]

    def _target(self, reference: str) -> Any:
        if not reference.startswith(_LOCAL):
            raise LookupError(f"{reference} is no local reference")
        target: Any = self._root
        for key in reference.removeprefix(_LOCAL).split("/"):
            target = target[key.replace("~1", "/").replace("~0", "~")]
        return target

    def _fill(self, form: _Form, parts: list[JsonObject]) -> None:
        fields: dict[str, list[Any]] = {}
        for part in parts:
            for key, schema in part.get("properties", {}).items():
                fields.setdefault(key, []).append(schema)
        form.named = frozenset(fields)
        form.fields = {key: self.form(schemas) for key, schemas in fields.items()}
        form.values = self.form(part.get("additionalProperties") for part in parts)
        form.items = self.form(
            schema for part in parts for schema in (part.get("items"), *part.get("prefixItems", ()))
        )
        formats = (part.get("format") for part in parts)
        form.convert = next((_CONVERSIONS[name] for name in formats if name in _CONVERSIONS), None)

    def prune(self) -> None:
        """Remove the places that lead to no number: nearly all."""
        useful: set[int] = set()
        before = -1
        while len(useful) > before:
            before = len(useful)
            useful |= {id(form) for form in self._forms.values() if self._leads(form, useful)}
        for form in self._forms.values():
            form.fields = {key: below for key, below in form.fields.items() if id(below) in useful}
            form.values = form.values if id(form.values) in useful else None
            form.items = form.items if id(form.items) in useful else None

    @staticmethod
    def _leads(form: _Form, useful: set[int]) -> bool:
        return form.convert is not None or any(id(below) in useful for below in form.below())
