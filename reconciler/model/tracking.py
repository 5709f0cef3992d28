"""What git's index tells of a work tree's files, and names that editors and notebooks leave beside code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

# Of names, whole. A name may have any bytes, line ends too.
_LEFTOVER = re.compile(
    r"\.(?:.*\.)?sw[a-z]"  # vim's swap files
    r"|4913"  # vim's trial of a folder
    r"|.*~"  # copies of the file before the last change: vim, emacs, gedit and others
    r"|\#.*\#|\.\#.*"  # emacs's copies of unsaved text, and its locks, which are links to nowhere
    r"|\..*\.kate-swp"
    r"|\.~.*"  # Jupyter; LibreOffice's locks
    r"|\._.*"  # what macOS keeps of a file on other file systems
    r"|\.goutputstream-.*"  # GTK
    r"|.*___jb_(?:tmp|old)___"  # JetBrains
    r"|\.nfs[0-9a-f]+|\.fuse_hidden[0-9a-f]+",  # files that were removed while a program had them open
    re.DOTALL,
)
_LEFT_FOLDER = ".ipynb_checkpoints"  # Jupyter


def is_leftover(name: str, *, folder: bool) -> bool:
    """Return True for the name of a file or folder that programs leave beside code, and nobody writes."""
    return name == _LEFT_FOLDER if folder else _LEFTOVER.fullmatch(name) is not None


class Index(Protocol):
    """What git's index tells of the files below a root; paths are relative to it, with "/"."""

    @property
    def left_out(self) -> Sequence[str]:
        """The tracked files that git may leave out of the work tree (sparse checkout), sorted."""

    @property
    def links(self) -> Sequence[str]:
        """The tracked links, where some of the tracked files may be missing or other ones; else none."""

    @property
    def unread(self) -> Mapping[str, str]:
        """The recorded commits of submodules whose files aren't here or don't count, by path."""

    def tracks(self, path: str) -> bool:
        """Return True for a tracked file, for a folder with one, and for what a submodule has."""

    def is_executable(self, path: str) -> bool | None:
        """Return the executable bit of a file; None where the file system's counts."""

    def is_link(self, path: str) -> bool:
        """Return True for a link in git of which the checkout has the text, in a file."""


class Committed:
    """Index of files that were written from a commit: git tracks each of them as it is.

    Args:
        unread: The recorded commits of submodules whose files weren't written, by path.
    """

    left_out = ()
    links = ()

    def __init__(self, unread: Mapping[str, str] = MappingProxyType({})) -> None:
        self.unread = unread

    def tracks(self, path: str) -> bool:
        """Return True."""
        return True

    def is_executable(self, path: str) -> None:
        """Return None: the file system's bit is the commit's."""

    def is_link(self, path: str) -> bool:
        """Return False: links are written as links."""
        return False


COMMITTED = Committed()

GET_LEFT_OUT = (
    "get it by `git sparse-checkout disable`, or by `git update-index --no-skip-worktree FILE` and "
    "`git restore FILE`"
)
"""The remedy for a tracked file that git leaves out of the work tree."""
