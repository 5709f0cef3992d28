"""A new folder whose files appear all at once, or not at all.

They are written into a temporary folder beside it, `.NAME.incomplete`, which is renamed at the end. A killed
process leaves that folder, and nothing else; the next process that fills the same new folder removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from reconciler.base.errors import MachineError, ReconcilerError, UsageError, check_machine
from reconciler.base.safe_files import new_file, open_folder

_FILE, _FOLDER = 0o644, 0o755  # without what the umask takes
_TRIES = 5
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})
_NEW = "name a folder that is new or empty"


class NewFolder:
    """Folder that is being filled.

    Attributes:
        longest_part: Bytes of the longest name of a file in it.
        longest: Bytes of the longest path below it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.longest_part = os.fpathconf(descriptor, "PC_NAME_MAX")
        # A slash between, and a zero at the end.
        self.longest = os.fpathconf(descriptor, "PC_PATH_MAX") - len(os.fsencode(path)) - 2

    def check_room(self, size: int) -> None:
        """Raise MachineError if the file system says that it has no room for so many bytes."""
        status = os.fstatvfs(self._descriptor)
        free = status.f_bavail * status.f_frsize
        if status.f_blocks and free < size:
            raise MachineError(
                f"{self._path} can't be written: it takes {size:,} bytes, and the disk has {free:,}",
                hint="make room on the disk, or name a folder on another one",
            )

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """Create a file by its relative path, and the folders above it; never through a link."""
        *folders, last = name.split("/")
        with (
            _explained(self._path / name),
            self._opened(folders) as folder,
            new_file(last, folder, _FILE) as file,
        ):
            yield file

    def folder(self, name: str) -> None:
        """Create a folder by its relative path; an existing one stays."""
        with _explained(self._path / name), self._opened(name.split("/")):
            pass

    @contextmanager
    def _opened(self, names: list[str]) -> Iterator[int]:
        """Open a folder by its path; create missing folders on the way."""
        folder = os.dup(self._descriptor)
        try:
            for name in names:
                with suppress(FileExistsError):
                    os.mkdir(name, _FOLDER, dir_fd=folder)
                below = open_folder(name, folder=folder)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)


def check_new(path: Path) -> None:
    """Raise UsageError if no new folder can be at an absolute path, for what is there or above it."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
        raise UsageError(f"{path} is no folder", hint=_NEW)
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{path} is not empty", hint=_NEW)
    if path in (path.parent, Path.cwd()):
        # The folder is replaced: a shell would stay in the old one.
        raise UsageError(f"{path} is the working directory", hint="name a new folder in it")
    if not path.parent.is_dir():
        make = f"mkdir -p {shlex.quote(str(path.parent))}"
        raise UsageError(f"there is no folder {path.parent}", hint=f"make it: {make}")


@contextmanager
def new_folder(path: Path) -> Iterator[NewFolder]:
    """Yield a folder to fill, which is at `path` after the block; if the block raises, nothing of it is left.

    Args:
        path: Absolute; missing, or an empty folder.

    Raises:
        UsageError: The path isn't new, or another process fills it.
        ReconcilerError: The system refuses, for want of room or of a permission.
    """
    temporary = f".{path.name}.incomplete"
    with _explained(path):
        check_new(path)
        parent = open_folder(path.parent, follow=True)
    try:
        with _explained(path.parent / temporary):
            descriptor = _locked(path, temporary, parent)
        try:
            yield NewFolder(path, descriptor)
            with _explained(path):
                _rename(path, temporary, parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True, dir_fd=parent)
            raise
        finally:
            os.close(descriptor)
    finally:
        os.close(parent)


def _locked(path: Path, temporary: str, parent: int) -> int:
    """Return a descriptor of the empty temporary folder; until it is closed, no other process uses it."""
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            os.mkdir(temporary, _FOLDER, dir_fd=parent)
        try:
            descriptor = open_folder(temporary, folder=parent)
        except FileNotFoundError:
            continue  # its process has renamed or removed it meanwhile
        if _is_ours(descriptor, temporary, parent):
            return descriptor
        os.close(descriptor)
    raise UsageError(
        f"another process fills {path} just now", hint="wait for its end, or name another folder"
    )


def _is_ours(descriptor: int, temporary: str, parent: int) -> bool:
    """Lock the temporary folder, and return True if it is empty; remove one that a killed process left."""
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.stat(temporary, dir_fd=parent, follow_symlinks=False)
        # Its process may have renamed it after it was opened here.
        if os.path.samestat(os.fstat(descriptor), there):
            if not os.listdir(descriptor):
                return True
            shutil.rmtree(temporary, dir_fd=parent)
    return False


def _rename(path: Path, temporary: str, parent: int) -> None:
    try:
        # It replaces an empty folder, and nothing else.
        os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        raise UsageError(f"{path} was filled meanwhile", hint=_NEW) from None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of the system into sentences."""
    try:
        yield
    except OSError as error:
        what = f"{path} can't be written"
        check_machine(error, what)
        raise ReconcilerError(f"{what}: {error.strerror or error}", hint="name another folder") from None
