"""Command lines in the YAML of continuous integration: GitHub, GitLab, Cloud Build and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from reconciler.operations.importing.command_line import find_command
from reconciler.operations.importing.found import Found, calls_of, expanded, new_state, without_expressions
from reconciler.operations.importing.marks import mark
from reconciler.operations.importing.shell import ShellState, Value, read_shell

_VARIABLES = ("env", "environment", "variables", "substitutions")
_BLOCK_STYLES = ("|", ">")


def workflow_calls(text: str, values: Mapping[str, str]) -> list[Found]:
    """Return the command lines of a readable YAML file with a bounded number of values."""
    roots = [*yaml.compose_all(text, yaml.SafeLoader)]
    variables: dict[str, Value] = {}
    for root in roots:
        for name, value in _variables(root):
            variables[name] = value if variables.get(name, value) == value else mark(name)
    known = {**variables, **values}
    return [call for root in roots for call in _walk(root, known)]


def _nodes(root: Any) -> Iterator[Any]:
    """Yield each node once, those of aliases too."""
    todo, seen = [root], set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.SequenceNode):
            todo += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            todo += [value for _, value in reversed(node.value)]


def _variables(root: Any) -> Iterator[tuple[str, str]]:
    for node in _nodes(root):
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value in _VARIABLES and isinstance(value, yaml.MappingNode):
                for name, part in value.value:
                    if isinstance(part, yaml.ScalarNode) and isinstance(name.value, str):
                        yield name.value, without_expressions(part.value)


def _walk(root: Any, known: Mapping[str, Value]) -> Iterator[Found]:
    in_lists: set[int] = set()
    for node in _nodes(root):
        if isinstance(node, yaml.SequenceNode):
            texts = [item.value for item in node.value if isinstance(item, yaml.ScalarNode)]
            words = [expanded(without_expressions(text), known) for text in texts]
            for call in (words, ["gcloud", *words]):
                if len(texts) == len(node.value) and find_command(call):
                    yield Found(node.start_mark.line + 1, call, environ=_texts(known))
                    in_lists.update(map(id, node.value))
            if not in_lists & {id(item) for item in node.value}:
                # The lines of a list are commands of one shell.
                in_lists.update(map(id, node.value))
                state = new_state(known)
                for item in node.value:
                    _read(item, state)
                yield from calls_of(state)
        elif id(node) not in in_lists:
            state = new_state(known)
            _read(node, state)
            yield from calls_of(state)


def _read(node: Any, state: ShellState) -> None:
    if isinstance(node, yaml.ScalarNode) and "gcloud" in node.value:
        line = node.start_mark.line + 1 + (node.style in _BLOCK_STYLES)
        read_shell(without_expressions(node.value).replace("$$", "$"), state, line)
    elif isinstance(node, yaml.ScalarNode) and "=" in node.value and "\n" not in node.value:
        read_shell(without_expressions(node.value), state, node.start_mark.line + 1)


def _texts(known: Mapping[str, Value]) -> dict[str, str]:
    return {name: value for name, value in known.items() if isinstance(value, str)}
