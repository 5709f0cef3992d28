"""The pull request that was merged as a commit."""

from __future__ import annotations

from typing import Any

from reconciler.reporting.github.api import GitHubApi


def merged_pull_request(api: GitHubApi, repository: str, sha: str) -> int | None:
    """Return the number of the pull request whose merge is a commit (40 hex digits); None for none.

    GitHub lists all pull requests that contain the commit, open ones and those of forks too. Only one counts
    that was merged into this repository's default branch, and whose merge is this very commit.

    Source: `GET /repos/{owner}/{repo}/commits/{commit_sha}/pulls`, of which `merge_commit_sha` is the merge,
    the squashed commit, or the last rebased one.

    Raises:
        GitHubRefusedError: GitHub refused the request, or it failed.
    """
    for item in api.items(f"commits/{sha}/pulls"):
        if (number := _number(item, repository, sha)) is not None:
            return number
    return None


def _number(item: Any, repository: str, sha: str) -> int | None:
    match item:
        case {
            "number": int(number),
            "state": "closed",
            "merged_at": str(),
            "merge_commit_sha": str(merge),
            "base": {
                "ref": str(base),
                "repo": {"full_name": str(full_name), "default_branch": str(default)},
            },
        } if merge == sha and base == default and full_name.lower() == repository.lower():
            return number
    return None
