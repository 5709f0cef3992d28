"""Mistakes in a user's files as data: problems with their place, and findings that have no place yet.

A finding is a mistake in a document before its file is known; the limits of documents are here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.warning_kinds import WarningKind

MAX_PROBLEMS_PER_FILE = 100
MAX_COUNTED_PER_FILE = 1_000
"""The number of problems in a file after which checks stop."""

MAX_QUOTED = 200

Level = Literal["error", "warning"]
ERROR: Level = "error"
WARNING: Level = "warning"
"""Level of what may be right, but is probably a mistake."""

Kind = WarningKind | Literal[""]
"""The kind of a warning; "" for an error."""


class Problem(Struct, frozen=True, order=True, gc=False):
    """One mistake in one file.

    Attributes:
        path: The file with "/" separators, relative to the repository's root if it lies below the root.
        line: From 1; 1 if the line is unknown.
        column: From 1, in characters.
        pointer: JSON pointer (RFC 6901) into the document; "" is the whole document.
        message: The description of the mistake, one sentence.
        hint: The correction; "" if unknown.
        kind: The kind of a warning; "" for an error. Only errors make a file invalid.
    """

    path: str
    line: int
    column: int
    pointer: str
    message: str
    hint: str = ""
    kind: Kind = ""

    @property
    def level(self) -> Level:
        """WARNING for a problem that has a kind."""
        return WARNING if self.kind else ERROR


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
    for path, file_problems in by_path.items():
        shown += file_problems[:MAX_PROBLEMS_PER_FILE]
        if len(file_problems) > MAX_PROBLEMS_PER_FILE:
            last = file_problems[MAX_PROBLEMS_PER_FILE - 1]
            left = len(file_problems) - MAX_PROBLEMS_PER_FILE
            # Checks stop at MAX_COUNTED_PER_FILE problems, so a larger count is a lower bound.
            number = f"at least {left}" if len(file_problems) >= MAX_COUNTED_PER_FILE else str(left)
            noun = "problems" if last.level == ERROR else "warnings"
            message = f"{number} more {noun} in this file"
            shown.append(Problem(path, last.line, last.column, "", message, kind=last.kind))
    return shown


Keys = tuple[str | int, ...]
"""The path to a value in a document: keys of mappings, and indices of lists from 0."""


class Finding(Struct, frozen=True):
    """Mistake in one value.

    Attributes:
        keys: The path to it.
        message: The mistake.
        hint: The correction; "" if it is unknown. It may have several lines.
        of_key: True if the mistake is in the key, not in its value.
        kind: The kind of a warning; "" for an error. Only errors make a document invalid.
    """

    keys: Keys
    message: str
    hint: str = ""
    of_key: bool = False
    kind: Kind = ""

    @property
    def level(self) -> Level:
        """WARNING for a finding that has a kind."""
        return WARNING if self.kind else ERROR


class UnplacedWarning(Struct, frozen=True, array_like=True, gc=False):
    """Warning whose line and column nobody has looked up: few warnings are shown.

    Attributes:
        path: As a problem's.
        line: The first line of its document, from 1.
        keys, message, hint, of_key: As a finding's.
    """

    path: str
    line: int
    keys: Keys
    message: str
    hint: str
    kind: WarningKind
    of_key: bool = False

    @property
    def pointer(self) -> str:
        """JSON pointer into its document."""
        return pointer_of(self.keys)

    @property
    def level(self) -> Level:
        """Always WARNING."""
        return WARNING

    @classmethod
    def of(cls, path: str, line: int, finding: Finding) -> UnplacedWarning:
        """Return a finding, which must be a warning, as one of the document on this line."""
        assert finding.kind, "an error has a place at once"
        return cls(path, line, finding.keys, finding.message, finding.hint, finding.kind, finding.of_key)


Warned = Problem | UnplacedWarning
"""A warning, with its place or without."""


Rules = Callable[[Any], Iterable[Finding]]
"""Yields the mistakes in a document of any shape that its schema cannot express."""

MAX_FILE_BYTES = 10 * 1024 * 1024

MAX_DEPTH = 32
"""Levels of nested collections."""

MAX_VALUES = 20_000
"""Values in a document, keys and repetitions by aliases included."""

MAX_TEXT = 64 * 1024
"""Characters of one text."""

MAX_KEY = 1024
"""Characters of one key."""

MAX_SECRETIVE = 10_000_000
"""Characters of one file's values under names such as "password"; each value counts as at least 300."""

_MIN_SIMILARITY = 0.7
_MAX_WORD = 100  # characters; difflib takes quadratic time
_SEPARATORS = re.compile(r"[-_ .]")


def file_problem(path: str, message: str, hint: str) -> Problem:
    """Return a problem of a whole file or folder."""
    return Problem(path, 1, 1, "", message, hint)


def too_large(path: str) -> Problem:
    """Return the problem of a file above MAX_FILE_BYTES."""
    message = f"the file is larger than {MAX_FILE_BYTES // 1024**2} MB"
    return file_problem(path, message, "split it, or move it away from the manifests")


def same_word(word: str, known_words: Iterable[str]) -> str:
    """Return the known word that differs from `word` only in case and `-_. `; or ""."""
    if len(word) > _MAX_WORD:
        return ""
    bare = _bare(word)
    return next((other for other in known_words if _bare(other) == bare), "")


def similar_word(word: str, known_words: Iterable[str]) -> str:
    """Return the known word that is most similar to `word`, or ""."""
    if len(word) > _MAX_WORD:
        return ""
    import difflib  # only needed for messages

    by_bare = {_bare(other): other for other in known_words}
    matches = difflib.get_close_matches(_bare(word), by_bare, n=1, cutoff=_MIN_SIMILARITY)
    return by_bare[matches[0]] if matches else ""


def _bare(word: str) -> str:
    return _SEPARATORS.sub("", word).casefold()


def path_in_checkout(path: str, root: Path) -> str:
    """Return a path below `root` from the top of the checkout, as GitHub resolves those of annotations."""
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    return (root.relative_to(top) / path).as_posix()


def in_checkout(problems: Iterable[Problem], root: Path) -> list[Problem]:
    """Return problems with such paths."""
    return [replace(problem, path=path_in_checkout(problem.path, root)) for problem in problems]
