"""The same value written as YAML in many ways: order of keys, quotes, blocks or brackets, comments."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_SPECIAL = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_COMMENT = st.sampled_from(["# a comment", "#", "# key: [value", '# "', ""])


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """`value` (a non-empty mapping or list at the top) as the text of one document."""
    lines = _block(draw, value, 0)
    start = draw(st.sampled_from(["", "---\n", "# a comment\n---\n", "%YAML 1.2\n---\n", "\ufeff"]))
    end = draw(st.sampled_from(["", "\n", "\n...\n", "\n# the end"]))
    line_end = draw(st.sampled_from(["\n", "\r\n"]))
    return (start + "\n".join(lines) + end).replace("\n", line_end)


def _block(draw: st.DrawFn, value: Any, indent: int) -> list[str]:
    """Lines for a collection, each with its indentation."""
    blanks = " " * indent
    step = draw(st.integers(1, 4))
    lines = []
    parts = draw(st.permutations(list(value.items()))) if isinstance(value, dict) else list(enumerate(value))
    for key, part in parts:
        if draw(st.booleans()):
            lines.append(" " * draw(st.integers(0, 6)) + draw(_COMMENT))
        head = f"{_scalar(draw, key, is_key=True)}:" if isinstance(value, dict) else "-"
        if isinstance(part, dict | list) and part and draw(st.booleans()):
            lines += [f"{blanks}{head}{_behind(draw)}", *_block(draw, part, indent + step)]
        else:
            text = _flow(draw, part) if isinstance(part, dict | list) else _scalar(draw, part)
            lines.append(f"{blanks}{head}{' ' * draw(st.integers(1, 3))}{text}{_behind(draw)}")
    return lines


def _behind(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(["", "", "", "  ", " # why"]))


def _flow(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, dict):
        parts = draw(st.permutations(list(value.items())))
        items = [f"{_scalar(draw, key, is_key=True)}: {_flow(draw, part)}" for key, part in parts]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(draw, part) for part in value) + "]"
    return _scalar(draw, value)


def _scalar(draw: st.DrawFn, value: Any, *, is_key: bool = False) -> str:
    if not isinstance(value, str):
        if value is None:
            return draw(st.sampled_from(["null", "~", "Null"]))
        if isinstance(value, bool):
            return draw(st.sampled_from([str(value), str(value).lower(), str(value).upper()]))
        return json.dumps(value)
    styles = [json.dumps(value, ensure_ascii=False)]
    if all(char <= "\uffff" for char in value):  # JSON's escape of others is a pair, which YAML doesn't know
        styles.append(json.dumps(value))
    if value.isprintable():
        styles.append("'" + value.replace("'", "''") + "'")
    if _PLAIN.fullmatch(value) and value.lower() not in _SPECIAL:
        styles += [value, value]
    return draw(st.sampled_from(styles))
