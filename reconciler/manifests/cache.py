"""Cache of valid manifests, kept on disk between commands."""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

import reconciler
from reconciler.base.errors import ReconcilerError
from reconciler.base.safe_files import opened_folder, read_file, replace_file
from reconciler.base.state_dir import Home, check_mark, checkout_of, locate, prepare_home
from reconciler.base.user_key import user_key
from reconciler.manifests import schemas
from reconciler.manifests.files import Signature
from reconciler.model.manifest import Reconcile

DIGEST_BYTES = 32

AS_IS = Reconcile()
"""Policy of a job whose manifest has no `reconcile`."""

MAX_BYTES = 256 * 1024 * 1024
"""Largest cache file that is written or read; 10,000 manifests take about 10 MiB."""

MAX_PLACES = 100_000
"""Most paths in the cache, those of earlier commands included."""

_PIECE = 256  # files
_FOLDER = "cache"
_CODE_BYTES = 32
_FORMAT = b"reconciler cache 3\n"
# The parts of the fingerprint: libraries and own packages that decide what a file contains and whether it
# is valid. Subpackages don't count.
_LIBRARIES = ("yaml", "jsonschema_rs", "msgspec")
_PACKAGES = ("base", "manifests", "model")

Identities = tuple[tuple[str, str], ...]
"""A job's identities, newest first: each as 64 hex digits and in its form as a label."""


class KnownDocument(Struct, frozen=True, array_like=True):
    """Valid manifest, as far as its own bytes determine it.

    Attributes:
        line: First line in its file, from 1.
        api_version, kind, name, labels: As written.
        spec: In canonical form, as MessagePack.
        package: The path of the code as written; "" for none.
        reconcile: The policy of the job; None for the defaults.
        identities: Of all versions of the hash, newest first, each with its form as a label; empty for a job
            with a package, because its identity includes the code.
        modules: Python modules that the package must contain.
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
    """File of which every document is a valid manifest.

    Attributes:
        digest: Result of `digest_of` for its bytes.
        size: In bytes.
        aliased: Number of values that exist only through aliases.
        documents: At least one.
    """

    digest: bytes
    size: int
    aliased: int
    documents: tuple[KnownDocument, ...]


class Place(Struct, frozen=True, array_like=True):
    """Path of a known file.

    Attributes:
        place: Its absolute path, without links.
        signature: Its signature when it was read; a later change of the file changes the signature.
        digest: Digest of its content.
    """

    place: str
    signature: Signature
    digest: bytes


def digest_of(data: bytes) -> bytes:
    """Return the BLAKE2b digest of a file's bytes, 32 bytes long."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class Memory:
    """Known files of earlier passes and of this pass; not thread-safe.

    Args:
        filled: The fields that manifests may omit, because an environment's defaults give them; they decide
            which manifests are valid.
        files: Known contents.
        places: Their paths, with signatures that can be trusted.
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
        """All known contents."""
        return self._files.values()

    @property
    def places(self) -> Collection[Place]:
        """Paths whose content is known without reading the file."""
        return self._places.values()

    def set_filled(self, filled: frozenset[str]) -> None:
        """Set the fields that manifests may omit; forget all results if they differ from the current ones."""
        if filled != self.filled:
            self.filled = filled
            self._files.clear()
            self._places.clear()
            self.changed = True

    def at_place(self, place: str, signature: Signature) -> KnownFile | None:
        """Return the content at a path if the signature shows that the file is unchanged, else None."""
        known = self._places.get(place)
        return self._files.get(known.digest) if known is not None and known.signature == signature else None

    def with_digest(self, digest: bytes) -> KnownFile | None:
        """Return the known file with this digest, or None."""
        return self._files.get(digest)

    def remember(self, file: KnownFile, place: str, signature: Signature | None) -> None:
        """Keep a file's content; also its path, if `signature` (None: untrusted) can be trusted."""
        if file.digest not in self._files:
            self._files[file.digest] = file
            self.changed = True
        if signature is not None:
            self._places[place] = Place(place, signature, file.digest)
            self.changed = True
        elif self._places.pop(place, None) is not None:
            self.changed = True

    def keep_only(self, places: Collection[str], digests: Collection[bytes]) -> None:
        """Forget all paths and contents but these."""
        if gone := [place for place in self._places if place not in places]:
            for place in gone:
                del self._places[place]
            self.changed = True
        if old := [digest for digest in self._files if digest not in digests]:
            for digest in old:
                del self._files[digest]
            self.changed = True


