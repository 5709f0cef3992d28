"""Mistakes of a document by its JSON Schema: one finding for each mistake, none for its consequences.

A misspelt key gives two errors, an unknown key and a missing key, and leaves everything below it unchecked.
So the check corrects a copy of the document: it renames or moves keys whose spelling or place it can infer,
and wraps a single value in a list where the API takes a list. It validates the copy again until no further
correction applies, and reports the remaining errors as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from msgspec.structs import replace

from reconciler.base.diagnostics import (
    MAX_COUNTED_PER_FILE,
    Finding,
    Keys,
    Problem,
    Rules,
    quote,
    same_word,
    similar_word,
)
from reconciler.manifests.messages import (
    boolean_of,
    brief,
    choices,
    keyword_message,
    list_message,
    missing_message,
)
from reconciler.manifests.yaml_document import Document, Position

_MAX_ROUNDS = 10
_MAX_LISTED = 12
_NAMED_BY_US = 'remove it; the name is made from "name" under "metadata"'
_SET_BY_US = {"displayName": _NAMED_BY_US, "jobId": _NAMED_BY_US, "labels": 'write them under "metadata"'}


_validators: dict[int, tuple[Mapping[str, Any], Any]] = {}


def findings(document: Document, schema: Mapping[str, Any], rules: Rules = lambda value: ()) -> list[Finding]:
    """Return the mistakes of a document by its schema and by further rules, in no particular order.

    Values in the document's `unreadable` are skipped: reading the document has reported them. The schema must
    not be changed afterwards. The rules get the corrected copy.
    """
    errors = _errors(document.value, schema)
    if not errors and not document.unreadable:
        found = list(rules(document.value))
        # Errors first: many warnings must not hide one.
        return sorted(found, key=lambda finding: bool(finding.kind))[:MAX_COUNTED_PER_FILE]
    return list(_Explanation(document, schema, rules).of(errors))


def with_boolean_hints(
    problems: list[Problem], document: Document, schema: Mapping[str, Any]
) -> list[Problem]:
    """Return the problems of a document; where the schema takes true or false, no hint offers quotes."""
    hints = _boolean_hints(document, schema)
    positions = [(problem, Position(problem.line, problem.column)) for problem in problems] if hints else []
    return [replace(problem, hint=hints.get(at, problem.hint)) for problem, at in positions] or problems


def _boolean_hints(document: Document, schema: Mapping[str, Any]) -> dict[Position, str]:
    """Return the correction of each unclear scalar that stands where the schema takes true or false."""
    errors = _errors(document.value, schema) if document.unreadable else []
    wrong = (error for error in errors if error.validator == "type" and "boolean" in error.validator_value)
    fields = (tuple(error.absolute_path) for error in wrong)
    return {
        document.position(keys): f"write {boolean_of(document.source_text(keys)) or 'true or false'}"
        for keys in fields
        if keys in document.unreadable
    }


def _errors(value: Any, schema: Mapping[str, Any]) -> list[Any]:
    if id(schema) not in _validators:
        from jsonschema import Draft202012Validator  # slow to import

        # Keeping the schema alive prevents Python from reusing its id for another schema.
        _validators[id(schema)] = (schema, Draft202012Validator(schema))
    return list(islice(_validators[id(schema)][1].iter_errors(value), MAX_COUNTED_PER_FILE))


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Correction of a misspelt key of the mapping at `keys`.

    Attributes:
        name, new: The key as written, and its correct spelling.
        is_sure: True if they differ only in case and separators.
        text: Value of a key that contains its value (`{key:value}`); None for all others.
    """

    keys: Keys
    name: str
    new: str
    is_sure: bool = False
    text: str | None = None

    @property
    def hint(self) -> str:
        if self.text is not None:
            return f"write a space after the colon: {self.new}: {brief(self.text)}"
        return f"did you mean {quote(self.new)}?"


@dataclass(frozen=True, slots=True)
class _Moved:
    """Correction of a key of the mapping at `keys` that belongs below another key, which is missing."""

    keys: Keys
    name: str
    below: str

    @property
    def hint(self) -> str:
        return f"it belongs under {quote(self.below)}"


@dataclass(frozen=True, slots=True)
class _Listed:
    """Correction of a single value at `keys` where the schema takes a list of `item`."""

    keys: Keys
    item: Mapping[str, Any]


