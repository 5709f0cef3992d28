"""Names of files that a stranger chose, such as those of a bucket's objects, as paths below a new folder.

A name that is accepted is the path of a file within the folder, and of no other accepted name's: also where
the file system ignores case, or normalizes Unicode. A name that ends with a slash stands for a folder.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable

_NO_CHARACTERS = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of control characters, halves of surrogate pairs, and separators of lines."""


class ForeignNameError(ValueError):
    """Error for a name that can't be a file's here.

    Attributes:
        name: As the stranger wrote it.
        why: The reason, as a clause.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name
        self.why = why


def check_names(names: Iterable[str], longest_part: int, longest: int) -> None:
    """Raise ForeignNameError for the first name that can't be a path below one new folder, beside the others.

    Args:
        names: Relative, with slashes.
        longest_part: Bytes of the longest name of a file or a folder that the file system takes.
        longest: Bytes of the longest path below the folder.
    """
    taken: dict[tuple[str, ...], tuple[tuple[str, ...], bool]] = {}
    for name in names:
        is_folder = name.endswith("/")
        parts = tuple(name.removesuffix("/").split("/"))
        if why := _fault(name, parts, longest_part, longest):
            raise ForeignNameError(name, why)
        key = tuple(map(_folded, parts))
        for depth in range(1, len(parts) + 1):
            entry = parts[:depth], is_folder or depth < len(parts)
            other = taken.setdefault(key[:depth], entry)
            if other[0] != entry[0]:
                shown = "/".join(other[0])
                raise ForeignNameError(name, f'it differs from "{shown}" in case or in Unicode\'s form alone')
            if other[1] != entry[1]:
                raise ForeignNameError(name, f'"{"/".join(entry[0])}" is both a file and a folder')
            if depth == len(parts) and not is_folder and other is not entry:
                raise ForeignNameError(name, "it is there twice")


def _fault(name: str, parts: tuple[str, ...], longest_part: int, longest: int) -> str:
    """Return why a name alone can't be a path; "" if it can."""
    if any(unicodedata.category(char) in _NO_CHARACTERS for char in name):
        return "it has control characters"
    if "\\" in name:
        return "it has a backslash"
    if name.startswith("/"):
        return "it is absolute"
    if "" in parts:
        return "one of its parts is empty"
    if "." in parts or ".." in parts:
        return 'it has a part "." or ".."'
    # A folder with this name can have git run programs for who only looks at it.
    if any(_folded(part) == ".git" for part in parts):
        return 'it has a part ".git"'
    if len(os.fsencode(name)) > longest or any(len(os.fsencode(part)) > longest_part for part in parts):
        return "it is too long for the file system here"
    return ""


def _folded(part: str) -> str:
    """Return a text that is equal for all names which any file system takes for one and the same."""
    # Both: upper case alone tells the dotless i from i, lower case alone the long s from s.
    text = unicodedata.normalize("NFD", part).upper().casefold()
    # Some file systems ignore invisible characters, such as zero-width joiners.
    return "".join(char for char in text if unicodedata.category(char) != "Cf")
