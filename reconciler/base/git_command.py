"""git, run so that nothing that a repository says can run anything else.

Hooks, file monitors, filters, helpers of remotes and lazy fetches are the ways in which a repository's own
settings run programs; none of them does here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from reconciler.base.errors import ReconcilerError
from reconciler.base.sanitize import one_line

TIMEOUT = 60.0

SHA = re.compile(r"[0-9a-f]{40}")
"""A commit's full name."""

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
_NOT_BARE = ("-c", "safe.bareRepository=explicit")
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class GitError(ReconcilerError):
    """git isn't there, or couldn't do it; the message is the line in which git says why."""


class Git:
    """git in one folder, unable to run anything else.

    Args:
        root: A folder of the work tree.
        environ: The environment variables, by default the process's.
        protocols: What remotes may be reached by, as GIT_ALLOW_PROTOCOL has it; by default none may.
        bare: Whether `root` is a repository without a work tree. Else a folder that only looks like one, as a
            commit can hold it, is none.
    """

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str] | None = None,
        *,
        protocols: Sequence[str] = (),
        bare: bool = False,
    ) -> None:
        given = os.environ if environ is None else environ
        self._root = root
        self._git = ("git", *_HARMLESS) if bare else ("git", *_HARMLESS, *_NOT_BARE)
        self._environ = {
            **{name: value for name, value in given.items() if name not in _ELSEWHERE},
            **_ENVIRONMENT,
            **({"GIT_ALLOW_PROTOCOL": ":".join(protocols)} if protocols else {}),
        }

    def run(self, *arguments: str, stdin: bytes = b"", timeout: float = TIMEOUT) -> bytes:
        """What git prints; raises GitError."""
        try:
            done = subprocess.run(
                [*self._git, *arguments],
                cwd=self._root,
                env=self._environ,
                input=stdin,
                capture_output=True,
                timeout=timeout,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise GitError(_reason(error.stderr) or f"git ended with {error.returncode}") from None
        except subprocess.TimeoutExpired:
            raise GitError(f"git took longer than {timeout:.0f} s") from None
        except OSError as error:
            raise _cant_be_run(error) from None
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """git as a process that answers what is written to it; what it complains of is dropped."""
        try:
            return subprocess.Popen(
                [*self._git, *arguments],
                cwd=self._root,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise _cant_be_run(error) from None

    def ask(self, *arguments: str) -> str | None:
        """What git prints; None where there is no git, or it fails."""
        try:
            return self.run(*arguments).decode("utf-8", "surrogateescape")
        except GitError:
            return None

    def commit(self, name: str) -> str | None:
        """The full name of the commit that `name` means here; None where it means none."""
        found = self.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        sha = (found or "").strip()
        return sha if SHA.fullmatch(sha) else None

    def is_clean(self) -> bool:
        """Whether the work tree is exactly its commit, whatever the settings would leave out."""
        switched_off = self.filters_off()
        if switched_off is None:
            return False
        status = ("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none")
        return self.ask(*switched_off, *status) == ""

    def filters_off(self) -> list[str] | None:
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


def _cant_be_run(error: OSError) -> GitError:
    return GitError(f"git can't be run: {error.strerror}", hint="install git")


def _reason(stderr: bytes) -> str:
    """The first line that says what went wrong: advice may follow it. Else the last one."""
    lines = [line for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return one_line((said or lines[-1:])[0]) if lines else ""
