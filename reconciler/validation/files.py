"""The manifest files below a folder, and their bytes.

Nothing outside the repository is read by way of a link in it. A link that stays inside is followed; what can
be reached twice is read once.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.diagnostics import Problem
from reconciler.errors import UsageError
from reconciler.validation.load import MAX_FILE_BYTES, too_large

MAX_FILES = 50_000
SUFFIXES = (".yaml", ".yml")

# O_PATH: a folder that may be passed through need not be one that may be listed.
_OPEN_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
# Not blocking, because a pipe may have taken the file's place.
_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, order=True, slots=True)
class ManifestFile:
    """A file that may hold manifests.

    Attributes:
        path: As users are told of it: relative to the repository's root where it lies below it, with "/".
        real: Its absolute path, without links.
    """

    path: str
    real: Path


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What can't be read below a path: its place, the folders above it without links, and the problem."""

    place: Path
    problem: Problem


def find_manifests(root: Path, paths: Iterable[Path]) -> tuple[list[ManifestFile], list[Obstacle]]:
    """The `*.yaml` and `*.yml` files below `paths`, sorted, hidden folders left out; a path may be one file.

    Raises UsageError for a path that isn't there, and for more files than can be meant.
    """
    walk = _Walk(root)
    for path in paths:
        walk.start(path)
    walk.follow_links()
    return sorted(walk.files.values()), walk.obstacles


def read_file(real: Path, path: str) -> bytes | Problem:
    """A regular file's bytes, at most as many as a file may have; `path` is what a problem calls it.

    `real` is absolute and without links; one that took a place on the way since then isn't followed.
    """
    try:
        descriptor = _opened(real)
    except OSError as error:
        return _unreadable(path, error)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return _no_file(path)
        if status.st_size > MAX_FILE_BYTES:
            return too_large(path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return _unreadable(path, error)
    finally:
        os.close(descriptor)
    return data if len(data) <= MAX_FILE_BYTES else too_large(path)


def _opened(real: Path) -> int:
    """A descriptor of the file, opened name by name from the root."""
    root, *folders, name = real.parts
    above = os.open(root, _OPEN_FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _OPEN_FOLDER, dir_fd=above)
            os.close(above)
            above = below
        return os.open(name, _OPEN_FILE, dir_fd=above)
    finally:
        os.close(above)


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


def file_mode(path: Path) -> int:
    """What kind of file it is, as `stat` says; 0 where that can't be told, as for one that isn't there."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _unreadable(path: str, error: OSError) -> Problem:
    return Problem(path, 1, 1, "", f"this can't be read: {error.strerror}", "check its permissions")


def _no_file(path: str) -> Problem:
    return Problem(path, 1, 1, "", "this is no file, but a folder, a pipe or a device", "remove it")


class _Walk:
    """Each folder is read once, by its path without links; what is behind links after all else."""

    def __init__(self, root: Path) -> None:
        self.files: dict[Path, ManifestFile] = {}
        self.obstacles: list[Obstacle] = []
        self._roots = [_straight(root), real_path(root)]
        self._allowed = [real_path(root)]
        self._read: set[Path] = set()
        self._links: deque[tuple[Path, str]] = deque()

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
            self._folder(real, shown)
        else:
            self._file(real, shown)

    def follow_links(self) -> None:
        while self._links:
            self._folder(*self._links.popleft())

    def _is_allowed(self, real: Path) -> bool:
        return any(real.is_relative_to(folder) for folder in self._allowed)

    def _folder(self, real: Path, shown: str) -> None:
        waiting = [(real, shown)]
        while waiting:
            real, shown = waiting.pop()
            if real in self._read:
                continue
            self._read.add(real)
            for entry in self._entries(real, shown):
                below = entry.name if shown == "." else f"{shown}/{entry.name}"
                if entry.is_symlink():
                    self._link(real / entry.name, below)
                elif entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        waiting.append((real / entry.name, below))
                elif entry.name.endswith(SUFFIXES):
                    self._file(real / entry.name, below)

    def _entries(self, real: Path, shown: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(real) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._tell(real, _unreadable(shown, error))
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
            self._file(real, shown)
        elif place.is_relative_to(real):
            message = "this link leads to a folder that it is in"
            self._tell(place, Problem(shown, 1, 1, "", message, "remove it"))
        else:
            self._links.append((real, shown))

    def _file(self, real: Path, shown: str) -> None:
        if not shown.isprintable():
            message = "the file's name holds characters that can't be shown"
            self._tell(real, Problem(shown, 1, 1, "", message, "rename it"))
        elif not stat.S_ISREG(file_mode(real)):
            self._tell(real, _no_file(shown))
        elif len(self.files) >= MAX_FILES:
            raise UsageError(f"there are more than {MAX_FILES:,} manifest files", hint="name fewer paths")
        else:
            self.files.setdefault(real, ManifestFile(shown, real))

    def _leads_out(self, place: Path, shown: str) -> None:
        self._tell(place, leads_out(shown))

    def _tell(self, place: Path, problem: Problem) -> None:
        # A byte that isn't UTF-8 is half a character here, which can't be printed.
        path = "".join(char if char.isprintable() else _escaped(char) for char in problem.path)
        self.obstacles.append(Obstacle(place, replace(problem, path=path)))


def _straight(path: Path) -> Path:
    """An absolute path with its links, but without "..", as users mean it."""
    return Path(os.path.normpath(path.absolute()))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
