"""The folder `jobs`, from which manifests are read unless paths are named, and what its lack means."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reconciler.base.diagnostics import Finding, Problem, counted
from reconciler.base.errors import UsageError
from reconciler.base.git_command import Git, GitError
from reconciler.base.sanitize import one_line
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.files import Folders, find_manifests
from reconciler.manifests.schemas import is_valid, schema_of
from reconciler.manifests.settings import JOBS_FOLDER, is_manifest
from reconciler.manifests.yaml_load import clean_documents
from reconciler.model.stand_ins import fetching
from reconciler.model.tracking import GET_LEFT_OUT, Index

_HOLD = "keep the manifests there, or name the files or folders that hold them"
_KEPT = "so no job counts as removed, and none is cancelled for that"
_NONE = Problem(
    JOBS_FOLDER,
    1,
    1,
    "",
    "there is no such folder, and git has no file of it: the repository has no manifest",
    "git keeps no empty folder; where the manifests are elsewhere, name the files or folders that hold them",
    WarningKind.NO_JOBS_FOLDER,
)


def manifest_paths(root: Path, paths: Sequence[Path]) -> tuple[Sequence[Path], tuple[Problem, ...]]:
    """Return the named paths, else `jobs` at the root, and a warning if that is missing.

    Raises:
        UsageError: The folder is missing, and not because its last manifest was removed: git's index has
            files of it, or there is no git to ask.
    """
    folder = root / JOBS_FOLDER
    if paths or os.path.lexists(folder):
        return paths or [folder], ()
    refuse_lost_folder(root)
    return [], (_NONE,)


def left_out_manifests(root: Path, index: Index) -> tuple[list[str], tuple[Problem, ...]]:
    """Return the manifests that git leaves out of the work tree (sparse checkout), and a warning of them.

    Submodules whose manifests aren't read have a warning too.
    """
    folders = _places_of_manifests(root, index)
    left_out = [
        path
        for path in index.left_out
        if is_manifest(path) and _is_below(path, folders) and not os.path.lexists(root / path)
    ]
    # What such a link leads to isn't known: a folder of manifests, for example.
    left_out += [link for link in index.links if _is_below(link, folders) and not (root / link).is_symlink()]
    unread = [path for path in index.unread if _is_below(path, folders)]
    said = f"this submodule's manifests aren't read, {_KEPT}"
    kind = WarningKind.PARTIAL_CHECKOUT
    warnings = tuple(Problem(one_line(path), 1, 1, "", said, fetching(path), kind) for path in unread)
    if not left_out:
        return [], warnings
    number = counted(len(left_out), "manifest")
    said = f"git leaves {number} out of the work tree, {_KEPT}"
    return left_out, (Problem(one_line(left_out[0]), 1, 1, "", said, GET_LEFT_OUT, kind), *warnings)


def _places_of_manifests(root: Path, index: Index) -> list[str]:
    """Return the folder of manifests, and the targets of tracked links below it, where these matter."""
    folders = [JOBS_FOLDER]
    for folder in folders:  # which grows
        for link in index.links:
            if _is_below(link, [folder]):
                with suppress(OSError):
                    target = posixpath.join(posixpath.dirname(link), (root / link).readlink())
                    folders += {posixpath.normpath(target)} - {*folders}
    return folders


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def refuse_lost_folder(root: Path) -> None:
    """Raise UsageError for a missing folder `jobs` unless git's index has no file of it."""
    try:
        listed = Git(root).run("ls-files", "-t", "-z", "--", JOBS_FOLDER).split(b"\0")[:-1]
    except GitError as error:
        message = f"there is no folder {root / JOBS_FOLDER}, and git can't tell why: {error.message}"
        raise UsageError(message, hint=_HOLD) from None
    if not listed:
        return
    number = counted(len(listed), "file")
    message = f"there is no folder {root / JOBS_FOLDER}, although git's index has {number} of it"
    # "S" is for files that a sparse checkout leaves out.
    if all(line.startswith(b"S ") for line in listed):
        raise UsageError(message, hint=f"the checkout is sparse: run `git sparse-checkout add {JOBS_FOLDER}`")
    remedy = f"`git restore {JOBS_FOLDER}` brings it back; `git rm -r {JOBS_FOLDER}` removes it for good"
    raise UsageError(message, hint=remedy)


def job_names(root: Path) -> list[str]:
    """Return the names in the manifests of `jobs`, by their files; check nothing else, and start no git.

    Raises:
        UsageError: The folder is missing.
    """
    names: list[str] = []
    with Folders() as folders:
        for file in find_manifests(root, [root / JOBS_FOLDER])[0]:
            data = folders.read(file)
            documents = clean_documents(data) if isinstance(data, bytes) else None
            names += (name for document in documents or () for name in _names_in(document.value))
    return names


def _names_in(value: Any) -> Iterator[str]:
    """Yield the name in a manifest of a known kind if it has the form of a name."""
    schema = schema_of(value)
    if not isinstance(schema, Finding) and is_valid(value.get("metadata"), schema["properties"]["metadata"]):
        yield value["metadata"]["name"]
