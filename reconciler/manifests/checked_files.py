"""Files of which every document is valid: what their bytes alone determine.

Worker processes send these records to the main process, and processes that load manifests repeatedly keep
them.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct

from reconciler.base.diagnostics import UnplacedWarning
from reconciler.model.manifest import Manifest

DIGEST_BYTES = 32


class CheckedFile(Struct, frozen=True, array_like=True):
    """File of which every document is a valid manifest.

    Attributes:
        digest: Result of `digest_of` for its bytes.
        size: In bytes.
        aliased: Number of values that exist only through aliases.
        manifests: At least one, each without its file.
        warnings: What is probably a mistake in them, without the file's path.
    """

    digest: bytes
    size: int
    aliased: int
    manifests: tuple[Manifest, ...]
    warnings: tuple[UnplacedWarning, ...] = ()


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
