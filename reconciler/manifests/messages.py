"""A failed keyword of JSON Schema as a sentence for whoever wrote the value, with what to write instead.

What the schema itself brings (`x-message`, `x-hint`, see `reconciler.manifests.schemas`) goes before all that
is made here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from reconciler.base.diagnostics import quote
from reconciler.manifests.findings import Keys, same_word, similar_word

Said = tuple[str, str]
"""A message and a hint."""

_MOST_LISTED = 24
_MOST_SHOWN = 3
_MOST_CHARACTERS = 60
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./:-]*[A-Za-z0-9_/-]")
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
_DIGITS = {"integer", "string"}  # a 64-bit integer
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,6}) ?(s|m|h|d)?[a-z]*", re.IGNORECASE)


def say(error: Any, keys: Keys, source: str) -> Said:
    """What to tell of a failed keyword.

    Args:
        error: jsonschema's error.
        keys: The way to the value that failed.
        source: The value as the file writes it, where it is a scalar.
    """
    own = error.schema.get("x-message", "") if isinstance(error.schema, Mapping) else ""
    hint = error.schema.get("x-hint", "") if isinstance(error.schema, Mapping) else ""
    if own:
        return (f"{shown(error.instance)} is {own}" if own.startswith("not ") else own), hint
    made = _SAID.get(error.validator, _not_allowed)
    message, made_hint = made(error, keys, source)
    return message, hint or made_hint


def say_missing(name: str, schema: Mapping[str, Any]) -> Said:
    """A required field that isn't there; `schema` is the one that requires it."""
    flag = schema.get("x-gcloud-flag", {}).get(name, "")
    hint = schema.get("x-hint", "") or f'add "{name}: …"'
    hint = f"add it, {hint}" if hint.startswith(("such as ", "or ")) else hint
    return f"{quote(name)} is missing", hint + (f"; gcloud takes it from {flag}" if flag else "")


def say_list_wanted(keys: Keys, value: Any, item: Mapping[str, Any], source: str) -> Said:
    """One thing where the API has a list of them; the hint is the list to write.

    Args:
        keys: The way to it.
        value: What is there.
        item: The schema of the list's items.
        source: The value as the file writes it, where it is a scalar.
    """
    name = keys[-1] if isinstance(keys[-1], str) else "…"
    fields = list(item.get("properties", ()))
    if isinstance(value, dict):
        message = f"{what(keys)} must be a list, not a mapping"
        if not fields:
            return message, 'begin each item with "- "'
        return message, "\n  ".join([f"write\n{name}:", *_items(value, fields)])
    message = f"{what(keys)} must be a list"
    if fields:
        return message, f"write\n{name}:\n  - {(item.get('required') or fields)[0]}: …"
    text = brief(source)
    return message, f"write {name}: [{quote(text) if item.get('type') == 'string' else text}]"


def _items(mapping: Mapping[str, Any], fields: Collection[str]) -> list[str]:
    """The lines of a list that is to be written in place of a mapping."""
    pairs = list(mapping.items())[:_MOST_SHOWN]
    if {"name", "value"} <= set(fields) and not any(same_word(key, fields) for key in mapping):
        return [f"- {{name: {_short(key)}, value: {_text(part)}}}" for key, part in pairs]
    lines = [f"{brief(key)}: {_short(part)}" for key, part in pairs]
    return [f"{'  ' if number else '- '}{line}" for number, line in enumerate(lines)]


def what(keys: Keys) -> str:
    """A value's name for a sentence."""
    if not keys:
        return "the document"
    last = keys[-1]
    if isinstance(last, str):
        return quote(last)
    around = next((key for key in reversed(keys) if isinstance(key, str)), "")
    return f"an item of {quote(around)}" if around else "an item"


