"""Files of which every document is valid: what their bytes alone determine.

Worker processes send these records to the main process, and processes that load manifests repeatedly keep
them.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Raw, Struct

from reconciler.base.diagnostics import Problem
from reconciler.model.manifest import Reconcile

DIGEST_BYTES = 32

DEFAULT_POLICY = Reconcile()
"""Policy of a job whose manifest has no `reconcile`."""

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


class CheckedDocument(Struct, frozen=True, array_like=True):
    """Valid manifest, as far as its own bytes determine it: the form in which processes exchange it.

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


class CheckedFile(Struct, frozen=True, array_like=True):
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
    documents: tuple[CheckedDocument, ...]
    warnings: tuple[Problem, ...] = ()


def digest_of(data: bytes) -> bytes:
    """Return the BLAKE2b digest of a file's bytes, 32 bytes long."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class CheckedFiles:
    """Checked files by their content; not thread-safe.

    The fields that a manifest may omit (`filled`) are part of the key, as they decide whether it is valid.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[frozenset[str], bytes], CheckedFile] = {}
        self._earlier: dict[tuple[frozenset[str], bytes], CheckedFile] = {}

    def __len__(self) -> int:
        return len(self._files.keys() | self._earlier.keys())

    def find(self, filled: frozenset[str], digest: bytes) -> CheckedFile | None:
        """Return the checked file with this content, or None."""
        return self._files.get((filled, digest)) or self._earlier.get((filled, digest))

    def add(self, filled: frozenset[str], file: CheckedFile) -> None:
        """Keep a checked file that this pass has met."""
        self._files[filled, file.digest] = file

    def end_pass(self) -> None:
        """Forget the files that the pass has not met."""
        self._files, self._earlier = {}, self._files
