"""Parts that all readers of sources share: their result, and variables in texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct, field

from reconciler.convert.importing.command_line import find_command
from reconciler.convert.importing.placeholders import MARK, mark
from reconciler.convert.importing.shell import ShellState, Value
from reconciler.manifests import schemas
from reconciler.model.manifest import TRAINING_PIPELINE

_CONFIG_KEYS = frozenset({"trainingInput", "workerPoolSpecs", "studySpec", "trialJobSpec"})
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_PLACEHOLDER = re.compile(
    MARK.pattern + r"|<([A-Za-z][\w -]{0,40})>|\[([A-Z][A-Z0-9_-]+)\]"
    r"|(?<=gs://)([A-Za-z]{1,2})(?=/)"  # too short for a bucket
    r"|(?<![\w$@{.-])([A-Z][A-Z0-9]+(?:[_-][A-Z0-9]+)*)(?![\w=(:])"
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class Found(Struct):
    """One command line, config or answer in a source.

    Attributes:
        line: Its first line, from 1.
        words: The words of a command line; empty for a value.
        value: A config or an answer of a service.
        environ: The variables of a command line.
        stdin: A command line's standard input; None if it is unknown.
        files: Files that the source writes itself.
        blocks: Configs in the text around a command line.
        defaults: The variables with a default that counts.
        branched: By variable, the line that assigns it in a condition or a loop.
    """

    line: int
    words: list[str] = field(default_factory=list)
    value: Any = None
    environ: Mapping[str, str] = {}
    stdin: str | None = None
    files: Mapping[str, str] = {}
    blocks: list[Any] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)
    branched: Mapping[str, int] = {}


def new_state(values: Mapping[str, Value]) -> ShellState:
    """Return a state in which the given variables keep their values."""
    return ShellState(variables=FixedValues(values), files={})


class FixedValues(dict[str, Value]):
    """Variables of which some can't be assigned again."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self._fixed = frozenset(values)

    def __setitem__(self, name: str, value: Value) -> None:
        if name not in self._fixed:
            super().__setitem__(name, value)


def calls_of(state: ShellState) -> list[Found]:
    """Return the commands that submit jobs, with the properties that commands before them set."""
    calls, properties = [], {}
    for command in state.commands:
        words = command.words
        if words[:3] == ["gcloud", "config", "set"] and len(words) > 4:
            name = words[3] if "/" in words[3] else f"core/{words[3]}"
            properties[f"CLOUDSDK_{name.replace('/', '_').upper()}"] = words[4]
        if find_command(words):
            environ = {**properties, **command.environ}
            defaults = list(dict.fromkeys(state.defaults))
            stdin, files = command.stdin, dict(state.files)
            call = Found(command.line, words, environ=environ, stdin=stdin, files=files, defaults=defaults)
            call.branched = state.branched
            calls.append(call)
    return calls


@cache
def _api_words() -> frozenset[str]:
    """Return the words in capitals that the APIs themselves know, in jobs that gcloud submits.

    No command submits a pipeline, and the words of its model, such as IMAGE, stand for values in pages.
    """
    words: set[str] = set()
    todo: list[Any] = [
        schemas.document(name) for (_, kind), name in schemas.KINDS.items() if kind != TRAINING_PIPELINE
    ]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            words.update(word for word in node.get("enum", ()) if isinstance(word, str))
            todo += node.values()
        elif isinstance(node, list):
            todo += node
    return frozenset(words)


def without_placeholders(value: Any) -> Any:
    """Return a value of a page of text with marks for placeholders: `<your-bucket>`, `[BUCKET]`, `BUCKET`."""
    if isinstance(value, dict):
        return {key: without_placeholders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_placeholders(part) for part in value]
    return _PLACEHOLDER.sub(_marked, value) if isinstance(value, str) else value


def _marked(match: re.Match[str]) -> str:
    name = next(group for group in match.groups() if group)
    return match[0] if name in _api_words() else mark(name)


def is_config(value: Any) -> bool:
    """Return True for a config file of gcloud."""
    return isinstance(value, dict) and bool(_CONFIG_KEYS & value.keys())


def expanded(text: str, values: Mapping[str, Value]) -> str:
    """Return a text with `$NAME` and `${NAME}` replaced by known values, and by marks."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        known_value = values.get(name)
        return known_value if isinstance(known_value, str) else mark(name)

    return _VARIABLE.sub(value, text)


def without_expressions(text: str) -> str:
    """Return a text with a shell variable or a mark in place of each `${{ … }}` of a workflow."""

    def value(match: re.Match[str]) -> str:
        scope, _, name = match[1].rpartition(".")
        return f"${{{name}}}" if scope == "env" and name.isidentifier() else mark(name or match[1])

    return _EXPRESSION.sub(value, text)
