"""The same value written as YAML in many ways: order, quotes, blocks or brackets, comments, anchors."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

from hypothesis import strategies as st

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_SPECIAL = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_COMMENT = st.sampled_from(["# a comment", "#", "# key: [value", '# "', ""])


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """Draw the text of a document with `value` (a non-empty mapping or list at the top)."""
    lines = _Writer(draw).block(value, 0)
    start = draw(st.sampled_from(["", "---\n", "# a comment\n---\n", "%YAML 1.2\n---\n", "\ufeff"]))
    end = draw(st.sampled_from(["", "\n", "\n...\n", "\n# the end"]))
    line_end = draw(st.sampled_from(["\n", "\r\n"]))
    return (start + "\n".join(lines) + end).replace("\n", line_end)


class _Writer:
    """A writer of a document; `_anchored` maps the exact JSON of each written value to its newest anchor."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._anchored: dict[str, str] = {}
        self._names = (f"a{number}" for number in count())

    def block(self, value: Any, indent: int) -> list[str]:
        """Return lines for a collection, each with its indentation."""
        draw = self._draw
        blanks = " " * indent
        step = draw(st.integers(1, 4))
        lines = []
        is_mapping = isinstance(value, dict)
        for key, part in draw(st.permutations(list(value.items()))) if is_mapping else enumerate(value):
            if draw(st.booleans()):
                lines.append(" " * draw(st.integers(0, 6)) + draw(_COMMENT))
            head = f"{blanks}{self._scalar(key)}:" if is_mapping else f"{blanks}-"
            if isinstance(part, dict | list) and part and draw(st.booleans()):
                lines += [f"{head}{self._behind()}", *self.block(part, indent + step)]
            else:
                lines.append(f"{head}{' ' * draw(st.integers(1, 3))}{self._flow(part)}{self._behind()}")
        return lines

    def _behind(self) -> str:
        return self._draw(st.sampled_from(["", "", "", "  ", " # why"]))

    def _flow(self, value: Any) -> str:
        """Return a value in one line: new, with an anchor or without, or an alias of an earlier value."""
        exact = json.dumps(value)
        if exact in self._anchored and self._draw(st.booleans()):
            return f"*{self._anchored[exact]} "
        text = self._unanchored(value)
        if self._draw(st.integers(0, 3)) > 0:
            return text
        self._anchored[exact] = next(self._names)
        return f"&{self._anchored[exact]} {text}"

    def _unanchored(self, value: Any) -> str:
        if isinstance(value, dict):
            parts = self._draw(st.permutations(list(value.items())))
            items = [f"{self._scalar(key)}: {self._flow(part)}" for key, part in parts]
            return "{" + ", ".join(items) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self._flow, value)) + "]"
        return self._scalar(value)

    def _scalar(self, value: Any) -> str:
        if not isinstance(value, str):
            if value is None:
                return self._draw(st.sampled_from(["null", "~", "Null"]))
            if isinstance(value, bool):
                return self._draw(st.sampled_from([str(value), str(value).lower(), str(value).upper()]))
            return json.dumps(value)
        styles = [json.dumps(value, ensure_ascii=False)]
        if all(
            char <= "\uffff" for char in value
        ):  # JSON escapes other characters as a surrogate pair, unknown to YAML
            styles.append(json.dumps(value))
        if value.isprintable():
            styles.append("'" + value.replace("'", "''") + "'")
        if _PLAIN.fullmatch(value) and value.lower() not in _SPECIAL:
            styles += [value, value]
        return self._draw(st.sampled_from(styles))
