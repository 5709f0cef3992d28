"""Manifest files below a folder: finding and reading them.

A link that leaves the repository is never followed. A link that stays inside is followed; a file with several
paths is read once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.diagnostics import MAX_FILE_BYTES, Problem, file_problem, too_large
from reconciler.base.errors import UsageError, check_machine
from reconciler.base.safe_files import IrregularFileError, open_file
from reconciler.model.tracking import COMMITTED, Index, is_leftover

MAX_FILES = 50_000
SUFFIXES = (".yaml", ".yml")
_MAX_READINGS = 3

# O_PATH opens folders that this user may enter but not list.
_OPEN_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


class ManifestFile(Struct, frozen=True, order=True, array_like=True, gc=False):
    """File that may contain manifests.

    Attributes:
        path: Its name for users: relative to the repository's root if it is below it, with "/".
        real: Its absolute path, without links.
        size: Its size in bytes when it was found.
    """

    path: str
    real: str
    size: int

    @property
    def folder(self) -> str:
        """The folder of `real`."""
        return self.real.rpartition("/")[0]


class Folders:
    """Reader of files by name in open folders, which follows no link that replaces a folder during the walk.

    It opens the folder of a file name by name from the root, and keeps it open, because the next file is
    usually in the same folder. Use it in a `with` statement, or call `close`; not thread-safe.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._descriptor = -1

    def __enter__(self) -> Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the open folder; a later `read` opens it again."""
        if self._folder is not None:
            self._folder = None
            os.close(self._descriptor)

    def read(self, file: ManifestFile) -> bytes | Problem:
        """Return a regular file's bytes, at most MAX_FILE_BYTES, or the problem."""
        return self.read_at(file.real, file.path)

    def read_at(self, real: str, path: str) -> bytes | Problem:
        """Read the file at `real`, an absolute path without links; problems call it `path`."""
        folder, _, name = real.rpartition("/")
        try:
            if folder != self._folder:
                self.close()
                self._descriptor = _open_folder(folder)
                self._folder = folder
            descriptor, status = open_file(name, folder=self._descriptor)
        except IrregularFileError:
            return _no_file(path)
        except OSError as error:
            return _unreadable(path, error)
        try:
            return _read(descriptor, status, path)
        except OSError as error:
            return _unreadable(path, error)
        finally:
            os.close(descriptor)


