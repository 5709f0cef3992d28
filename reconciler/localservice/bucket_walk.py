"""The names in a bucket, in order; what lies in a folder is remembered as long as the folder is as it was."""

from __future__ import annotations

import os
import stat
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from reconciler.localservice.bucket_files import FOLDER, TICK_NS, Found, Wanted, opened

_MOST = 200_000
_GONE = (FileNotFoundError, NotADirectoryError)  # files and folders may go away while one walks

Signature = tuple[int, int, int, int]
Names = tuple[str, ...]
"""The names in a folder, those of folders with "/" behind, in the order that their files' names have."""


class Lying(NamedTuple):
    """What lies in a folder.

    Attributes:
        signature: What the folder looked like.
        names: All names.
        files: The same where they are all files'; else none.
    """

    signature: Signature
    names: Names
    files: Names


class Folders:
    """What lies in the folders of one home's buckets; at most `most` names are remembered.

    Whatever is put into a folder, taken out of it or replaced in it changes the folder's own times. What is
    written into a file doesn't: files are looked at each time.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._left = most
        self._known: dict[str, Lying] = {}
        self._lock = threading.Lock()

    def below(self, path: str, name: str, folder: int) -> Lying:
        """What lies in the folder `name`, whose whole path is `path`, within an open one.

        Raises:
            OSError: It isn't there, or is no folder.
        """
        found = self._known.get(path)
        if found is not None and found.signature == _signature(
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        ):
            return found
        descriptor = os.open(name, FOLDER, dir_fd=folder)
        try:
            return self.read(path, descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: str, folder: int) -> Lying:
        """What lies in the folder that the descriptor `folder` is of."""
        status, now = os.fstat(folder), time.time_ns()
        signature = _signature(status)
        found = self._known.get(path)
        if found is not None and found.signature == signature:
            return found
        names = _names(folder)
        lying = Lying(signature, names, () if any(map(_is_folder, names)) else names)
        # One that has changed just now may change again without its times showing it.
        if now - max(status.st_mtime_ns, status.st_ctime_ns) > TICK_NS:
            self._remember(path, lying)
        return lying

    def _remember(self, path: str, lying: Lying) -> None:
        with self._lock:
            self._forget(path)
            self._known[path] = lying
            self._left -= len(lying.names) + 1
            while self._left < 0:
                self._forget(next(iter(self._known)))

    def _forget(self, path: str) -> None:
        found = self._known.pop(path, None)
        self._left += len(found.names) + 1 if found else 0


def walk(bucket: str, folder: int, wanted: Wanted, folders: Folders) -> Iterator[Found]:
    """The wanted files of a bucket, whose folder `folder` is, in the order of their names' UTF-8 bytes.

    A status may be that of what has taken the file's place meanwhile, even by a link: it is good for
    comparing it with what was noted, and the file is opened with care where it differs.
    """
    return _Walk(bucket, folders).below(folder, wanted, "")


class _Walk:
    def __init__(self, bucket: str, folders: Folders) -> None:
        self.bucket = bucket
        self.folders = folders

    def below(self, folder: int, wanted: Wanted, path: str) -> Iterator[Found]:
        """The files below an open folder; `path` is what their names begin with."""
        lying = self.folders.read(f"{self.bucket}/{path}", folder)
        names = lying.names
        inside = path.startswith(wanted.prefix) and not wanted.fold
        for name in _from(names, max(wanted.start, wanted.prefix), path):
            whole = path + name
            if inside and whole >= wanted.start and (files := self.files(folder, name, whole)):
                # Most of a large folder is wanted, and is folders of a file or a few: the way is short.
                for each in files:
                    if (status := _file(name + each, folder)) is not None:
                        yield Found(whole + each, status)
                continue
            if whole > wanted.prefix and not whole.startswith(wanted.prefix):
                return
            if not name.endswith("/"):
                if wanted.file(whole) and (status := _file(name, folder)):
                    yield Found(whole, status)
            elif not wanted.folder(whole):
                continue
            elif wanted.folds(whole):
                if any(self.within(folder, name, Wanted(start=wanted.start), path)):
                    yield Found(whole, None)
            else:
                yield from self.within(folder, name, wanted, path)

    def within(self, folder: int, name: str, wanted: Wanted, path: str) -> Iterator[Found]:
        """The files below the folder `name` in an open one."""
        with suppress(*_GONE), opened(name[:-1], folder) as inner:
            yield from self.below(inner, wanted, path + name)

    def files(self, folder: int, name: str, path: str) -> Names:
        """What lies in the folder `name` in an open one, where that is nothing but files."""
        if name[-1] != "/":
            return ()
        try:
            return self.folders.below(f"{self.bucket}/{path}", name[:-1], folder).files
        except _GONE:
            return ()


def _from(names: Names, start: str, path: str) -> Names:
    """The names from the first on that may be, or hold, what `start` or anything after it is."""
    if not start.startswith(path):
        return names
    return names[max(0, bisect_left(names, start[len(path) :]) - 1) :]


def _is_folder(name: str) -> bool:
    return name[-1] == "/"


def _file(name: str, folder: int) -> os.stat_result | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except _GONE:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _signature(status: os.stat_result) -> Signature:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


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
