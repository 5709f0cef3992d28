"""Text of a YAML file before parsing: encoding, characters, and boundaries of documents.

UTF-8 only, with or without a byte order mark. Refused everywhere, comments included: characters that a
reviewer doesn't see, or sees in another place (control characters; U+202A to U+202E and U+2066 to U+2069,
which reorder text on the screen), and line ends that only YAML 1.1 knows (U+0085, U+2028, U+2029).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from reconciler.base.diagnostics import MAX_COUNTED_PER_FILE, Keys

_CLEAN_ASCII = bytes([*b"\t\n\r", *range(0x20, 0x7F)])
_UNSAFE = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_REFUSED = re.compile(f"[{_UNSAFE}\u2028\u2029\ufeff\ufffe\uffff]")
UNSAFE = re.compile(f"[{_UNSAFE}\ud800-\udfff]")
"""Characters refused in every text of a manifest, escaped or not."""

# Message and hint for tabs outside of quotes, block scalars and comments, and for a comment right behind the
# indicator of a block scalar.
TAB_AT_START = ("a tab can't indent", "indent with spaces")
TAB_INSIDE = ("a tab isn't allowed here", "write a space, or put text that contains a tab in quotes")
COMMENT_TOO_CLOSE = ('a comment begins with a space and "#"', 'write a space before the "#"')
_MAY_BE_LENIENT = re.compile(rb"\t|[|>][-+0-9]*#")
_BETWEEN = re.compile(r"#[^\n]*|(\t)")
_TAB = re.compile(r"(\t)")
_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*(?: +#[^\n]*| *(?P<wrong>[#\t])?)")

# "---" at the start of a line begins a document and "..." ends one, even in a block scalar
# (https://yaml.org/spec/1.2.2/#912-document-markers). Directives belong to the document that follows. A run
# of directives without a document is matched as well, so that the search visits each of its lines once.
_BOUNDARY = re.compile(rb"^(?:((?:%[^\n]*+\n)*+---|\.\.\.)(?=[ \t\n]|\Z)|(?:%[^\n]*+\n)++)", re.MULTILINE)

_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_SAVE_AS_UTF8 = "save the file as UTF-8"


class Flaw(Struct, frozen=True):
    """Unreadable place in a file: line and column from 1, and the path to the value, if it has one."""

    line: int
    column: int
    message: str
    hint: str = ""
    keys: Keys = ()


class Chunk(Struct, frozen=True):
    """Bytes of at most one document, with markers and comments around it; `line` is its first, from 1."""

    data: bytes
    line: int

    def place(self, mark: Any) -> tuple[int, int]:
        """Return a parser's mark as line and column in the file, from 1."""
        last = self.data.count(b"\n")
        # libyaml puts the end of a text without a final line end on a line of its own.
        if mark.line <= last:
            return self.line + mark.line, mark.column + 1
        return self.line + last, len(self.data[self.data.rfind(b"\n") + 1 :].decode("utf-8")) + 1


def check_text(data: bytes) -> tuple[bytes, list[Flaw]]:
    """Return a file's text as UTF-8 without byte order mark and with LF line ends, and its flaws."""
    # Most files are plain ASCII, which needs no decoding.
    if not data.translate(None, _CLEAN_ASCII):
        return _with_line_feeds(data), []
    if flaw := _other_encoding(data):
        return b"", [flaw]
    data = _with_line_feeds(data.removeprefix(codecs.BOM_UTF8))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return b"", [_not_utf8(data, error)]
    return data, list(islice(_refused(text), MAX_COUNTED_PER_FILE))


def split(data: bytes) -> Iterator[Chunk]:
    """Yield the documents of a file, so that a mistake in one leaves the others readable.

    `data` is a result of `check_text`.
    """
    start, line = 0, 1
    if b"\n---" in data or b"\n..." in data:
        for match in _BOUNDARY.finditer(data):
            if match[1] is None:
                continue
            cut = match.end() if match[0] == b"..." else match.start()
            if data[start:cut].strip():
                yield Chunk(data[start:cut], line)
            line += data.count(b"\n", start, cut)
            start = cut
    yield Chunk(data[start:], line)


