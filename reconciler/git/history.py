"""History of the checked-out commit, as far as the clone has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from reconciler.base.git_command import SHA, Git, GitError
from reconciler.git.commit import head_of

_BRANCHES = ("refs/heads", "refs/remotes", "refs/tags")
_FETCH = "fetch the history: `git fetch --unshallow`"
_FETCH_IN_ACTIONS = "fetch the history: give actions/checkout a `fetch-depth` of 0"


class GitHistory:
    """Implementation of the port `History` by git, which is asked only for what is needed.

    Args:
        root: The repository's root.
        environ: The environment variables.
        is_exported: True if this process fetched the branch and checked its head out to a folder of its own.
    """

    def __init__(self, root: Path, environ: Mapping[str, str], *, is_exported: bool = False) -> None:
        self._git = Git(root, environ)
        self._root = root
        self._environ = environ
        self._is_exported = is_exported

    @cached_property
    def head(self) -> str:
        """The commit that is checked out; "" for none, and for the merge commit of a pull request."""
        head = head_of(self._root, self._environ)
        return head.checked_out if head and head.carried == head.checked_out else ""

    @cached_property
    def obstacle(self) -> str:
        """The reason why a commit must be there and can't be read, as a clause; "" for none."""
        if self.head or head_of(self._root, self._environ):
            return ""
        try:
            self._git.run("rev-parse", "--git-dir")
            reason = "it has no commit that git can read"
        except GitError as error:
            reason = error.message
            is_refused = "not a git repository" not in reason and "can't be run" not in reason
            if is_refused:
                return reason
        # A repository without git is as good as one without a record, but Actions always checks one out.
        return reason if self._environ.get("GITHUB_SHA") else ""

    @property
    def remedy(self) -> str:
        """What makes an unknown relation known, as a clause."""
        if self.obstacle:
            return f"git must read the checkout: {self.obstacle}"
        if not self.is_shallow:
            return "run `git fetch --all`, and apply a branch that has that commit"
        return _FETCH_IN_ACTIONS if self._is_in_actions else _FETCH

    @cached_property
    def is_shallow(self) -> bool:
        """True if older commits are missing, or git doesn't say."""
        return (self._git.ask("rev-parse", "--is-shallow-repository") or "").strip() != "false"

    @cached_property
    def is_published(self) -> bool:
        """True if a remote's branch has the checked-out commit."""
        if self._is_exported or self._is_in_actions:
            return True
        return bool((self._refs_with(self.head, "refs/remotes") or "").strip())

    @cached_property
    def is_branch_head(self) -> bool:
        """True if the checked-out commit is the head of its remote's branch, as just fetched."""
        if self._is_exported:
            return True
        branch = self._environ.get("GITHUB_REF", "").removeprefix("refs/heads/")
        if not self._is_in_actions or branch == self._environ.get("GITHUB_REF", ""):
            return False
        return self._git.commit(f"refs/remotes/origin/{branch}") == self.head

    def has(self, commit: str) -> bool:
        """Return True if the commit is here."""
        return self._git.commit(commit) == commit

    def is_ancestor(self, commit: str, of: str) -> bool:
        """Return True if the commit is here and an ancestor of another one."""
        return self._git.ask("merge-base", "--is-ancestor", commit, of) is not None

    def was_left(self, commit: str) -> bool:
        """Return True if the clone had the commit on a branch or checked out, and has it on neither now.

        An object alone says nothing: it may be borrowed from another clone, or fetched without a branch.
        """
        # Where git fails, the commit is compared.
        refs = self._refs_with(commit, *_BRANCHES)
        if refs is None or refs.strip() or self._is_in_worktree(commit):
            return False
        logged = self._git.ask("rev-list", "--walk-reflogs", "HEAD", "--all") or ""
        # A clone of this process's own fetches its branch alone, and keeps no log.
        return self._is_exported or commit in logged.split()

    def _is_in_worktree(self, commit: str) -> bool:
        """Return True if another worktree has the commit, whose HEAD may be on no branch."""
        listed = (self._git.ask("worktree", "list", "--porcelain") or "").splitlines()
        heads = {line.removeprefix("HEAD ") for line in listed if line.startswith("HEAD ")}
        return any(self.is_ancestor(commit, head) for head in heads - {self.head})

    def shares(self, commits: tuple[str, ...]) -> bool:
        """Return True if HEAD and any of these commits that are here have a common ancestor."""
        return bool(self.nearest_common(commits))

    def nearest_common(self, commits: Sequence[str]) -> str:
        """Return the nearest common ancestor of HEAD and those of the commits that are here; "" for none."""
        ids = "".join(f"{commit}\n" for commit in commits)
        try:
            listed = self._git.run("cat-file", "--batch-check", stdin=ids.encode()).decode()
        except GitError:
            return ""
        known_commits = [line.split()[0] for line in listed.splitlines() if line.split()[1:2] == ["commit"]]
        return (
            (self._git.ask("merge-base", self.head, *known_commits) or "") if known_commits else ""
        ).strip()

    def descendants(self, commit: str) -> set[str]:
        """Return the descendants of a commit that are ancestors of HEAD, and HEAD."""
        listed = self._git.ask("rev-list", "--ancestry-path", self.head, f"^{commit}")
        return {*(listed or "").split()}

    def first_parent(self, commit: str) -> str:
        """Return the first parent of a commit; "" for a root."""
        return self._git.commit(f"{commit}^1") or ""

    def since(self, commit: str, most: int) -> list[str]:
        """Return HEAD's first parents that aren't ancestors of a commit here, newest first, without HEAD."""
        listed = self._git.ask(
            "rev-list", "--first-parent", f"--max-count={most + 1}", self.head, f"^{commit}"
        )
        return [sha for sha in (listed or "").split() if sha != self.head][:most]

    def ancestors(self, most: int) -> tuple[str, ...]:
        """Return the newest ancestors of HEAD, newest first, without HEAD."""
        listed = self._git.ask("rev-list", f"--max-count={most + 1}", self.head) or ""
        return tuple(sha for sha in listed.split() if sha != self.head and SHA.fullmatch(sha))[:most]

    @property
    def _is_in_actions(self) -> bool:
        return self._environ.get("GITHUB_ACTIONS") == "true"

    def _refs_with(self, commit: str, *below: str) -> str | None:
        return self._git.ask("for-each-ref", "--count=1", f"--contains={commit}", *below)
