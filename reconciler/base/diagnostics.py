"""Mistakes in a user's files as data: place, message and hint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

MAX_PROBLEMS_PER_FILE = 100
MAX_COUNTED_PER_FILE = 1_000
"""The number of problems in a file after which checks stop."""

MAX_QUOTED = 200

Level = Literal["error", "warning"]
ERROR: Level = "error"
WARNING: Level = "warning"
"""Level of what may be right, but is probably a mistake."""


class Problem(Struct, frozen=True, order=True, gc=False):
    """One mistake in one file.

    Attributes:
        path: The file with "/" separators, relative to the repository's root if it lies below the root.
        line: From 1; 1 if the line is unknown.
        column: From 1, in characters.
        pointer: JSON pointer (RFC 6901) into the document; "" is the whole document.
        message: The description of the mistake, one sentence.
        hint: The correction; "" if unknown.
        level: Only errors make a file invalid.
    """

    path: str
    line: int
    column: int
    pointer: str
    message: str
    hint: str = ""
    level: Level = ERROR


def quote(text: str) -> str:
    """Return `text` for a message: cut at 200 characters, controls escaped, in double quotes."""
    cut = text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"
    if cut.isprintable() and '"' not in cut:
        return f'"{cut}"'
    return '"' + "".join(c if c.isprintable() and c != '"' else _escape(c) for c in cut) + '"'


def _escape(char: str) -> str:
    return '\\"' if char == '"' else char.encode("unicode_escape", "backslashreplace").decode("ascii")


def pointer_of(keys: Iterable[str | int]) -> str:
    """Return the JSON pointer of a path of mapping keys and list indices (RFC 6901, section 3)."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if it isn't 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def capped(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems of one level sorted, without repeats, at most 100 per file and a count of the rest."""
    by_path: dict[str, list[Problem]] = {}
    for problem in sorted(dict.fromkeys(problems)):  # mostly in order, which sorts faster
        by_path.setdefault(problem.path, []).append(problem)
    shown: list[Problem] = []
    for path, found in by_path.items():
        shown += found[:MAX_PROBLEMS_PER_FILE]
        if len(found) > MAX_PROBLEMS_PER_FILE:
            last = found[MAX_PROBLEMS_PER_FILE - 1]
            left = len(found) - MAX_PROBLEMS_PER_FILE
            # Checks stop at MAX_COUNTED_PER_FILE problems, so a larger count is a lower bound.
            number = f"at least {left}" if len(found) >= MAX_COUNTED_PER_FILE else str(left)
            noun = "problems" if last.level == ERROR else "warnings"
            message = f"{number} more {noun} in this file"
            shown.append(Problem(path, last.line, last.column, "", message, level=last.level))
    return shown