class CacheFile:
    """One file of a repository's cache.

    An authentication code with the user's key protects the file: a checkout can't bring a forged cache, and
    the content of one cache file is refused under another name.

    Args:
        root: The repository's root.
        name: The file's name.
        environ: The environment variables.

    Raises:
        HomeError: The state folder must not be used.
    """

    def __init__(self, root: Path, name: str, environ: Mapping[str, str]) -> None:
        home = locate(root, environ)
        check_mark(home, environ)
        self._home, self._checkout = home
        self._environ = environ
        self._name = name
        self._code: bytes | None = None
        # Without a key, or with unreadable code, the cache is off: it only saves time.
        with suppress(OSError, LookupError):
            key = user_key(checkout_of(root) or root.resolve(), environ, make=True)
            self._code = None if key is None else blake2b(key + fingerprint() + name.encode()).digest()

    def load(self) -> memoryview | None:
        """Return the saved content; None if it is missing or can't be trusted."""
        if self._head is None:
            return None
        with suppress(OSError):
            data = self._read()
            # The code comes first: nothing decodes bytes that another user could have written.
            start = len(self._head) + _CODE_BYTES
            body = memoryview(data)[start:]
            if hmac.compare_digest(data[:start], self._head + self._code_of(body)):
                return body
        return None

    def save(self, body: bytes, *, first: bool = True) -> bool:
        """Save this content and return True if it was saved; the last of concurrent commands wins.

        Without `first`, save only if the repository has a cache folder already.
        """
        if self._head is None or len(body) > MAX_BYTES or not (first or (self._home / _FOLDER).is_dir()):
            return False
        with suppress(OSError, ReconcilerError):
            return self._write(self._head + self._code_of(body) + body)
        return False

    def _code_of(self, body: bytes | memoryview) -> bytes:
        assert self._code is not None, "only called with a key"
        return blake2b(body, key=self._code, digest_size=_CODE_BYTES).digest()

    @property
    def _head(self) -> bytes | None:
        """The file's first bytes: the format and an authentication code of b""; None without a key."""
        return None if self._code is None else _FORMAT + self._code_of(b"")

    def _read(self) -> bytes:
        with self._opened_home() as home, opened_folder(_FOLDER, folder=home) as folder:
            data, _ = read_file(self._name, MAX_BYTES + 1, folder=folder)
        return data if len(data) <= MAX_BYTES else b""

    def _write(self, data: bytes) -> bool:
        prepare_home(Home(self._home, self._checkout), self._environ)
        with self._opened_home() as home:
            with suppress(FileExistsError):
                os.mkdir(_FOLDER, mode=0o700, dir_fd=home)
            with opened_folder(_FOLDER, folder=home) as folder:
                replace_file(self._name, data, folder)
        return True

    def _opened_home(self) -> AbstractContextManager[int]:
        # Outside the checkout, the user may have linked the state folder; inside, a branch may bring a link.
        return opened_folder(self._home, follow=self._checkout is None)


@cache
def fingerprint() -> bytes:
    """Return a digest, of 32 bytes, of the tool's code and schemas, Python, and the libraries.

    Cached results are valid only with the same fingerprint.

    Raises:
        OSError, LookupError: A file or library can't be read.
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
    """Return name, size and modification time of each file of a library, without importing it."""
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


class _Content(msgspec.Struct, array_like=True):
    """Body of the cache file.

    Attributes:
        filled: The fields that manifests may omit.
        pieces: Lists of known files, each encoded separately: decoding holds the GIL, so that one large list
            would block other threads.
        places: Their paths.
    """

    filled: list[str]
    pieces: list[bytes]
    places: list[Place]


_decoder = msgspec.msgpack.Decoder(list[KnownFile])


@contextmanager
def open_cache(root: Path, filled: frozenset[str], environ: Mapping[str, str]) -> Iterator[Memory]:
    """Load the cache of a repository's manifests, and save it afterwards if it changed.

    Args:
        root: The repository's root.
        filled: The fields that an environment's defaults give; they decide which manifests are valid.
        environ: The environment variables.
    """
    cache = ManifestCache(root, filled, environ)
    memory = cache.load()
    yield memory
    cache.save(memory)


class ManifestCache:
    """Cache of one repository and one set of filled fields; the arguments are those of `open_cache`."""

    def __init__(self, root: Path, filled: frozenset[str], environ: Mapping[str, str]) -> None:
        self._filled = filled
        tag = blake2b(",".join(sorted(filled)).encode(), digest_size=8).hexdigest()
        self._file = CacheFile(root, f"manifests-{tag}.bin", environ)

    def load(self) -> Memory:
        """Return the saved results; an empty `Memory` if the cache is missing or can't be trusted."""
        body = self._file.load()
        if body is not None:
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):
                content = msgspec.msgpack.decode(body, type=_Content)
                if frozenset(content.filled) == self._filled:
                    files = (file for piece in content.pieces for file in _decoder.decode(piece))
                    return Memory(self._filled, files, content.places)
        return Memory(self._filled)

    def save(self, memory: Memory) -> None:
        """Save the results if they changed; the last of concurrent commands wins."""
        if not memory.changed or len(memory.places) > MAX_PLACES:
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
