"""Files of flags and configs, as gcloud reads them: YAML 1.1 with numbers such as 1e-4, no key twice."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import yaml

from reconciler.base.diagnostics import MAX_FILE_BYTES
from reconciler.convert.importing.placeholders import SourceError, quoted, without_marks

MAX_VALUES = 1_000_000
"""Most values of a file, those of aliases counted each time; a saved list of 10,000 jobs has half of them."""

_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+\Z")
_MOST_DEPTH = 100


class _Loader(yaml.SafeLoader):
    """Loader of plain values; other tags and dates stay texts."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a list or mapping can't be a key", "quote the key")
            if key.value in seen:
                raise _refused(key, f"{quoted(key.value)} is defined twice", "remove one of the two")
            seen.add(key.value)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("+-0123456789"))


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]\Z"), list("yYnN"))


def _boolean(loader: Any, node: Any) -> bool:
    return node.value.lower() in ("y", "yes", "true", "on")


_Loader.add_constructor("tag:yaml.org,2002:bool", _boolean)


def _text(loader: Any, node: Any) -> Any:
    return loader.construct_scalar(node)


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text)
_Loader.add_constructor("tag:yaml.org,2002:binary", _text)


class ConfigError(SourceError):
    """Mistake in a config file; `line` counts from 1 in the file."""

    def __init__(self, message: str, *, hint: str = "", line: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.line = line


def _refused(node: Any, message: str, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint, line=node.start_mark.line + 1)


def load_all(text: str) -> list[tuple[Any, int]]:
    """Return each document of a YAML or JSON file and its first line; raise ConfigError.

    An empty file has no document.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError("the file is too large", hint=f"at most {MAX_FILE_BYTES // 1024} KB are read")
    if (value := _json_of(text)) is not _NO_JSON:
        return [(value, text[: len(text) - len(text.lstrip())].count("\n") + 1)]
    documents = []
    try:
        loader = _Loader(without_marks(text))
        while loader.check_node():
            node: Any = loader.get_node()
            _check_depth(node)
            value = loader.construct_document(node)
            _check_size(value)
            documents.append((value, node.start_mark.line + 1))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"not readable as YAML: {error.problem}", hint="correct it", line=line) from None
    except RecursionError:
        raise _too_deep() from None
    except (yaml.YAMLError, ValueError):
        raise ConfigError("not readable as YAML", hint="correct it, or save it as UTF-8") from None
    return documents


_NO_JSON = object()


def _json_of(text: str) -> Any:
    """Return the value of a list or mapping in JSON, which is read in a hundredth of the time of YAML.

    Return `_NO_JSON` for anything else, and for what only the reader of YAML has a message for.
    """
    if text.lstrip()[:1] not in ("[", "{"):
        return _NO_JSON
    try:
        value = json.loads(
            without_marks(text), object_pairs_hook=_without_repeats, parse_constant=_no_constant
        )
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        return _NO_JSON
    todo = [(value, 0)]
    while todo:
        part, depth = todo.pop()
        if depth > _MOST_DEPTH:
            raise _too_deep()
        if isinstance(part, dict | list):
            children = part.values() if isinstance(part, dict) else part
            todo += [(child, depth + 1) for child in children if isinstance(child, dict | list)]
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity


def _too_deep() -> ConfigError:
    return ConfigError("too deeply nested values", hint=f"at most {_MOST_DEPTH} levels are read")


def _check_depth(root: Any) -> None:
    """Refuse deep nesting, and aliases that contain themselves, before values are made."""
    todo = [(root, 0)]
    count = 0
    while todo:
        node, depth = todo.pop()
        count += 1
        if depth > _MOST_DEPTH:
            raise _too_deep()
        if count > MAX_VALUES:
            raise _refused(node, "too many values", f"split the file: at most {MAX_VALUES:,} are read")
        if isinstance(node, yaml.SequenceNode):
            todo += [(child, depth + 1) for child in node.value]
        elif isinstance(node, yaml.MappingNode):
            todo += [(child, depth + 1) for pair in node.value for child in pair]


def _check_size(value: Any) -> None:
    todo = [value]
    count = 0
    while todo:
        part = todo.pop()
        count += 1
        if count > MAX_VALUES:
            raise ConfigError("the file contains too many values", hint="split it")
        if isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, list):
            todo += part
