"""What is known of manifests, kept on disk between commands."""

from __future__ import annotations

import hmac
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

import reconciler
from reconciler.base.errors import ReconcilerError
from reconciler.base.state_dir import Home, check_mark, checkout_of, locate, prepare_home
from reconciler.base.user_key import user_key
from reconciler.manifests import schemas
from reconciler.manifests.files import Signature
from reconciler.model.manifest import Reconcile

DIGEST_BYTES = 32

AS_IS = Reconcile()
"""How a job is treated whose manifest says nothing of it."""


Identities = tuple[tuple[str, str], ...]
"""A job's identities, newest first: each as 64 hex digits, and as labels have it."""


class KnownDocument(Struct, frozen=True, array_like=True):
    """A valid manifest, as far as its own bytes tell.

    Attributes:
        line: Where it starts in its file, from 1.
        api_version, kind, name, labels: As written.
        spec: In canonical form, as MessagePack.
        package: The path of the code as written; "" for none.
        reconcile: How the job is treated; None for the defaults.
        identities: Of all versions of the hash, newest first, each with its form as a label; none with a
            package, whose code counts too.
        modules: What has to be in the package.
    """

    line: int
    api_version: str
    kind: str
    name: str
    spec: Raw
    labels: dict[str, str]
    package: str = ""
    reconcile: Reconcile | None = None
    identities: Identities = ()
    modules: tuple[str, ...] = ()


class KnownFile(Struct, frozen=True, array_like=True):
    """A file of which every document is a valid manifest.

    Attributes:
        digest: Of its bytes, as `digest_of` gives it.
        size: In bytes.
        aliased: How many values are in it only because aliases stand for them.
        documents: At least one.
    """

    digest: bytes
    size: int
    aliased: int
    documents: tuple[KnownDocument, ...]


class Place(Struct, frozen=True, array_like=True):
    """Where a known file was seen.

    Attributes:
        place: Its absolute path, without links.
        signature: What it had when it was read; a later change of the file gives it another one.
        digest: Of what it held.
    """

    place: str
    signature: Signature
    digest: bytes


def digest_of(data: bytes) -> bytes:
    """The BLAKE2b of a file's bytes, 32 bytes long."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class Memory:
    """The known files of passes before, and of this one.

    It is of use to one thread at a time.

    Args:
        filled: The fields that manifests may leave out, as an environment's defaults give them: what is valid
            depends on it.
        files: What is known.
        places: Where it was seen, with signatures that can be trusted.
    """

    def __init__(
        self,
        filled: frozenset[str] = frozenset(),
        files: Iterable[KnownFile] = (),
        places: Iterable[Place] = (),
    ) -> None:
        self.filled = filled
        self.changed = False
        self._files = {file.digest: file for file in files}
        self._places = {place.place: place for place in places}

    @property
    def files(self) -> Collection[KnownFile]:
        """Every known content."""
        return self._files.values()

    @property
    def places(self) -> Collection[Place]:
        """Where it is, as far as that can be told without reading it."""
        return self._places.values()

    def attune(self, filled: frozenset[str]) -> None:
        """Forget all that was found with other fields left out."""
        if filled != self.filled:
            self.filled = filled
            self._files.clear()
            self._places.clear()
            self.changed = True

    def at(self, place: str, signature: Signature) -> KnownFile | None:
        """What the file at a place holds, if its signature says that it wasn't touched since it was read."""
        seen = self._places.get(place)
        return self._files.get(seen.digest) if seen is not None and seen.signature == signature else None

    def of(self, digest: bytes) -> KnownFile | None:
        """The file of this content."""
        return self._files.get(digest)

    def remember(self, file: KnownFile, place: str, signature: Signature | None) -> None:
        """Keep what a file holds; where it is too, if its `signature` can be trusted."""
        if file.digest not in self._files:
            self._files[file.digest] = file
            self.changed = True
        if signature is not None:
            self._places[place] = Place(place, signature, file.digest)
            self.changed = True
        elif self._places.pop(place, None) is not None:
            self.changed = True

    def keep_only(self, places: Collection[str], digests: Collection[bytes]) -> None:
        """Forget what is at no place and of no content of these."""
        if gone := [place for place in self._places if place not in places]:
            for place in gone:
                del self._places[place]
            self.changed = True
        if old := [digest for digest in self._files if digest not in digests]:
            for digest in old:
                del self._files[digest]
            self.changed = True


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
_PACKAGES = ("base", "manifests", "model")
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


MOST_PLACES = 100_000
"""How many files it may be about, where some were seen in earlier commands only."""

_PIECE = 256  # files


class _Content(msgspec.Struct, array_like=True):
    """What the file holds behind its codes.

    Attributes:
        filled: The fields that it is about.
        pieces: Known files, in lists that are written for themselves: while one of them is read, no other
            thread gets on.
        places: Where they are.
    """

    filled: list[str]
    pieces: list[bytes]
    places: list[Place]


_files = msgspec.msgpack.Decoder(list[KnownFile])


@contextmanager
def remembering(root: Path, filled: frozenset[str], environ: Mapping[str, str]) -> Iterator[Memory]:
    """What is known of a repository's manifests, and is kept afterwards if anything was learned.

    Args:
        root: The repository's root.
        filled: The fields that an environment's defaults give; what is valid depends on it.
        environ: The environment variables.
    """
    cache = ManifestCache(root, filled, environ)
    memory = cache.load()
    yield memory
    cache.save(memory)


class ManifestCache:
    """The cache of one repository and one set of filled fields; the arguments are those of `remembering`."""

    def __init__(self, root: Path, filled: frozenset[str], environ: Mapping[str, str]) -> None:
        self._filled = filled
        tag = blake2b(",".join(sorted(filled)).encode(), digest_size=8).hexdigest()
        self._file = CacheFile(root, f"manifests-{tag}.bin", environ)

    def load(self) -> Memory:
        """What was kept; nothing where there is no cache that can be believed."""
        body = self._file.load()
        if body is not None:
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):
                content = msgspec.msgpack.decode(body, type=_Content)
                if frozenset(content.filled) == self._filled:
                    files = (file for piece in content.pieces for file in _files.decode(piece))
                    return Memory(self._filled, files, content.places)
        return Memory(self._filled)

    def save(self, memory: Memory) -> None:
        """Keep what is known, if it isn't what was loaded; of two commands at once, the last one's stays."""
        if not memory.changed or len(memory.places) > MOST_PLACES:
            return
        with suppress(ValueError, OverflowError):
            files, places = [*memory.files], [*memory.places]
            pieces = [
                msgspec.msgpack.encode(files[start : start + _PIECE])
                for start in range(0, len(files), _PIECE)
            ]
            content = _Content(sorted(memory.filled), pieces, places)
            if self._file.save(msgspec.msgpack.encode(content)):
                memory.changed = False