class _Explanation:
    """Findings of one document, from the errors of its corrected copies."""

    def __init__(self, document: Document, schema: Mapping[str, Any], rules: Rules) -> None:
        self._document = document
        self._schema = schema
        self._rules = rules
        self._renamed: dict[Keys, _Renamed] = {}
        self._added: set[Keys] = set()
        self._listed: set[Keys] = set()

    def of(self, errors: list[Any]) -> Iterator[Finding]:
        all_findings = islice(self._all_findings(errors), MAX_COUNTED_PER_FILE)
        return (finding for finding in all_findings if not self._is_unreadable(finding.keys))

    def _all_findings(self, errors: list[Any]) -> Iterator[Finding]:
        value = self._document.value
        for _ in range(_MAX_ROUNDS):
            fixes = [fix for error in errors for fix in self._fixes(error)]
            if not fixes:
                break
            value = _copy(value)  # the errors refer to the value before the fixes
            for fix in fixes:
                yield from self._apply(fix, value)
            errors = _errors(value, self._schema)
        reported = set()
        for finding in self._one_per_mistake(errors):
            reported.add(finding.keys)
            yield finding
        for finding in self._rules(value):
            keys = self._original_keys(finding.keys)
            # A single value in place of a list is told already, with the list to write.
            if finding.keys[:-1] in self._listed:
                continue
            if keys not in reported and not self._follows_from_a_guess(finding.keys):
                yield replace(finding, keys=keys)

    def _fixes(self, error: Any) -> Iterator[_Renamed | _Moved | _Listed]:
        keys = tuple(error.absolute_path)
        if _refuses_keys(error):
            for name in islice(_unknown_keys(error), MAX_COUNTED_PER_FILE):
                fix = self._fix_of_key(keys, name, error)
                if fix and (fix.new if isinstance(fix, _Renamed) else fix.below) not in error.instance:
                    yield fix
        elif _requires_list(error) and keys and _is_item(error.instance, self._item(error)):
            yield _Listed(keys, self._item(error))

    def _fix_of_key(self, keys: Keys, name: str, error: Any) -> _Renamed | _Moved | None:
        """Return the correction of an unknown key; None if the key can only be removed."""
        schema = error.schema
        # The schema has a message of its own for these names.
        special = (schema.get(key, ()) for key in ("x-set-by-reconciler", "x-output-only", "x-refused"))
        if any(same_word(name, names) for names in special):
            return None
        properties = schema.get("properties", {})
        if same := same_word(name, properties):
            return _Renamed(keys, name, same, is_sure=True)
        before, colon, after = name.partition(":")
        if colon and before in properties and error.instance[name] is None:
            return _Renamed(keys, name, before, text=after)
        for key, part in properties.items():
            if name in self._resolved(part).get("properties", ()):
                return _Moved(keys, name, key)
        similar = similar_word(name, properties)
        return _Renamed(keys, name, similar) if similar else None

    def _apply(self, fix: _Renamed | _Moved | _Listed, value: Any) -> Iterator[Finding]:
        """Correct the copy in place and yield the finding, unless an earlier correction covers it."""
        keys = self._original_keys(fix.keys)
        if isinstance(fix, _Listed):
            around, last = _at(value, fix.keys[:-1]), fix.keys[-1]
            if fix.keys not in self._listed:
                source = self._document.source_text(keys)
                yield Finding(keys, *list_message(fix.keys, around[last], fix.item, source))
                around[last] = [around[last]]
                self._listed.add(fix.keys)
            return
        mapping = _at(value, fix.keys)
        if fix.name not in mapping:
            return
        if isinstance(fix, _Renamed) and fix.new not in mapping:
            renamed = mapping.pop(fix.name)
            mapping[fix.new] = renamed if fix.text is None else fix.text
            self._renamed[(*fix.keys, fix.new)] = fix
            yield _unknown((*keys, fix.name), fix.hint)
        elif isinstance(fix, _Moved) and (fix.below not in mapping or (*fix.keys, fix.below) in self._added):
            mapping.setdefault(fix.below, {})[fix.name] = mapping.pop(fix.name)
            self._added.add((*fix.keys, fix.below))
            yield _unknown((*keys, fix.name), fix.hint)

    def _original_keys(self, keys: Keys) -> Keys:
        """Return the path in the document of the value at `keys` in the corrected copy."""
        original: list[str | int] = []
        for depth, key in enumerate(keys):
            if keys[:depth] in self._listed or keys[: depth + 1] in self._added:
                continue
            fix = self._renamed.get(keys[: depth + 1])
            original.append(fix.name if fix else key)
        return tuple(original)

    def _one_per_mistake(self, errors: Iterable[Any]) -> Iterator[Finding]:
        """Yield one finding for each mistake, even if a value has several errors."""
        reported: set[tuple[Keys, str]] = set()
        for error in sorted(errors, key=_rank):
            # If the guess is wrong, so are the errors below it.
            if self._follows_from_a_guess(tuple(error.absolute_path)):
                continue
            for finding in islice(self._findings_of(error), MAX_COUNTED_PER_FILE):
                # A mapping may lack several keys; any other value gets one finding.
                slot = (finding.keys, finding.message if isinstance(error.instance, dict) else "")
                if slot not in reported:
                    reported.add(slot)
                    yield finding

    def _follows_from_a_guess(self, keys: Keys) -> bool:
        """Return True if the value is below a key that was only guessed."""
        fixes = (self._renamed.get(keys[:depth]) for depth in range(1, len(keys) + 1))
        return any(fix and not fix.is_sure for fix in fixes)

    def _is_unreadable(self, keys: Keys) -> bool:
        unreadable = self._document.unreadable
        return bool(unreadable) and any(keys[:depth] in unreadable for depth in range(len(keys) + 1))

    def _findings_of(self, error: Any) -> Iterator[Finding]:
        keys = self._original_keys(tuple(error.absolute_path))
        if error.validator == "required":
            # A field under another service's name is no missing field: adding it would be wrong advice.
            if any(same_word(name, error.schema.get("x-refused", ())) for name in error.instance):
                return
            for name in error.validator_value:
                if name not in error.instance and (*keys, name) not in self._document.unreadable:
                    yield Finding(keys, *missing_message(name, error.schema), of_key=True)
        elif _refuses_keys(error):
            yield from (self._unknown_key((*keys, name), name, error) for name in _unknown_keys(error))
        elif "propertyNames" in error.absolute_schema_path:
            yield Finding((*keys, error.instance), *keyword_message(error, keys, ""), of_key=True)
        else:
            source = self._document.source_text(keys)
            if _requires_list(error):
                yield Finding(keys, *list_message(keys, error.instance, self._item(error), source))
            else:
                yield Finding(keys, *keyword_message(error, keys, source), of_key=_refuses_value(error))

    def _unknown_key(self, keys: Keys, name: str, error: Any) -> Finding:
        schema = error.schema
        if ours := same_word(name, schema.get("x-set-by-reconciler", ())):
            hint = _SET_BY_US.get(ours, "remove it")
            return Finding(keys, f"{quote(name)} is set by the reconciler", hint, of_key=True)
        if same_word(name, schema.get("x-output-only", ())):
            return Finding(keys, f"{quote(name)} is set by the service", "remove it", of_key=True)
        if refused := same_word(name, schema.get("x-refused", ())):
            return Finding(
                keys, f"{quote(name)} isn't allowed here", schema["x-refused"][refused], of_key=True
            )
        fix = self._fix_of_key(keys[:-1], name, error)
        if isinstance(fix, _Renamed) and fix.is_sure and fix.new in error.instance:
            message = f"the key {quote(fix.new)} is defined twice, here as {quote(name)}"
            return Finding(keys, message, "remove one of the two", of_key=True)
        return _unknown(keys, fix.hint if fix else _list(schema.get("properties", ())))

    def _item(self, error: Any) -> Mapping[str, Any]:
        return self._resolved(error.schema.get("items", {}))

    def _resolved(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a subschema, or the target of its reference (only `#/$defs/…` occurs)."""
        name = part.get("$ref", "").removeprefix("#/$defs/")
        target: Mapping[str, Any] = self._schema["$defs"][name] if name else part
        return target


def _rank(error: Any) -> int:
    """Return the rank of an error among those of one value: a forbidden value, its type, the others."""
    if _refuses_value(error):
        return 0
    return 1 if error.validator == "type" else 2


def _refuses_keys(error: Any) -> bool:
    return error.validator == "additionalProperties" and error.validator_value is False


def _refuses_value(error: Any) -> bool:
    """Return True if the schema forbids any value."""
    return bool(error.validator == "not" and error.validator_value == {})


def _unknown_keys(error: Any) -> Iterator[str]:
    properties = error.schema.get("properties", {})
    return (name for name in error.instance if name not in properties)


def _requires_list(error: Any) -> bool:
    return error.validator == "type" and error.validator_value == "array" and error.instance is not None


def _is_item(value: Any, item: Mapping[str, Any]) -> bool:
    """Return True if a value looks like a single item of a list."""
    if isinstance(value, dict):
        return any(same_word(key, item.get("properties", ())) for key in value)
    kinds = {"string": str, "integer": int, "number": int | float}
    return isinstance(value, kinds.get(item.get("type", ""), ())) and not isinstance(value, bool)


def _unknown(keys: Keys, hint: str) -> Finding:
    return Finding(keys, f"unknown key {quote(str(keys[-1]))}", hint, of_key=True)


def _list(allowed_keys: Collection[str]) -> str:
    return f"allowed here: {choices(allowed_keys)}" if 0 < len(allowed_keys) <= _MAX_LISTED else "remove it"


def _at(value: Any, keys: Keys) -> Any:
    for key in keys:
        value = value[key]
    return value


def _copy(value: Any) -> Any:
    """Return a copy without shared parts, so that correcting one alias leaves the others as written."""
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    return [_copy(part) for part in value] if isinstance(value, list) else value
