"""Which commit a work tree is, asked of git without running anything that the repository's settings name."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

TIMEOUT = 60.0

_SHA = re.compile(r"[0-9a-f]{40}")
_FILTER = re.compile(r"filter\..+(?=\.[^.]+\Z)", re.DOTALL)
_FILTER_OFF = ("clean=", "process=", "smudge=", "required=false")
# Whose filters don't run: the repository's. Those of the user and of the machine are as trusted as git.
_OWN_SCOPES = ("local", "worktree")
# These would point git at another repository than the folder's: a hook that called us leaves them behind.
_ELSEWHERE = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
# No hook, no file monitor, and no helper of a remote to fetch what a partial clone lacks.
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


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
    git = _Git(root, environ)
    head = git.ask("rev-parse", "--verify", "HEAD^{commit}")
    if head is None or not _SHA.fullmatch(head.strip()):
        return None
    return _seen_commit(head.strip(), environ) if git.is_clean() else None


class _Git:
    """git in one folder, unable to run anything else."""

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self._root = root
        self._environ = {name: value for name, value in environ.items() if name not in _ELSEWHERE}

    def ask(self, *arguments: str) -> str | None:
        """What git prints; None where there is no git, or it fails."""
        try:
            done = subprocess.run(
                ["git", *_HARMLESS, *arguments],
                cwd=self._root,
                env={**self._environ, **_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode("utf-8", "surrogateescape")

    def is_clean(self) -> bool:
        """Whether the work tree is exactly its commit, whatever the settings would leave out."""
        switched_off = self._filters_off()
        if switched_off is None:
            return False
        status = ("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none")
        return self.ask(*switched_off, *status) == ""

    def _filters_off(self) -> list[str] | None:
        """Options against the filters that the repository's settings name; None where that can't be done."""
        listed = self.ask("config", "--list", "--show-scope", "--includes", "--name-only", "-z")
        if listed is None:
            return None
        fields = listed.split("\0")
        own = {name for scope, name in zip(fields[::2], fields[1::2], strict=False) if scope in _OWN_SCOPES}
        sections = {match[0] for name in own if (match := _FILTER.match(name))}
        if any("=" in section for section in sections):
            return None
        settings = [f"{section}.{off}" for section in sorted(sections) for off in _FILTER_OFF]
        return [word for setting in settings for word in ("-c", setting)]


def _seen_commit(head: str, environ: Mapping[str, str]) -> str | None:
    """`head`, or the commit of the pull request that `head` is the merge of."""
    if environ.get("GITHUB_EVENT_NAME") != "pull_request" or environ.get("GITHUB_SHA") != head:
        return head
    try:
        event = json.loads(Path(environ.get("GITHUB_EVENT_PATH", "")).read_bytes())
        sha = event["pull_request"]["head"]["sha"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return sha if isinstance(sha, str) and _SHA.fullmatch(sha) else None