def _open_folder(folder: str) -> int:
    """Open a folder by its absolute path, following no link on the way."""
    descriptor = os.open("/", _OPEN_FOLDER)
    for name in filter(None, folder.split("/")):
        above = descriptor
        try:
            descriptor = os.open(name, _OPEN_FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def read_file(real: Path, path: str) -> bytes | Problem:
    """Return a regular file's bytes, at most MAX_FILE_BYTES, or the problem, which calls the file `path`.

    `real` is absolute and without links; a link that has replaced a part of it since is not followed.
    """
    with Folders() as folders:
        return folders.read_at(os.fspath(real), path)


def _unreadable(path: str, error: OSError) -> Problem:
    """Return the problem of a file that can't be read; raise MachineError if the file isn't the reason."""
    check_machine(error, f"{path} can't be read")
    return file_problem(path, f"this can't be read: {error.strerror}", "check its permissions")


def _no_file(path: str) -> Problem:
    return file_problem(path, "this is not a file but a folder, a pipe or a device", "remove it")


def _leads_out(path: str) -> Problem:
    return file_problem(
        path, "this link leads out of the repository", "put a copy of its target here, or remove it"
    )


def _read(descriptor: int, status: os.stat_result, path: str) -> bytes | Problem:
    """Return the bytes of an open file, which had this status when it was opened; raises OSError."""
    data = b""
    # A file that changes while it is read gets another reading: a part of a write must not be taken for all.
    for _ in range(_MAX_READINGS):
        if status.st_size > MAX_FILE_BYTES:
            return too_large(path)
        data = _bytes_of(descriptor, status.st_size)
        if len(data) > MAX_FILE_BYTES:
            return too_large(path)
        before, status = status, os.fstat(descriptor)
        if len(data) == before.st_size and _version(status) == _version(before):
            break
        os.lseek(descriptor, 0, os.SEEK_SET)
    return data


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _bytes_of(descriptor: int, size: int) -> bytes:
    """Return all bytes of a file with the reported `size`; at most one byte over the limit."""
    data = os.read(descriptor, size + 1)
    while len(data) != size and (more := os.read(descriptor, MAX_FILE_BYTES + 1 - len(data))):
        data += more
    return data


class Obstacle(Struct, frozen=True):
    """Unreadable path, with links only in the last part, and the problem."""

    path: Path
    problem: Problem


Found = tuple[list[ManifestFile], list[Obstacle]]
"""The files, and the paths that can't be read."""


def find_manifests(root: Path, paths: Iterable[Path], index: Index = COMMITTED) -> Found:
    """Return the `*.yaml` and `*.yml` files below `paths`, sorted, without those in hidden folders.

    What editors leave is left out unless git tracks it; by default everything counts as tracked. A path may
    also be a file. Raises UsageError for a missing path, and for more than MAX_FILES files.
    """
    walk = _Walk(root, index)
    for path in paths:
        walk.start(path)
    walk.follow_links()
    return sorted(walk.files.values()), walk.obstacles


def real_path(path: Path) -> Path:
    """Return an absolute path without links; the path itself if its links form a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def read_one(file: Path, path: str) -> bytes | Problem:
    """Return the bytes of a single named file, or the problem, which calls it `path`."""
    real = real_path(file)
    return read_file(real, path) if real.is_relative_to(real_path(file.parent)) else _leads_out(path)


def file_mode(path: Path) -> int:
    """Return the file's mode from `stat`; 0 if the file is missing or unreadable.

    Raises:
        MachineError: This machine can't tell.
    """
    try:
        return path.stat().st_mode
    except OSError as error:
        check_machine(error, f"{path} can't be read")
        return 0


class _Walk:
    """Search that reads each folder once, by its path without links; links to folders come last."""

    def __init__(self, root: Path, index: Index) -> None:
        self.files: dict[str, ManifestFile] = {}
        self.obstacles: list[Obstacle] = []
        self._index = index
        # Users may name files by the root's path with links or without.
        self._roots = [_without_dots(root), real_path(root)]
        self._allowed = [real_path(root)]
        self._read: set[str] = set()
        self._links: deque[tuple[str, str]] = deque()

    def start(self, path: Path) -> None:
        """Search a path that the user named; it may be outside the repository."""
        written = _without_dots(path)
        root = next((root for root in self._roots if written.is_relative_to(root)), None)
        shown = written.relative_to(root).as_posix() if root else written.as_posix()
        if not os.path.lexists(written):
            raise UsageError(f"there is no file or folder {path}")
        real = real_path(written)
        if root is None:
            self._allowed.append(real if real.is_dir() else real.parent)
        if not self._is_allowed(real):
            self._add_obstacle(written, _leads_out(shown))
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
            # Of a submodule, the recorded commit may stand for the files.
            if real in self._read or shown in self._index.unread:
                continue
            self._read.add(real)
            prefix = "" if shown == "." else f"{shown}/"
            for entry in self._entries(real, shown):
                name = entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_leftover(name, folder=is_folder) and not self._index.tracks(prefix + name):
                    continue
                if entry.is_symlink():
                    self._link(Path(entry.path), prefix + name)
                elif is_folder:
                    if not name.startswith("."):
                        waiting.append((entry.path, prefix + name))
                elif name.endswith(SUFFIXES):
                    try:
                        self._file(entry.path, prefix + name, entry.stat(follow_symlinks=False))
                    except OSError as error:
                        self._add_obstacle(Path(entry.path), _unreadable(prefix + name, error))

    def _entries(self, real: str, shown: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(real) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._add_obstacle(Path(real), _unreadable(shown, error))
            return []

    def _link(self, link: Path, shown: str) -> None:
        real = real_path(link)
        mode = file_mode(real)
        is_folder = stat.S_ISDIR(mode)
        if link.name.startswith(".") if is_folder else not link.name.endswith(SUFFIXES):
            return
        if not self._is_allowed(real):
            self._add_obstacle(link, _leads_out(shown))
        elif not mode:
            problem = file_problem(shown, "this link leads nowhere", "correct it, or remove it")
            self._add_obstacle(link, problem)
        elif not is_folder:
            self._file_at(real, shown)
        elif link.is_relative_to(real):
            message = "this link leads to a folder that contains it"
            self._add_obstacle(link, file_problem(shown, message, "remove it"))
        else:
            self._links.append((os.fspath(real), shown))

    def _file_at(self, real: Path, shown: str) -> None:
        """Add a file that a user or a link names, with no folder listing that gives its status."""
        try:
            status = real.stat(follow_symlinks=False)
        except OSError as error:
            self._add_obstacle(real, _unreadable(shown, error))
        else:
            self._file(os.fspath(real), shown, status)

    def _file(self, real: str, shown: str, status: os.stat_result) -> None:
        if not shown.isprintable():
            message = "the file's name contains characters that can't be shown"
            self._add_obstacle(Path(real), file_problem(shown, message, "rename it"))
        elif stat.S_ISLNK(status.st_mode):  # named by a user and in a circle, or it replaced a file
            self._add_obstacle(Path(real), _unreadable(shown, OSError(errno.ELOOP, os.strerror(errno.ELOOP))))
        elif not stat.S_ISREG(status.st_mode):
            self._add_obstacle(Path(real), _no_file(shown))
        elif len(self.files) >= MAX_FILES:
            raise UsageError(f"there are more than {MAX_FILES:,} manifest files", hint="name fewer paths")
        elif real not in self.files:
            self.files[real] = ManifestFile(shown, real, status.st_size)

    def _add_obstacle(self, path: Path, problem: Problem) -> None:
        # A byte that isn't UTF-8 is a lone surrogate here, which can't be printed.
        printable = "".join(
            char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
            for char in problem.path
        )
        self.obstacles.append(Obstacle(path, replace(problem, path=printable)))


def _without_dots(path: Path) -> Path:
    """Return an absolute path without "..", with its links: the path as users know it."""
    return Path(os.path.normpath(path.absolute()))
