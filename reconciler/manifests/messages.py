"""Messages and hints for failed keywords of JSON Schema.

Messages in the schema (`x-message`, `x-hint`, see `reconciler.manifests.schemas`) take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from reconciler.base.diagnostics import Keys, quote, same_word, similar_word
from reconciler.manifests.command_words import WORD_LISTS, argument_of, list_hint, mapping_hint
from reconciler.manifests.written_forms import flow, flow_word, named_item

Message = tuple[str, str]
"""Message and hint."""

_MAX_LISTED = 24
_MAX_SHOWN = 3
_MAX_CHARACTERS = 60
_MAX_ITEM = 200
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
_DIGITS = {"integer", "string"}  # the API's JSON form of a 64-bit integer is a number or its digits
# https://cloud.google.com/tpu/docs/tpus-in-gke: TPUs from v5e on are machine types, and no accelerators.
_TPU = re.compile(
    r"(?:CLOUD[-_ ]?)?TPU[-_ ]?V?(5[-_ ]?(?:E|P|LITE)?|6[-_ ]?E?|7[-_ ]?X?)(?![0-9])", re.IGNORECASE
)
_TPU_MACHINES = {
    **dict.fromkeys(("5", "5E"), "ct5lp-hightpu-4t"),
    "5P": "ct5p-hightpu-4t",
    **dict.fromkeys(("6", "6E"), "ct6e-standard-4t"),
    **dict.fromkeys(("7", "7X"), "tpu7x-standard-4t"),
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,6}) ?(s|m|h|d)?[a-z]*", re.IGNORECASE)


def keyword_message(error: Any, keys: Keys, source: str) -> Message:
    """Return the message and hint for jsonschema's error about the value at `keys`.

    `source` is the value as written in the file, if it is a scalar.
    """
    schema = error.schema if isinstance(error.schema, Mapping) else {}  # a schema may also be a boolean
    text, hint = schema.get("x-message", ""), schema.get("x-hint", "")
    if (cut := schema.get("x-cut")) and (match := re.match(cut, error.instance)):
        hint = f"write {quote(error.instance[match.end() :])}"
    if text:
        return (f"{shown(error.instance)} is {text}" if text.startswith("not ") else text), hint
    message, default_hint = _BY_KEYWORD.get(error.validator, _not_allowed)(error, keys, source)
    return message, hint or default_hint


def missing_message(name: str, schema: Mapping[str, Any]) -> Message:
    """Return the message and hint for a missing field that `schema` requires."""
    flag = schema.get("x-gcloud-flag", {}).get(name, "")
    hint = schema.get("x-hint", "") or f'add "{name}: …"'
    hint = f"add it, {hint}" if hint.startswith(("such as ", "or ")) else hint
    return f"{quote(name)} is missing", hint + (f"; gcloud takes it from {flag}" if flag else "")


def list_message(keys: Keys, value: Any, item: Mapping[str, Any], source: str) -> Message:
    """Return the message and hint for a single value in place of a list; the hint shows the list to write.

    `item` is the schema of the list's items, `source` as in `keyword_message`.
    """
    name = keys[-1] if isinstance(keys[-1], str) else "…"
    fields = list(item.get("properties", ()))
    if isinstance(value, dict):
        message = f"{name_of(keys)} must be a list, not a mapping"
        if not fields:
            arguments = mapping_hint(name, value) if name in WORD_LISTS else ""
            return message, arguments or 'begin each item with "- "'
        return message, "\n  ".join([f"write\n{name}:", *_items(value, fields)])
    message = f"{name_of(keys)} must be a list"
    if fields:
        return message, f"write\n{name}:\n  - {(item.get('required') or fields)[0]}: …"
    if isinstance(value, str) and name in WORD_LISTS:
        return message, list_hint(name, value)
    text = brief(source)
    return message, f"write {name}: [{quote(text) if item.get('type') == 'string' else text}]"


def _items(mapping: Mapping[str, Any], fields: Collection[str]) -> list[str]:
    """Return the lines of a list to write in place of a mapping."""
    pairs = list(mapping.items())[:_MAX_SHOWN]
    # Lists of names and values, such as `env`, are often written as a plain mapping.
    if {"name", "value"} <= set(fields) and not any(same_word(key, fields) for key in mapping):
        return [f"- {{name: {_short(key)}, value: {_text(part)}}}" for key, part in pairs]
    # Parameters and metrics are often written as a mapping of their names.
    items = [named_item(key, part, fields) for key, part in pairs]
    if shown := [flow(item) for item in items if item]:
        return [f"- {text}" if len(text) <= _MAX_ITEM else "- …" for text in shown]
    lines = [f"{brief(key)}: {_short(part)}" for key, part in pairs]
    return [f"{'  ' if number else '- '}{line}" for number, line in enumerate(lines)]


def name_of(keys: Keys) -> str:
    """Return a value's name for a sentence."""
    if not keys:
        return "the document"
    last = keys[-1]
    if isinstance(last, str):
        return quote(last)
    around = next((key for key in reversed(keys) if isinstance(key, str)), "")
    return f"an item of {quote(around)}" if around else "an item"


