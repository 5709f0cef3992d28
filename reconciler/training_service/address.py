"""Address and lock of a home's service: service.json holds the address, service.lock shows a live service."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from reconciler import __version__
from reconciler.base.safe_files import IrregularFileError, opened_folder, read_file, replace_file

ADDRESS = "service.json"
LOCK = "service.lock"
LOG = "service.log"

_MOST_BYTES = 16 * 1024
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PORT = "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_LOOPBACK = re.compile(rf"http://(?:127(?:\.{_OCTET}){{3}}|\[::1\]):{_PORT}")
_TOKEN = re.compile(r"[!-~]{1,1024}")

_READERS_TAKE = 10.0  # seconds, at most: a reader holds the lock while it copies the database
_CHANGE_TAKES = 15.0  # seconds, at most: another service's start or end


class Address(Struct, frozen=True):
    """URL of a service, and the token that every request to it needs.

    Attributes:
        version: The `code_version` of the service.
    """

    pid: int
    url: str
    token: str
    version: str


class UntrustedAddressError(Exception):
    """A service.json must not be used; the text gives the reason, after "it isn't used: "."""


class ServiceRunningError(Exception):
    """A service holds the home."""


@cache
def code_version() -> str:
    """Return the version of the service's code: its release and a digest, as 0.2.0+5d41402abc4b.

    Code changes between releases too: without the digest, the service of an earlier commit would stay.
    """
    digest = hashlib.sha256()
    for module in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(module.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def read_address(home: Path) -> Address | None:
    """Return the content of service.json; None if it is missing or broken. Its service may be dead.

    Raises:
        UntrustedAddressError: The file or its URL may be another person's; send no request there.
    """
    try:
        data, status = read_file(home / ADDRESS, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IrregularFileError as error:
        raise UntrustedAddressError(error.strerror) from None
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else f"it can't be read: {error.strerror}"
        raise UntrustedAddressError(reason) from None
    _check_own(status)
    try:
        address = Address(**json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(address.url, str) or not _LOOPBACK.fullmatch(address.url):
        raise UntrustedAddressError("its URL isn't http://127.0.0.1:PORT, or another loopback address")
    if not isinstance(address.token, str) or not _TOKEN.fullmatch(address.token):
        raise UntrustedAddressError("its token can't be sent")
    return address


def usable_address(home: Path) -> Address | None:
    """Return the address as `read_address` does, but None for one that must not be used."""
    with suppress(UntrustedAddressError):
        return read_address(home)
    return None


def _check_own(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedAddressError(f"it belongs to another user (uid {status.st_uid})")
    if stat.S_IMODE(status.st_mode) != 0o600:
        raise UntrustedAddressError(f"its mode is {stat.S_IMODE(status.st_mode):04o} and must be 0600")


def write_address(home: Path, address: Address) -> None:
    """Write service.json atomically, readable by its owner only."""
    with opened_folder(home, follow=True) as folder:
        replace_file(ADDRESS, json.dumps(asdict(address)).encode(), folder)


@contextmanager
def unserved(home: Path) -> Iterator[None]:
    """Keep services from starting during the context, without writing; several processes may do so at once.

    Raises:
        ServiceRunningError: A service runs, or is just starting.
    """
    try:
        descriptor = os.open(home / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield  # without a lock file no service ever ran here
        return
    try:
        if not _locked(descriptor, fcntl.LOCK_SH):
            raise ServiceRunningError(str(home))
        yield
    finally:
        os.close(descriptor)


class HomeLock:
    """Lock that makes a service the only one of its home; the kernel drops it when the process dies."""

    def __init__(self, home: Path, descriptor: int) -> None:
        self._path = home / LOCK
        self._descriptor = descriptor

    def is_there(self) -> bool:
        """Return True if the home is still the locked one: neither removed nor made anew."""
        with suppress(OSError):
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        return False

    def release(self) -> None:
        """Release the home to other services."""
        os.close(self._descriptor)


def lock_home(home: Path) -> HomeLock | None:
    """Lock the home for a service, after waiting for readers; return None if another service holds it."""
    descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _READERS_TAKE
    while not _locked(descriptor, fcntl.LOCK_EX):
        # A shared lock works beside readers, which soon finish, but not beside a service.
        if not _locked(descriptor, fcntl.LOCK_SH) or time.monotonic() > until:
            os.close(descriptor)
            return None
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(0.01)
    return HomeLock(home, descriptor)


def await_lock(home: Path) -> HomeLock | None:
    """Lock the home as `lock_home` does, but wait for the start or the end of another service."""
    until = time.monotonic() + _CHANGE_TAKES
    while (lock := lock_home(home)) is None:
        # A service that holds the lock without an address is just starting or just ending.
        if usable_address(home) is not None or time.monotonic() > until:
            return None
        time.sleep(0.02)
    return lock


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
