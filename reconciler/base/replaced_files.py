"""Replacement of files in a work tree, each by way of a temporary file that git never adds.

The temporary files of a work tree lie in one folder: in git's own one if that is on the same file system,
else in a hidden one that ignores itself. A process holds a shared lock in it while it writes. If it gets the
lock alone before, it finds only files of killed processes there, and removes them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from reconciler.base.checkout import checkout_of, git_folder
from reconciler.base.safe_files import new_file, open_file, open_folder, opened_folder, write_temporary

SCRATCH = "reconciler-writes"
"""The name of the folder with temporary files; with a dot before it outside of git's own folder."""

_HIDDEN = f".{SCRATCH}"
_IGNORE, _LOCK = ".gitignore", "lock"
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = re.compile(r"(?P<name>.+)\.[0-9a-f]{16}", re.DOTALL)
# Versions up to 0.2 wrote beside the file, without a lock. No write takes as long, in seconds.
_FORMER = re.compile(rf"\.?{_TEMPORARY.pattern}", re.DOTALL)
_FORMER_AGE = 600


def replace_files(contents: Mapping[Path, bytes]) -> set[str]:
    """Write all files or none; raise OSError. A file that exists keeps its mode, others get 0644.

    A link in the place of a file is replaced itself. A killed process may have replaced a part of the files.

    Returns:
        The names of the files that killed processes were about to replace, and didn't.
    """
    with _Writer() as writer:
        left = writer.remove_former(contents)
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            writer.write(path, data)
        writer.move_all()
        return left | writer.left


def write_file(file: Path, data: bytes) -> None:
    """Replace a regular file of the work tree, and keep its permissions; raise OSError, also for a link."""
    with opened_folder(file.parent) as folder:
        descriptor, _ = open_file(file.name, folder=folder)
        os.close(descriptor)
    replace_files({file: data})


class _Scratch(NamedTuple):
    """Open folder of temporary files, with this process's shared lock.

    Attributes:
        left: The names of the files that killed processes were about to replace.
    """

    descriptor: int
    left: set[str]

    def write(self, path: Path, data: bytes) -> str:
        """Write the temporary file for a file, with that one's mode; return its name."""
        temporary = write_temporary(path.name, data, self.descriptor)
        mode = 0o644
        with suppress(FileNotFoundError):
            status = path.lstat()
            mode = stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else mode
        os.chmod(temporary, mode, dir_fd=self.descriptor)
        return temporary

    def move(self, temporary: str, name: str, folder: int) -> None:
        """Replace a file in an open folder by a temporary file."""
        os.replace(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=folder)

    def remove(self, temporary: str) -> None:
        """Remove a temporary file that may be gone."""
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self.descriptor)


