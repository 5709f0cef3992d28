"""Walk through a bucket's folders and yield its objects' names in order."""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress

from reconciler.localservice.bucket_files import Found, Wanted, opened

_GONE = (FileNotFoundError, NotADirectoryError)  # another process may remove files during a walk

Names = tuple[str, ...]
"""The names in a folder, those of folders with "/" appended, in the order of the objects' names."""


def walk(folder: int, wanted: Wanted, path: str = "") -> Iterator[Found]:
    """Yield the wanted files below an open folder, in the order of their names' UTF-8 bytes.

    A status may be that of a file or link that has just replaced the listed file. Use it only to compare it
    with the recorded one; if it differs, open the file with care.

    Args:
        path: The folder's path in the bucket: "" or a path that ends in "/".
    """
    for name in _from(_names(folder), max(wanted.start, wanted.prefix), path):
        whole = path + name
        if whole > wanted.prefix and not whole.startswith(wanted.prefix):
            return
        if not name.endswith("/"):
            if wanted.file(whole) and (status := _file(name, folder)):
                yield Found(whole, status)
        elif not wanted.folder(whole):
            continue
        elif wanted.folds(whole):
            if any(_within(folder, name, Wanted(start=wanted.start), path)):
                yield Found(whole, None)
        else:
            yield from _within(folder, name, wanted, path)


def _within(folder: int, name: str, wanted: Wanted, path: str) -> Iterator[Found]:
    with suppress(*_GONE), opened(name[:-1], folder) as inner:
        yield from walk(inner, wanted, path + name)


def _from(names: Names, start: str, path: str) -> Names:
    """Return the names from the first that may be or contain `start` or a later name."""
    if not start.startswith(path):
        return names
    return names[max(0, bisect_left(names, start[len(path) :]) - 1) :]


def _file(name: str, folder: int) -> os.stat_result | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except _GONE:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _names(folder: int) -> Names:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if not name.isascii() and not _is_utf8(name):
                continue  # it is no object
            if entry.is_dir(follow_symlinks=False):
                found.append(name + "/")
            elif entry.is_file(follow_symlinks=False):
                found.append(name)
    return tuple(sorted(found))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
