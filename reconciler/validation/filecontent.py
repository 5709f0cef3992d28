"""A file's bytes, and what tells whether it still holds them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec import Struct

from reconciler.diagnostics import Problem
from reconciler.validation.limits import MAX_FILE_BYTES, too_large

_COARSEST_TICK = 2 * 10**9  # ns
_MOST_READINGS = 3
_MOST_OPEN = 32

# O_PATH: a folder that may be passed through need not be one that may be listed.
_OPEN_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
# Not blocking, because a pipe may have taken the file's place.
_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Signature(Struct, frozen=True, array_like=True, gc=False):
    """What tells, without reading it, whether a file is still what it was; times in nanoseconds.

    It says what content a file has only where `can_be_trusted` agrees.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class ManifestFile(Struct, frozen=True, order=True, array_like=True, gc=False):
    """A file that may hold manifests.

    Attributes:
        path: As users are told of it: relative to the repository's root where it lies below it, with "/".
        place: Its absolute path, without links.
        signature: What it looked like when it was found.
    """

    path: str
    place: str
    signature: Signature

    @property
    def real(self) -> Path:
        """Its absolute path, without links."""
        return Path(self.place)


class FileContent(Struct, frozen=True, gc=False):
    """What a file holds.

    Attributes:
        data: Its bytes.
        signature: What it looked like while they were read; None for a file that kept changing meanwhile.
    """

    data: bytes
    signature: Signature | None


def can_be_trusted(signature: Signature, read_ns: int) -> bool:
    """Whether a file that still has `signature` still holds what was read of it.

    The clocks that give files their times tick coarsely: mostly every few milliseconds, on some file systems
    every two seconds. A file that is written twice within one tick, with the same size, has one signature for
    two contents. So a file's times have to be older than a tick when it is read: whatever is written after
    that gets another time. Git's index has the same rule ("racily clean"). Both times count: the one can be
    set to anything, and the other isn't kept by all file systems. A time to come says nothing.

    Args:
        signature: What the file looked like when it was read.
        read_ns: When reading it began, in nanoseconds since the epoch.
    """
    return max(signature.mtime_ns, signature.ctime_ns) <= read_ns - _COARSEST_TICK


class Folders:
    """Reads files by their names in open folders, so that a link that took a place on the way isn't followed.

    The folders above a file are opened name by name from the root. Those of the last file stay open, as the
    next file is mostly beside it. Used in a `with` statement, or closed by `close`; for one thread.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        # The open folders above the last file, from the root; a name of "" stands for what is left out.
        self._open: list[tuple[str, int]] = []

    def __enter__(self) -> Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open; another `read` opens it again."""
        self._folder = None
        self._close_below(0)

    def read(self, file: ManifestFile) -> FileContent | Problem:
        """A regular file's bytes, at most as many as a file may have."""
        return self.read_at(file.place, file.path)

    def read_at(self, place: str, path: str) -> FileContent | Problem:
        """Like `read`, for the absolute path `place` without links; `path` is what a problem calls it."""
        folder, _, name = place.rpartition("/")
        try:
            descriptor = os.open(name, _OPEN_FILE, dir_fd=self._descriptor(folder))
        except OSError as error:
            return unreadable(path, error)
        try:
            return _read(descriptor, path)
        except OSError as error:
            return unreadable(path, error)
        finally:
            os.close(descriptor)

    def _descriptor(self, folder: str) -> int:
        if folder == self._folder:
            return self._open[-1][1]
        names = ["/", *filter(None, folder.split("/"))]
        common = 0
        while common < min(len(names), len(self._open)) and names[common] == self._open[common][0]:
            common += 1
        self._folder = None
        self._close_below(common)
        for name in names[common:]:
            above = self._open[-1][1] if self._open else None
            self._open.append((name, os.open(name, _OPEN_FOLDER, dir_fd=above)))
            if len(self._open) > _MOST_OPEN:
                last = self._open.pop()[1]
                self._close_below(0)
                self._open.append(("", last))
        self._folder = folder
        return self._open[-1][1]

    def _close_below(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])


def read_file(real: Path, path: str) -> bytes | Problem:
    """A regular file's bytes, at most as many as a file may have; `path` is what a problem calls it.

    `real` is absolute and without links; one that took a place on the way since then isn't followed.
    """
    with Folders() as folders:
        content = folders.read_at(os.fspath(real), path)
    return content if isinstance(content, Problem) else content.data


def signature_of(status: os.stat_result) -> Signature:
    """What the system's answer about a file says."""
    return Signature(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def unreadable(path: str, error: OSError) -> Problem:
    """The problem of what the system doesn't let us read."""
    return Problem(path, 1, 1, "", f"this can't be read: {error.strerror}", "check its permissions")


def no_file(path: str) -> Problem:
    """The problem of what is there in place of a file."""
    return Problem(path, 1, 1, "", "this is no file, but a folder, a pipe or a device", "remove it")


def _read(descriptor: int, path: str) -> FileContent | Problem:
    """What an open file holds; raises OSError."""
    data = b""
    for _ in range(_MOST_READINGS):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return no_file(path)
        if status.st_size > MAX_FILE_BYTES:
            return too_large(path)
        data = _bytes_of(descriptor, status.st_size)
        if len(data) > MAX_FILE_BYTES:
            return too_large(path)
        signature = signature_of(status)
        if len(data) == status.st_size and signature_of(os.fstat(descriptor)) == signature:
            return FileContent(data, signature)
        os.lseek(descriptor, 0, os.SEEK_SET)
    return FileContent(data, None)


def _bytes_of(descriptor: int, size: int) -> bytes:
    """All bytes of a file that seems to have `size`, or one more than a file may have."""
    data = os.read(descriptor, size + 1)
    while len(data) != size and (more := os.read(descriptor, MAX_FILE_BYTES + 1 - len(data))):
        data += more
    return data
