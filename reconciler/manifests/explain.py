"""A document against a JSON Schema: one finding for each mistake, and none for what only follows from it.

With a misspelt key, one key is unknown, another one missing, and all that is below goes unchecked. So what
can be mended is mended in a copy: keys whose right spelling or place can be told, and a single thing where
the API has a list of them. The copy is checked again until there is nothing more to mend, and what is still
wrong is told too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from msgspec.structs import replace

from reconciler.base.diagnostics import MAX_COUNTED_PER_FILE, quote
from reconciler.manifests.findings import Finding, Keys, Rules, same_word, similar_word
from reconciler.manifests.messages import brief, choices, say, say_list_wanted, say_missing
from reconciler.manifests.yaml_load import Document

_MOST_ROUNDS = 10
_MOST_KNOWN = 12
_NAMED_BY_US = 'remove it; the name is made from "name" under "metadata"'
_SET_BY_US = {"displayName": _NAMED_BY_US, "jobId": _NAMED_BY_US, "labels": 'write them under "metadata"'}


_validators: dict[int, tuple[Mapping[str, Any], Any]] = {}


def findings(document: Document, schema: Mapping[str, Any], rules: Rules = lambda value: ()) -> list[Finding]:
    """What is wrong with a document by its schema and by further rules, in no particular order.

    What the document has as `unreadable` was told before, and is passed over.

    Args:
        document: Any document.
        schema: Not to be changed afterwards.
        rules: Rules on a value of any shape; they see the mended copy.
    """
    errors = _errors(document.value, schema)
    if not errors and not document.unreadable:
        return list(islice(rules(document.value), MAX_COUNTED_PER_FILE))
    return list(_Explanation(document, schema, rules).of(errors))


def _errors(value: Any, schema: Mapping[str, Any]) -> list[Any]:
    if id(schema) not in _validators:
        from jsonschema import Draft202012Validator  # slow to import

        # The schema is kept beside its validator, so that its id can't become another one's.
        _validators[id(schema)] = (schema, Draft202012Validator(schema))
    return list(islice(_validators[id(schema)][1].iter_errors(value), MAX_COUNTED_PER_FILE))


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A key of the mapping at `keys` that is spelt otherwise.

    Attributes:
        name, new: The key as it is, and as it should be.
        is_sure: Whether they differ in no more than case and signs.
        text: For a key with its value in it (`{key:value}`), that value; None for all others.
    """

    keys: Keys
    name: str
    new: str
    is_sure: bool = False
    text: str | None = None

    @property
    def hint(self) -> str:
        if self.text is not None:
            return f"write a blank after the colon: {self.new}: {brief(self.text)}"
        return f"did you mean {quote(self.new)}?"


@dataclass(frozen=True, slots=True)
class _Moved:
    """A key of the mapping at `keys` that belongs below another one, which isn't there."""

    keys: Keys
    name: str
    below: str

    @property
    def hint(self) -> str:
        return f"it belongs under {quote(self.below)}"


@dataclass(frozen=True, slots=True)
class _Listed:
    """A single thing at `keys`, where a list of what `item` describes is wanted."""

    keys: Keys
    item: Mapping[str, Any]


