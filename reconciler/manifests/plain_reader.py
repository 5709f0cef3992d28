"""Documents as nearly everybody writes them, read line by line.

A parser's events, each of which is an object of its own, take four fifths of the time in which a manifest is
read. Most manifests need no parser: each line is a key, an item or both, with a value that ends on the line.
What is written so has one meaning, and is read here. Whatever is written otherwise, or is wrong, is left to
`reader`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from reconciler.manifests.findings import MAX_DEPTH, MAX_KEY, MAX_VALUES
from reconciler.manifests.yaml_scalars import Scalar, UnclearScalarError, plain_values
from reconciler.manifests.yaml_text import Chunk

MAX_BYTES = MAX_VALUES // 2
"""So few bytes can't hold more values than a document may have: each one begins two of them at most, such as
the first "-" of a list of lists. Nor can they hold text that is too long."""

# Printable ASCII throughout. Within unquoted text, ":" stands before a character and "#" not at all.
_KEY = r"[A-Za-z_][A-Za-z0-9_./-]*"
_QUOTED = r"\"[ !#-\[\]-~]*\"|'[ -&(-~]*'"
_PLAIN = r"(?:[A-Za-z0-9_./]|-(?={c})){c}*(?::+{c}+)*(?:[ ]{c}+(?::+{c}+)*)*"
_BLOCK_PLAIN = _PLAIN.format(c=r"[!\"$-9;-~]")
_FLOW_PLAIN = _PLAIN.format(c=r"[!\"$-+\--9;-Z\\^-z|~]")  # without "," and brackets
_ITEM = f"(?:{_QUOTED}|{_FLOW_PLAIN})"
_PAIR = f"{_KEY}: {_ITEM}"
_FLOW = rf"\[(?:{_ITEM}(?:,[ ]*{_ITEM})*)?\]|\{{(?:{_PAIR}(?:,[ ]*{_PAIR})*)?\}}"

# Runs of blanks are possessive (`*+`), and a dash or a key stands between two of them. Else a line of blanks
# could be divided among them in many ways, and a line that doesn't match fails only after all of them.
_LINE = re.compile(
    rf"[ ]*+(?:\#[ -~]*)?|([ ]*+)(?=-[ ]|[A-Za-z_])(-[ ]++)?(?:({_KEY}):(?=[ ]|$))?"
    rf"(?:[ ]*+(?:({_BLOCK_PLAIN})|({_QUOTED})|({_FLOW})))?(?:[ ]++\#[ -~]*|[ ]*+)"
)
"""A line that is blank, of which nothing is told; else its indentation, "- ", key and value."""

_ITEMS = re.compile(rf"({_FLOW_PLAIN})|({_QUOTED})")
_PAIRS = re.compile(rf"({_KEY}): (?:({_FLOW_PLAIN})|({_QUOTED}))")

_SHORT = 64
_MOST_KEPT = 1 << 14


class _OddError(Exception):
    """There is something here that isn't plain."""


class _Line(NamedTuple):
    """What is on a line.

    Attributes:
        column: Where its dash is, else its key.
        inner: Where its key is, behind a dash; 0 without a dash.
        key: "" for none.
        value: Where it is a scalar.
        flow: The value where it is in brackets; "" elsewhere.
        is_open: Whether the value begins on a later line.
    """

    column: int
    inner: int
    key: str
    value: Scalar
    flow: str
    is_open: bool


class _Lines(dict[str, _Line | None]):
    """What is on each line, None for nothing; short lines are kept a while, as most files hold the same."""

    def __missing__(self, text: str) -> _Line | None:
        line = _line(text)
        if len(text) <= _SHORT:
            if len(self) >= _MOST_KEPT:
                self.clear()
            self[text] = line
        return line


_lines = _Lines()


def read_clean(chunk: Chunk) -> tuple[Any, int, int] | None:
    """What is in `chunk`, or None if anything is wrong with it.

    Returns:
        The document's value, the line where its content begins, from 1, and how many values aliases stand
        for, all as in `reader.Reading`; the line is 0 where there is no document.
    """
    if plain := read_plain_document(chunk):
        return *plain, 0
    from reconciler.manifests import yaml_reader  # with YAML's parser, which is slow to import

    reading = yaml_reader.read(chunk)
    if reading.flaws or reading.repeated:
        return None
    return reading.value, reading.line, reading.aliased


def read_plain_document(chunk: Chunk) -> tuple[Any, int] | None:
    """The value and the line of the document in `chunk`; None if it is odd, which need not be wrong."""
    data = chunk.data
    if len(data) > MAX_BYTES or not data.isascii():
        return None
    lines = data.decode("ascii").split("\n")
    if lines[0] == "---":
        lines[0] = ""
    try:
        value, number = _read(lines)
    except (UnclearScalarError, _OddError):
        return None
    return value, chunk.line + number


def _read(lines: Sequence[str]) -> tuple[Any, int]:
    """The value of a document, and the number of the line where it begins, from 0."""
    # The collections around `top`, from the outside, each with the column of its keys or dashes.
    stack: list[tuple[Any, int]] = []
    document: dict[str, Any] = {}
    first = 0
    top: Any = document
    column = -1
    waits: str | None = ""  # the key in `top` whose value begins on a later line
    for number, text in enumerate(lines):
        line = _lines[text]
        if line is None:
            continue
        here, inner, key, value, flow, is_open = line
        if waits is None:
            # A list may stand right below its key, and ends with the next one.
            while here < column or (here == column and not inner and top.__class__ is list):
                top, column = stack.pop()
            if here != column or (top.__class__ is list) != bool(inner):
                raise _OddError
        else:
            if here < column or (here == column and not inner) or len(stack) == MAX_DEPTH:
                raise _OddError
            if not stack:
                first = number
            stack.append((top, column))
            new: Any = [] if inner else {}
            top[waits] = new
            top, column, waits = new, here, None
        if inner:
            if not key:
                top.append(_flow(flow, stack) if flow else value)
                continue
            if len(stack) == MAX_DEPTH:
                raise _OddError
            stack.append((top, column))
            new = {}
            top.append(new)
            top, column = new, inner
        if key in top:
            raise _OddError
        if is_open:
            waits = key
        else:
            top[key] = _flow(flow, stack) if flow else value
    if waits is not None:
        raise _OddError
    return document[""], first


def _line(text: str) -> _Line | None:
    """What is on a line; raises _OddError or UnclearScalarError."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise _OddError
    indent, dash, key, plain, quoted, flow = match.groups("")
    if key and (plain_values[key].__class__ is not str or len(key) > MAX_KEY):
        raise _OddError
    if not key and not dash:
        if plain or quoted or flow:
            raise _OddError
        return None
    is_open = not (plain or quoted or flow)
    if is_open and not key:
        raise _OddError
    here = len(indent)
    value = plain_values[plain] if plain else quoted[1:-1]
    return _Line(here, here + len(dash) if dash else 0, key, value, flow, is_open)


def _flow(text: str, stack: Sequence[object]) -> Any:
    """The list or mapping in brackets."""
    if len(stack) == MAX_DEPTH:
        raise _OddError
    if text[0] == "[":
        return [plain_values[plain] if plain else quoted[1:-1] for plain, quoted in _ITEMS.findall(text)]
    mapping: dict[str, Any] = {}
    for key, plain, quoted in _PAIRS.findall(text):
        if key in mapping or plain_values[key].__class__ is not str or len(key) > MAX_KEY:
            raise _OddError
        mapping[key] = plain_values[plain] if plain else quoted[1:-1]
    return mapping
