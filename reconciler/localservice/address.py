"""How a home's service is found: service.json says where it is, service.lock whether it lives."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

ADDRESS = "service.json"
LOCK = "service.lock"
LOG = "service.log"

_READERS_TAKE = 10.0  # seconds, at most: a reader holds the lock while it copies the database


class Address(Struct, frozen=True):
    """Where a service is, and the token that every request to it needs."""

    pid: int
    url: str
    token: str
    version: str


class ServiceRunningError(Exception):
    """A service holds the home."""


def read_address(home: Path) -> Address | None:
    """What service.json says; None where there is none, or it can't be read. Its service may be dead."""
    try:
        return Address(**json.loads((home / ADDRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_address(home: Path, address: Address) -> None:
    """Write service.json, whole at any moment, for its owner only."""
    new = home / f"{ADDRESS}.{os.urandom(4).hex()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(address), file)
    new.replace(home / ADDRESS)


@contextmanager
def unserved(home: Path) -> Iterator[None]:
    """Keeps a service from starting meanwhile; others may hold this too. Writes nothing.

    Raises:
        ServiceRunningError: One runs, or is just starting.
    """
    try:
        descriptor = os.open(home / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield  # there never was one
        return
    try:
        if not _locked(descriptor, fcntl.LOCK_SH):
            raise ServiceRunningError(str(home))
        yield
    finally:
        os.close(descriptor)


class HomeLock:
    """The lock that makes a service the only one of its home; the kernel drops it when the process dies."""

    def __init__(self, home: Path, descriptor: int) -> None:
        self._path = home / LOCK
        self._descriptor = descriptor

    def is_there(self) -> bool:
        """Whether the home still is the one that was locked: neither removed nor made anew."""
        with suppress(OSError):
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        return False

    def release(self) -> None:
        """Let another service have the home."""
        os.close(self._descriptor)


def lock_home(home: Path) -> HomeLock | None:
    """Lock the home for a service, None where another has it; waits for those who only read."""
    descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _READERS_TAKE
    while not _locked(descriptor, fcntl.LOCK_EX):
        # Whoever can share it shares it with readers, who are soon done; a service shares it with nobody.
        if not _locked(descriptor, fcntl.LOCK_SH) or time.monotonic() > until:
            os.close(descriptor)
            return None
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(0.01)
    return HomeLock(home, descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
