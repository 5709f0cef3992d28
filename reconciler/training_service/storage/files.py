"""Objects as plain files below a bucket's folder; no name and no link can lead out of it.

Each path part is opened relative to its parent's file descriptor, and symbolic links are never followed,
because a trainer may create any link there.

An object's name may also be that of a folder: beside the folder `a`, the object "a" is the file "a\n", as
Cloud Storage FUSE shows it (no object's name contains a line feed). The object "a/" is the file "\n" in a
folder `a`; Cloud Storage FUSE shows only the folder, so these files have a tree of their own.
https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/semantics.md#name-conflicts
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
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
_BESIDE = "\n"

Keeps = Callable[[str], bool]
"""Function that returns whether an empty folder must stay, by its path, which ends in "/"."""


def bucket_of(uri: str) -> str:
    """Return the bucket of a gs:// URI, "" for other texts."""
    match = re.match(r"gs://([^/]+)", uri)
    return match[1] if match else ""


def is_bucket_name(name: str) -> bool:
    """Return whether Cloud Storage accepts the bucket's name, apart from its rules for names with dots."""
    return _BUCKET.fullmatch(name) is not None and ".." not in name


def parts_of(name: str) -> tuple[str, ...]:
    """Return the folders and the file of an object's name; the file is "" for a folder object, "a/".

    Raises:
        ApiError: INVALID_ARGUMENT: No file can have this name.
    """
    parts = tuple(name.split("/"))
    if len(name.encode()) > _MAX_NAME or "\r" in name or "\n" in name:
        raise invalid(f"Object names have at most {_MAX_NAME} bytes, and no line breaks.")
    named = parts[:-1] if len(parts) > 1 and not parts[-1] else parts
    if not all(map(_is_part, named)):
        raise invalid(f"Objects are files here, and {name!r} can't be the name of one.")
    return parts


def is_object_name(name: str) -> bool:
    """Return True if a file can have an object's name."""
    try:
        parts_of(name)
    except ApiError:
        return False
    return True


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
    # ELOOP: a link in place of the file counts as missing. ENAMETOOLONG: a long name with a line feed.
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def open_file(bucket: int, parts: tuple[str, ...]) -> int | None:
    """Return a file descriptor to read an object; None without a regular file of this name."""
    try:
        with _parent(bucket, parts) as folder:
            descriptors = (_opened_file(name, folder) for name in _file_names(parts[-1]))
            return next((descriptor for descriptor in descriptors if descriptor is not None), None)
    except OSError as error:
        if is_missing(error):
            return None
        raise


@contextmanager
def opened_object(buckets: Path, uri: str) -> Iterator[BufferedReader | None]:
    """Open the object that a gs:// URI names, to be read; None without one.

    Args:
        buckets: The folder of the buckets' folders.
    """
    bucket = bucket_of(uri)
    descriptor = None
    if is_bucket_name(bucket):
        with suppress(OSError, ApiError), opened(buckets / bucket) as folder:
            descriptor = open_file(folder, parts_of(uri.removeprefix(f"gs://{bucket}/")))
    if descriptor is None:
        yield None
    else:
        with os.fdopen(descriptor, "rb") as file:
            yield file


def has_object(buckets: Path, uri: str) -> bool:
    """Return whether there is the object that a gs:// URI names; `buckets` as for `opened_object`."""
    with opened_object(buckets, uri) as file:
        return file is not None


def status(bucket: int, parts: tuple[str, ...]) -> os.stat_result | None:
    """Return the file's status; None without a regular file of this name."""
    try:
        with _parent(bucket, parts) as folder:
            return _file(parts[-1], folder)
    except OSError as error:
        if is_missing(error):
            return None
        raise


def has_folder(bucket: int, parts: tuple[str, ...]) -> bool:
    """Return whether the folders of an object's name exist."""
    try:
        with _parent(bucket, parts):
            return True
    except OSError as error:
        if is_missing(error):
            return False
        raise


def make_folder(bucket: int, parts: tuple[str, ...]) -> None:
    """Create the folders of an object's name; durable when this returns.

    Raises:
        ApiError: INVALID_ARGUMENT: Another program made a link or a special file of such a name.
    """
    with _conflicts_refused(parts), _made_parent(bucket, parts):
        pass


