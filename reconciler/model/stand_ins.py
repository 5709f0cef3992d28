"""What stands for files that a tree doesn't have: pointers of Git LFS, and recorded commits of submodules."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

# Git LFS takes no longer file for a pointer.
_MOST_BYTES = 1023
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, which has both versions, and docs/extensions.md.
# An extension's line has the SHA-256 of its input, so the first one has that of the file.
_POINTER = re.compile(
    rb"version https://(?:git-lfs|hawser)\.github\.com/spec/v1\n"
    rb"(?P<extensions>(?:ext-[0-9]-[a-z0-9.-]+ sha256:[0-9a-f]{64}\n)*)"
    rb"oid sha256:(?P<oid>[0-9a-f]{64})\n"
    rb"size [0-9]+\n"
)

GET_LFS_FILE = (
    "get it by `git lfs pull`, in GitHub Actions by `lfs: true` of the apply action; `watch --remote` gets "
    "none, so watch a checkout that has it"
)
"""The remedy for a file of a package that is a pointer."""


class CodeUse(Enum):
    """Use of the code of jobs that are loaded, which decides what may stand for its files."""

    STAGED = auto()
    """The code is uploaded: every file has to be here."""
    NAMED = auto()
    """Nothing is staged: a pointer's SHA-256 stands for its file, and the name is that of the file."""
    COMPARED = auto()
    """As NAMED, and a submodule's recorded commit stands for its files: the name isn't known then."""


class Submodule(NamedTuple):
    """Submodule whose files a package needs, and doesn't have.

    Attributes:
        path: Its folder, relative to the root, with "/".
        commit: Its recorded commit, 40 hex digits.
        below: The path in it that the package needs; "" for all of it.
    """

    path: str
    commit: str
    below: str = ""


def pointer_digest(content: bytes) -> str:
    """Return the SHA-256, in hex, of the file that a pointer stands for; "" if `content` is no pointer."""
    match = _POINTER.fullmatch(content) if len(content) <= _MOST_BYTES else None
    if match is None:
        return ""
    extensions = match["extensions"].splitlines()
    if extensions != sorted(extensions):
        return ""
    return extensions[0][-64:].decode() if extensions else match["oid"].decode()


def submodule_at(path: str, unread: Mapping[str, str]) -> Submodule | None:
    """Return the submodule that a path is or leads into; None for no submodule of `unread`.

    `unread` has the recorded commits by path.
    """
    if not unread:
        return None
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        folder = "/".join(names[:depth])
        if folder in unread:
            return Submodule(folder, unread[folder], "/".join(names[depth:]))
    return None


def fetching(path: str, around: str = "") -> str:
    """Return the remedy for a submodule that isn't fetched.

    Args:
        path: Its folder, relative to the root.
        around: The submodule that it is in; "" for none.
    """
    if around:
        inner = path.removeprefix(f"{around}/")
        command, value = f"git -C {shlex.quote(around)} submodule", "recursive"
    else:
        inner, command, value = path, "git submodule", "true"
    return (
        f"get it by `{command} update --init {shlex.quote(inner)}`, in GitHub Actions by "
        f"`submodules: {value}` of the apply action; `watch --remote` gets none, so watch a checkout that "
        "has it"
    )
