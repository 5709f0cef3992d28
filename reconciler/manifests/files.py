"""The manifest files below a folder.

Nothing outside the repository is read by way of a link in it. A link that stays inside is followed; what can
be reached twice is read once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import UsageError
from reconciler.manifests.findings import MAX_FILE_BYTES, too_large

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


__all__ = [
    "SUFFIXES",
    "FileContent",
    "Folders",
    "Found",
    "ManifestFile",
    "Obstacle",
    "Signature",
    "can_be_trusted",
    "file_mode",
    "find_manifests",
    "leads_out",
    "read_file",
    "read_one",
    "real_path",
]

MAX_FILES = 50_000
SUFFIXES = (".yaml", ".yml")


class Obstacle(Struct, frozen=True):
    """What can't be read below a path: its place, the folders above it without links, and the problem."""

    place: Path
    problem: Problem


Found = tuple[list[ManifestFile], list[Obstacle]]
"""The files that were found, and what stands in the way."""


def find_manifests(root: Path, paths: Iterable[Path]) -> Found:
    """The `*.yaml` and `*.yml` files below `paths`, sorted, hidden folders left out; a path may be one file.

    Raises UsageError for a path that isn't there, and for more files than can be meant.
    """
    walk = _Walk(root)
    for path in paths:
        walk.start(path)
    walk.follow_links()
    return sorted(walk.files.values()), walk.obstacles


def real_path(path: Path) -> Path:
    """An absolute path without links; of links that lead in a circle, the path itself."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def leads_out(path: str) -> Problem:
    """The problem of a link to something outside, which isn't read."""
    message = "this link leads out of the repository"
    return Problem(path, 1, 1, "", message, "put what it leads to here, or remove it")


def read_one(file: Path, path: str) -> bytes | Problem:
    """The bytes of a file that isn't looked for, or why there are none; `path` is what users call it."""
    real = real_path(file)
    return read_file(real, path) if real.is_relative_to(real_path(file.parent)) else leads_out(path)


def file_mode(path: Path) -> int:
    """What kind of file it is, as `stat` says; 0 where that can't be told, as for one that isn't there."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


class _Walk:
    """Each folder is read once, by its path without links; what is behind links after all else."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, ManifestFile] = {}
        self.obstacles: list[Obstacle] = []
        self._roots = [_straight(root), real_path(root)]
        self._allowed = [real_path(root)]
        self._read: set[str] = set()
        self._links: deque[tuple[str, str]] = deque()

    def start(self, path: Path) -> None:
        """Begin at a path that the user names; it may be outside the repository."""
        written = _straight(path)
        root = next((root for root in self._roots if written.is_relative_to(root)), None)
        shown = written.relative_to(root).as_posix() if root else written.as_posix()
        if not os.path.lexists(written):
            raise UsageError(f"there is no file or folder {path}")
        real = real_path(written)
        if root is None:
            self._allowed.append(real if real.is_dir() else real.parent)
        if not self._is_allowed(real):
            self._leads_out(written, shown)
        elif real.is_dir():
            self._folder(os.fspath(real), shown)
        else:
            self._file_at(real, shown)

    def follow_links(self) -> None:
        while self._links:
            self._folder(*self._links.popleft())

    def _is_allowed(self, real: Path) -> bool:
        return any(real.is_relative_to(folder) for folder in self._allowed)

    def _folder(self, real: str, shown: str) -> None:
        waiting = [(real, shown)]
        while waiting:
            real, shown = waiting.pop()
            if real in self._read:
                continue
            self._read.add(real)
            prefix = "" if shown == "." else f"{shown}/"
            for entry in self._entries(real, shown):
                name = entry.name
                if entry.is_symlink():
                    self._link(Path(entry.path), prefix + name)
                elif entry.is_dir(follow_symlinks=False):
                    if not name.startswith("."):
                        waiting.append((entry.path, prefix + name))
                elif name.endswith(SUFFIXES):
                    try:
                        self._file(entry.path, prefix + name, entry.stat(follow_symlinks=False))
                    except OSError as error:
                        self._tell(Path(entry.path), unreadable(prefix + name, error))

    def _entries(self, real: str, shown: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(real) as entries:
                return sorted(entries, key=_name)
        except OSError as error:
            self._tell(Path(real), unreadable(shown, error))
            return []

    def _link(self, place: Path, shown: str) -> None:
        real = real_path(place)
        mode = file_mode(real)
        is_folder = stat.S_ISDIR(mode)
        if place.name.startswith(".") if is_folder else not place.name.endswith(SUFFIXES):
            return
        if not self._is_allowed(real):
            self._leads_out(place, shown)
        elif not mode:
            self._tell(place, Problem(shown, 1, 1, "", "this link leads nowhere", "mend it, or remove it"))
        elif not is_folder:
            self._file_at(real, shown)
        elif place.is_relative_to(real):
            message = "this link leads to a folder that it is in"
            self._tell(place, Problem(shown, 1, 1, "", message, "remove it"))
        else:
            self._links.append((os.fspath(real), shown))

    def _file_at(self, real: Path, shown: str) -> None:
        """What isn't found in a folder, but named by a user or by a link."""
        try:
            status = real.stat(follow_symlinks=False)
        except OSError as error:
            self._tell(real, unreadable(shown, error))
        else:
            self._file(os.fspath(real), shown, status)

    def _file(self, place: str, shown: str, status: os.stat_result) -> None:
        if not shown.isprintable():
            message = "the file's name holds characters that can't be shown"
            self._tell(Path(place), Problem(shown, 1, 1, "", message, "rename it"))
        elif stat.S_ISLNK(status.st_mode):  # it was none a moment ago
            self._tell(Path(place), unreadable(shown, OSError(errno.ELOOP, os.strerror(errno.ELOOP))))
        elif not stat.S_ISREG(status.st_mode):
            self._tell(Path(place), no_file(shown))
        elif len(self.files) >= MAX_FILES:
            raise UsageError(f"there are more than {MAX_FILES:,} manifest files", hint="name fewer paths")
        elif place not in self.files:
            self.files[place] = ManifestFile(shown, place, signature_of(status))

    def _leads_out(self, place: Path, shown: str) -> None:
        self._tell(place, leads_out(shown))

    def _tell(self, place: Path, problem: Problem) -> None:
        # A byte that isn't UTF-8 is half a character here, which can't be printed.
        path = "".join(char if char.isprintable() else _escaped(char) for char in problem.path)
        self.obstacles.append(Obstacle(place, replace(problem, path=path)))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _straight(path: Path) -> Path:
    """An absolute path with its links, but without "..", as users mean it."""
    return Path(os.path.normpath(path.absolute()))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
