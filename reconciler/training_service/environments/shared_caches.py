"""Folders that are built once and then shared by several runs.

A folder is valid only if it contains its marker file, so a builder that is killed leaves no valid folder.
Each folder has a lock file next to it. A builder or remover holds the lock exclusively; a user shares it
while it uses the folder, and the kernel releases it when the user's process dies. The marker's time is the
last use.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from reconciler.training_service.state.run_folder import remove

_COMPLETE = "complete"
_LOCK = ".lock"
_MAX_UNUSED_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """A complete folder in use.

    Attributes:
        made: A unique id that differs from that of a later folder of the same name.
        lock: A descriptor; the folder isn't removed while it is open.
    """

    path: Path
    made: str
    lock: int = field(compare=False)


def get_or_build(path: Path, build: Callable[[int], None], pause: Callable[[], None]) -> CachedFolder:
    """Return the folder, and build it if it is missing; concurrent callers wait for the first.

    Args:
        build: Creates and fills `path`. It gets the lock's descriptor, for its child processes to inherit: no
            other caller begins before they have ended.
        pause: Waits a moment; may raise an exception to stop waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        if not (path / _COMPLETE).exists():
            with _lock(path, fcntl.LOCK_EX) as lock:
                # Another process may have built the folder before this one got the lock.
                if lock is not None and not (path / _COMPLETE).exists():
                    _build(path, build, lock)
        else:
            # Another process may have removed the folder since: the marker is read again under the lock.
            with _lock(path, fcntl.LOCK_SH) as lock, suppress(FileNotFoundError):
                if lock is not None:
                    made = (path / _COMPLETE).read_text("utf-8")
                    os.utime(path / _COMPLETE)
                    return CachedFolder(path, made, os.dup(lock))
        if lock is None:
            pause()


def remove_unused(folder: Path, most: int, belongs: Callable[[str], bool]) -> None:
    """Remove folders that are not in use and are incomplete, unused for 30 days, or over the limit.

    Args:
        most: The number of folders to keep, the last used ones.
        belongs: Selects folders by name; the others are neither counted nor removed.
    """
    uses = {path: _last_use(path) for path in _folders(folder) if belongs(path.name)}
    by_use = sorted(uses, key=lambda path: uses[path], reverse=True)
    for rank, path in enumerate(by_use):
        if rank >= most or uses[path] < time.time() - _MAX_UNUSED_SECONDS:
            _remove(path, uses[path])


def _build(path: Path, build: Callable[[int], None], lock: int) -> None:
    remove(path)
    try:
        build(lock)
    except Exception:
        remove(path)
        raise
    os.sync()  # after a power failure, the marker must not exist without the content
    part = path / f"{_COMPLETE}.part"
    part.write_text(uuid.uuid4().hex, "utf-8")
    part.replace(path / _COMPLETE)


def _remove(path: Path, last_use: float) -> None:
    with _lock(path, fcntl.LOCK_EX) as lock:
        # A run may have used the folder since it was chosen for removal.
        if lock is not None and _last_use(path) == last_use:
            (path / _COMPLETE).unlink(missing_ok=True)  # first: a half removed folder must not be valid
            remove(path)
            _lock_of(path).unlink(missing_ok=True)


def _folders(folder: Path) -> set[Path]:
    # Also locks without a folder: a builder may have been killed before it made the folder.
    paths = {path.with_name(path.name.removesuffix(_LOCK)) for path in folder.iterdir()}
    return {path for path in paths if path.is_dir() or not path.exists()}


def _last_use(path: Path) -> float:
    with suppress(OSError):
        return (path / _COMPLETE).stat().st_mtime
    return 0.0


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)


@contextmanager
def _lock(path: Path, kind: int) -> Iterator[int | None]:
    """Yield a descriptor that holds the folder's lock; None if it is taken or its file was just removed."""
    descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor if _try_lock(descriptor, _lock_of(path), kind) else None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path, kind: int) -> bool:
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # A remover may have deleted the lock file between `open` and `flock`: this lock guards nothing then.
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
