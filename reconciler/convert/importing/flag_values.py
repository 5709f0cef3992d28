"""Values of gcloud's flags, converted and checked as gcloud does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from reconciler.convert.importing.flags import (
    OLD_ACCELERATORS,
    POOL_KEYS,
    POOL_NUMBERS,
    Flag,
)
from reconciler.convert.importing.placeholders import flag_error, is_mark, is_marked, quoted

_DELIMITER = "^"
_INTEGER = re.compile("[+-]?[0-9]{1,18}")
_LABEL_KEY = re.compile(r"(?=[^\W\d_])[\w-]{1,63}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_ACCOUNT = re.compile(r"[0-9]+|[^@\s]+@[^@\s]+\.[^@\s]+")
_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]*/?")
_OBJECT = re.compile(r"gs://[^/\s]+(/.*)?", re.DOTALL)
_BOOLEANS = {"true": True, "yes": True, "y": True, "1": True, "on": True}
_BOOLEANS |= {"false": False, "no": False, "n": False, "0": False, "off": False}
_ESCAPING = "another delimiter than the comma is written as '^;^a;b'"


def value_of(flag: Flag, values: list[Any]) -> Any:
    """Return the value of a flag that is there once or several times; raise SourceError."""
    convert = _CONVERSIONS[flag.kind]
    if not flag.appends:
        return convert(flag, values[-1])
    parts = [convert(flag, value) for value in values]
    if flag.kind == "pool":
        return [pool for part in parts for pool in (part if isinstance(part, list) else [part])]
    if flag.kind == "labels":
        return {key: text for part in parts for key, text in part.items()}
    return [item for part in parts for item in part]


def _text(flag: Flag, value: Any) -> str:
    if isinstance(value, list | dict):
        raise flag_error(flag.name, "takes a single value", "write one value")
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _list(flag: Flag, value: Any) -> list[str]:
    if isinstance(value, list):
        return [_scalar(item) for item in value]
    return split_list(flag.name, _text(flag, value))


def split_list(name: str, text: str) -> list[str]:
    """Return the items of a list as gcloud splits it: at commas, or at the delimiter that it begins with."""
    delimiter = ","
    if text.startswith(_DELIMITER) and _DELIMITER in text[1:]:
        delimiter, _, text = text[1:].partition(_DELIMITER)
        if not delimiter:
            raise flag_error(name, "the delimiter is empty", _ESCAPING)
    if not text:
        return []
    return text.removesuffix(delimiter).split(delimiter)


def _map(flag: Flag, value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(key): _scalar(part) for key, part in value.items()}
    pairs = {}
    for item in split_list(flag.name, _text(flag, value)):
        key, equals, text = item.partition("=")
        if not equals and not is_mark(item):
            raise flag_error(flag.name, f"{quoted(item)} has no value", f"write KEY=VALUE; {_ESCAPING}")
        pairs[key] = text
    return pairs


def _labels(flag: Flag, value: Any) -> dict[str, str]:
    labels = _map(flag, value)
    for key, text in labels.items():
        if not (is_marked(key) or (_LABEL_KEY.fullmatch(key) and key == key.lower())):
            raise flag_error(
                flag.name, f"{quoted(key)} is not a label key", "use lower-case letters, a-z first"
            )
        if not (is_marked(text) or (_LABEL_VALUE.fullmatch(text) and text == text.lower())):
            hint = "use lower-case letters, digits, '-' and '_', at most 63"
            raise flag_error(flag.name, f"{quoted(text)} is not a label value", hint)
    return labels


def _integer(flag: Flag, value: Any) -> Any:
    text = _text(flag, value)
    if is_marked(text):
        return text
    if not _INTEGER.fullmatch(text):
        raise flag_error(flag.name, f"{quoted(text)} is not a whole number", "write digits only")
    return int(text)


def _count(flag: Flag, value: Any) -> Any:
    number = _integer(flag, value)
    if isinstance(number, int) and number < 1:
        raise flag_error(flag.name, f"{number} is too small", "the minimum is 1")
    return number if is_marked(number) else str(number)


def _boolean(flag: Flag, value: Any) -> Any:
    text = _text(flag, value)
    if is_marked(text):
        return text
    if text.lower() not in _BOOLEANS:
        raise flag_error(flag.name, f"{quoted(text)} is not a boolean", "write true or false")
    return _BOOLEANS[text.lower()]


def _switch(flag: Flag, value: Any) -> bool:
    return value is not False


def _choice(flag: Flag, value: Any) -> str:
    text = _text(flag, value)
    chosen = text.lower().replace("_", "-")
    if is_marked(text):
        return text
    if chosen not in flag.choices or text not in (chosen, chosen.upper().replace("-", "_")):
        hint = f"the values are {', '.join(flag.choices)}"
        raise flag_error(flag.name, f"{quoted(text)} is not a valid value", hint)
    return chosen.upper().replace("-", "_")


def _accelerator(flag: Flag, value: Any) -> dict[str, str]:
    given = _map(flag, value)
    for key in given:
        if key not in ("type", "count"):
            raise flag_error(flag.name, f"unknown key {quoted(key)}", "write type=TYPE,count=N")
    for key in ("type", "count"):
        if key not in given:
            raise flag_error(flag.name, f'"{key}" is missing', "write type=TYPE,count=N")
    type_, count = given["type"], given["count"]
    if not is_marked(count):
        count = str(_count(flag, count))
    name = type_.lower().replace("_", "-")
    if not is_marked(type_) and name not in OLD_ACCELERATORS:
        raise flag_error(flag.name, f"{quoted(type_)} is not a valid type", f"take {OLD_ACCELERATORS[4]}, …")
    return {"type": type_ if is_marked(type_) else name.upper().replace("-", "_"), "count": count}


def _pool(flag: Flag, value: Any) -> Any:
    if isinstance(value, list):
        return [_pool(flag, item) for item in value]
    pool: dict[str, Any] = {**_map(flag, value)}
    for key in pool:
        if key not in POOL_KEYS and not is_mark(key):
            hint = f"the keys are {', '.join(sorted(POOL_KEYS))}; no blank may follow a comma"
            raise flag_error(flag.name, f"unknown key {quoted(key)}", hint)
    for key in POOL_NUMBERS:
        if key in pool:
            pool[key] = _integer(flag, pool[key])
    return pool


def _account(flag: Flag, value: Any) -> str:
    text = _text(flag, value)
    if not is_marked(text) and not _ACCOUNT.fullmatch(text):
        hint = "write NAME@PROJECT.iam.gserviceaccount.com"
        raise flag_error(flag.name, f"{quoted(text)} is not a service account", hint)
    return text


def _bucket(flag: Flag, value: Any) -> str:
    text = _text(flag, value)
    if not is_marked(text) and not _BUCKET.fullmatch(text):
        raise flag_error(flag.name, f"{quoted(text)} is not a bucket", "write gs://BUCKET, without a folder")
    return text


def _object(flag: Flag, value: Any) -> str:
    text = _text(flag, value)
    if is_marked(text):
        return text
    match = _OBJECT.fullmatch(text)
    if not match:
        raise flag_error(flag.name, f"{quoted(text)} is not in Cloud Storage", "write gs://BUCKET/FOLDER")
    return text if match[1] else f"{text}/"


_CONVERSIONS: dict[str, Callable[[Flag, Any], Any]] = {
    "text": _text,
    "list": _list,
    "map": _map,
    "integer": _integer,
    "int32": _integer,
    "count": _count,
    "switch": _switch,
    "boolean": _boolean,
    "choice": _choice,
    "labels": _labels,
    "accelerator": _accelerator,
    "pool": _pool,
    "account": _account,
    "bucket": _bucket,
    "object": _object,
}