def shown(value: Any) -> str:
    """A value as it may stand in a sentence."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else _scalar(value)


def brief(text: str) -> str:
    """Text for an example: short, and on one line."""
    if len(text) <= _MOST_CHARACTERS and text.isprintable():
        return text
    return quote(text[:_MOST_CHARACTERS])[1:-1] + "…"


def choices(values: Iterable[Any]) -> str:
    """The values one can choose from, as a phrase."""
    names = [value if isinstance(value, str) else _scalar(value) for value in values]
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "…"
    text = quote(value) if isinstance(value, str) and not _PLAIN.fullmatch(value) else _scalar(value)
    return text if len(text) <= _MOST_CHARACTERS else "…"


def _text(value: Any) -> str:
    """A value as YAML text."""
    return _short(value) if isinstance(value, str | dict | list) else quote(_scalar(value))


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return (
        str(int(value))
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        else str(value)
    )


def _type(error: Any, keys: Keys, source: str) -> Said:
    wanted = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    value = error.instance
    name = what(keys)
    needed = f"{name} must be {_wanted(wanted)}"
    if value is None:
        part = "key" if keys and isinstance(keys[-1], str) else "item"
        return f"{name} has no value, and must be {_wanted(wanted)}", f"give it one, or remove the {part}"
    if isinstance(value, str):
        return f"{needed}, not text", _unquoted(value, wanted) or _wrapped(value, keys, error.schema)
    if isinstance(value, dict | list):
        is_list = isinstance(value, list)
        hint = "remove the dash before its keys" if is_list and "object" in wanted and len(value) == 1 else ""
        return f"{needed}, not a {'list' if is_list else 'mapping'}", hint
    if "boolean" in wanted:
        return f"{needed}, not {brief(source)}", "write true or false"
    if "string" not in wanted or set(wanted) == _DIGITS:
        return f"{needed}, not {brief(source)}", _whole(value)
    read_as = _scalar(value)
    if isinstance(value, bool) or source == read_as:
        return f"{needed}, not {brief(source)}", f"write {_as_text(source, error.schema)} with quotes"
    return (
        f"{needed}, but YAML reads {brief(source)} as {read_as}",
        f"write {_as_text(source, error.schema)} with quotes",
    )


def _wanted(types: list[str]) -> str:
    if set(types) == _DIGITS:
        return _TYPES["integer"]
    return " or ".join(_TYPES[name] for name in types if name != "null")


def _unquoted(value: str, wanted: list[str]) -> str:
    if "boolean" in wanted:
        meant = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
        word = meant.get(value.casefold(), "")
        return f"write {word} without quotes" if word else "write true or false"
    pattern = r"-?[0-9]{1,15}" if "integer" in wanted else r"-?[0-9]{1,15}(\.[0-9]+)?([eE][-+]?[0-9]+)?"
    is_number = {"integer", "number"} & set(wanted) and re.fullmatch(pattern, value)
    return f"write {value} without quotes" if is_number else ""


def _wrapped(value: str, keys: Keys, schema: Mapping[str, Any]) -> str:
    """A text as the one key that its mapping needs."""
    needed = schema.get("required", ())
    if schema.get("type") == "object" and len(needed) == 1 and keys:
        return f"write {keys[-1]}: {{{needed[0]}: {_short(value)}}}"
    return ""


def _whole(value: Any) -> str:
    return f"write {int(value)}" if isinstance(value, float) and value.is_integer() else ""


def _as_text(source: str, schema: Mapping[str, Any]) -> str:
    """A number as the text that the field takes."""
    is_seconds = schema.get("format") == "google-duration" and re.fullmatch(r"[0-9]+(\.[0-9]{1,9})?", source)
    return quote(brief(source + "s" if is_seconds else source))


def _enum(error: Any, keys: Keys, source: str) -> Said:
    known = [error.validator_value] if error.validator == "const" else error.validator_value
    value = error.instance
    written = brief(source) if isinstance(value, int | float) else shown(value)
    message = f"{written} is no value of {what(keys)}"
    words = [value for value in known if isinstance(value, str)]
    word = value if isinstance(value, str) else ""
    if same := same_word(word, words):
        return message, f"write {same}"
    if similar := similar_word(word, words):
        return message, f"did you mean {similar}?"
    return message, f"one of: {choices(known)}" if len(known) > 1 else f"write {choices(known)}"


def _pattern(error: Any, keys: Keys, source: str) -> Said:
    form = error.schema.get("format", "")
    value = shown(error.instance)
    if form == "google-duration":
        return f"{value} is not a duration", _duration(error.instance)
    if form == "google-datetime":
        return f"{value} is not a time", 'write it in UTC, as in "2026-11-07T10:00:00Z"'
    if form == "int64":
        return _int64(error, keys)
    return f"{value} doesn't have the form of {what(keys)}", f"the pattern is {error.validator_value}"


def _duration(text: str) -> str:
    match = _DURATION.fullmatch(text.strip())
    if match:
        seconds = int(match[1]) * _UNITS[(match[2] or "s").lower()]
        return f'write seconds and "s": "{seconds}s"'
    return 'write seconds and "s", such as "3600s"'


def _int64(error: Any, keys: Keys) -> Said:
    text = error.instance
    if re.fullmatch(r"-?[0-9]+", text):
        least = error.schema.get("minimum", 0)
        if text.startswith("-") or least > 0:
            return f"{quote(text)} is too small for {what(keys)}", f"the least is {least}"
        return f"{quote(text)} is not a whole number of 64 bits", "write it without zeros in front"
    return f"{what(keys)} must be a whole number, not {quote(text)}", "write digits only"


def _bound(word: str, limit: str) -> Callable[[Any, Keys, str], Said]:
    def tell(error: Any, keys: Keys, source: str) -> Said:
        return (
            f"{brief(source)} is too {word} for {what(keys)}",
            f"the {limit} is {_scalar(error.validator_value)}",
        )

    return tell


def _too_few(error: Any, keys: Keys, source: str) -> Said:
    if len(error.instance) == 0:
        return f"{what(keys)} must not be empty", "give it a value" if error.instance == "" else "add to it"
    return f"{what(keys)} is too short", f"at least {error.validator_value}"


def _too_many(error: Any, keys: Keys, source: str) -> Said:
    unit = {"maxItems": "items", "maxLength": "characters", "maxProperties": "keys"}[error.validator]
    return f"{what(keys)} has {len(error.instance)} {unit}", f"at most {error.validator_value}"


def _not_allowed(error: Any, keys: Keys, source: str) -> Said:
    return f"{what(keys)} can't be {shown(error.instance)} here", ""


_SAID: dict[str, Callable[[Any, Keys, str], Said]] = {
    "type": _type,
    "enum": _enum,
    "const": _enum,
    "pattern": _pattern,
    "minimum": _bound("small", "least"),
    "maximum": _bound("large", "most"),
    "minLength": _too_few,
    "minItems": _too_few,
    "minProperties": _too_few,
    "maxLength": _too_many,
    "maxItems": _too_many,
    "maxProperties": _too_many,
}
