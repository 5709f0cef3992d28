"""Reader of a git repository's objects by their ids, with the bytes that git stores."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from reconciler.base.errors import NotFoundError, ReconcilerError
from reconciler.base.git_command import Git, GitError
from reconciler.base.sanitize import one_line

MAX_BYTES = 1_000_000_000
"""The maximum number of bytes to read, trees included."""

_CHUNK = 1 << 20
# Ids per request: they fit into the smallest pipe, 4 KiB. With more, git and this process could deadlock.
_GROUP = 64
_ID_BYTES = 20
_MODE = re.compile(rb"[0-7]{5,6}")
_WHOLE_CLONE = "a clone made with --filter leaves objects out, and nothing is fetched: use a whole one"


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a tree; `id` is the object's, 40 hex digits."""

    mode: int
    id: str

    @property
    def is_folder(self) -> bool:
        """Return True for a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Return True for a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        """Return True for a symbolic link."""
        return stat.S_ISLNK(self.mode)


class Objects:
    """Reader of objects through a single `git cat-file` process."""

    def __init__(self, git: Git) -> None:
        self._git = git.start("cat-file", "--batch")
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

    def read(self, id: str, kind: str, most: int = MAX_BYTES) -> bytes:
        """Return a small object as bytes."""
        return b"".join(self.chunks(id, kind, most))

    def chunks(self, id: str, kind: str, most: int = MAX_BYTES) -> Iterator[bytes]:
        """Yield the bytes of an object in chunks; the caller must read them to the end."""
        self._request([id])
        size = self._size(id, kind)
        self._take(size, most)
        while size:
            piece = self._receive(min(size, _CHUNK))
            size -= len(piece)
            yield piece
        self._receive(1)  # the line end after each object

    def read_many(self, ids: Sequence[str], kind: str) -> Iterator[bytes]:
        """Yield complete objects in the order of their ids; the caller must read them all."""
        # Groups let git send objects while this process reads, instead of taking turns.
        for start in range(0, len(ids), _GROUP):
            group = ids[start : start + _GROUP]
            self._request(group)
            for id in group:
                yield self._receive_whole(id, kind)

    def _receive_whole(self, id: str, kind: str) -> bytes:
        size = self._size(id, kind)
        self._take(size, MAX_BYTES)
        data = self._receive(size)
        self._receive(1)
        return data

    def _request(self, ids: Sequence[str]) -> None:
        try:
            self._requests.write("".join(f"{id}\n" for id in ids).encode())
            self._requests.flush()
        except BrokenPipeError:
            _ended()

    def _take(self, size: int, most: int) -> None:
        self._left -= size
        if size > most or self._left < 0:
            raise too_much(f"{MAX_BYTES // 1_000_000:,} MB")

    def _size(self, id: str, kind: str) -> int:
        # `<id> <type> <size>` or `<id> missing`: https://git-scm.com/docs/git-cat-file#_batch_output
        fields = self._responses.readline().split()
        if len(fields) == 2 and fields[1] == b"missing":
            raise NotFoundError(f"git has no object {id}, which the commit needs", hint=_WHOLE_CLONE)
        if len(fields) != 3:
            _ended()
        if fields[1].decode() != kind:
            raise GitError(f"git's object {id} is no {kind}", hint="see `git fsck`")
        return int(fields[2])

    def _receive(self, size: int) -> bytes:
        piece = self._responses.read(size)
        if len(piece) < size:
            _ended()
        return piece


def _ended() -> NoReturn:
    raise GitError("git ended while the commit was read", hint=f"{_WHOLE_CLONE}; or see `git fsck`")


def too_much(what: str) -> ReconcilerError:
    """Return the error for a commit that exceeds a limit."""
    return ReconcilerError(
        f"the commit holds more than {what} of manifests and the code that they name",
        hint="name the files or folders of some manifests",
    )


@contextmanager
def objects_of(git: Git) -> Iterator[Objects]:
    """Open the objects of a repository; raises GitError."""
    objects = Objects(git)
    try:
        yield objects
    finally:
        objects.close()


def entries(data: bytes) -> Mapping[str, Entry]:
    """Parse a tree object: for each entry the mode, a blank, the name, a zero byte and the id."""
    found: dict[str, Entry] = {}
    while data:
        head, _, rest = data.partition(b"\0")
        mode, _, name = head.partition(b" ")
        id, data = rest[:_ID_BYTES], rest[_ID_BYTES:]
        if not _is_sound(mode, name) or len(id) < _ID_BYTES:
            shown = one_line(name.decode("utf-8", "backslashreplace"))
            raise GitError(
                f'the commit has an entry that git doesn\'t make: "{shown}"', hint="see `git fsck`"
            )
        found[os.fsdecode(name)] = Entry(int(mode, 8), id.hex())
    return found


def _is_sound(mode: bytes, name: bytes) -> bool:
    # git writes no other names, but a crafted object can: these would lead out of the folder.
    return _MODE.fullmatch(mode) is not None and name not in (b"", b".", b"..") and b"/" not in name
