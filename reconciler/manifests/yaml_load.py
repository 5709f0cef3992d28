"""Documents of a YAML file, with the problems of unreadable or ambiguous places.

Values are built without their places. A document with a problem is read again for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reconciler.base.diagnostics import (
    MAX_COUNTED_PER_FILE,
    MAX_FILE_BYTES,
    Keys,
    Problem,
    pointer_of,
    quote,
    too_large,
)
from reconciler.manifests.files import read_one
from reconciler.manifests.plain_reader import read_clean
from reconciler.manifests.yaml_text import Chunk, Flaw, check_text, split

if TYPE_CHECKING:
    from reconciler.manifests.yaml_document import Document, Position

MAX_DOCUMENT_BYTES = 256 * 1024
MAX_DOCUMENTS = 10_000


class CleanDocument(Struct, frozen=True, gc=False):
    """Document of a file without problems; the attributes are those of `Document`."""

    value: Any
    line: int
    aliased: int


def clean_documents(data: bytes) -> list[CleanDocument] | None:
    """Return the documents of a file without problems, without their places: the fast way.

    None if `load_documents` would find a problem or no document; else the same documents.
    """
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
                Flaw(chunk.line, 1, f"the file contains more than {MAX_DOCUMENTS:,} documents", "split it")
            )
            break
        document, chunk_flaws = _load(chunk)
        documents += document
        flaws += chunk_flaws
    return documents, [_problem(path, flaw) for flaw in flaws]


def position_in(file: Path, keys: Keys, line: int = 0) -> tuple[int, int]:
    """Return line and column of the field at `keys` in a file that was valid when it was read.

    `line` is the first line of the field's document, 0 for the first document.
    """
    data = read_one(file, file.name)
    return place_of(b"" if isinstance(data, Problem) else data, keys, line)


def place_of(data: bytes, keys: Keys, line: int = 0) -> tuple[int, int]:
    """Return what `position_in` does for the bytes of a file."""
    for document in load_documents(data, "")[0]:
        if line in (0, document.line):
            position = document.position(keys)
            return position.line, position.column
    # The file has changed since.
    return line or 1, 1


def with_rerun(data: bytes, line: int, value: str) -> bytes:
    """Return a valid file with another `reconcile.rerun` in one job; comments and layout stay.

    Args:
        data: The file.
        line: The first line of the job's document.
        value: Text without a character that YAML's double quotes escape.

    Raises:
        ValueError: An alias or an anchor is in the way, or the file isn't valid any more.
    """
    documents, _ = load_documents(data, "")
    edited = [document for document in documents if document.line == line]
    if not edited:
        raise ValueError(f"no job begins on line {line}")
    start, end, new = edited[0].rerun_edit(value)
    text = data.decode("utf-8-sig")
    lines = text.splitlines(keepends=True)

    def place(position: Position) -> int:
        return sum(map(len, lines[: position.line - 1])) + position.column - 1

    if lines[0].endswith("\r\n"):
        new = new.replace("\n", "\r\n")
    mark = data[: len(data) - len(text.encode())]
    after = mark + f"{text[: place(start)]}{new}{text[place(end) :]}".encode()
    # Whatever the text looked like, the result is what counts: nothing but this value may differ.
    wanted = [dict(document.value) for document in documents]
    job = wanted[documents.index(edited[0])]
    job["reconcile"] = {**(job.get("reconcile") or {}), "rerun": value}
    new_documents, problems = load_documents(after, "")
    if problems or [document.value for document in new_documents] != wanted:
        raise ValueError("it isn't written in a form that can be edited safely")
    return after


def _load(chunk: Chunk) -> tuple[list[Document], list[Flaw]]:
    if len(chunk.data) > MAX_DOCUMENT_BYTES:
        message = f"the document is larger than {MAX_DOCUMENT_BYTES // 1024} KB"
        return [], [Flaw(chunk.line, 1, message, "split it into several")]
    from reconciler.manifests import yaml_document, yaml_reader  # with YAML's parser, which is slow to import

    content = yaml_reader.read(chunk)
    if not content.line:
        return [], content.flaws
    document = yaml_document.Document(chunk, content)
    for keys, line, column in content.repeated:
        first = document.position(keys, of_key=True)
        message = f"the key {quote(str(keys[-1]))} is defined twice, first on line {first.line}"
        content.flaws.append(Flaw(line, column, message, "remove one of the two", keys))
    return [document], content.flaws


def _problem(path: str, flaw: Flaw) -> Problem:
    return Problem(path, flaw.line, flaw.column, pointer_of(flaw.keys), flaw.message, flaw.hint)