def place(bucket: int, parts: tuple[str, ...], staged: Path, keeps: Keeps) -> None:
    """Move a staged file to its place, replacing an existing file; durable when this returns.

    Raises:
        ApiError: INVALID_ARGUMENT: Another program made a link or a special file of such a name.
    """
    with _conflicts_refused(parts), _made_parent(bucket, parts) as folder:
        _rename(staged, parts, folder, keeps)
        os.fsync(folder)


def remove(bucket: int, parts: tuple[str, ...]) -> None:
    """Remove an existing file; durable when this returns."""
    with _parent(bucket, parts) as folder:
        for name in dict.fromkeys(_file_names(parts[-1])):
            if _status(name, folder):
                os.unlink(name, dir_fd=folder)
        os.fsync(folder)


def free_names(bucket: int, parts: tuple[str, ...], keeps: Keeps) -> None:
    """Remove the empty folders of an object's name that keep another object's file from its plain name."""
    for end in range(len(parts) - 1, 0, -1):
        name = parts[end - 1]
        with suppress(OSError), _parent(bucket, parts[:end]) as folder:
            if _status(name + _BESIDE, folder) and not keeps("/".join(parts[:end]) + "/"):
                _remove_empty(folder, name)
                os.rename(name + _BESIDE, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)


def remove_folder(bucket: int, parts: tuple[str, ...]) -> None:
    """Remove the innermost folder of an object's name if it is empty."""
    with suppress(OSError), _parent(bucket, parts[:-1]) as folder:
        os.rmdir(parts[-2], dir_fd=folder)
        os.fsync(folder)


class ListEntry(Struct, frozen=True, gc=False):
    """An object's name with its file's status, or a common prefix of several names with None."""

    name: str
    status: os.stat_result | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of names: with the prefix, from `start` on; `fold` makes each folder below one entry.

    Attributes:
        folders: Select folder objects instead of others.
    """

    prefix: str = ""
    start: str = ""
    fold: bool = False
    folders: bool = False

    def folder(self, path: str) -> bool:
        """Return whether a folder, its path ending in "/", may contain selected names."""
        related = path.startswith(self.prefix) or self.prefix.startswith(path)
        return related and (path >= self.start or self.start.startswith(path))

    def folds(self, path: str) -> bool:
        """Return whether the folder becomes one entry."""
        return self.fold and path.startswith(self.prefix) and path != self.prefix

    def file(self, name: str) -> bool:
        """Return whether the name is selected."""
        is_folder = name[-1:] in ("", "/")
        return name.startswith(self.prefix) and name >= self.start and is_folder is self.folders


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
            _make_folder(part, folder)
            folder = _step(folder, part)
        yield folder
    finally:
        os.close(folder)


def _step(folder: int, part: str) -> int:
    """Return the open folder `part` of `folder`, and close `folder`."""
    below = os.open(part, FOLDER, dir_fd=folder)
    os.close(folder)
    return below


def _make_folder(name: str, folder: int) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        if not _status(name, folder):
            return
        os.rename(name, name + _BESIDE, src_dir_fd=folder, dst_dir_fd=folder)
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)


def _rename(staged: Path, parts: tuple[str, ...], folder: int, keeps: Keeps) -> None:
    name = parts[-1]
    if not name:
        os.rename(staged, _BESIDE, dst_dir_fd=folder)
        return
    try:
        os.rename(staged, name, dst_dir_fd=folder)
    except IsADirectoryError:
        if keeps("/".join(parts) + "/") or not emptied(name, folder):
            os.rename(staged, name + _BESIDE, dst_dir_fd=folder)
            return
        os.rename(staged, name, dst_dir_fd=folder)
    if _status(name + _BESIDE, folder):  # it was the object until now
        os.unlink(name + _BESIDE, dir_fd=folder)


def emptied(name: str, folder: int) -> bool:
    """Remove the folder `name` of an open folder if it contains no file; return whether it was removed."""
    try:
        _remove_empty(folder, name)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _remove_empty(parent: int, name: str) -> None:
    # Deleted objects leave empty folders behind; such a tree must not block an object's name.
    with opened(name, parent) as folder:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _remove_empty(folder, entry.name)
    os.rmdir(name, dir_fd=parent)


@contextmanager
def _conflicts_refused(parts: tuple[str, ...]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG):
            raise
        name = "/".join(parts)
        raise invalid(
            f"Objects are files here: another program's link or special file bars {name!r}."
        ) from error


def walk(folder: int, wanted: Wanted, path: str = "") -> Iterator[ListEntry]:
    """Yield the wanted files below an open folder, in the order of their names' UTF-8 bytes.

    A status may be that of a file or link that has just replaced the listed file. Use it only to compare it
    with the recorded one; if it differs, open the file with care.

    Args:
        path: The folder's path in the bucket: "" or a path that ends in "/".
    """
    for name in _candidates(folder, wanted, path):
        whole = path + name
        if whole > wanted.prefix and not whole.startswith(wanted.prefix):
            return
        if not name.endswith("/"):
            if wanted.file(whole) and (status := _file(name, folder)):
                yield ListEntry(whole, status)
        elif not wanted.folder(whole):
            continue
        elif wanted.folds(whole):
            if any(_within(folder, name, Wanted(start=wanted.start), path)):
                yield ListEntry(whole, None)
        else:
            yield from _within(folder, name, wanted, path)


def _within(folder: int, name: str, wanted: Wanted, path: str) -> Iterator[ListEntry]:
    # Without a context manager: a listing opens a folder for each of 10,000 claims.
    try:
        inner = os.open(name[:-1], FOLDER, dir_fd=folder)
    except OSError as error:
        if is_missing(error):
            return
        raise
    try:
        yield from walk(inner, wanted, path + name)
    finally:
        os.close(inner)


def _rest(start: str, path: str) -> str:
    """Return the part of `start` below the folder `path`; "" if all names in the folder are later."""
    return start[len(path) :] if start.startswith(path) else ""


def _file_names(name: str) -> tuple[str, ...]:
    """Return the possible names of an object's file in its folder, in the order to try them."""
    # The plain name again: the file may get it back after the first look.
    return (name, name + _BESIDE, name) if name else (_BESIDE,)


