"""Documents in Markdown for GitHub, with text of others escaped, shortened by whole pieces.

GitHub looks for mentions, references to issues and commits, and emoji in the rendered page. Escapes by number
or backslash are already resolved there, so a zero-width space breaks these texts. In code, GitHub only turns
addresses into links, and only those are broken. It makes no link of `gs://`: these addresses are code and
stay whole, so that they can be copied. Fenced blocks show everything as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from reconciler.base.sanitize import one_line

SUMMARY_LIMIT = 900_000
"""Bytes of a job summary: GitHub rejects a summary above 1 MiB."""

COMMENT_LIMIT = 60_000
"""Bytes of a comment. GitHub accepts 65,536 characters; a limit in bytes holds however it counts them."""

NOTHING_CHANGES = "<!-- nothing changes -->\n"
"""The beginning of a comment that is only an update of an existing one."""

LONGEST = 500
"""Shown characters of a text."""

# A zero-width space. `one_line` removes it from text of others, so a break is always ours.
_BREAK = "\u200b"
_ADDRESSES = re.compile(
    r"(?<=@)(?=\S)|(?<=:)(?<!\bgs:)(?=/)|(?<=www)(?<!\bgs://www)(?=\.)|(?=\$)|(?<=\$)", re.IGNORECASE
)
_REFERENCES = re.compile(r"(?<=[#:])(?=[^\s/])|(?<=\bgh)(?=-)", re.IGNORECASE)
_COMMITS = re.compile(r"(?<![0-9a-z])[0-9a-f]{7,}(?![0-9a-z])", re.IGNORECASE)
_LIVE = re.compile(r"(?<=[A-Za-z0-9])[-._/](?=[A-Za-z0-9])|([^\w ,;(]|_)")
_CODE = re.compile(r"`((?:reconciler|--)[\w /.=-]+)`|(\bgs://[\w./-]*\w)", re.IGNORECASE)

Columns = Sequence[tuple[str, str]]
"""Heads of a table, with the line below each."""


class Piece(Struct, frozen=True):
    """Lines that are shown or left out together.

    Attributes:
        kind: The name of their things in the count of those left out.
        number: The number of things.
    """

    text: str
    kind: str = ""
    number: int = 1


class Row(Struct, frozen=True):
    """Row of a table, with the attributes of its `Piece`."""

    cells: Sequence[str]
    kind: str = ""
    number: int = 1


class Section(Struct, frozen=True):
    """A list of similar pieces, the most important first.

    Attributes:
        name: The name of the pieces, for the line that counts those left out.
        pieces: Without the end of their last line.
        head: The lines before the pieces.
        part: The guaranteed share of a limited document, in proportion to the other sections'; the section
            also gets the room that they don't need.
        spaced: True for blank lines between the pieces.
    """

    name: str
    pieces: Sequence[Piece]
    head: str = ""
    part: int = 1
    spaced: bool = False


def table(name: str, columns: Columns, rows: Sequence[Row]) -> Section:
    """Return a table of rows without the columns that are empty in all rows."""
    used = [number for number in range(len(columns)) if any(row.cells[number] for row in rows)]
    pieces = [Piece(_cells(row.cells[number] for number in used), row.kind, row.number) for row in rows]
    head = _cells(columns[number][0] for number in used)
    return Section(name, pieces, f"{head}\n|{'|'.join(columns[number][1] for number in used)}|", part=2)


def _cells(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def text(raw: str) -> str:
    """Return at most 500 characters of a text by others, escaped, as a line of Markdown or HTML.

    Commands of this tool between backticks, and addresses in Cloud Storage, become code.
    """
    parts = _CODE.split(one_line(cut(raw)).strip())
    # Of every three parts, the second or the third is code, or neither.
    return "".join(code(part) if number % 3 else _escaped(part) for number, part in enumerate(parts) if part)


def _escaped(line: str) -> str:
    line = _COMMITS.sub(_broken, _REFERENCES.sub(_BREAK, _ADDRESSES.sub(_BREAK, line)))
    return _LIVE.sub(_by_number, line)


def code(raw: str) -> str:
    """Return at most 500 characters of a name or path by others, escaped, as code."""
    return f"<code>{_LIVE.sub(_by_number, _ADDRESSES.sub(_BREAK, one_line(cut(raw))))}</code>"


def fence(lines: Sequence[str], language: str = "") -> str:
    """Return a fenced block; its fence is longer than any backticks in the lines, so they can't close it."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return "\n".join([f"{ticks}{language}", *lines, ticks])


