"""The objects of a git repository, asked of git by their ids and read as git stores them."""

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
"""How many bytes are read at most, folders among them."""

_CHUNK = 1 << 20
_GROUP = 64  # ids: they fit into the smallest pipe, 4 KiB; else both sides could wait for the other to read
_ID_BYTES = 20
_MODE = re.compile(rb"[0-7]{5,6}")
_WHOLE_CLONE = "a clone made with --filter leaves objects out, and nothing is fetched: use a whole one"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a tree says of one name; `id` is the object's, 40 hex digits."""

    mode: int
    id: str

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)


class Objects:
    """The objects of a repository, asked of one git process by their ids."""

    def __init__(self, git: Git) -> None:
        self._git = git.start("cat-file", "--batch")
        assert self._git.stdin, "it is a pipe"
        assert self._git.stdout, "it is a pipe"
        self._asked, self._told = self._git.stdin, self._git.stdout
        self._left = MAX_BYTES

    def close(self) -> None:
        """End git."""
        self._git.kill()
        with suppress(BrokenPipeError):
            self._asked.close()
        self._told.close()
        self._git.wait()

    def read(self, id: str, kind: str, most: int = MAX_BYTES) -> bytes:
        """The whole of a small object."""
        return b"".join(self.chunks(id, kind, most))

    def chunks(self, id: str, kind: str, most: int = MAX_BYTES) -> Iterator[bytes]:
        """What an object holds, piece by piece; each object has to be read to its end."""
        self._request([id])
        size = self._size(id, kind)
        self._take(size, most)
        while size:
            piece = self._receive(min(size, _CHUNK))
            size -= len(piece)
            yield piece
        self._receive(1)

    def read_many(self, ids: Sequence[str], kind: str) -> Iterator[bytes]:
        """Yield whole objects in the order of their ids; each has to be taken.

        They are requested in groups: git answers many while this process reads, instead of taking turns.
        """
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
            self._asked.write("".join(f"{id}\n" for id in ids).encode())
            self._asked.flush()
        except BrokenPipeError:
            _ended()

    def _take(self, size: int, most: int) -> None:
        self._left -= size
        if size > most or self._left < 0:
            raise too_much(f"{MAX_BYTES // 1_000_000:,} MB")

    def _size(self, id: str, kind: str) -> int:
        """Read the head of the next answer."""
        told = self._told.readline().split()
        if len(told) == 2 and told[1] == b"missing":
            raise NotFoundError(f"git has no object {id}, which the commit needs", hint=_WHOLE_CLONE)
        if len(told) != 3:
            _ended()
        if told[1].decode() != kind:
            raise GitError(f"git's object {id} is no {kind}", hint="see `git fsck`")
        return int(told[2])

    def _receive(self, size: int) -> bytes:
        piece = self._told.read(size)
        if len(piece) < size:
            _ended()
        return piece


def _ended() -> NoReturn:
    raise GitError("git ended while the commit was read", hint=f"{_WHOLE_CLONE}; or see `git fsck`")


def too_much(what: str) -> ReconcilerError:
    """The error for a commit that holds more than is read."""
    return ReconcilerError(
        f"the commit holds more than {what} of manifests and the code that they name",
        hint="name the files or folders of some manifests",
    )


@contextmanager
def objects_of(git: Git) -> Iterator[Objects]:
    """The objects of a repository; raises GitError."""
    objects = Objects(git)
    try:
        yield objects
    finally:
        objects.close()


def entries(data: bytes) -> Mapping[str, Entry]:
    """The entries of a tree object: mode, blank, name, zero byte, id, again and again."""
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
    return _MODE.fullmatch(mode) is not None and name not in (b"", b".", b"..") and b"/" not in name
