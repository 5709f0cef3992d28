"""Commits of a work tree, read without running programs that the repository's settings name."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.base.git_command import SHA, Git

MAX_PASSED_OVER = 100
"""The maximum number of reported skipped commits, the newest ones."""


@dataclass(frozen=True, slots=True)
class Head:
    """Commit that is checked out.

    Attributes:
        checked_out: Its hash, 40 hex digits.
        carried: The hash of the commit that jobs carry and statuses are posted to, 40 hex digits. It is the
            checked out commit, or in GitHub Actions the head of the pull request whose merge commit is
            checked out, as pull requests don't show that commit.
    """

    checked_out: str
    carried: str


def head_of(root: Path, environ: Mapping[str, str]) -> Head | None:
    """Return the commit that is checked out around `root`, regardless of changed files.

    Return None without git, a repository or a commit, or if the event file of a pull request doesn't name its
    head.
    """
    checked_out = Git(root, environ).commit("HEAD")
    carried = _carried_commit(checked_out, environ) if checked_out else None
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
    """Return the commit that equals the work tree around `root`, 40 hex digits; see `Head.carried`.

    Return None without git or a checkout, or if the tree differs from its commit: by a changed tracked file,
    or by a file that git neither tracks nor ignores. The repository's filters don't run, so a file that a
    filter changed counts as different, unless its times are those in git's index.

    Args:
        root: A folder of the work tree.
        environ: The environment variables, by default the process's.
    """
    environ = os.environ if environ is None else environ
    head = head_of(root, environ)
    return head.carried if head and Git(root, environ).is_clean() else None


def still_at(root: Path, environ: Mapping[str, str], before: str | None) -> str:
    """Return `before`, an earlier result of `commit_of`, if the work tree still equals it; else ""."""
    # Files that could not be read completely can't be compared: the commit reveals a switch of branches.
    return before if before and commit_of(root, environ) == before else ""


def passed_over(root: Path, head: str, known: Collection[str]) -> list[str]:
    """Return the commits between the known ones and `head` along first parents, the newest first.

    Both ends are excluded. The result is empty if no known commit is an ancestor of `head`, as after a
    force-push or in a shallow checkout.

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
    # One more than the maximum, as `head` is listed too.
    listed = git.ask("rev-list", "--first-parent", f"--max-count={MAX_PASSED_OVER + 1}", head, *excluded)
    return [sha for sha in (listed or "").split() if sha != head]


def _carried_commit(head: str, environ: Mapping[str, str]) -> str | None:
    """Return `head`, or the head of the pull request that `head` merges; None if it is unknown."""
    if environ.get("GITHUB_EVENT_NAME") != "pull_request" or environ.get("GITHUB_SHA") != head:
        return head
    try:
        event = json.loads(Path(environ.get("GITHUB_EVENT_PATH", "")).read_bytes())
        sha = event["pull_request"]["head"]["sha"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return sha if isinstance(sha, str) and SHA.fullmatch(sha) else None
