"""A user's mistakes as data: where, what is wrong, what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_PROBLEMS_PER_FILE = 100
MAX_COUNTED_PER_FILE = 1_000
"""Where looking for more problems in a file ends."""

MAX_QUOTED = 200


@dataclass(frozen=True, order=True, slots=True)
class Problem:
    """One mistake in one file.

    Attributes:
        path: The file, relative to the repository's root where it lies below it, with "/".
        line: From 1; 1 where nothing better is known.
        column: From 1, in characters.
        pointer: JSON pointer (RFC 6901) into the document; "" is the whole document.
        message: One sentence that says what is wrong.
        hint: What to write instead; "" where that can't be known.
    """

    path: str
    line: int
    column: int
    pointer: str
    message: str
    hint: str = ""


def quote(text: str) -> str:
    """`text` as it may stand in a message: cut at 200 characters, controls escaped, in double quotes."""
    cut = text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"
    return '"' + "".join(c if c.isprintable() and c != '"' else _escape(c) for c in cut) + '"'


def _escape(char: str) -> str:
    return '\\"' if char == '"' else char.encode("unicode_escape", "backslashreplace").decode("ascii")


def pointer_of(keys: Iterable[str | int]) -> str:
    """The JSON pointer of a path of mapping keys and list indices (RFC 6901, section 3)."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def capped(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted, without repeats, at most 100 a file; one more line tells how many were left out."""
    by_path: dict[str, list[Problem]] = {}
    for problem in sorted(set(problems)):
        by_path.setdefault(problem.path, []).append(problem)
    told: list[Problem] = []
    for path, found in by_path.items():
        told += found[:MAX_PROBLEMS_PER_FILE]
        if len(found) > MAX_PROBLEMS_PER_FILE:
            last = found[MAX_PROBLEMS_PER_FILE - 1]
            left = len(found) - MAX_PROBLEMS_PER_FILE
            number = f"at least {left}" if len(found) >= MAX_COUNTED_PER_FILE else str(left)
            told.append(Problem(path, last.line, last.column, "", f"{number} more problems in this file"))
    return told
