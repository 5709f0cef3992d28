"""YAML's syntax errors in a user's words: place, mistake, correction."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from yaml import MarkedYAMLError, YAMLError

from reconciler.manifests.yaml_text import COMMENT_TOO_CLOSE, TAB_AT_START, TAB_INSIDE, Chunk, Flaw

_NO_BLANK = re.compile(r"\s*(?:- +)*(?P<key>[A-Za-z_][A-Za-z0-9_]*):(?P<value>[^\s/].*)")
_HAS_CONTENT = re.compile(r"\s*[^\s#]")  # neither blank nor a comment
_CONFLICT = ("<<<<<<< ", ">>>>>>> ")  # git's marks around both sides
_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _ErrorPosition:
    """Place of an error, and the beginning of the construct that it concerns.

    Attributes:
        lines: The document's lines.
        line, column: Where the parser noticed it, from 0.
        start_line, start_column: Beginning of the list, mapping or text, from 0.
        first_line: The document's first line in its file.
    """

    lines: list[str]
    line: int
    column: int
    start_line: int
    start_column: int
    first_line: int

    @property
    def char(self) -> str:
        return self.lines[self.line][self.column : self.column + 1]

    @property
    def is_first(self) -> bool:
        """True if only blanks precede it on its line."""
        return not self.lines[self.line][: self.column].strip()

    @property
    def is_last(self) -> bool:
        """True if only blanks follow it in the document."""
        return not "".join([self.lines[self.line][self.column :], *self.lines[self.line + 1 :]]).strip()

    @property
    def start(self) -> str:
        return f"line {self.first_line + self.start_line}, column {self.start_column + 1}"

    def flaw(self, message: str, hint: str = "") -> Flaw:
        return self.at(self.line, self.column, message, hint)

    def flaw_at_start(self, message: str, hint: str = "") -> Flaw:
        return self.at(self.start_line, self.start_column, message, hint)

    def at(self, line: int, column: int, message: str, hint: str) -> Flaw:
        return Flaw(self.first_line + line, column + 1, message, hint)


def explain(error: YAMLError, chunk: Chunk) -> Flaw:
    """Return the problem for a parser's exception."""
    noticed = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if not isinstance(error, MarkedYAMLError) or noticed is None:
        return Flaw(chunk.line, 1, "this is not YAML")
    context: Any = error.context_mark or noticed
    lines = chunk.data.decode("utf-8").split("\n")
    here, start = ((line - chunk.line, column - 1) for line, column in map(chunk.place, (noticed, context)))
    position = _ErrorPosition(lines, *here, *start, chunk.line)
    # A merge conflict causes all kinds of syntax errors, so it comes first.
    conflict = next((number for number, line in enumerate(lines) if line.startswith(_CONFLICT)), None)
    if conflict is not None:
        return position.at(conflict, 0, "an unresolved merge conflict begins here", "resolve it")
    if position.char == "\t":
        return position.flaw(*(TAB_AT_START if position.is_first else TAB_INSIDE))
    text = f"{error.context or ''} {error.problem or ''}"
    explained = next(explained for pattern, explained in _EXPLANATIONS if re.search(pattern, text))
    return position.flaw(*explained) if isinstance(explained, tuple) else explained(position)


def _colon(position: _ErrorPosition) -> Flaw:
    """Explain a misplaced ":"; often the line above lacks a blank, or text contains ": "."""
    line = position.lines[position.line]
    if match := re.match(r"\s*(?:- +)*[^\s:][^:]*: +(?=\S)", line[: position.column]):
        key, text = match[0].strip(), line[match.end() :].rstrip()
        is_short = _is_showable(key) and _is_showable(text)
        hint = f"write {key} '{text}'" if is_short else "write the text in quotes"
        return position.at(position.line, match.end(), 'text that contains ": " needs quotes', hint)
    above = next((n for n in range(position.line - 1, -1, -1) if _HAS_CONTENT.match(position.lines[n])), None)
    if above is not None:
        if flaw := _missing_blank(position, above):
            return flaw
        depth, depth_above = (len(text) - len(text.lstrip(" ")) for text in (line, position.lines[above]))
        if depth > depth_above:
            message = "this line is indented deeper than the one above, which already has its value"
            return position.at(
                position.line, depth, message, "give it the indentation of the keys it belongs to"
            )
    return position.flaw(
        'there can\'t be a ":" here', 'write one "key: value" a line; other text needs quotes'
    )


def _missing_key(position: _ErrorPosition) -> Flaw:
    """Explain a line in a mapping that is no "key: value"."""
    flaw = _missing_blank(position, position.start_line)
    return flaw or position.flaw_at_start("this line is not a key with a value", 'write "key: value"')


