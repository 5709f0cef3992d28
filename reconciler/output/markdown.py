"""Markdown as GitHub renders it: what others wrote is only shown, and what is too long is left out whole.

GitHub looks for mentions, references to issues and commits, and emoji in the rendered page. There a character
that was written by its number, or after a backslash, is like any other, so these are broken by a zero-width
space; in code, only what GitHub's Markdown makes an address of is. Fenced blocks show everything as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reconciler.base.sanitize import one_line

SUMMARY_LIMIT = 900_000
"""Bytes of a job summary: GitHub shows nothing of one above 1 MiB."""

COMMENT_LIMIT = 60_000
"""Bytes of a comment, of which GitHub takes 65,536 characters; in bytes, however it counts those."""

LONGEST = 500
"""Characters of one piece of text that are shown."""

# `one_line` leaves none in what others wrote.
_BREAK = "\u200b"
_ADDRESSES = re.compile(r"(?<=@)(?=\S)|(?<=:)(?=/)|(?<=www)(?=\.)|(?=\$)|(?<=\$)", re.IGNORECASE)
_REFERENCES = re.compile(r"(?<=[#:])(?=[^\s/])|(?<=\bgh)(?=-)", re.IGNORECASE)
_COMMITS = re.compile(r"(?<![0-9a-z])[0-9a-f]{7,}(?![0-9a-z])", re.IGNORECASE)
_LIVE = re.compile(r"(?<=[A-Za-z0-9])[-._/](?=[A-Za-z0-9])|([^\w ,;(]|_)")


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines that are shown or left out together, and what they are counted as where they are left out."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Pieces of one sort, the most important ones first.

    Attributes:
        name: What the pieces are, for where some are left out.
        pieces: Without the end of their last line.
        head: The lines before them.
        part: Which share of a limited document it has by right, in proportion to the others'; it also gets
            what they don't need.
        spaced: Whether there are blank lines between the pieces.
    """

    name: str
    pieces: Sequence[Piece]
    head: str = ""
    part: int = 1
    spaced: bool = False


def text(said: str) -> str:
    """A sentence that others wrote, at most 500 characters of it, in one line of Markdown or HTML."""
    line = _ADDRESSES.sub(_BREAK, one_line(cut(said)).strip())
    line = _COMMITS.sub(_broken, _REFERENCES.sub(_BREAK, line))
    return _LIVE.sub(_by_number, line)


def code(said: str) -> str:
    """A name or path that others wrote, at most 500 characters of it, as code."""
    return f"<code>{_LIVE.sub(_by_number, _ADDRESSES.sub(_BREAK, one_line(cut(said))))}</code>"


def fence(lines: Sequence[str], language: str = "") -> str:
    """A fenced block of lines, each of them one line, that they can't close."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return "\n".join([f"{ticks}{language}", *lines, ticks])


def cut(said: str, longest: int = LONGEST) -> str:
    """The first characters of a text."""
    return said if len(said) <= longest else said[: longest - 1] + "…"


def document(top: str, sections: Sequence[Section], bottom: str = "", *, rest: str, limit: int | None) -> str:
    """The whole text, or as many pieces as there is room for; the others are counted below their section.

    Args:
        top: Shown in any case, as is `bottom`.
        rest: The sentence that says where the pieces are that were left out; below `top`.
        limit: Bytes in UTF-8, of which one is left for the end of the last line; None for no limit. Room for
            `top`, `bottom`, `rest` and the counts has to be.
    """
    sections = [section for section in sections if section.pieces]
    whole = joined(top, *(_section(section, section.pieces) for section in sections), bottom)
    if limit is None or _size(whole) < limit:
        return whole
    # What is said of what is left out is never longer than where all of it is.
    none = joined(top, rest, *(_section(section, ()) for section in sections), bottom)
    shown = _shared(sections, limit - 1 - _size(none))
    return joined(top, rest, *map(_section, sections, shown), bottom)


def _shared(sections: Sequence[Section], room: int) -> Iterator[Sequence[Piece]]:
    """The pieces that there is room for, by section."""
    needs = [sum(_cost(section, piece) for piece in section.pieces) for section in sections]
    for number, section in enumerate(sections):
        parts = sum(after.part for after in sections[number:])
        mine = max(room * section.part // parts, room - sum(needs[number + 1 :]))
        shown = _first(section, mine)
        room -= sum(_cost(section, piece) for piece in shown)
        yield shown


def _first(section: Section, room: int) -> Sequence[Piece]:
    """The first pieces, passing over those that alone would take much of the room."""
    shown, left = [], room
    for piece in section.pieces:
        cost = _cost(section, piece)
        if cost <= left:
            shown.append(piece)
            left -= cost
        elif cost <= room // 4:
            break
    return shown


def _section(section: Section, shown: Sequence[Piece]) -> str:
    left = Counter(piece.kind for piece in section.pieces)
    left.subtract(piece.kind for piece in shown)
    counts = ", ".join(f"{number:,} {kind}".rstrip() for kind, number in left.items() if number)
    between = "\n\n" if section.spaced else "\n"
    listed = between.join([section.head] * bool(section.head) + [piece.text for piece in shown])
    return joined(listed, f"*Not shown of the {section.name}: {counts}.*" if counts else "")


def _cost(section: Section, piece: Piece) -> int:
    return _size(piece.text) + (2 if section.spaced else 1)


def joined(*blocks: str) -> str:
    """Return the blocks that have text, with blank lines between them."""
    return "\n\n".join(block for block in blocks if block)


def _size(shown: str) -> int:
    return len(shown.encode())


def _broken(commit: re.Match[str]) -> str:
    # GitHub takes 7 digits or more for a commit.
    return _BREAK.join(re.findall(".{1,6}", commit[0]))


def _by_number(live: re.Match[str]) -> str:
    return f"&#{ord(live[1])};" if live[1] else live[0]
