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

from reconciler.diagnostics import Problem
from reconciler.errors import UsageError
from reconciler.validation.filecontent import (
    FileContent,
    Folders,
    ManifestFile,
    Signature,
    can_be_trusted,
    no_file,
    read_file,
    signature_of,
    unreadable,
)

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
