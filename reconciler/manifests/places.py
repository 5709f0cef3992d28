"""Lines and columns of warnings, found in their files again: only those that are shown need them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from reconciler.base.diagnostics import Keys, Problem, UnplacedWarning, Warned
from reconciler.manifests.files import read_one
from reconciler.manifests.training_images import CONTAINER_IMAGE, EXECUTOR_IMAGE, images_in
from reconciler.manifests.yaml_load import clean_documents, load_documents

_Position = tuple[int, int]

_WRITTEN = re.compile(
    rf"\b(?P<field>{CONTAINER_IMAGE}|{EXECUTOR_IMAGE})[\"']?\s*:\s*"
    r"(?P<quote>[\"']?)(?P<uri>[^\s\"',\[\]{}#]+)"
)


def placed(root: Path, warnings: Sequence[Warned]) -> list[Problem]:
    """Return the warnings with their places, in the same order; each file is read once.

    `root` is the repository's. In a file that has changed since its check, a place may be that of a document.
    """
    by_path: dict[str, list[UnplacedWarning]] = {}
    for warning in warnings:
        if isinstance(warning, UnplacedWarning):
            by_path.setdefault(warning.path, []).append(warning)
    positions = {path: iter(_positions(root / path, of_file)) for path, of_file in by_path.items()}
    return [
        _problem(warning, next(positions[warning.path])) if isinstance(warning, UnplacedWarning) else warning
        for warning in warnings
    ]


def _problem(warning: UnplacedWarning, position: _Position) -> Problem:
    line, column = position
    return Problem(warning.path, line, column, warning.pointer, warning.message, warning.hint, warning.kind)


def _positions(file: Path, warnings: Sequence[UnplacedWarning]) -> list[_Position]:
    """Return line and column of each warning of a file."""
    data = read_one(file, file.name)
    if isinstance(data, Problem):
        return [(warning.line, 1) for warning in warnings]
    if all(warning.keys[-1:] in ((CONTAINER_IMAGE,), (EXECUTOR_IMAGE,)) for warning in warnings):
        of_images = _image_positions(data)
        if all((warning.line, warning.keys) in of_images for warning in warnings):
            return [of_images[warning.line, warning.keys] for warning in warnings]
    documents = {document.line: document for document in load_documents(data, "")[0]}
    positions = []
    for warning in warnings:
        document = documents.get(warning.line)
        position = document.position(warning.keys, of_key=warning.of_key) if document else None
        positions.append((position.line, position.column) if position else (warning.line, 1))
    return positions


def _image_positions(data: bytes) -> Mapping[tuple[int, Keys], _Position]:
    """Return line and column of the images of a file, by their document's first line and their path.

    They are nearly always found by their text, which is much faster than by YAML. Others are left out.
    """
    documents = clean_documents(data) or []
    lines = data.decode("utf-8-sig", "replace").splitlines()
    ends = [document.line - 1 for document in documents[1:]] + [len(lines)]
    found: dict[tuple[int, Keys], _Position] = {}
    for document, end in zip(documents, ends, strict=True):
        images = images_in(document.value)
        for keys, position in _by_text(lines[document.line - 1 : end], document.line, images):
            found[document.line, keys] = position
    return found


def _by_text(
    lines: Iterable[str], first: int, images: Sequence[tuple[Keys, str]]
) -> list[tuple[Keys, _Position]]:
    """Return path and place of each image of a document with these lines; [] if the text leaves a doubt.

    The images with the same URI in the same field of a list stand in the order of the list.
    """
    positions: dict[tuple[str, str], list[_Position]] = {}
    for number, line in enumerate(lines, start=first):
        if "mageUri" in line and not line.lstrip().startswith("#"):
            for match in _WRITTEN.finditer(line):
                position = number, match.start("quote") + 1
                positions.setdefault((match["field"], match["uri"]), []).append(position)
    shapes: dict[tuple[str, str], list[Keys]] = {}
    for keys, uri in images:
        shapes.setdefault((str(keys[-1]), uri), []).append(keys)
    for shape, paths in shapes.items():
        fields = {tuple(key for key in keys if isinstance(key, str)) for keys in paths}
        if len(positions.get(shape, ())) != len(paths) or len(fields) > 1:
            return []
    return [pair for shape, paths in shapes.items() for pair in zip(paths, positions[shape], strict=True)]
