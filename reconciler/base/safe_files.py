"""Reading and creating of files without following symbolic links.

A path is relative to the open folder `folder`, if given. An entry that is opened by its name in an open
folder can't be redirected by a link that another process puts in the way.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo would wait for a writer.
_READ_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class IrregularFileError(OSError):
    """Error for a folder, fifo, socket or device in the place of a regular file.

    Attributes:
        mode: The `st_mode` of the entry.
    """

    def __init__(self, mode: int) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file")
        self.mode = mode


def kind_of(mode: int) -> str:
    """Return the kind of an entry with this `st_mode` that is no file, folder or link, such as "a fifo"."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def open_folder(path: Path | str, *, folder: int | None = None, follow: bool = False) -> int:
    """Open a folder and return its descriptor; raises OSError, also for a link without `follow`."""
    return os.open(path, _OPEN_FOLDER | _no_follow(follow), dir_fd=folder)


@contextmanager
def opened_folder(path: Path | str, *, folder: int | None = None, follow: bool = False) -> Iterator[int]:
    """Open a folder as `open_folder` does, and close it at the end."""
    descriptor = open_folder(path, folder=folder, follow=follow)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(
    path: Path | str, *, folder: int | None = None, follow: bool = False
) -> tuple[int, os.stat_result]:
    """Open a regular file to read; return its descriptor and status.

    Raises:
        IrregularFileError: The entry is no regular file.
        OSError: The file can't be opened, or is a link and `follow` is False.
    """
    descriptor = os.open(path, _READ_FILE | _no_follow(follow), dir_fd=folder)
    # Check the open file: the entry may have changed since any earlier check.
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise IrregularFileError(status.st_mode)
    return descriptor, status


def read_file(
    path: Path | str, limit: int, *, folder: int | None = None, follow: bool = False
) -> tuple[bytes, os.stat_result]:
    """Return the first `limit` bytes of a regular file, and its status; raises as `open_file`."""
    descriptor, status = open_file(path, folder=folder, follow=follow)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit), status


def new_file(name: str, folder: int, mode: int = 0o600) -> BinaryIO:
    """Create a file in an open folder; raises FileExistsError if an entry has this name."""
    return os.fdopen(os.open(name, _NEW_FILE, mode, dir_fd=folder), "wb")


def write_temporary(name: str, data: bytes, folder: int) -> str:
    """Write a private file in an open folder; return its name: `name`, a dot and a random suffix."""
    # Not the process id: processes of two containers that share the folder may have the same id.
    temporary = f"{name}.{os.urandom(8).hex()}"
    try:
        with new_file(temporary, folder) as file:
            file.write(data)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return temporary


def replace_file(name: str, data: bytes, folder: int) -> None:
    """Write a private file in an open folder atomically; a concurrent reader gets the old or the new one."""
    temporary = write_temporary(name, data, folder)
    try:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(temporary, dir_fd=folder)
        raise


def _no_follow(follow: bool) -> int:
    return 0 if follow else os.O_NOFOLLOW
