"""Objects as plain files below a bucket's folder; no name and no link can lead out of it.

Each path part is opened relative to its parent's file descriptor, and symbolic links are never followed,
because a trainer may create any link there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from reconciler.training_service.http.message import ApiError, invalid

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a folder without following links."""
# O_NONBLOCK: opening a FIFO that a trainer created must not block the service.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
TICK_NS = 50_000_000
"""Age up to which a modification time is not trusted: file systems' clocks tick every few milliseconds, so
another change may leave the time as it is."""

_MAX_NAME = 1024
_MAX_PART = 255
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_GONE = (FileNotFoundError, NotADirectoryError)  # another process may remove files during a walk


def is_bucket_name(name: str) -> bool:
    """Return whether Cloud Storage accepts the bucket's name, apart from its rules for names with dots."""
    return _BUCKET.fullmatch(name) is not None and ".." not in name


def parts_of(name: str) -> tuple[str, ...]:
    """Return the folders and the file of an object's name.

    Raises:
        ApiError: INVALID_ARGUMENT: No file can have this name.
    """
    parts = tuple(name.split("/"))
    if len(name.encode()) > _MAX_NAME or "\r" in name or "\n" in name:
        raise invalid(f"Object names have at most {_MAX_NAME} bytes, and no line breaks.")
    if any(part in ("", ".", "..") or "\0" in part or len(part.encode()) > _MAX_PART for part in parts):
        raise invalid(f"Objects are files here, and {name!r} can't be the name of one.")
    return parts


@contextmanager
def opened(path: Path | str, within: int | None = None) -> Iterator[int]:
    """Open a folder, and close its file descriptor after the block.

    Raises:
        OSError: The folder is missing, or is not a folder.
    """
    descriptor = os.open(path, FOLDER, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_missing(error: OSError) -> bool:
    """Return whether the error means a missing file or folder."""
    # ELOOP: a link in place of the file counts as missing.
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def open_file(bucket: int, parts: tuple[str, ...]) -> int | None:
    """Return a file descriptor to read an object; None without a regular file of this name."""
    try:
        with _parent(bucket, parts) as folder:
            descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
    except OSError as error:
        if is_missing(error) or error.errno == errno.ENXIO:  # ENXIO: a socket
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def status(bucket: int, parts: tuple[str, ...]) -> os.stat_result | None:
    """Return the file's status; None without a regular file of this name."""
    try:
        with _parent(bucket, parts) as folder:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if is_missing(error):
            return None
        raise
    return found if stat.S_ISREG(found.st_mode) else None


def place(bucket: int, parts: tuple[str, ...], staged: Path) -> None:
    """Move a staged file to its place, replacing an existing file; durable when this returns.

    Raises:
        ApiError: INVALID_ARGUMENT: The name is or needs a folder where a file exists, or the reverse.
    """
    try:
        with _made_parent(bucket, parts) as folder:
            _rename(staged, parts[-1], folder)
            os.fsync(folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise _both_file_and_folder(parts) from error
        raise


def remove(bucket: int, parts: tuple[str, ...]) -> None:
    """Remove an existing file; durable when this returns."""
    with _parent(bucket, parts) as folder:
        os.unlink(parts[-1], dir_fd=folder)
        os.fsync(folder)


class Found(Struct, frozen=True, gc=False):
    """An object's name with its file's status, or a common prefix of several names with None."""

    name: str
    status: os.stat_result | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of names: with the prefix, from `start` on; `fold` makes each folder below one entry."""

    prefix: str = ""
    start: str = ""
    fold: bool = False

    def folder(self, path: str) -> bool:
        """Return whether a folder, its path ending in "/", may contain selected names."""
        related = path.startswith(self.prefix) or self.prefix.startswith(path)
        return related and (path >= self.start or self.start.startswith(path))

    def folds(self, path: str) -> bool:
        """Return whether the folder becomes one entry."""
        return self.fold and path.startswith(self.prefix) and path != self.prefix

    def file(self, name: str) -> bool:
        """Return whether the name is selected."""
        return name.startswith(self.prefix) and name >= self.start


@contextmanager
def _parent(bucket: int, parts: tuple[str, ...]) -> Iterator[int]:
    folder = os.dup(bucket)
    try:
        for part in parts[:-1]:
            folder = _step(folder, part)
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _made_parent(bucket: int, parts: tuple[str, ...]) -> Iterator[int]:
    folder = os.dup(bucket)
    try:
        for part in parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
                os.fsync(folder)
            folder = _step(folder, part)
        yield folder
    finally:
        os.close(folder)


def _step(folder: int, part: str) -> int:
    """Return the open folder `part` of `folder`, and close `folder`."""
    below = os.open(part, FOLDER, dir_fd=folder)
    os.close(folder)
    return below


def _rename(staged: Path, name: str, folder: int) -> None:
    try:
        os.rename(staged, name, dst_dir_fd=folder)
    except IsADirectoryError:
        _remove_empty(folder, name)
        os.rename(staged, name, dst_dir_fd=folder)


def _remove_empty(parent: int, name: str) -> None:
    # Deleted objects leave empty folders behind; such a tree must not block an object's name.
    with opened(name, parent) as folder:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _remove_empty(folder, entry.name)
    os.rmdir(name, dir_fd=parent)


def _both_file_and_folder(parts: tuple[str, ...]) -> ApiError:
    name = "/".join(parts)
    return invalid(f"Objects are files here: {name!r}, or the beginning of it, is file and folder at once.")


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
                continue  # objects' names are UTF-8
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
