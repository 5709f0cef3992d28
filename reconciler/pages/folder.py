"""The folder of an HTML report: its pages are replaced, other files are left alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from reconciler.base.errors import (
    RefusedError,
    UsageError,
    check_machine,
)
from reconciler.base.safe_files import new_file, open_folder

_MARK = "reconciler-report.json"
_MARKED = b'{"formatVersion": 1, "about": "pages of `reconciler report --html`, which replaces them"}\n'
_FOLDERS = ("jobs", "commits", "states", "labels")


def write_site(folder: Path, pages: Iterable[tuple[str, str]], *, force: bool) -> tuple[int, int]:
    """Write pages into a folder, which is made if it is missing; return their number and size in bytes.

    An earlier report in the folder is removed first. No link below the folder is followed.

    Raises:
        RefusedError: The folder has other files and no report, and `force` is False.
        UsageError: The folder can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            root = open_folder(folder, follow=True)
            stack.callback(os.close, root)
            _make_room(root, folder, force=force)
            folders = {"": root}
            for name in _FOLDERS:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=root)
                folders[name] = open_folder(name, folder=root)
                stack.callback(os.close, folders[name])
                _remove_pages(folders[name])
            count = size = 0
            for path, text in pages:
                parent, _, name = path.rpartition("/")
                data = text.encode("utf-8", "backslashreplace")
                _write(name, data, folders[parent])
                count, size = count + 1, size + len(data)
    except OSError as error:
        check_machine(error, f"can't write the report to {folder}")
        name = f"{error.filename}: " if error.filename else ""
        raise UsageError(f"can't write the report to {folder}: {name}{error.strerror}") from None
    return count, size


def _make_room(root: int, folder: Path, *, force: bool) -> None:
    """Mark the folder as a report's, and remove the pages of an earlier one."""
    names = os.listdir(root)
    if names and _MARK not in names and not force:
        raise RefusedError(
            f"{folder} isn't empty and holds no report of `reconciler report --html`: nothing was written",
            hint="name another folder, or pass --force to write among its files",
        )
    if _MARK in names:
        _remove_pages(root)
    _write(_MARK, _MARKED, root)


def _remove_pages(folder: int) -> None:
    for name in os.listdir(folder):
        if name.endswith(".html") and stat.S_ISREG(
            os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        ):
            os.unlink(name, dir_fd=folder)


def _write(name: str, data: bytes, folder: int) -> None:
    # In the place of a link, not through it. Pages are for others to read, as the user's umask has it.
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    with new_file(name, folder, 0o666) as file:
        file.write(data)
