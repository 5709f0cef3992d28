"""Selection of the manifests for a command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.base.errors import UsageError
from reconciler.manifests.settings import FILE_NAME

if TYPE_CHECKING:
    from reconciler.manifests.validate import Validation

JOBS_FOLDER = "jobs"


def manifest_paths(root: Path, paths: Sequence[Path]) -> Sequence[Path]:
    """Return the named paths, else `jobs` at the root.

    Raises:
        UsageError: Neither the folder nor `reconciler.yaml` exists: this is no repository of jobs.
    """
    folder = root / JOBS_FOLDER
    if paths or os.path.lexists(folder):
        return paths or [folder]
    # Git keeps no empty folder: a repository with settings and no folder has lost its last manifest.
    if (root / FILE_NAME).is_file():
        return []
    raise UsageError(
        f"there is no folder {folder}",
        hint="keep the manifests there, or name the files or folders that hold them",
    )


def check_found(found: Validation, paths: Sequence[Path]) -> None:
    """Raise UsageError if the named paths contain no manifest: a mistyped path must not pass for valid."""
    if paths and not found.files:
        named = ", ".join(str(path) for path in paths)
        raise UsageError(f"there is no manifest below {named}", hint="manifests are files *.yaml and *.yml")


def is_manifest(name: str) -> bool:
    """Return True if a file of this name may hold manifests."""
    from reconciler.manifests.files import SUFFIXES

    return name.endswith(SUFFIXES)
