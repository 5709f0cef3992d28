"""What valid files hold, remembered by their content and by where they are.

What is remembered was told by the bytes alone and by nothing else, so that it holds wherever the same bytes
are. What depends on other files, such as a package's modules or a name that is there twice, is never part of
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b

from msgspec import Raw, Struct

from reconciler.manifest import Reconcile
from reconciler.validation.filecontent import Signature

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