class _Explanation:
    """The findings in one document, whose mended copy leads the way."""

    def __init__(self, document: Document, schema: Mapping[str, Any], rules: Rules) -> None:
        self._document = document
        self._schema = schema
        self._rules = rules
        self._renamed: dict[Keys, _Renamed] = {}
        self._added: set[Keys] = set()
        self._listed: set[Keys] = set()

    def of(self, errors: list[Any]) -> Iterator[Finding]:
        found = islice(self._all(errors), MAX_COUNTED_PER_FILE)
        return (finding for finding in found if not self._is_told(finding.keys))

    def _all(self, errors: list[Any]) -> Iterator[Finding]:
        value = self._document.value
        for _ in range(_MOST_ROUNDS):
            mends = [mend for error in errors for mend in self._mends(error)]
            if not mends:
                break
            value = _copy(value)
            for mend in mends:
                yield from self._apply(mend, value)
            errors = _errors(value, self._schema)
        told = set()
        for finding in self._chosen(errors):
            told.add(finding.keys)
            yield finding
        for finding in self._rules(value):
            keys = self._written(finding.keys)
            if keys not in told and not self._follows_from_a_guess(finding.keys):
                yield replace(finding, keys=keys)

    def _mends(self, error: Any) -> Iterator[_Renamed | _Moved | _Listed]:
        keys = tuple(error.absolute_path)
        if _refuses_keys(error):
            for name in islice(_unknown_keys(error), MAX_COUNTED_PER_FILE):
                mend = self._mend_of_key(keys, name, error)
                if mend and (mend.new if isinstance(mend, _Renamed) else mend.below) not in error.instance:
                    yield mend
        elif _wants_list(error) and keys and _is_item(error.instance, self._item(error)):
            yield _Listed(keys, self._item(error))

    def _mend_of_key(self, keys: Keys, name: str, error: Any) -> _Renamed | _Moved | None:
        """What to do about an unknown key; None for one that can only be removed."""
        schema = error.schema
        special = (schema.get(told, ()) for told in ("x-set-by-reconciler", "x-output-only", "x-refused"))
        if any(same_word(name, names) for names in special):
            return None
        known = schema.get("properties", {})
        if same := same_word(name, known):
            return _Renamed(keys, name, same, is_sure=True)
        before, colon, after = name.partition(":")
        if colon and before in known and error.instance[name] is None:
            return _Renamed(keys, name, before, text=after)
        for key, part in known.items():
            if name in self._resolved(part).get("properties", ()):
                return _Moved(keys, name, key)
        similar = similar_word(name, known)
        return _Renamed(keys, name, similar) if similar else None

    def _apply(self, mend: _Renamed | _Moved | _Listed, value: Any) -> Iterator[Finding]:
        """Mend the copy in place, and tell what was wrong; what another mend has done already is left."""
        keys = self._written(mend.keys)
        if isinstance(mend, _Listed):
            around, last = _at(value, mend.keys[:-1]), mend.keys[-1]
            if mend.keys not in self._listed:
                source = self._document.source_text(keys)
                yield Finding(keys, *say_list_wanted(mend.keys, around[last], mend.item, source))
                around[last] = [around[last]]
                self._listed.add(mend.keys)
            return
        mapping = _at(value, mend.keys)
        if mend.name not in mapping:
            return
        if isinstance(mend, _Renamed) and mend.new not in mapping:
            renamed = mapping.pop(mend.name)
            mapping[mend.new] = renamed if mend.text is None else mend.text
            self._renamed[(*mend.keys, mend.new)] = mend
            yield _unknown((*keys, mend.name), mend.hint)
        elif isinstance(mend, _Moved) and (
            mend.below not in mapping or (*mend.keys, mend.below) in self._added
        ):
            mapping.setdefault(mend.below, {})[mend.name] = mapping.pop(mend.name)
            self._added.add((*mend.keys, mend.below))
            yield _unknown((*keys, mend.name), mend.hint)

    def _written(self, keys: Keys) -> Keys:
        """The way in the document to what is at `keys` in the mended copy."""
        way: list[str | int] = []
        for depth, key in enumerate(keys):
            if keys[:depth] in self._listed or keys[: depth + 1] in self._added:
                continue
            mend = self._renamed.get(keys[: depth + 1])
            way.append(mend.name if mend else key)
        return tuple(way)

    def _chosen(self, errors: Iterable[Any]) -> Iterator[Finding]:
        """One finding a mistake: a value that is wrong in several ways is told once."""
        told: set[tuple[Keys, str]] = set()
        for error in sorted(errors, key=_rank):
            if self._follows_from_a_guess(tuple(error.absolute_path)):
                continue
            for finding in islice(self._tell(error), MAX_COUNTED_PER_FILE):
                # A mapping may lack several keys; anything else is wrong once.
                slot = (finding.keys, finding.message if isinstance(error.instance, dict) else "")
                if slot not in told:
                    told.add(slot)
                    yield finding

    def _follows_from_a_guess(self, keys: Keys) -> bool:
        """Whether the value is below a key that was only guessed."""
        mends = (self._renamed.get(keys[:depth]) for depth in range(1, len(keys) + 1))
        return any(mend and not mend.is_sure for mend in mends)

    def _is_told(self, keys: Keys) -> bool:
        unreadable = self._document.unreadable
        return bool(unreadable) and any(keys[:depth] in unreadable for depth in range(len(keys) + 1))

    def _tell(self, error: Any) -> Iterator[Finding]:
        keys = self._written(tuple(error.absolute_path))
        if error.validator == "required":
            for name in error.validator_value:
                if name not in error.instance and (*keys, name) not in self._document.unreadable:
                    yield Finding(keys, *say_missing(name, error.schema), of_key=True)
        elif _refuses_keys(error):
            yield from (self._unknown_key((*keys, name), name, error) for name in _unknown_keys(error))
        elif "propertyNames" in error.absolute_schema_path:
            yield Finding((*keys, error.instance), *say(error, keys, ""), of_key=True)
        else:
            source = self._document.source_text(keys)
            if _wants_list(error):
                yield Finding(keys, *say_list_wanted(keys, error.instance, self._item(error), source))
            else:
                yield Finding(keys, *say(error, keys, source), of_key=_refuses_value(error))

    def _unknown_key(self, keys: Keys, name: str, error: Any) -> Finding:
        schema = error.schema
        if ours := same_word(name, schema.get("x-set-by-reconciler", ())):
            hint = _SET_BY_US.get(ours, "remove it")
            return Finding(keys, f"{quote(name)} is set by the reconciler", hint, of_key=True)
        if same_word(name, schema.get("x-output-only", ())):
            return Finding(keys, f"{quote(name)} is set by the service", "remove it", of_key=True)
        if refused := same_word(name, schema.get("x-refused", ())):
            return Finding(keys, f"{quote(name)} can't be here", schema["x-refused"][refused], of_key=True)
        mend = self._mend_of_key(keys[:-1], name, error)
        return _unknown(keys, mend.hint if mend else _list(schema.get("properties", ())))

    def _item(self, error: Any) -> Mapping[str, Any]:
        return self._resolved(error.schema.get("items", {}))

    def _resolved(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """A subschema, or what it refers to (only `#/$defs/…` is referred to)."""
        name = part.get("$ref", "").removeprefix("#/$defs/")
        found: Mapping[str, Any] = self._schema["$defs"][name] if name else part
        return found


def _rank(error: Any) -> int:
    """Which of several errors of one value is told: that it can't be there, then its type, then the first."""
    if _refuses_value(error):
        return 0
    return 1 if error.validator == "type" else 2


def _refuses_keys(error: Any) -> bool:
    return error.validator == "additionalProperties" and error.validator_value is False


def _refuses_value(error: Any) -> bool:
    """Whether nothing may be there at all."""
    return bool(error.validator == "not" and error.validator_value == {})


def _unknown_keys(error: Any) -> Iterator[str]:
    known = error.schema.get("properties", {})
    return (name for name in error.instance if name not in known)


def _wants_list(error: Any) -> bool:
    return error.validator == "type" and error.validator_value == "array" and error.instance is not None


def _is_item(value: Any, item: Mapping[str, Any]) -> bool:
    """Whether a value looks like one item of a list of such."""
    if isinstance(value, dict):
        return any(same_word(key, item.get("properties", ())) for key in value)
    kinds = {"string": str, "integer": int, "number": int | float}
    return isinstance(value, kinds.get(item.get("type", ""), ())) and not isinstance(value, bool)


def _unknown(keys: Keys, hint: str) -> Finding:
    return Finding(keys, f"unknown key {quote(str(keys[-1]))}", hint, of_key=True)


def _list(known: Collection[str]) -> str:
    return f"known here: {choices(known)}" if 0 < len(known) <= _MOST_KNOWN else "remove it"


def _at(value: Any, keys: Keys) -> Any:
    for key in keys:
        value = value[key]
    return value


def _copy(value: Any) -> Any:
    """A copy in which what an alias stands for is there for itself."""
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    return [_copy(part) for part in value] if isinstance(value, list) else value
