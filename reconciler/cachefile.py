"""Files that are kept between commands, and may be deleted at any time: a cache.

It lies in the home, which may lie in the checkout, and what it says is believed without a second look. So it
carries a code that only this machine's user can make, with the user's own key. The code covers what the tool
itself is made of too: another version believes nothing that this one found out.

A cache that can't be read, written or believed is as good as none, and no failure.
"""

from __future__ import annotations

import hmac
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path

import reconciler
from reconciler import schemas
from reconciler.errors import ReconcilerError
from reconciler.home import Home, check_mark, checkout_of, locate, prepare_home
from reconciler.userkey import user_key

MOST_BYTES = 256 * 1024 * 1024
"""The largest file that is written or read; what is known of 10,000 manifests takes some ten."""

_FOLDER = "cache"
_CODE_BYTES = 32
_FORMAT = b"reconciler cache 3\n"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LIBRARIES = ("yaml", "jsonschema_rs", "msgspec")
"""What decides, beside the tool itself, what a file holds and whether it is valid."""
_PACKAGES = (".", "validation")
"""The tool's own packages that decide what is kept, each without the packages in it."""


class CacheFile:
    """One file of the cache of one repository.

    Args:
        root: The repository's root.
        name: The file's name; what one file may say is believed of no other.
        environ: The environment variables.

    Raises:
        HomeError: The home must not be used.
    """

    def __init__(self, root: Path, name: str, environ: Mapping[str, str]) -> None:
        home = locate(root, environ)
        check_mark(home, environ)
        self._home, self._checkout = home
        self._environ = environ
        self._name = name
        self._code: bytes | None = None
        with suppress(OSError, LookupError):
            key = user_key(checkout_of(root) or root.resolve(), environ, make=True)
            self._code = None if key is None else blake2b(key + fingerprint() + name.encode()).digest()

    def load(self) -> memoryview | None:
        """What was kept; None where there is nothing that can be believed."""
        if self._head is None:
            return None
        with suppress(OSError):
            data = self._read()
            start = len(self._head) + _CODE_BYTES
            body = memoryview(data)[start:]
            if hmac.compare_digest(data[:start], self._head + self._code_of(body)):
                return body
        return None

    def save(self, body: bytes, *, first: bool = True) -> bool:
        """Keep this; whether it is kept. Of two commands at once, the last one's stays.

        Without `first`, nothing is kept where there is no cache yet.
        """
        if self._head is None or len(body) > MOST_BYTES or not (first or (self._home / _FOLDER).is_dir()):
            return False
        with suppress(OSError, ReconcilerError):
            return self._write(self._head + self._code_of(body) + body)
        return False

    def _code_of(self, body: bytes | memoryview) -> bytes:
        assert self._code is not None, "asked for only where there is a key"
        return blake2b(body, key=self._code, digest_size=_CODE_BYTES).digest()

    @property
    def _head(self) -> bytes | None:
        """What the file begins with: the format, and a code over nothing; None where there is no key."""
        return None if self._code is None else _FORMAT + self._code_of(b"")

    def _read(self) -> bytes:
        with self._opened_home() as home:
            folder = os.open(_FOLDER, _OPEN_FOLDER, dir_fd=home)
        try:
            file = os.open(self._name, _OPEN_FILE, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(file, "rb") as opened:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                return b""
            return opened.read(MOST_BYTES)

    def _write(self, data: bytes) -> bool:
        prepare_home(Home(self._home, self._checkout), self._environ)
        with self._opened_home() as home:
            with suppress(FileExistsError):
                os.mkdir(_FOLDER, mode=0o700, dir_fd=home)
            folder = os.open(_FOLDER, _OPEN_FOLDER, dir_fd=home)
        new = f"{self._name}.{os.getpid()}"
        try:
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)  # left behind by a process of that number
            try:
                with os.fdopen(os.open(new, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
                    file.write(data)
                os.replace(new, self._name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(new, dir_fd=folder)
                raise
        finally:
            os.close(folder)
        return True

    @contextmanager
    def _opened_home(self) -> Iterator[int]:
        # A home elsewhere may be named by a link of the user's; a link in the checkout may be a stranger's.
        flags = _OPEN_FOLDER & ~os.O_NOFOLLOW if self._checkout is None else _OPEN_FOLDER
        descriptor = os.open(self._home, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@cache
def fingerprint() -> bytes:
    """What decides about what is kept, in 32 bytes: the tool's code and schemas, Python, and the libraries.

    Raises:
        OSError, LookupError: It can't be told.
    """
    digest = blake2b(digest_size=32)
    digest.update(f"{reconciler.__version__}\n{sys.version}\n{sys.implementation.cache_tag}\n".encode())
    for package in _PACKAGES:
        with os.scandir(Path(reconciler.__file__).parent / package) as entries:
            sources = sorted((entry.name, entry.path) for entry in entries if entry.name.endswith(".py"))
        for name, source in sources:
            with os.fdopen(os.open(source, os.O_RDONLY | os.O_CLOEXEC), "rb", buffering=0) as file:
                content = file.read()
            digest.update(f"{package} {name} {len(content)}\n".encode() + content)
    digest.update(schemas.fingerprint())
    for library in _LIBRARIES:
        digest.update(f"{library} {_files_of(library)}\n".encode())
    return digest.digest()


def _files_of(library: str) -> list[tuple[str, int, int]]:
    """The files of a library, which isn't imported for it: name, size and time of the last change."""
    found = PathFinder.find_spec(library)
    if found is None or not found.submodule_search_locations:
        raise LookupError(library)
    files = []
    for folder in found.submodule_search_locations:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    status = entry.stat()
                    files.append((entry.name, status.st_size, status.st_mtime_ns))
    return sorted(files)
