"""Trees and files of commits, read in one process of git that runs no program named by settings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

from reconciler.base.errors import NotFoundError, ReconcilerError
from reconciler.base.git_command import (
    TIMEOUT,
    CorruptObjectError,
    Git,
    GitError,
    is_corrupt,
)

MAX_BYTES = 1_000_000_000
"""The maximum number of bytes to read, trees included."""

_CHUNK = 1 << 20
# Ids per request: they fit into the smallest pipe, 4 KiB. With more, git and this process could deadlock.
_GROUP = 64
_WHOLE_CLONE = (
    "a clone made with --filter lacks objects, and this command fetches none: "
    "run `git fetch --refetch --no-filter`"
)


class Objects:
    """Reader of objects through a single `git cat-file` process."""

    def __init__(self, git: Git) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as git runs)
        self._git = git.start("cat-file", "--batch", stderr=self._errors)
        assert self._git.stdin, "it is a pipe"
        assert self._git.stdout, "it is a pipe"
        self._requests, self._responses = self._git.stdin, self._git.stdout
        self._left = MAX_BYTES

    def close(self) -> None:
        """Kill the git process."""
        self._git.kill()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._responses.close()
        self._git.wait()
        self._errors.close()

    def read(self, id: str, kind: str, most: int = MAX_BYTES) -> bytes:
        """Return a small object as bytes."""
        return b"".join(self.chunks(id, kind, most))

    def chunks(self, id: str, kind: str, most: int = MAX_BYTES) -> Iterator[bytes]:
        """Yield the bytes of an object in chunks; the caller must read them to the end."""
        self._request([id])
        yield from self._response(id, kind, most)

    def read_many(self, ids: Sequence[str], kind: str) -> Iterator[bytes]:
        """Yield complete objects in the order of their ids; the caller must read them all."""
        # Groups let git send objects while this process reads, instead of taking turns.
        for start in range(0, len(ids), _GROUP):
            group = ids[start : start + _GROUP]
            self._request(group)
            for id in group:
                yield b"".join(self._response(id, kind, MAX_BYTES))

    def _response(self, id: str, kind: str, most: int) -> Iterator[bytes]:
        left = self._size(id, kind)
        # The limit on all objects bounds the work on a hostile commit.
        self._left -= left
        if left > most or self._left < 0:
            raise too_much(f"{MAX_BYTES // 1_000_000:,} MB")
        while left:
            piece = self._receive(id, min(left, _CHUNK))
            left -= len(piece)
            yield piece
        self._receive(id, 1)  # the line end after each object

    def _request(self, ids: Sequence[str]) -> None:
        try:
            self._requests.write("".join(f"{id}\n" for id in ids).encode())
            self._requests.flush()
        except BrokenPipeError:
            self._ended(ids[0])

    def _size(self, id: str, kind: str) -> int:
        # `<id> <type> <size>` or `<id> missing`: https://git-scm.com/docs/git-cat-file#_batch_output
        fields = self._responses.readline().split()
        if len(fields) == 2 and fields[1] == b"missing":
            self._refuse_corrupt(id)
            hint = f"{_WHOLE_CLONE}; or see `git fsck`"
            raise NotFoundError(f"git has no object {id}, which the commit needs", hint=hint)
        if len(fields) != 3:
            self._ended(id)
        if fields[1].decode() != kind:
            raise GitError(f"git's object {id} is not a {kind}", hint="see `git fsck`")
        return int(fields[2])

    def _receive(self, id: str, size: int) -> bytes:
        piece = self._responses.read(size)
        if len(piece) < size:
            self._ended(id)
        return piece

    def _ended(self, id: str) -> NoReturn:
        self._git.wait(TIMEOUT)
        self._refuse_corrupt(id)
        raise GitError("git ended while the commit was read", hint=f"{_WHOLE_CLONE}; or see `git fsck`")

    def _refuse_corrupt(self, id: str) -> None:
        self._errors.seek(0)
        if is_corrupt(self._errors.read(_CHUNK)):
            raise CorruptObjectError(id)


def too_much(what: str) -> ReconcilerError:
    """Return the error for a commit that exceeds a limit."""
    return ReconcilerError(
        f"the commit holds more than {what} of manifests and the code that they name",
        hint="name the files or folders of some manifests",
    )
