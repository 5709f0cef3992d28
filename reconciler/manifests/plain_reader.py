"""Line-by-line reader of plain YAML documents.

A parser creates an object for each event, which takes four fifths of the time for reading a manifest. Most
manifests need no parser: each line is a key, an item or both, with a value that ends on the line. Such lines
have a single meaning. All other documents, and wrong ones, are left to `yaml_reader`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from reconciler.base.diagnostics import MAX_DEPTH, MAX_KEY, MAX_VALUES
from reconciler.manifests.yaml_scalars import Scalar, TextCache, UnclearScalarError, plain_values
from reconciler.manifests.yaml_text import Chunk

MAX_BYTES = MAX_VALUES // 2
"""Size up to which no document exceeds the limits: each byte begins at most two values, such as the first "-"
of a list of lists, and no text can be too long."""

# Printable ASCII throughout. Within unquoted text, ":" stands before a character and "#" not at all.
_KEY = r"[A-Za-z_][A-Za-z0-9_./-]*"
_QUOTED = r"\"[ !#-\[\]-~]*\"|'[ -&(-~]*'"
_PLAIN = r"(?:[A-Za-z0-9_./]|-(?={c})){c}*(?::+{c}+)*(?:[ ]{c}+(?::+{c}+)*)*"
_BLOCK_PLAIN = _PLAIN.format(c=r"[!\"$-9;-~]")
_FLOW_PLAIN = _PLAIN.format(c=r"[!\"$-+\--9;-Z\\^-z|~]")  # without "," and brackets
_ITEM = f"(?:{_QUOTED}|{_FLOW_PLAIN})"
_PAIR = f"{_KEY}: {_ITEM}"
_FLOW = rf"\[(?:{_ITEM}(?:,[ ]*{_ITEM})*)?\]|\{{(?:{_PAIR}(?:,[ ]*{_PAIR})*)?\}}"

# Every run of blanks between the parts is possessive (`*+`, `++`): adjacent runs can then divide a line's
# blanks in one way only. Otherwise a line that doesn't match would fail only after all divisions were tried.
_LINE = re.compile(
    rf"[ ]*+(?:\#[ -~]*)?|([ ]*+)(?=-[ ]|[A-Za-z_])(-[ ]++)?(?:({_KEY}):(?=[ ]|$))?"
    rf"(?:[ ]*+(?:({_BLOCK_PLAIN})|({_QUOTED})|({_FLOW})))?(?:[ ]++\#[ -~]*|[ ]*+)"
)
"""A blank line, with empty groups; else a line's indentation, "- ", key and value."""

_ITEMS = re.compile(rf"({_FLOW_PLAIN})|({_QUOTED})")
_PAIRS = re.compile(rf"({_KEY}): (?:({_FLOW_PLAIN})|({_QUOTED}))")


class _OddError(Exception):
    """The document isn't plain."""


# A plain tuple: a named one takes three times as long to make, for each line.
_Line = tuple[int, int, str, Scalar, str, bool]
"""Content of a line: the column of its dash, else of its key; the column of its key behind a dash, 0 without
a dash; the key, "" for none; a scalar value; a value in brackets, "" for others; and True if the value begins
on a later line."""


def read_clean(chunk: Chunk) -> tuple[Any, int, int] | None:
    """Read the document in `chunk`; return None if it has any problem.

    Returns:
        The document's value, the first line of its content, from 1, and the number of values that exist only
        through aliases, as in `yaml_reader.Content`; the line is 0 without a document.
    """
    if plain := read_plain_document(chunk):
        return *plain, 0
    from reconciler.manifests import yaml_reader  # with YAML's parser, which is slow to import

    content = yaml_reader.read(chunk)
    if content.flaws or content.repeated:
        return None
    return content.value, content.line, content.aliased


def read_plain_document(chunk: Chunk) -> tuple[Any, int] | None:
    """Return the value and first line of the document in `chunk`; None if it isn't plain, wrong or not."""
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
    """Return the value of a document, and the number of its first line, from 0."""
    # The collections around `top`, from the outside, each with the column of its keys or dashes.
    stack: list[tuple[Any, int]] = []
    document: dict[str, Any] = {}
    first = 0
    top: Any = document
    column = -1
    open_key: str | None = ""  # the key in `top` whose value begins on a later line
    for number, text in enumerate(lines):
        line = _lines[text]
        if line is None:
            continue
        here, inner, key, value, flow, is_open = line
        if open_key is None:
            # A list may have its key's indentation, and ends with the next key.
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
            top[open_key] = new
            top, column, open_key = new, here, None
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
            open_key = key
        else:
            top[key] = _flow(flow, stack) if flow else value
    if open_key is not None:
        raise _OddError
    return document[""], first


def _line(text: str) -> _Line | None:
    """Parse a line, None for a blank one; raises _OddError or UnclearScalarError."""
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
    return here, here + len(dash) if dash else 0, key, value, flow, is_open


_lines: TextCache[_Line | None] = TextCache(_line)


def _flow(text: str, stack: Sequence[object]) -> Any:
    """Return the list or mapping in brackets."""
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