def explain_character(char: str) -> tuple[str, str]:
    """Return message and hint for a refused character."""
    name = f"U+{ord(char):04X}"
    if char in "\u2028\u2029\x85":
        return f"{name} ends a line for YAML 1.1, but not for YAML 1.2", "remove it, or end the line"
    if char in "\ufeff\ufffe\uffff":
        return f"{name} isn't allowed inside a file", "remove it"
    if "\u202a" <= char <= "\u2069":
        return f"{name} changes the order in which the text around it is shown", "remove it"
    if char >= "\ud800":
        return f"{name} is half of a character", "write the whole character"
    return f"{name} is a control character", "remove it"


def _with_line_feeds(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def _other_encoding(data: bytes) -> Flaw | None:
    for mark, name in _OTHER_ENCODINGS:
        if data.startswith(mark):
            return Flaw(1, 1, f"the file is {name}, not UTF-8", _SAVE_AS_UTF8)
    if len(data) > 1 and (data[0] == 0) != (data[1] == 0):
        return Flaw(1, 1, "the file looks like UTF-16, not UTF-8", _SAVE_AS_UTF8)
    return None


def _not_utf8(data: bytes, error: UnicodeDecodeError) -> Flaw:
    if b"\0" in data:
        return Flaw(1, 1, "this is a binary file", "give it another suffix, or move it")
    before = data[: error.start]
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
    message = f"the byte 0x{data[error.start]:02x} is not UTF-8"
    return Flaw(before.count(b"\n") + 1, column, message, _SAVE_AS_UTF8)


def _refused(text: str) -> Iterator[Flaw]:
    line, counted = 1, 0
    for match in _REFUSED.finditer(text):
        offset = match.start()
        line += text.count("\n", counted, offset)
        counted = offset
        yield Flaw(line, offset - text.rfind("\n", 0, offset), *explain_character(match[0]))


def may_be_lenient(data: bytes) -> bool:
    """Return True if a document contains a character that `separator_flaws` could refuse."""
    return bool(_MAY_BE_LENIENT.search(data))


def separator_flaws(chunk: Chunk, tokens: Iterable[Any]) -> list[Flaw]:
    """Return a flaw for each place that libyaml accepts and PyYAML's own scanner refuses.

    The marks of the document's tokens count characters.
    """
    text = chunk.data.decode("utf-8")
    flaws = []
    line, start = 0, 0
    for offset in islice(_refused_separator(text, tokens), MAX_COUNTED_PER_FILE):
        line += text.count("\n", start, offset)
        start = offset
        column = offset - text.rfind("\n", 0, offset) - 1
        tab = TAB_INSIDE if text[offset - column : offset].strip() else TAB_AT_START
        problem = tab if text[offset] == "\t" else COMMENT_TOO_CLOSE
        flaws.append(Flaw(chunk.line + line, column + 1, *problem))
    return flaws


def _refused_separator(text: str, tokens: Iterable[Any]) -> Iterator[int]:
    end = 0
    for token in tokens:
        start, stop = token.start_mark.index, token.end_mark.index
        yield from _marked(_BETWEEN, text, end, start)
        style = getattr(token, "style", None)  # only scalars have one
        if style in ("|", ">"):
            header = _BLOCK_HEADER.match(text, start)
            if header is not None and header["wrong"]:
                yield header.start("wrong")
        elif style not in ("'", '"'):
            yield from _marked(_TAB, text, start, stop)
        end = max(end, stop)
    yield from _marked(_BETWEEN, text, end, len(text))


def _marked(pattern: re.Pattern[str], text: str, start: int, end: int) -> Iterator[int]:
    """Yield the places between `start` and `end` that the pattern's first group matches."""
    if start < end:
        yield from (match.start(1) for match in pattern.finditer(text, start, end) if match[1])
