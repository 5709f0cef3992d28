"""Checks of a YAML document's text between and around its tokens.

libyaml is more lenient here than PyYAML's own scanner. It accepts tabs between tokens and inside unquoted
text, and a comment right behind the indicator of a block scalar. Refusing both gives a file the same verdict
with and without libyaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from yaml import ScalarToken

from reconciler.diagnostics import MAX_COUNTED_PER_FILE
from reconciler.validation.yamltext import Chunk, Flaw

_TAB_HINT = "write a space, or put text that contains a tab in quotes"
_COMMENT_HINT = 'write a space before the "#"'

_MAY_BE_LENIENT = re.compile(rb"\t|[|>][-+0-9]*#")
_BETWEEN = re.compile(r"#[^\n]*|(\t)")
_TAB = re.compile(r"(\t)")
_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*(?: +#[^\n]*| *(?P<wrong>[#\t])?)")


def tab_problem(is_first: bool) -> tuple[str, str]:
    """Return message and hint for a tab outside of quotes, block scalars and comments.

    Args:
        is_first: Whether only blanks stand before it on its line.
    """
    if is_first:
        return "a tab can't indent", "indent with spaces"
    return "a tab can't stand here", _TAB_HINT


def comment_problem() -> tuple[str, str]:
    """Return message and hint for a comment right behind the indicator of a block scalar."""
    return 'a comment begins with a space and "#"', _COMMENT_HINT


def may_be_lenient(data: bytes) -> bool:
    """Return whether a document contains a character that `separator_flaws` could refuse."""
    return bool(_MAY_BE_LENIENT.search(data))


def separator_flaws(chunk: Chunk, tokens: Iterable[Any]) -> list[Flaw]:
    """Return a flaw for each place that libyaml accepts and PyYAML's own scanner refuses.

    Args:
        chunk: A document without syntax errors.
        tokens: The document's tokens, whose marks count characters.
    """
    text = chunk.data.decode("utf-8")
    flaws = []
    line, start = 0, 0
    for place in islice(_refused(text, tokens), MAX_COUNTED_PER_FILE):
        line += text.count("\n", start, place)
        start = place
        column = place - text.rfind("\n", 0, place) - 1
        is_first = not text[place - column : place].strip()
        problem = tab_problem(is_first) if text[place] == "\t" else comment_problem()
        flaws.append(Flaw(chunk.line + line, column + 1, *problem))
    return flaws


def _refused(text: str, tokens: Iterable[Any]) -> Iterator[int]:
    end = 0
    for token in tokens:
        start, stop = token.start_mark.index, token.end_mark.index
        yield from _marked(_BETWEEN, text, end, start)
        style = token.style if isinstance(token, ScalarToken) else None
        if style in ("|", ">"):
            header = _BLOCK_HEADER.match(text, start)
            if header is not None and header["wrong"]:
                yield header.start("wrong")
        elif style not in ("'", '"'):
            yield from _marked(_TAB, text, start, stop)
        end = max(end, stop)
    yield from _marked(_BETWEEN, text, end, len(text))


def _marked(pattern: re.Pattern[str], text: str, start: int, end: int) -> Iterator[int]:
    """Yield where the pattern's first group matches between two places of a text."""
    if start < end:
        yield from (match.start(1) for match in pattern.finditer(text, start, end) if match[1])
