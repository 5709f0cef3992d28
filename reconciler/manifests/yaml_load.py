"""Documents of a YAML file, with the problems of unreadable or ambiguous places.

Values are built without their places. A document with a problem is read again for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reconciler.base.diagnostics import MAX_COUNTED_PER_FILE, Problem, pointer_of, quote
from reconciler.manifests.findings import MAX_FILE_BYTES, Keys, too_large
from reconciler.manifests.yaml_text import Chunk, Flaw, check_text, split

if TYPE_CHECKING:
    from reconciler.manifests.yaml_places import Places, Position
    from reconciler.manifests.yaml_reader import Reading

MAX_DOCUMENT_BYTES = 256 * 1024
MAX_DOCUMENTS = 10_000


class Document:
    """One document of a file.

    Attributes:
        value: Mappings with text as keys, lists, text, numbers, booleans and None.
        line: The first line of its content in the file, from 1.
        aliased: Number of values that exist only through aliases.
        unreadable: The paths of values already reported as problems; `value` has a placeholder there.
        is_flawed: True if reading it gave any problem.
    """

    __slots__ = ("_places", "aliased", "is_flawed", "line", "unreadable", "value")

    def __init__(self, reading: Reading, places: Places) -> None:
        self.value: Any = reading.value
        self.line = reading.line
        self.aliased = reading.aliased
        self.unreadable: frozenset[Keys] = frozenset(flaw.keys for flaw in reading.flaws)
        self.is_flawed = bool(reading.flaws or reading.repeated)
        self._places = places

    def position(self, keys: Sequence[str | int], *, of_key: bool = False) -> Position:
        """Return the place of the value at `keys`, or of its key; of its nearest parent if it is missing."""
        return self._places.position(keys, of_key=of_key)

    def source_text(self, keys: Sequence[str | int]) -> str:
        """Return the scalar at `keys` as written in the file, without quotes; "" for other values."""
        return self._places.source_text(keys)


class CleanDocument(Struct, frozen=True, gc=False):
    """Document of a file without problems; the attributes are those of `Document`."""

    value: Any
    line: int
    aliased: int


def clean_documents(data: bytes) -> list[CleanDocument] | None:
    """Return the documents of a file without problems, without their places: the fast way.

    None if `load_documents` would find a problem or no document; else the same documents.
    """
    from reconciler.manifests.plain_reader import read_clean  # with YAML's parser, which is slow to import

    if len(data) > MAX_FILE_BYTES:
        return None
    text, flaws = check_text(data)
    if flaws:
        return None
    documents: list[CleanDocument] = []
    for number, chunk in enumerate(split(text)):
        if number > MAX_DOCUMENTS or len(chunk.data) > MAX_DOCUMENT_BYTES:
            return None
        document = read_clean(chunk)
        if document is None:
            return None
        if document[1]:
            documents.append(CleanDocument(*document))
    return documents or None


def load_documents(data: bytes, path: str) -> tuple[list[Document], list[Problem]]:
    """Return the documents of a file, and a problem for each unreadable or ambiguous place.

    Documents cut off by a syntax error or a limit are omitted. An empty file has neither documents nor
    problems. `path` is the file's name in the problems.
    """
    if len(data) > MAX_FILE_BYTES:
        return [], [too_large(path)]
    text, flaws = check_text(data)
    documents: list[Document] = []
    for number, chunk in enumerate(split(text) if not flaws else ()):
        if len(flaws) >= MAX_COUNTED_PER_FILE:
            break
        if number > MAX_DOCUMENTS:
            flaws.append(
                Flaw(chunk.line, 1, f"the file holds more than {MAX_DOCUMENTS:,} documents", "split it")
            )
            break
        document, found = _load(chunk)
        documents += document
        flaws += found
    return documents, [_problem(path, flaw) for flaw in flaws]


def _load(chunk: Chunk) -> tuple[list[Document], list[Flaw]]:
    if len(chunk.data) > MAX_DOCUMENT_BYTES:
        message = f"the document is larger than {MAX_DOCUMENT_BYTES // 1024} KB"
        return [], [Flaw(chunk.line, 1, message, "split it into several")]
    from reconciler.manifests.yaml_places import Places  # with YAML's parser, which is slow to import
    from reconciler.manifests.yaml_reader import read

    reading = read(chunk)
    if not reading.line:
        return [], reading.flaws
    places = Places(chunk)
    document = Document(reading, places)
    for keys, line, column in reading.repeated:
        first = places.position(keys, of_key=True)
        message = f"the key {quote(str(keys[-1]))} is there twice, first in line {first.line}"
        reading.flaws.append(Flaw(line, column, message, "remove one of the two", keys))
    return [document], reading.flaws


def _problem(path: str, flaw: Flaw) -> Problem:
    return Problem(path, flaw.line, flaw.column, pointer_of(flaw.keys), flaw.message, flaw.hint)
