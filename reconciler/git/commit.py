"""Which commit a work tree is, asked of git without running anything that the repository's settings name."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.base.git_command import SHA, Git

MAX_PASSED_OVER = 100
"""Of the commits that were passed over, at most so many are told, the newest ones."""


@dataclass(frozen=True, slots=True)
class Head:
    """The commit that is checked out.

    Attributes:
        checked_out: Its name, 40 hex digits.
        carried: The commit that jobs carry and statuses go to, 40 hex digits: the same, or in GitHub Actions
            the head of the pull request whose merge commit is checked out, as nobody sees that one.
    """

    checked_out: str
    carried: str


def head_of(root: Path, environ: Mapping[str, str]) -> Head | None:
    """Return the commit that is checked out around `root`, whatever the files there are like now.

    None without git, a repository or a commit; or if the event's file of a pull request does not name its
    head.
    """
    checked_out = Git(root, environ).commit("HEAD")
    carried = _seen_commit(checked_out, environ) if checked_out else None
    return Head(checked_out, carried) if checked_out and carried else None


def why_no_head(root: Path, environ: Mapping[str, str]) -> str:
    """Return why `head_of` gave None, as a clause; "" if there is no repository, or no commit in it."""
    git = Git(root, environ)
    if (git.ask("rev-parse", "--show-object-format") or "").strip() == "sha256":
        return "the repository names its objects by SHA-256, and only those of SHA-1 are compared"
    if git.commit("HEAD"):
        return "GITHUB_EVENT_PATH names no file that says which commit the pull request's head is"
    return ""


def commit_of(root: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """The commit that the work tree around `root` is, 40 hex digits.

    None where there is no git or no checkout, or where the tree isn't exactly a commit: a tracked file
    differs, or there is a file that git neither tracks nor ignores.

    In GitHub Actions a pull request's run checks out a merge commit that nobody sees; then it is the commit
    at the head of the pull request. What the repository's own settings would run (hooks, file monitors,
    filters) doesn't run, so a file that such a filter made, and that git can't tell by its times, counts as
    changed.

    Args:
        root: A folder of the work tree.
        environ: The environment variables, by default the process's.
    """
    environ = os.environ if environ is None else environ
    head = head_of(root, environ)
    return head.carried if head and Git(root, environ).is_clean() else None


def still_at(root: Path, environ: Mapping[str, str], before: str | None) -> str:
    """Return `before`, which `commit_of` gave, if the work tree still is exactly that commit; else "".

    For files that could not be read to their end, and so could not be compared: a branch that was switched
    meanwhile is noticed by its commit.
    """
    return before if before and commit_of(root, environ) == before else ""


def passed_over(root: Path, head: str, known: Collection[str]) -> list[str]:
    """The commits on the way from the known ones to `head`, along first parents, the newest first.

    Neither the known ones nor `head` are among them. Nothing was passed over where none is known, or none is
    part of this history: a force-push, or a checkout without it.

    Args:
        root: A folder of the work tree.
        head: The commit that is checked out.
        known: Commits that were applied.
    """
    git = Git(root)
    names = [sha for sha in known if sha != head and SHA.fullmatch(sha)]
    ancestors = [sha for sha in names if git.ask("merge-base", "--is-ancestor", sha, head) is not None]
    if not ancestors:
        return []
    excluded = (f"^{sha}" for sha in ancestors)
    listed = git.ask("rev-list", "--first-parent", f"--max-count={MAX_PASSED_OVER + 1}", head, *excluded)
    return [sha for sha in (listed or "").split() if sha != head]


def _seen_commit(head: str, environ: Mapping[str, str]) -> str | None:
    """`head`, or the commit of the pull request that `head` is the merge of."""
    if environ.get("GITHUB_EVENT_NAME") != "pull_request" or environ.get("GITHUB_SHA") != head:
        return head
    try:
        event = json.loads(Path(environ.get("GITHUB_EVENT_PATH", "")).read_bytes())
        sha = event["pull_request"]["head"]["sha"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return sha if isinstance(sha, str) and SHA.fullmatch(sha) else None
