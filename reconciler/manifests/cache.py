"""Cache of valid manifests, kept on disk between commands."""

from __future__ import annotations

import hmac
import os
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
from reconciler.base.diagnostics import Problem
from reconciler.manifests import schemas
from reconciler.manifests.files import Signature
from reconciler.model.manifest import Reconcile

DIGEST_BYTES = 32

DEFAULT_POLICY = Reconcile()
"""Policy of a job whose manifest has no `reconcile`."""

MAX_BYTES = 256 * 1024 * 1024
"""Largest cache file that is written or read; 10,000 manifests take about 10 MiB."""

MAX_PLACES = 100_000
"""Most paths in the cache, those of earlier commands included."""

_FOLDER = "cache"
_FORMAT = b"reconciler cache 6\n"
_CODE_BYTES = 32
_HEAD_BYTES = len(_FORMAT) + _CODE_BYTES
# The parts of the fingerprint: libraries and own packages that decide what a file contains and whether it
# is valid. Subpackages don't count.
_LIBRARIES = ("yaml", "jsonschema_rs", "msgspec")
_PACKAGES = ("base", "manifests", "model")

Identities = tuple[tuple[str, str], ...]
"""A job's identities, newest first: each as 64 hex digits and in its form as a label."""


class PlacedImage(Struct, frozen=True, array_like=True):
    """Image in a file that may deserve a warning.

    Attributes:
        pointer: JSON pointer into its document.
        uri: As written.
        line, column: Its place in the file, from 1.
    """

    pointer: str
    uri: str
    line: int
    column: int


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
        images: Images that deserve a warning now, or from some day on.
        module, requirements: As in `Manifest`.
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
    images: tuple[PlacedImage, ...] = ()
    module: str = ""
    requirements: str = ""


class KnownFile(Struct, frozen=True, array_like=True):
    """File of which every document is a valid manifest.

    Attributes:
        digest: Result of `digest_of` for its bytes.
        size: In bytes.
        aliased: Number of values that exist only through aliases.
        documents: At least one.
        warnings: Their places and messages, without the file's path.
    """

    digest: bytes
    size: int
    aliased: int
    documents: tuple[KnownDocument, ...]
    warnings: tuple[Problem, ...] = ()


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


class KnownFiles:
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
            self.keep_only((), ())

    def at_place(self, place: str, signature: Signature) -> KnownFile | None:
        """Return the content at a path if the signature shows that the file is unchanged, else None."""
        known = self._places.get(place)
        return self._files.get(known.digest) if known is not None and known.signature == signature else None

    def with_digest(self, digest: bytes) -> KnownFile | None:
        """Return the known file with this digest, or None."""
        return self._files.get(digest)

    def add(self, file: KnownFile, place: str, signature: Signature | None) -> None:
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
        before = len(self._places), len(self._files)
        self._places = {name: place for name, place in self._places.items() if name in places}
        self._files = {digest: file for digest, file in self._files.items() if digest in digests}
        self.changed |= before != (len(self._places), len(self._files))


class CacheFile:
    """One file of a repository's cache.

    An authentication code with the user's key protects the file: a checkout can't bring a forged cache, and
    the content of one cache file is refused under another name. The constructor raises HomeError if the state
    folder must not be used.
    """

    def __init__(self, root: Path, name: str, environ: Mapping[str, str]) -> None:
        pass

    def load(self) -> memoryview | None:
        """Return None: the cache is off."""
        return None

    def save(self, body: bytes, *, first: bool = True) -> bool:
        """Save nothing."""
        return False


def _head(key: bytes, body: bytes | memoryview) -> bytes:
    """Return the bytes before a file's content: the format and the authentication code."""
    return _FORMAT + hmac.digest(key, body, "sha256")


@cache
def fingerprint() -> bytes:
    """Return a digest, of 32 bytes, of the tool's code and schemas, Python, and the libraries.

    Cached results are valid only with the same fingerprint.

    Raises:
        OSError, LookupError: A file or library can't be read.
    """
    digest = blake2b(digest_size=32)
    digest.update(f"{reconciler.__version__}\n{sys.version}\n{sys.implementation.cache_tag}\n".encode())
    own = Path(reconciler.__file__).parent
    for folder in (*(own / name for name in _PACKAGES), schemas.folder()):
        with os.scandir(folder) as entries:
            sources = sorted(Path(entry.path) for entry in entries if entry.name.endswith((".py", ".json")))
        for source in sources:
            content = source.read_bytes()
            digest.update(f"{folder.name} {source.name} {len(content)}\n".encode() + content)
    for library in _LIBRARIES:
        digest.update(f"{library} {_files_of(library)}\n".encode())
    return digest.digest()


def _files_of(library: str) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of each file of a library, without importing it."""
    found = PathFinder.find_spec(library)
    if found is None or not found.submodule_search_locations:
        raise LookupError(library)
    with os.scandir(found.submodule_search_locations[0]) as entries:
        status = {entry.name: entry.stat() for entry in entries if entry.is_file()}
    return sorted((name, each.st_size, each.st_mtime_ns) for name, each in status.items())


class _Content(Struct, array_like=True):
    """Body of the cache file of manifests."""

    files: list[KnownFile]
    places: list[Place]


@contextmanager
def cached_manifests(root: Path, filled: frozenset[str], environ: Mapping[str, str]) -> Iterator[KnownFiles]:
    """Load the cache of a repository's manifests, and save it afterwards if it changed.

    Each set of fields that an environment's defaults give (`filled`) has a cache of its own, as they decide
    which manifests are valid.
    """
    tag = blake2b(",".join(sorted(filled)).encode(), digest_size=8).hexdigest()
    file = CacheFile(root, f"manifests-{tag}.bin", environ)
    known = KnownFiles(filled)
    if (saved := file.load()) is not None:
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            content = msgspec.msgpack.decode(saved, type=_Content)
            known = KnownFiles(filled, content.files, content.places)
    try:
        yield known
    finally:
        # Of concurrent commands, the last one's results stay.
        if known.changed and known.filled == filled and len(known.places) <= MAX_PLACES:
            with suppress(ValueError, OverflowError):
                body = msgspec.msgpack.encode(_Content([*known.files], [*known.places]))
                known.changed = not file.save(body)