def _file(name: str, folder: int) -> os.stat_result | None:
    for file_name in _file_names(name):
        if status := _status(file_name, folder):
            return status
    return None


def _status(name: str, folder: int) -> os.stat_result | None:
    """Return a regular file's status."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if is_missing(error):
            return None
        raise
    return status if stat.S_ISREG(status.st_mode) else None


def _opened_file(name: str, folder: int) -> int | None:
    """Return a file descriptor to read a regular file."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if is_missing(error) or error.errno == errno.ENXIO:  # ENXIO: a socket
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _candidates(folder: int, wanted: Wanted, path: str) -> list[str]:
    """Return the names of `_names`, without those that `wanted` certainly leaves out."""
    # Only one folder has names that begin with "KEY/": of 10,000 others none is read.
    only, slash, _ = _rest(wanted.prefix, path).partition("/")
    if slash and _is_part(only):
        return [f"{only}/"]
    return _names(folder, _rest(max(wanted.start, wanted.prefix), path))


def _names(folder: int, start: str) -> list[str]:
    """Return the sorted names that may be or contain `start` or a later name; folders' names end in "/"."""
    names: list[str] = []
    beside: list[str] = []
    # A page of a large folder begins far behind most names; their types cost the most to read.
    first = start[: start.find("/") + 1] or start
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if (below := name + "/") < first:
                continue
            if not name.isascii() and not _is_utf8(name):
                continue  # objects' names are UTF-8
            if entry.is_dir(follow_symlinks=False):
                names.append(below)
            elif entry.is_file(follow_symlinks=False):
                (beside if name.endswith(_BESIDE) else names).append(name.removesuffix(_BESIDE))
    return sorted({*names, *beside} if beside else names)


def _is_part(text: str) -> bool:
    """Return whether a file or folder of an object can have this name."""
    is_name = text not in ("", ".", "..") and "\0" not in text
    return is_name and _is_utf8(text) and len(text.encode()) <= _MAX_PART


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