def _missing_blank(position: _ErrorPosition, number: int) -> Flaw | None:
    """Explain a line whose colon has no blank behind it; return None for any other line."""
    match = _NO_BLANK.fullmatch(position.lines[number])
    if match is None:
        return None
    value = match["value"].rstrip()
    hint = f"write {match['key']}: {value}" if _is_showable(value) else ""
    return position.at(number, match.start("value"), "a space is missing after the colon", hint)


def _misfit(position: _ErrorPosition) -> Flaw:
    """Explain a line that can't continue the open mapping."""
    if position.char in ("]", "}"):
        return position.flaw(
            f'this "{position.char}" closes nothing', "remove it, or quote the text it belongs to"
        )
    if not position.is_first:
        return position.flaw("nothing can follow here", "put the whole text in quotes")
    if position.lines[position.line][position.column :].startswith(("- ", "-\n")):
        hint = "give all items of a list the same indentation, below the key that the list belongs to"
        return position.flaw("there can't be a list item here", hint)
    hint = f"give it the indentation of the keys it belongs to; the outer ones begin at {position.start}"
    return position.flaw("this line's indentation fits none of the lines above", hint)


def _missing_item(position: _ErrorPosition) -> Flaw:
    """Explain a line that can't continue the open list."""
    message = f"this is not an item of the list that begins at {position.start}"
    hint = 'begin each item with "- ", and give what belongs to an item a deeper indentation'
    return position.flaw(message, hint)


def _unclosed(opening: str, closing: str, position: _ErrorPosition) -> Flaw:
    """Explain an unfinished list or mapping in brackets."""
    hint = f'close the "{opening}" of {position.start}, and separate its items with ","'
    message = f'a "," or a "{closing}" is missing'
    return position.flaw_at_start(message, hint) if position.is_last else position.flaw(message, hint)


def _missing_value(position: _ErrorPosition) -> Flaw:
    if position.is_last:
        return position.flaw("the document ends where a value is needed", 'close every "[", "{" and quote')
    return position.flaw("a value is missing here", "put text that begins with a sign in quotes")


def _unclosed_quote(position: _ErrorPosition) -> Flaw:
    return position.flaw_at_start("this quote is never closed", "close it at the end of the text")


def _indicator(position: _ErrorPosition) -> Flaw:
    """Explain an unquoted text that begins with an indicator."""
    char = position.lines[position.start_line][position.start_column : position.start_column + 1]
    return position.flaw_at_start(
        f'without quotes, text can\'t begin with "{char}"', "put the text in quotes"
    )


# By the context and problem in the messages of libyaml and of PyYAML's own parser; the first match counts.
# An explanation is a function, or a message and a hint for the place of the error.
_EXPLANATIONS: tuple[tuple[str, Callable[[_ErrorPosition], Flaw] | tuple[str, str]], ...] = (
    ("tab character", TAB_AT_START),
    ("block scalar.*indicators, but found '#'", COMMENT_TOO_CLOSE),
    ("quoted scalar.*(end of stream|document (indic|separ)ator)", _unclosed_quote),
    ("unknown escape", ("YAML has no such escape", r"write \\ for a backslash, or use single quotes")),
    (
        "escape code|escape sequence|hexadecimal",
        ("this escape stands for no character", "write the character itself"),
    ),
    ("flow sequence.*expected ',' or '\\]'", partial(_unclosed, "[", "]")),
    ("flow mapping.*expected ',' or '}'", partial(_unclosed, "{", "}")),
    ("mapping values are not allowed", _colon),
    ("could not find expected ':'", _missing_key),
    ("block mapping.*(did not find expected key|expected <block end>)", _misfit),
    ("block (collection|sequence).*expected ('-'|<block end>)", _missing_item),
    (
        "sequence entries are not allowed",
        ('there can\'t be a "-" here', "begin the list on the line below its key, or quote the text"),
    ),
    ("mapping keys are not allowed|cannot start any token", _indicator),
    ("scanning an? (alias|anchor|tag)|parsing a tag|tag handle", _indicator),
    (
        "block scalar",
        ("the text can't begin on the line of its | or >", "begin it on the next line, indented"),
    ),
    ("node content", _missing_value),
    ("expected '?<document start>", ("this belongs to nothing above it", "begin a document with a line ---")),
    ("directive|incompatible YAML", ("this is not a YAML directive", "remove the line")),
    ("", ("this is not YAML", "")),
)


def _is_showable(text: str) -> bool:
    return len(text) <= _MAX_SHOWN and "'" not in text and text.isprintable()
