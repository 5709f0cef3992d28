"""Checkouts: the repository around a folder, and git's own folder of it, without starting git."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_SETTINGS = "reconciler.yaml"


def checkout_of(folder: Path) -> Path | None:
    """Return the resolved top of the checkout around a folder: a repository, else a folder with settings.

    Return None without either: a working directory alone, such as a daemon's, is no checkout.
    """
    folder = Path(os.path.realpath(folder))
    around = (folder, *folder.parents)
    top = next((candidate for candidate in around if repository_in(candidate)), None)
    return top or next((candidate for candidate in around if os.path.lexists(candidate / _SETTINGS)), None)


def repository_in(folder: Path) -> Path | None:
    """Return the folder's `.git`, or None; like git, ignore an empty folder of that name."""
    git = folder / ".git"
    try:
        status = git.lstat()
    except OSError:
        return None
    return git if not stat.S_ISDIR(status.st_mode) or os.path.lexists(git / "HEAD") else None


def git_folder(checkout: Path) -> Path | None:
    """Return git's own folder of a checkout; None without git, and if only git knows its place."""
    repository = repository_in(checkout)
    if repository is None:
        return None
    with suppress(OSError, UnicodeError):
        if stat.S_ISDIR(repository.lstat().st_mode):
            return repository
        # The `.git` file of a linked work tree or a submodule: https://git-scm.com/docs/gitrepository-layout
        word, _, path = repository.read_text("utf-8").partition("gitdir: ")
        if not word and path:
            return checkout / path.rstrip("\n")
    return None
