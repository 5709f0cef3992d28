"""Documents of YAML files, with the places of their values, and the edit of a job's `rerun`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from reconciler.base.diagnostics import Finding, Keys, Problem, pointer_of
from reconciler.manifests.plain_form import snake_case
from reconciler.manifests.yaml_reader import YamlContent
from reconciler.manifests.yaml_text import Chunk

_MERGE_TAG = "tag:yaml.org,2002:merge"
_Loader: type[yaml.CSafeLoader | yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """Place in a file; line and column from 1, the column in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """Value in a mapping or a list; `key` is None in a list."""

    key: Node | None
    value: Node


class Document:
    """One document of a file; the first request for a place parses it again.

    Attributes:
        value: Mappings with text as keys, lists, text, numbers, booleans and None.
        line: The first line of its content in the file, from 1.
        aliased: Number of values that exist only through aliases.
        unreadable: The paths of values already reported as problems; `value` has a placeholder there.
        is_flawed: True if reading it gave any problem.
    """

    def __init__(self, chunk: Chunk, content: YamlContent) -> None:
        self.value: Any = content.value
        self.line = content.line
        self.aliased = content.aliased
        self.unreadable: frozenset[Keys] = frozenset(flaw.keys for flaw in content.flaws)
        self.is_flawed = bool(content.flaws or content.repeated)
        self._chunk = chunk
        self._entries: dict[int, dict[str | int, _Entry]] = {}

    def position(self, keys: Sequence[str | int], *, of_key: bool = False) -> Position:
        """Return the place of the value at `keys`, or of its key; of its nearest parent if it is missing."""
        entry = _Entry(None, self._root)
        for key in keys:
            child = self._child(entry.value, key)
            if child is None and key == 0 and isinstance(entry.value, MappingNode):
                continue  # a single mapping stands for a list of one
            if child is None:
                return self._at(entry.key or entry.value)
            entry = child
        return self._at(entry.key if of_key and entry.key else entry.value)

    def problem(self, path: str, finding: Finding) -> Problem:
        """Return a finding as a problem of the file at `path`, with its place."""
        position = self.position(finding.keys, of_key=finding.of_key)
        pointer = pointer_of(finding.keys)
        return Problem(
            path, position.line, position.column, pointer, finding.message, finding.hint, finding.kind
        )

    def text_at(self, keys: Keys) -> str:
        """Return the text at `keys`; "" for other values, and if it is missing or unreadable."""
        value: Any = self.value
        for depth, key in enumerate(keys):
            if not isinstance(value, dict) or keys[: depth + 1] in self.unreadable:
                return ""
            value = value.get(key)
        return value if isinstance(value, str) else ""

    def source_text(self, keys: Sequence[str | int]) -> str:
        """Return the scalar at `keys` as written in the file, without quotes; "" for other values."""
        node = self._root
        for key in keys:
            child = self._child(node, key)
            if child is None and key == 0 and isinstance(node, MappingNode):
                continue
            if child is None:
                return ""
            node = child.value
        return str(node.value) if isinstance(node, ScalarNode) else ""

    def rerun_edit(self, value: str) -> tuple[Position, Position, str]:
        """Return the place, its end, and the text to put there, so that `reconcile.rerun` has this value.

        `value` has no character that YAML's double quotes escape. Comments and layout stay.
        """
        reconcile = self._children(self._root).get("reconcile")
        if reconcile is None:
            entry = f'"reconcile": {{"rerun": "{value}"}}'
            return self._before(self._root, f'reconcile: {{rerun: "{value}"}}', entry)
        rerun = self._children(reconcile.value).get("rerun")
        if rerun is not None:
            node = rerun.value
            is_written = node.start_mark.index != node.end_mark.index
            # A block scalar ends behind its last line break.
            end = "\n" if isinstance(node, ScalarNode) and node.style in ("|", ">") else ""
            return self._at(node), self._end(node), f'"{value}"{end}' if is_written else f' "{value}"'
        if isinstance(reconcile.value, MappingNode):
            return self._before(reconcile.value, f'rerun: "{value}"', f'"rerun": "{value}"')
        return self._at(reconcile.value), self._end(reconcile.value), f' {{rerun: "{value}"}}'

    def _before(self, mapping: Node, line: str, entry: str) -> tuple[Position, Position, str]:
        """Return the edit that puts a line, or in braces an entry, before the first key of a mapping."""
        assert isinstance(mapping, MappingNode), "a valid manifest is a mapping"
        start = self._at(mapping)
        if mapping.flow_style:
            inside = Position(start.line, start.column + 1)
            return inside, inside, f"{entry}, " if mapping.value else entry
        # Before `spec`, which is long: behind the first keys, which say which job it is.
        keys = [key for key, _ in mapping.value]
        spec = next((key for key in keys if isinstance(key, ScalarNode) and key.value == "spec"), keys[0])
        position = self._above_comments(self._at(spec))
        return position, position, f"{line}\n{' ' * (position.column - 1)}"

    def _above_comments(self, position: Position) -> Position:
        """Return the place before the comments right above a key at the start of a line."""
        lines = self._chunk.data.decode("utf-8").split("\n")
        line = position.line
        while (
            position.column == 1 and lines[line - self._chunk.line - 1].startswith("#") and line > self.line
        ):
            line -= 1
        return Position(line, position.column)

    @cached_property
    def _root(self) -> Node:
        loader = _Loader(self._chunk.data)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        # Only documents with content have places.
        if node is None:
            raise ValueError("an empty document has no places")
        return node

    def _at(self, node: Node) -> Position:
        return Position(*self._chunk.place(node.start_mark))

    def _end(self, node: Node) -> Position:
        return Position(*self._chunk.place(node.end_mark))

    def _child(self, node: Node, key: str | int) -> _Entry | None:
        children = self._children(node)
        # The value has a field under its own name, which may be written in snake_case.
        return children.get(key) or (children.get(snake_case(key)) if isinstance(key, str) else None)

    def _children(self, node: Node) -> dict[str | int, _Entry]:
        # Kept, as many findings share their parents.
        if id(node) not in self._entries:
            self._entries[id(node)] = self._find_children(node)
        return self._entries[id(node)]

    def _find_children(self, node: Node) -> dict[str | int, _Entry]:
        if isinstance(node, SequenceNode):
            return {index: _Entry(None, value) for index, value in enumerate(node.value)}
        entries: dict[str | int, _Entry] = {}
        if isinstance(node, MappingNode):
            merged: list[Node] = []
            for key, value in node.value:
                if key.tag == _MERGE_TAG:
                    merged += value.value if isinstance(value, SequenceNode) else [value]
                elif isinstance(key, ScalarNode):
                    entries.setdefault(key.value, _Entry(key, value))
            # The mapping's own keys win over merged ones.
            for source in merged:
                entries = {**self._children(source), **entries}
        return entries
