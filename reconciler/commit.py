"""Which commit a work tree is, asked of git without running anything that the repository's settings name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from reconciler.git import SHA, Git


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
    git = Git(root, environ)
    head = git.commit("HEAD")
    return _seen_commit(head, environ) if head and git.is_clean() else None


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