def cut(raw: str, longest: int = LONGEST) -> str:
    """Return a text of at most `longest` characters, with an ellipsis if it was longer."""
    return raw if len(raw) <= longest else raw[: longest - 1] + "…"


def document(top: str, sections: Sequence[Section], bottom: str = "", *, rest: str, limit: int | None) -> str:
    """Return the document, with as many pieces as fit; each section counts the pieces that were left out.

    Args:
        top: The text before the sections; always shown, like `bottom`.
        rest: A sentence on where to find the pieces that were left out; shown below `top`.
        limit: Bytes in UTF-8, including the end of the last line; None for no limit. It must be enough for
            `top`, `bottom`, `rest` and the counts.
    """
    sections = [section for section in sections if section.pieces]
    whole = joined(top, *(_section(section, section.pieces) for section in sections), bottom)
    if limit is None or size_of(whole) < limit:
        return whole
    # The counts are longest in a document without any pieces, so this size is an upper bound.
    none = joined(top, rest, *(_section(section, ()) for section in sections), bottom)
    shown = _shared(sections, limit - 1 - size_of(none))
    return joined(top, rest, *map(_section, sections, shown), bottom)


def _shared(sections: Sequence[Section], room: int) -> Iterator[Sequence[Piece]]:
    """Yield the pieces that fit, section by section."""
    needs = [sum(_cost(section, piece) for piece in section.pieces) for section in sections]
    for number, section in enumerate(sections):
        parts = sum(after.part for after in sections[number:])
        # Its share, or more if the sections after it need less than theirs.
        available = max(room * section.part // parts, room - sum(needs[number + 1 :]))
        shown = _first(section, available)
        room -= sum(_cost(section, piece) for piece in shown)
        yield shown


def _first(section: Section, room: int) -> Sequence[Piece]:
    """Return the first pieces that fit."""
    shown, left = [], room
    for piece in section.pieces:
        cost = _cost(section, piece)
        if cost <= left:
            shown.append(piece)
            left -= cost
        # A very large piece is skipped alone, as smaller ones may fit; else the rest is less important.
        elif cost <= room // 4:
            break
    return shown


def _section(section: Section, shown: Sequence[Piece]) -> str:
    left = Counter[str]()
    for pieces, sign in ((section.pieces, 1), (shown, -1)):
        for piece in pieces:
            left[piece.kind] += sign * piece.number
    counts = ", ".join(f"{number:,} {kind}".rstrip() for kind, number in left.items() if number)
    between = "\n\n" if section.spaced else "\n"
    listed = between.join([section.head] * bool(section.head) + [piece.text for piece in shown])
    return joined(listed, f"*Not shown of the {section.name}: {counts}.*" if counts else "")


def _cost(section: Section, piece: Piece) -> int:
    return size_of(piece.text) + (2 if section.spaced else 1)


def joined(*blocks: str) -> str:
    """Return the blocks that have text, with blank lines between them."""
    return "\n\n".join(block for block in blocks if block)


def size_of(shown: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(shown.encode())


def _broken(commit: re.Match[str]) -> str:
    # GitHub links 7 or more hexadecimal digits as a commit.
    return _BREAK.join(re.findall(".{1,6}", commit[0]))


def _by_number(live: re.Match[str]) -> str:
    return f"&#{ord(live[1])};" if live[1] else live[0]
