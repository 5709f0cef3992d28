"""Folders that are made once and then shared: what each run would otherwise make anew.

A folder counts only when its marker is there: a maker that is killed leaves nothing that is trusted. Beside
each lies a lock. Who makes or removes the folder holds it alone; who uses the folder shares it for as long as
the use lasts, and the kernel drops it at the user's death. The marker's time is the last use.
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
_FORGOTTEN = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A complete folder in use.

    Attributes:
        path: The folder.
        made: Tells it from a folder that is made later under the same name.
        lock: A descriptor; as long as it is open, the folder stays.
    """

    path: Path
    made: str
    lock: int = field(compare=False)


def kept(path: Path, make: Callable[[int], None], pause: Callable[[], None]) -> Kept:
    """The folder, made where it isn't there; one of several that want it makes it, and the others wait.

    Args:
        make: Fills `path`, which isn't there; gets a descriptor for whatever it starts to inherit, so that
            nobody else begins before that has ended.
        pause: Waits a moment; may end the waiting with an exception.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        if not (path / _COMPLETE).exists():
            with _lock(path, fcntl.LOCK_EX) as lock:
                if lock is not None and not (path / _COMPLETE).exists():
                    _made(path, make, lock)
        else:
            with _lock(path, fcntl.LOCK_SH) as lock, suppress(FileNotFoundError):
                if lock is not None:
                    made = (path / _COMPLETE).read_text("utf-8")
                    os.utime(path / _COMPLETE)
                    return Kept(path, made, os.dup(lock))
        if lock is None:
            pause()


def remove_unused(folder: Path, most: int, belongs: Callable[[str], bool]) -> None:
    """Remove those folders that nobody uses and that are incomplete, long unused, or too many.

    Args:
        most: How many stay, the last used first.
        belongs: By a folder's name, whether it is counted; the others are left alone.
    """
    uses = {path: _last_use(path) for path in _folders(folder) if belongs(path.name)}
    by_use = sorted(uses, key=lambda path: uses[path], reverse=True)
    for place, path in enumerate(by_use):
        if place >= most or uses[path] < time.time() - _FORGOTTEN:
            _removed(path, uses[path])


def _made(path: Path, make: Callable[[int], None], lock: int) -> None:
    remove(path)
    try:
        make(lock)
    except Exception:
        remove(path)
        raise
    os.sync()  # the marker must not outlive what it stands for when the power fails
    part = path / f"{_COMPLETE}.part"
    part.write_text(uuid.uuid4().hex, "utf-8")
    part.replace(path / _COMPLETE)


def _removed(path: Path, last_use: float) -> None:
    with _lock(path, fcntl.LOCK_EX) as lock:
        if lock is not None and _last_use(path) == last_use:
            (path / _COMPLETE).unlink(missing_ok=True)  # first: what is half removed is not trusted
            remove(path)
            _lock_of(path).unlink(missing_ok=True)


def _folders(folder: Path) -> set[Path]:
    found = {path.with_name(path.name.removesuffix(_LOCK)) for path in folder.iterdir()}
    return {path for path in found if path.is_dir() or not path.exists()}


def _last_use(path: Path) -> float:
    with suppress(OSError):
        return (path / _COMPLETE).stat().st_mtime
    return 0.0


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)


@contextmanager
def _lock(path: Path, kind: int) -> Iterator[int | None]:
    """A descriptor with the folder's lock, None where another holds it or has just removed its file."""
    descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor if _taken(descriptor, _lock_of(path), kind) else None
    finally:
        os.close(descriptor)


def _taken(descriptor: int, path: Path, kind: int) -> bool:
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
