"""What somebody may have meant by a word that isn't known."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
