"""Packages that were read before, and needn't be read again while nothing in them is touched."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.sources.sourcetree import SourceTree, read_source_tree
from reconciler.sources.worktree import Names, Signature, signature_of

MOST_BYTES = 64 * 1024 * 1024
"""How much code is held; what is more is read each time."""

_COARSEST_TICK = 2 * 10**9  # ns
"""So close behind one another, two changes of a file may leave it with the same times (FAT's tick)."""


@dataclass(frozen=True, slots=True)
class _Read:
    tree: SourceTree
    seen: Mapping[Names, Signature]
    size: int


class SourceMemory:
    """The packages that a process that goes on for long has read; in memory alone, for one thread."""

    def __init__(self) -> None:
        self._read: dict[tuple[Path, Path], _Read] = {}

    def read(self, folder: Path, root: Path) -> SourceTree:
        """As `read_source_tree`, which is only called where something may have changed."""
        key = (folder, root)
        if (known := self._read.pop(key, None)) and _is_as_it_was(root, known.seen):
            self._read[key] = known
            return known.tree
        seen: dict[Names, Signature] = {}
        began = time.time_ns()
        tree = read_source_tree(folder, root, seen)
        size = sum(len(file.content) for file in tree.files)
        held = sum(other.size for other in self._read.values())
        if held + size <= MOST_BYTES and all(_can_be_trusted(each, began) for each in seen.values()):
            self._read[key] = _Read(tree, seen, size)
        return tree


def _is_as_it_was(root: Path, seen: Mapping[Names, Signature]) -> bool:
    try:
        # The root itself may be a link; below it, none was followed.
        return all(
            signature_of(root.joinpath(*names).stat(follow_symlinks=not names)) == signature
            for names, signature in seen.items()
        )
    except OSError:
        return False


def _can_be_trusted(signature: Signature, read_ns: int) -> bool:
    """Whether a later change surely gives another signature: none of the times is of just now."""
    *_, changed, touched = signature
    return max(changed, touched) <= read_ns - _COARSEST_TICK
