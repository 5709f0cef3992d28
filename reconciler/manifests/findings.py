"""A mistake in a document before it has a place in a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from reconciler.base.diagnostics import Problem

Keys = tuple[str | int, ...]
"""The way to a value in a document: keys of mappings, and indices of lists from 0."""


class Finding(Struct, frozen=True):
    """What is wrong with one value.

    Attributes:
        keys: The way to it.
        message: What is wrong.
        hint: What to write instead; "" where that can't be known. It may have several lines.
        of_key: Whether the mistake is the key, not its value.
    """

    keys: Keys
    message: str
    hint: str = ""
    of_key: bool = False


Rules = Callable[[Any], Iterable[Finding]]
"""Yields the mistakes in a document of any shape that its schema cannot express."""


MAX_FILE_BYTES = 10 * 1024 * 1024

MAX_DEPTH = 32
"""Collections within each other."""

MAX_VALUES = 20_000
"""Values, keys too, with what aliases stand for."""

MAX_TEXT = 64 * 1024
"""Characters of one text."""

MAX_KEY = 1024
"""Characters of one key."""

MAX_SECRETIVE = 10_000_000
"""Characters of one file's values under names such as "password"; a value counts as 300 at least."""


def too_large(path: str) -> Problem:
    """The problem of a file that is too large to be read."""
    message = f"the file is larger than {MAX_FILE_BYTES // 1024**2} MB"
    return Problem(path, 1, 1, "", message, "split it, or move it away from the manifests")


_SIMILAR = 0.7
_LONGEST = 100
_SEPARATORS = re.compile(r"[-_ .]")


def same_word(word: str, known: Iterable[str]) -> str:
    """The known word that is `word` but for case and `-_. `, such as snake_case of camelCase; or ""."""
    if len(word) > _LONGEST:
        return ""
    bare = _bare(word)
    return next((other for other in known if _bare(other) == bare), "")


def similar_word(word: str, known: Iterable[str]) -> str:
    """The known word that is most like `word`, or ""."""
    if len(word) > _LONGEST:
        return ""
    import difflib  # only where something is wrong

    by_bare = {_bare(other): other for other in known}
    matches = difflib.get_close_matches(_bare(word), by_bare, n=1, cutoff=_SIMILAR)
    return by_bare[matches[0]] if matches else ""


def _bare(word: str) -> str:
    return _SEPARATORS.sub("", word).casefold()
