"""Specs and differences of a plan's changes, as lines for the terminal and for Markdown.

New jobs show their effective spec as YAML, changed jobs a diff of it. The earlier spec of the diff is the new
one with the changed fields set back: fields that the tool derives, and values that a service fills in, are no
changes and so show no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from reconciler.base.diagnostics import MAX_QUOTED, counted
from reconciler.base.sanitize import one_line
from reconciler.model.diff import FieldChange
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import Change
from reconciler.planning.comparison import CODE_POINTER

if TYPE_CHECKING:
    from yaml import SafeDumper, ScalarNode

MAX_LINES = 300
"""Shown lines of a spec or a diff."""

_CONTEXT = 2
# A comparison of more lines could take quadratic time; such specs show all lines as changed.
_MOST_COMPARED = 1000
_WIDTH = 10**9  # a text is never folded
_RANGE = "integerValueSpec"  # its fields are int64
_WHOLE = re.compile("-?[0-9]{1,19}")


@cache
def _dumper() -> type[SafeDumper]:
    """Return a writer of YAML without aliases, with literal blocks for texts of several lines."""
    import yaml  # slow to import, and most plans show no spec

    def text_node(dumper: SafeDumper, text: str) -> ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    # PyYAML may be built without libyaml.
    base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    made: type[SafeDumper] = type("_Dumper", (base,), {"ignore_aliases": lambda self, data: True})
    made.add_representer(str, text_node)
    return made


def spec_lines(change: Change) -> list[str]:
    """Return the effective spec of a new job as lines of YAML; none for other changes."""
    spec = change.spec
    return [] if spec is None else _limited([one_line(_cut(line)) for line in yaml_lines(spec)])


def diff_lines(change: Change) -> list[str]:
    """Return the changed lines of the effective spec with a sign, and the lines around and above them."""
    fields = [field for field in change.fields if field.pointer != CODE_POINTER]
    if not fields or change.desired is None:
        return []
    new = change.desired.spec
    rows = [*_rows(yaml_lines(earlier_spec(new, fields)), yaml_lines(new))]
    return _limited([one_line(line) for line in _shortened(rows)])


def field_values(field: FieldChange) -> tuple[str, str]:
    """Return both values as JSON, cut and not sanitized."""
    before, after = (
        "nothing" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
        for value in (field.before, field.after)
    )
    return _cut_pair(before, after)


def yaml_lines(spec: JsonObject) -> list[str]:
    """Return a spec as lines of YAML, not sanitized."""
    from yaml import dump

    shown: str = dump(_shown(spec), Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=_WIDTH)
    return shown.removesuffix("\n").split("\n")


def _shown(value: Any, name: str = "") -> Any:
    """Return a value with whole numbers as numbers, as manifests write them, and texts that YAML can hold."""
    if isinstance(value, Mapping):
        return {_text(key): _shown(item, name if name == _RANGE else key) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if not isinstance(value, str):
        return value
    # The APIs write int64 as text. Only counts and the bounds of integers are certain to be numbers.
    is_whole = (name == _RANGE or name.lower().endswith("count")) and _WHOLE.fullmatch(value)
    return int(value) if is_whole else _text(value)


def _text(text: str) -> str:
    # JSON of a service may have lone surrogates, which no output can encode.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def earlier_spec(spec: JsonObject, fields: Sequence[FieldChange]) -> JsonObject:
    """Return a copy of the spec with the earlier value of each field."""
    earlier = deepcopy(spec)
    # Each pointer must still fit: an added item is deleted before those in front of it, and a removed one is
    # appended after those in front of it.
    added = [field for field in reversed(fields) if field.before is None]
    for field in [*added, *(field for field in fields if field.before is not None)]:
        parent, key = _place(earlier, field.pointer)
        if field.before is None:
            del parent[key]
        elif isinstance(parent, list) and key >= len(parent):
            parent.append(field.before)
        else:
            parent[key] = field.before
    return earlier


def _place(node: Any, pointer: str) -> tuple[Any, Any]:
    """Return the mapping or list that a pointer leads to, and the last key."""
    *names, last = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]
    for name in names:
        node = node[_key(node, name)]
    return node, _key(node, last)


def _key(node: Any, name: str) -> str | int:
    return int(name) if isinstance(node, list) else name


def _rows(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of both texts with a sign: " ", "-" or "+"."""
    for tag, start, end, new_start, new_end in _operations(old, new):
        if tag == "equal":
            yield from ((" ", _cut(line)) for line in old[start:end])
            continue
        before, after = old[start:end], new[new_start:new_end]
        if len(before) == len(after):
            pairs = [_cut_pair(*pair) for pair in zip(before, after, strict=True)]
            before, after = [first for first, _ in pairs], [second for _, second in pairs]
        yield from (("-", _cut(line)) for line in before)
        yield from (("+", _cut(line)) for line in after)


def _operations(old: Sequence[str], new: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    if len(old) + len(new) > _MOST_COMPARED:
        return [("replace", 0, len(old), 0, len(new))]
    from difflib import SequenceMatcher  # most plans compare nothing

    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _shortened(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the changed lines, the lines around them and the keys above them; "…" for omitted lines."""
    kept: set[int] = set()
    above: list[tuple[int, int]] = []
    for number, (sign, line) in enumerate(rows):
        depth = _depth(line)
        while above and above[-1][0] >= depth:
            above.pop()
        if sign != " ":
            kept.update(range(number - _CONTEXT, number + _CONTEXT + 1))
            kept.update(parent for _, parent in above)
        above.append((depth, number))
    for number, (sign, line) in enumerate(rows):
        if number in kept:
            if number and number - 1 not in kept:
                yield f"  {' ' * (len(line) - len(line.lstrip()))}…"
            yield f"{sign} {line}"
    if rows and len(rows) - 1 not in kept:
        yield "  …"


def _depth(line: str) -> int:
    """Return the depth of a line of YAML: list items stand below the key in the same column."""
    bare = line.lstrip(" ")
    return 2 * (len(line) - len(bare)) + bare.startswith("- ")


def _limited(lines: list[str]) -> list[str]:
    left = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"… and {counted(left, 'more line')}"] if left > 0 else lines


def _cut(line: str) -> str:
    return line if len(line) <= MAX_QUOTED else line[: MAX_QUOTED - 1] + "…"


def _cut_pair(before: str, after: str) -> tuple[str, str]:
    """Return two long texts from their first difference on if they begin with the same text."""
    common = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    start = common if max(len(before), len(after)) > MAX_QUOTED and common > MAX_QUOTED // 2 else 0
    return _part(before, start), _part(after, start)


def _part(text: str, start: int) -> str:
    shown = text[start : start + MAX_QUOTED]
    return ("…" if start else "") + shown + ("…" if start + len(shown) < len(text) else "")
