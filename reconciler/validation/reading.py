"""The contents of the files: from the memory, read here, or read by processes where many files are unread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import Struct, msgpack

from reconciler.diagnostics import Problem
from reconciler.validation.files import Folders, ManifestFile, Signature, can_be_trusted
from reconciler.validation.remembered import KnownFile, Memory, digest_of

if TYPE_CHECKING:
    from reconciler.validation.workers import Workers

FEWEST = 200
"""From how many unread files on other processes help: to start them takes as long as to read some dozens."""
_PIECE = 32
"""How many files are read at once, in a process or here."""


class _Read(Struct, frozen=True, array_like=True):
    """What a process found in a file.

    Attributes:
        digest: Of its bytes; b"" where they couldn't be read.
        signature: None where it can't be trusted.
        known: None where the file isn't known, or where the memory knows what it holds.
    """

    digest: bytes
    signature: Signature | None
    known: KnownFile | None


_UNREAD = _Read(b"", None, None)
_results = msgpack.Decoder(list[_Read])


class Reading:
    """The contents of files, in the order of the files.

    Args:
        files: The files.
        memory: What is known already; what gets known is put there.
        most_bytes: Where reading ahead ends, as nobody will ask for what is behind it.
    """

    def __init__(self, files: Sequence[ManifestFile], memory: Memory, most_bytes: int) -> None:
        self._files = files
        self._memory = memory
        self._folders = Folders()
        self._known = [memory.at(file.place, file.signature) for file in files]
        self._unread: list[int] = []
        size = 0
        for index, file in enumerate(files):
            if self._known[index] is None:
                self._unread.append(index)
            size += file.signature.size
            if size > most_bytes:
                break

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folders.close()

    def __iter__(self) -> Iterator[KnownFile | bytes | Problem]:
        """What each file holds: known, or the bytes of what isn't, or why there are none."""
        results = self._read_by_workers()
        pieces = {index: piece for piece in range(self._pieces) for index in self._indices(piece)}
        for index, file in enumerate(self._files):
            known = self._known[index]
            if known is None:
                piece = pieces.get(index)
                if piece is not None and index not in results:
                    results |= zip(self._indices(piece), self._read(self._indices(piece)), strict=True)
                known = self._remembered(file, results.pop(index, _UNREAD))
            yield self.bytes_of(file) if known is None else known

    def bytes_of(self, file: ManifestFile) -> bytes | Problem:
        """The bytes of a file, whatever is known of it."""
        found = self._folders.read(file)
        return found if isinstance(found, Problem) else found.data

    def _remembered(self, file: ManifestFile, read: _Read) -> KnownFile | None:
        known = read.known or self._memory.of(read.digest)
        if known is not None:
            self._memory.remember(known, file.place, read.signature)
        return known

    def _read(self, indices: Sequence[int]) -> list[_Read]:
        """Read some files, and find out what is in those whose content the memory doesn't know."""
        contents: dict[bytes, bytes] = {}
        found: list[tuple[bytes, Signature | None]] = []
        for index in indices:
            now = time.time_ns()
            content = self._folders.read(self._files[index])
            if isinstance(content, Problem):
                found.append((b"", None))
                continue
            digest = digest_of(content.data)
            if self._memory.of(digest) is None:
                contents[digest] = content.data
            signature = content.signature
            is_sure = signature is not None and can_be_trusted(signature, now)
            found.append((digest, signature if is_sure else None))
        known = _known_files(contents, self._memory.filled) if contents else {}
        return [_Read(digest, signature, known.get(digest)) for digest, signature in found]

    # In other processes.

    def _workers(self) -> Workers | None:
        """Return processes at work on the unread files; None where they would not help."""
        from reconciler.validation.workers import MOST, Workers, can_fork, count_of_processors

        count = min(count_of_processors(), MOST)
        if count < 2 or not can_fork():
            return None
        import reconciler.validation.known  # noqa: F401  (once, and not in each process)

        return Workers(self._pieces, self._work, count)

    def _work(self, piece: int) -> bytes:
        return msgpack.encode(self._read(self._indices(piece)))

    def _read_by_workers(self) -> dict[int, _Read]:
        """Return the processes' results by index of the file, as far as they got."""
        workers = self._workers() if len(self._unread) >= FEWEST else None
        if workers is None:
            return {}
        with workers:
            return {
                index: read
                for piece, results in workers.results()
                for index, read in zip(self._indices(piece), _results.decode(results), strict=True)
            }

    @property
    def _pieces(self) -> int:
        return -(-len(self._unread) // _PIECE)

    def _indices(self, piece: int) -> list[int]:
        return self._unread[piece * _PIECE : (piece + 1) * _PIECE]


def _known_files(contents: Mapping[bytes, bytes], filled: frozenset[str]) -> dict[bytes, KnownFile]:
    from reconciler.validation.known import known_files  # PyYAML and jsonschema-rs are slow to import

    return known_files(contents, filled)