def shown(value: Any) -> str:
    """Return a value as it appears in a sentence."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else _scalar(value)


def brief(text: str) -> str:
    """Return text for an example: short, and on one line."""
    if len(text) <= _MAX_CHARACTERS and text.isprintable():
        return text
    return quote(text[:_MAX_CHARACTERS])[1:-1] + "…"


def choices(values: Iterable[Any]) -> str:
    """Return the possible values as a phrase."""
    names = [value if isinstance(value, str) else _scalar(value) for value in values]
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "…"
    text = quote(value) if isinstance(value, str) and not _PLAIN.fullmatch(value) else _scalar(value)
    return text if len(text) <= _MAX_CHARACTERS else "…"


def _text(value: Any) -> str:
    """Return a value as YAML text, quoted if YAML would read it as another type."""
    return _short(value) if isinstance(value, str | dict | list) else quote(_scalar(value))


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return str(int(value)) if is_whole else str(value)


def _wrong_type(error: Any, keys: Keys, source: str) -> Message:
    # JSON Schema permits a type or a list of types.
    types = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    value = error.instance
    name = name_of(keys)
    needed = f"{name} must be {_type_names(types)}"
    if value is None:
        part = "key" if keys and isinstance(keys[-1], str) else "item"
        written = _wrapping_hint("…", keys, error.schema) or "give it one"
        return f"{name} has no value, and must be {_type_names(types)}", f"{written}, or remove the {part}"
    if isinstance(value, str):
        return f"{needed}, not text", _unquoting_hint(value, types) or _wrapping_hint(
            _short(value), keys, error.schema
        )
    if isinstance(value, dict):
        return f"{needed}, not a mapping", _argument_hint(value, keys)
    if isinstance(value, list):
        return f"{needed}, not a list", _undashing_hint(value) if "object" in types else ""
    if "boolean" in types:
        return f"{needed}, not {brief(source)}", "write true or false"
    if "string" not in types or set(types) == _DIGITS:
        is_whole = isinstance(value, float) and value.is_integer()
        return f"{needed}, not {brief(source)}", f"write {int(value)}" if is_whole else ""
    read_as = _scalar(value)
    # YAML may have changed the number: 1.10 is 1.1, and 0x10 is 16.
    is_same = isinstance(value, bool) or source == read_as
    mistake = f"not {brief(source)}" if is_same else f"but YAML reads {brief(source)} as {read_as}"
    return f"{needed}, {mistake}", f"write {_as_text(source, error.schema)} with quotes"


def _argument_hint(value: Mapping[str, Any], keys: Keys) -> str:
    """Return the argument to write for an item such as `--epochs: 5`; "" elsewhere."""
    if len(value) != 1 or len(keys) < 2 or keys[-2] not in WORD_LISTS:
        return ""
    ((flag, part),) = value.items()
    return "" if isinstance(part, dict | list) else f"write {flow_word(argument_of(flag, part))}"


def _type_names(types: list[str]) -> str:
    if set(types) == _DIGITS:
        return _TYPES["integer"]
    return " or ".join(_TYPES[name] for name in types if name != "null")


def boolean_of(text: str) -> str:
    """Return the boolean that a text stands for, as YAML: "true" or "false", or "" if it is neither."""
    word = text.casefold()
    return "true" if word in ("true", "yes", "on", "y") else "false" * (word in ("false", "no", "off", "n"))


def _unquoting_hint(value: str, types: list[str]) -> str:
    if "boolean" in types:
        word = boolean_of(value)
        return f"write {word} without quotes" if word else "write true or false"
    pattern = r"-?[0-9]{1,15}" if "integer" in types else r"-?[0-9]{1,15}(\.[0-9]+)?([eE][-+]?[0-9]+)?"
    is_number = {"integer", "number"} & set(types) and re.fullmatch(pattern, value)
    return f"write {value} without quotes" if is_number else ""


def _undashing_hint(items: list[Any]) -> str:
    # One mapping in a list usually comes from a stray dash.
    is_stray = len(items) == 1 and isinstance(items[0], dict)
    return "remove the dash before its keys" if is_stray else "write its fields as KEY: VALUE, without dashes"


def _wrapping_hint(shown_value: str, keys: Keys, schema: Mapping[str, Any]) -> str:
    """Return a hint that puts a text under the only required key of its mapping; or ""."""
    needed = schema.get("required", ())
    if schema.get("type") == "object" and len(needed) == 1 and keys:
        return f"write {keys[-1]}: {{{needed[0]}: {shown_value}}}"
    return ""


def _as_text(source: str, schema: Mapping[str, Any]) -> str:
    """Return a number as the text that the field takes."""
    is_seconds = schema.get("format") == "google-duration" and re.fullmatch(r"[0-9]+(\.[0-9]{1,9})?", source)
    return quote(brief(source + "s" if is_seconds else source))


def tpu_machine(name: str) -> str:
    """Return the machine type that comes with the TPU of a name such as "TPU_V6E"; "" for other names."""
    match = _TPU.match(name)
    return _TPU_MACHINES.get(re.sub(r"[-_ ]|LITE", "", match[1].upper()), "") if match else ""


def _wrong_choice(error: Any, keys: Keys, source: str) -> Message:
    values = [error.validator_value] if error.validator == "const" else error.validator_value
    value = error.instance
    # Numbers as in the file: YAML may have changed their form.
    written = brief(source) if isinstance(value, int | float) else shown(value)
    message = f"{written} is not a valid value of {name_of(keys)}"
    words = [value for value in values if isinstance(value, str)]
    word = value if isinstance(value, str) else ""
    if same := same_word(word, words):
        return message, f"write {same}"
    if keys[-1:] == ("acceleratorType",) and (machine := tpu_machine(word)):
        hint = f'write machineType: {machine}\nand remove "acceleratorType" and "acceleratorCount"'
        return f"{message}: this TPU comes with its machine", hint
    if similar := similar_word(word, words):
        return message, f"did you mean {similar}?"
    return message, f"one of: {choices(values)}" if len(values) > 1 else f"write {choices(values)}"


def _wrong_form(error: Any, keys: Keys, source: str) -> Message:
    form = error.schema.get("format", "")
    value = shown(error.instance)
    if form == "google-duration":
        return f"{value} is not a duration", _duration_hint(error.instance)
    if form == "google-datetime":
        return f"{value} is not a time", 'write it in UTC, as in "2026-11-07T10:00:00Z"'
    if form == "int64":
        return _int64(error, keys)
    return f"{value} doesn't have the form of {name_of(keys)}", f"the pattern is {error.validator_value}"


def _duration_hint(text: str) -> str:
    match = _DURATION.fullmatch(text.strip())
    if match:
        seconds = int(match[1]) * _UNITS[(match[2] or "s").lower()]
        return f'write seconds and "s": "{seconds}s"'
    return 'write seconds and "s", such as "3600s"'


def _int64(error: Any, keys: Keys) -> Message:
    text = error.instance
    if re.fullmatch(r"-?[0-9]+", text):
        least = error.schema.get("minimum", 0)
        if text.startswith("-") or least > 0:
            return f"{quote(text)} is too small for {name_of(keys)}", f"the minimum is {least}"
        return f"{quote(text)} is not a whole number of 64 bits", "write it without zeros in front"
    return f"{name_of(keys)} must be a whole number, not {quote(text)}", "write digits only"


def _out_of_bounds(error: Any, keys: Keys, source: str) -> Message:
    word, limit = ("small", "minimum") if error.validator == "minimum" else ("large", "maximum")
    message = f"{brief(source)} is too {word} for {name_of(keys)}"
    return message, f"the {limit} is {_scalar(error.validator_value)}"


def _too_few(error: Any, keys: Keys, source: str) -> Message:
    if len(error.instance) == 0:
        return (
            f"{name_of(keys)} must not be empty",
            "give it a value" if error.instance == "" else "add an item",
        )
    return f"{name_of(keys)} is too short", f"at least {error.validator_value}"


def _too_many(error: Any, keys: Keys, source: str) -> Message:
    unit = {"maxItems": "items", "maxLength": "characters", "maxProperties": "keys"}[error.validator]
    return f"{name_of(keys)} has {len(error.instance)} {unit}", f"at most {error.validator_value}"


def _not_allowed(error: Any, keys: Keys, source: str) -> Message:
    return f"{name_of(keys)} can't be {shown(error.instance)} here", ""


_BY_KEYWORD: dict[str, Callable[[Any, Keys, str], Message]] = {
    "type": _wrong_type,
    "enum": _wrong_choice,
    "const": _wrong_choice,
    "pattern": _wrong_form,
    "minimum": _out_of_bounds,
    "maximum": _out_of_bounds,
    "minLength": _too_few,
    "minItems": _too_few,
    "minProperties": _too_few,
    "maxLength": _too_many,
    "maxItems": _too_many,
    "maxProperties": _too_many,
}
