"""Rest of a work tree: while somebody, or git, is in the middle of something, nothing is submitted from it.

Each content costs a training in the cloud: one of a file that is half written, of a commit that git passes
through, or of a file that the next commit won't have.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from reconciler.base.checkout import checkout_of, git_folder
from reconciler.base.sanitize import one_line
from reconciler.git.index import GitIndex
from reconciler.manifests.files import real_path
from reconciler.operations.load_desired import Desired

if TYPE_CHECKING:
    from reconciler.packaging.source_tree import SourceTree

SETTLES_IN = 10.0
"""Default of the seconds without a change after which a tree counts as quiet."""

_UNTIL = "nothing is submitted or cancelled until"
# Files in git's folder of a checkout while a command isn't done: https://git-scm.com/docs/gitrepository-layout
_AT_WORK = {
    "index.lock": "changing the index",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisect",
    "sequencer": "a series of commits",
}


def changing(seconds: float) -> str:
    """Return why a tree isn't at rest whose files changed in the last `seconds`."""
    return f"files are changing: {_UNTIL} none has changed for {seconds:g} s"


def git_at_work(root: Path) -> str:
    """Return why a tree isn't at rest that git is changing; "" if it isn't."""
    checkout = checkout_of(root)
    folder = git_folder(checkout) if checkout else None
    for name, what in _AT_WORK.items() if folder else ():
        if folder and os.path.lexists(folder / name):
            return f"git is in the middle of {what} ({folder / name}): {_UNTIL} that has ended"
    return ""


def unfinished_code(desired: Desired, root: Path, index: GitIndex) -> str:
    """Return why a tree isn't at rest that has a conflict, or code that git doesn't track; "" if it is.

    Without a repository, or where git can't read it, every tree is as good.
    """
    if not index.entries:
        return ""
    if conflict := next((path for path, entry in index.entries.items() if entry.is_unmerged), ""):
        return f"{one_line(conflict)} has a conflict: {_UNTIL} it is resolved and added by `git add`"
    packages = {
        (job.manifest.package.relative_to(real_path(root)), desired.code[job.job_name].digest): job
        for job in desired.jobs
        if job.manifest.package
    }
    for (folder, _), job in sorted(packages.items()):
        if path := _untracked(PurePosixPath(folder), desired.code[job.job_name], index.entries):
            said = f"git doesn't track {one_line(path)}, which is part of a job's code"
            way_out = f"add it by `git add --force`, or exclude it in a .gitignore from {root} downwards"
            return f"{said}: {_UNTIL} it does; {way_out}"
    return ""


def _untracked(folder: PurePosixPath, tree: SourceTree, tracked: Collection[str]) -> str:
    """Return the path of the first file that git doesn't track; "" if it tracks all."""
    for file in tree.files:
        path = folder / file.path
        # Behind a link, or in a submodule, git tracks what is a folder here.
        if not any(parent.as_posix() in tracked for parent in (path, *path.parents)):
            return path.as_posix()
    return ""
