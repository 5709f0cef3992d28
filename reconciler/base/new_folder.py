"""A new folder whose files appear all at once, or not at all.

They are written into a temporary folder beside it, `.NAME.incomplete`, and take their place by a rename. A
killed process leaves the temporary folder, and nothing else; the next process for the same new folder removes
it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from reconciler.base.errors import MachineError, ReconcilerError, UsageError, check_machine
from reconciler.base.safe_files import new_file, open_folder, opened_folder

_FILE, _FOLDER = 0o644, 0o755  # without what the umask takes
_FILES, _LOCK = "files", "lock"  # in the temporary folder
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
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
    with ExitStack() as stack:
        with _explained(path):
            check_new(path)
            parent = stack.enter_context(opened_folder(path.parent, follow=True))
        with _explained(path.parent / temporary):
            above = _locked(path, temporary, parent, stack)
            stack.callback(_remove, temporary, above, parent)
            os.mkdir(_FILES, _FOLDER, dir_fd=above)
            folder = stack.enter_context(opened_folder(_FILES, folder=above))
        yield NewFolder(path, folder)
        with _explained(path):
            _rename(path, above, parent)


def _locked(path: Path, temporary: str, parent: int, stack: ExitStack) -> int:
    """Return a descriptor of the temporary folder, without files; until the stack ends, it is ours alone."""
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            os.mkdir(temporary, _FOLDER, dir_fd=parent)
        with suppress(FileNotFoundError):  # its process has removed it meanwhile
            folder = stack.enter_context(opened_folder(temporary, folder=parent))
            # Not the folder itself: in network file systems, only what is open to write can be locked.
            lock = os.open(_LOCK, _OPEN_LOCK, 0o600, dir_fd=folder)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                break
            there = os.stat(f"{temporary}/{_LOCK}", dir_fd=parent, follow_symlinks=False)
            if os.path.samestat(os.fstat(lock), there):
                # A killed process left them.
                with suppress(FileNotFoundError):
                    shutil.rmtree(_FILES, dir_fd=folder)
                return folder
    raise UsageError(
        f"another process fills {path} just now", hint="wait for its end, or name another folder"
    )


def _remove(temporary: str, above: int, parent: int) -> None:
    """Remove the temporary folder, which is locked."""
    # Without the lock, the files would be another process's.
    shutil.rmtree(_FILES, ignore_errors=True, dir_fd=above)
    with suppress(OSError):
        os.unlink(_LOCK, dir_fd=above)
        os.rmdir(temporary, dir_fd=parent)


def _rename(path: Path, above: int, parent: int) -> None:
    try:
        # It replaces an empty folder, and nothing else.
        os.rename(_FILES, path.name, src_dir_fd=above, dst_dir_fd=parent)
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
