"""Which manifests a command is about."""

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
    """The paths that were named, else `jobs` at the root.

    Git keeps no empty folder: where there are settings, one that is gone held the last manifest.

    Raises:
        UsageError: There is no such folder, and nothing says that this is a repository of jobs.
    """
    folder = root / JOBS_FOLDER
    if paths or os.path.lexists(folder):
        return paths or [folder]
    if (root / FILE_NAME).is_file():
        return []
    raise UsageError(
        f"there is no folder {folder}",
        hint="keep the manifests there, or name the files or folders that hold them",
    )


def check_found(found: Validation, paths: Sequence[Path]) -> None:
    """Raise UsageError where the named paths hold no manifest: a mistyped one must not pass for valid."""
    if paths and not found.files:
        named = ", ".join(str(path) for path in paths)
        raise UsageError(f"there is no manifest below {named}", hint="manifests are files *.yaml and *.yml")


def is_manifest(name: str) -> bool:
    """Return True if a file of this name may hold manifests."""
    from reconciler.manifests.files import SUFFIXES

    return name.endswith(SUFFIXES)
