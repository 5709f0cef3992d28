"""Mistakes in a document before they have a place in its file, and the limits of documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from reconciler.base.diagnostics import ERROR, Level, Problem

Keys = tuple[str | int, ...]
"""The path to a value in a document: keys of mappings, and indices of lists from 0."""


class Finding(Struct, frozen=True):
    """Mistake in one value.

    Attributes:
        keys: The path to it.
        message: The mistake.
        hint: The correction; "" if it is unknown. It may have several lines.
        of_key: True if the mistake is in the key, not in its value.
        level: Only errors make a document invalid.
    """

    keys: Keys
    message: str
    hint: str = ""
    of_key: bool = False
    level: Level = ERROR


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


def same_word(word: str, known: Iterable[str]) -> str:
    """Return the known word that differs from `word` only in case and `-_. `; or ""."""
    if len(word) > _MAX_WORD:
        return ""
    bare = _bare(word)
    return next((other for other in known if _bare(other) == bare), "")


def similar_word(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most similar to `word`, or ""."""
    if len(word) > _MAX_WORD:
        return ""
    import difflib  # only needed for messages

    by_bare = {_bare(other): other for other in known}
    matches = difflib.get_close_matches(_bare(word), by_bare, n=1, cutoff=_MIN_SIMILARITY)
    return by_bare[matches[0]] if matches else ""


def _bare(word: str) -> str:
    return _SEPARATORS.sub("", word).casefold()
