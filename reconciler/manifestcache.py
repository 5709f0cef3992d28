"""What is known of manifests, kept on disk between commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from reconciler.cachefile import CacheFile
from reconciler.validation.remembered import KnownFile, Memory, Place

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
