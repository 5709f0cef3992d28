"""What was listed, and needn't be read where it is what was read before, as it mostly is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from msgspec import Raw

Made = TypeVar("Made")
Item = TypeVar("Item")
Other = TypeVar("Other")

_BYTES = 32


class Unread(Generic[Made]):
    """A whole listing that nobody has read yet. Of use to one thread at a time.

    Args:
        make: Reads it; not called again once it has. It may raise ServiceError.
        digest: 32 bytes that are the same only where the same is read; b"" where nothing tells so, which may
            turn out while it is read.
    """

    def __init__(self, make: Callable[[], Made], digest: bytes = b"") -> None:
        self._make: Callable[[], Made] | None = make
        self._made: list[Made] = []
        self.digest = digest

    def read(self) -> Made:
        """What was listed."""
        if self._make is not None:
            self._made.append(self._make())
            self._make = None  # and with it the pages
        return self._made[0]

    def then(self, change: Callable[[Made], Other]) -> Unread[Other]:
        """The same with what is read of it changed, by what depends on nothing else."""
        return Unread(lambda: change(self.read()), self.digest)


def already_read(made: Made) -> Unread[Made]:
    """What needs no reading any more, as if it did."""
    return Unread(lambda: made)


def joined(parts: Sequence[Unread[Sequence[Item]]]) -> Unread[tuple[Item, ...]]:
    """Several listings as one, in their order."""
    digests = [part.digest for part in parts]
    digest = digest_of(digests) if all(digests) else b""
    return Unread(lambda: tuple(item for part in parts for item in part.read()), digest)


def digest_of(parts: Iterable[bytes | Raw]) -> bytes:
    """A digest of byte strings, each for itself."""
    digest = blake2b(digest_size=_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()
