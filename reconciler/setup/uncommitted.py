"""What git hasn't got yet of a set-up's files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reconciler.git import Git


def uncommitted(root: Path, paths: Iterable[str]) -> list[str]:
    """What `git add` is to name, so that of the work tree's changes exactly those of `paths` are taken.

    A folder stands for what is in it where nothing else in it has changed. Without git all of them are named.

    Args:
        root: The repository's root.
        paths: Files below it, with "/".
    """
    real = {_real(root, path) for path in paths}
    news = _news(root)
    found = real if news is None else real & news
    others = (news or set()) - real
    shared = {_top(path) for path in others}
    return sorted({path if _top(path) in shared else _top(path) for path in found})


def _real(root: Path, path: str) -> str:
    """Where git has the file, if a folder is a link."""
    file = root / path
    return (file.parent.resolve() / file.name).relative_to(root.resolve()).as_posix()


def _top(path: str) -> str:
    return path.partition("/")[0]


def _news(root: Path) -> set[str] | None:
    """The files that aren't as the last commit has them, and aren't ignored; None where git can't tell."""
    git = Git(root)
    prefix, switched_off = git.ask("rev-parse", "--show-prefix"), git.filters_off()
    if prefix is None or switched_off is None:
        return None
    listing = (
        "status",
        "--porcelain",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=all",
    )
    listed = git.ask(*switched_off, *listing, "--", ".")
    if listed is None:
        return None
    return {entry[3:].removeprefix(prefix.strip()) for entry in listed.split("\0") if entry}
