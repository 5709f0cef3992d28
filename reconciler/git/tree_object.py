"""Entries of a tree in git's object database, parsed from the object's bytes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from msgspec import Struct

from reconciler.base.git_command import (
    GitError,
)
from reconciler.base.sanitize import one_line

_ID_BYTES = 20
_MODE = re.compile(rb"[0-7]{5,6}")
_GITLINK = 0o160000


class Entry(Struct, frozen=True):
    """Entry of a tree.

    Attributes:
        mode: The mode in git.
        id: The object's, 40 hex digits.
        commit: The recorded commit of a submodule whose tree this is; "" for others.
    """

    mode: int
    id: str
    commit: str = ""

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

    @property
    def is_submodule(self) -> bool:
        """Return True for a commit of another repository."""
        return self.mode == _GITLINK


def entries(data: bytes) -> Mapping[str, Entry]:
    """Parse a tree object: for each entry the mode, a blank, the name, a zero byte and the id."""
    tree: dict[str, Entry] = {}
    while data:
        head, _, rest = data.partition(b"\0")
        mode, _, name = head.partition(b" ")
        id, data = rest[:_ID_BYTES], rest[_ID_BYTES:]
        if not _is_sound(mode, name) or len(id) < _ID_BYTES:
            shown = one_line(name.decode("utf-8", "backslashreplace"))
            raise GitError(
                f'the commit has an entry that git doesn\'t make: "{shown}"', hint="see `git fsck`"
            )
        tree[os.fsdecode(name)] = Entry(int(mode, 8), id.hex())
    return tree


def _is_sound(mode: bytes, name: bytes) -> bool:
    # git writes no other names, but a crafted object can: these would lead out of the folder.
    return _MODE.fullmatch(mode) is not None and name not in (b"", b".", b"..") and b"/" not in name
