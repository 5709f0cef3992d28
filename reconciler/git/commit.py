"""Commits of a repository, found and made without running programs that its settings name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from reconciler.base.errors import MachineError
from reconciler.base.git_command import (
    SHA,
    VERIFY,
    CorruptObjectError,
    Git,
    GitError,
)
from reconciler.base.replaced_files import write_file


class Head(Struct, frozen=True):
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
        return "the repository uses SHA-256 object names, and only SHA-1 is supported"
    if git.commit("HEAD"):
        return "GITHUB_EVENT_PATH names no file with the pull request's head commit"
    try:
        git.refuse_corrupt(*VERIFY, "HEAD^{commit}")
    except CorruptObjectError as error:
        return error.message
    return ""


def commit_of(root: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the commit that equals the work tree around `root`, 40 hex digits; see `Head.carried`.

    Return None without git or a checkout, or if the tree differs from its commit: by a changed tracked file,
    or by a file that git neither tracks nor ignores. The repository's filters don't run, so a file that a
    filter changed counts as different, unless its times are those in git's index.
    """
    environ = os.environ if environ is None else environ
    head = head_of(root, environ)
    return head.carried if head and Git(root, environ).is_clean() else None


def commit_file(root: Path, path: str, data: bytes, message: str) -> str:
    """Write a file and commit it alone; return the new commit, 40 hex digits.

    Other changes stay as they are, in the work tree and in the index. Hooks, filters and signing programs
    don't run: the repository's settings may name them.

    Args:
        path: The file, relative to `root`.

    Raises:
        GitError: The file has other changes, or git fails; the file is then unchanged.
    """
    git = Git(root)
    off = git.filters_off()
    if off is None or git.ask("rev-parse", "--show-prefix") is None:
        raise GitError(f"{root} is not in a git repository", hint="leave out --commit")
    file = root / path
    file_top, root_top = (_top_of(folder) for folder in (file.parent, root))
    if file_top != root_top:
        where = os.path.relpath(file_top, root)
        raise GitError(
            f"{path} is in {where}, a repository of its own",
            hint=f"leave out --commit, and commit it in {where}, and then {where} here",
        )
    if git.run(*off, "status", "--porcelain", "-z", "--ignored", "--", path):
        raise GitError(
            f"{path} has other uncommitted changes", hint="commit them first, or leave out --commit"
        )
    before = file.read_bytes()
    write_file(file, data)
    try:
        git.run(*off, "commit", "--quiet", "--only", "--no-gpg-sign", "--message", message, "--", path)
    except (GitError, MachineError):
        write_file(file, before)
        raise
    return git.commit("HEAD") or ""


def _top_of(folder: Path) -> str:
    return os.fsdecode(Git(folder).run("rev-parse", "--show-toplevel")).removesuffix("\n")


def _carried_commit(head: str, environ: Mapping[str, str]) -> str | None:
    """Return `head`, or the head of the pull request that `head` merges; None if it is unknown."""
    if environ.get("GITHUB_EVENT_NAME") != "pull_request" or environ.get("GITHUB_SHA") != head:
        return head
    try:
        event = json.loads(Path(environ.get("GITHUB_EVENT_PATH", "")).read_bytes())
        sha = event["pull_request"]["head"]["sha"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return sha if isinstance(sha, str) and SHA.fullmatch(sha) else None