class _Writer(ExitStack):
    """Writer of some files, whose temporary files lie in as few folders as possible."""

    def __init__(self) -> None:
        super().__init__()
        self._scratches: dict[Path, _Scratch] = {}
        self._of_folder: dict[Path, _Scratch] = {}
        self._written: list[tuple[Path, bytes, _Scratch, str]] = []

    @property
    def left(self) -> set[str]:
        """The names of the files that killed processes were about to replace."""
        return {name for scratch in self._scratches.values() for name in scratch.left}

    def write(self, path: Path, data: bytes) -> None:
        """Write a file's temporary file."""
        scratch = self._of_folder.get(path.parent) or self._scratch(path.parent)
        self._of_folder[path.parent] = scratch
        temporary = scratch.write(path, data)
        self.callback(scratch.remove, temporary)  # unless it has replaced the file
        self._written.append((path, data, scratch, temporary))

    def move_all(self) -> None:
        """Replace all files by their temporary files."""
        for path, data, scratch, temporary in self._written:
            with opened_folder(path.parent) as folder:
                try:
                    scratch.move(temporary, path.name, folder)
                except OSError as error:
                    # Mounts of one file system have its number, and no rename leads from one to the other.
                    if error.errno != errno.EXDEV:
                        raise
                    beside = self._opened(path.parent / _HIDDEN)
                    beside.move(beside.write(path, data), path.name, folder)

    def remove_former(self, paths: Iterable[Path]) -> set[str]:
        """Remove what killed processes of earlier versions left beside files; return the files' names."""
        names: dict[Path, set[str]] = defaultdict(set)
        for path in paths:
            names[path.parent].add(path.name)
        oldest, left = time.time() - _FORMER_AGE, set[str]()
        for folder, known_names in names.items():
            for entry in os.scandir(folder) if folder.is_dir() else ():
                match = _FORMER.fullmatch(entry.name)
                if (
                    match
                    and match["name"] in known_names
                    and entry.stat(follow_symlinks=False).st_mtime < oldest
                ):
                    Path(entry.path).unlink()
                    left.add(match["name"])
        return left

    def _scratch(self, folder: Path) -> _Scratch:
        """Return the folder for the temporary files of a folder's files: the first possible one."""
        device, beside = folder.stat().st_dev, folder / _HIDDEN
        candidates = [candidate for candidate in _places(folder) if _device_of(candidate.parent) == device]
        for candidate in (*candidates, beside):
            # The one that a killed process used may have been another, before `git init` for one.
            if os.path.lexists(candidate):
                with suppress(OSError):
                    self._opened(candidate)
        for candidate in candidates:
            with suppress(OSError):
                return self._opened(candidate)
        return self._opened(beside)

    def _opened(self, path: Path) -> _Scratch:
        if path not in self._scratches:
            self._scratches[path] = self.enter_context(_opened(path))
        return self._scratches[path]


def _device_of(folder: Path) -> int | None:
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def _places(folder: Path) -> Iterator[Path]:
    checkout = checkout_of(folder)
    if checkout is None:
        return
    git = git_folder(checkout)
    if git and os.path.lexists(git / "HEAD"):
        yield git / SCRATCH
    yield checkout / _HIDDEN


@contextmanager
def _opened(path: Path) -> Iterator[_Scratch]:
    """Open a folder for temporary files, without those that killed processes left; remove it at the end."""
    with ExitStack() as stack:
        folder, lock, left = _locked(path)
        stack.callback(os.close, folder)
        stack.callback(os.close, lock)
        try:
            yield _Scratch(folder, left)
        finally:
            if _is_alone(lock):
                _clear(folder)
                # The lock last: whoever makes it anew makes the rest anew too.
                for name in (_IGNORE, _LOCK):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
                with suppress(OSError):
                    path.rmdir()


def _locked(path: Path) -> tuple[int, int, set[str]]:
    """Return the descriptors of a folder and of its shared lock, and the names in `_Scratch.left`."""
    left: set[str] = set()
    while True:
        with ExitStack() as stack:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            # Another process may remove the folder and its lock at any moment before this one has the lock.
            try:
                folder = open_folder(path)
            except FileNotFoundError:
                continue
            stack.callback(os.close, folder)
            if os.fstat(folder).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
            with suppress(FileNotFoundError):
                lock = os.open(_LOCK, _OPEN_LOCK, 0o600, dir_fd=folder)
                stack.callback(os.close, lock)
                if _is_alone(lock) and os.fstat(lock).st_nlink:
                    left |= _clear(folder)
                    if path.name == _HIDDEN:
                        with suppress(FileNotFoundError):
                            os.unlink(_IGNORE, dir_fd=folder)
                        with new_file(_IGNORE, folder) as file:
                            file.write(b"*\n")
                fcntl.flock(lock, fcntl.LOCK_SH)
                if os.fstat(lock).st_nlink:
                    stack.pop_all()
                    return folder, lock, left


def _is_alone(lock: int) -> bool:
    """Take a lock; return False if another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear(folder: int) -> set[str]:
    """Remove the temporary files in a folder; return the names of the files that they were to replace."""
    matches = filter(None, map(_TEMPORARY.fullmatch, os.listdir(folder)))
    left = set()
    for match in matches:
        os.unlink(match[0], dir_fd=folder)
        left.add(match["name"])
    return left
