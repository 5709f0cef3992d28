"""The branch of a remote as a source for the loop, in a private clone.

Neither fetching nor checking out runs a hook, filter, submodule or large-file helper of the repository. git
gets credentials from the helpers in the user's settings and never prompts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from reconciler.base.diagnostics import quote
from reconciler.base.errors import MachineError, ServiceError, UsageError, machine_error
from reconciler.base.git_command import Git, GitError
from reconciler.base.sanitize import one_line
from reconciler.git.index import GitIndex
from reconciler.model.plan import DesiredJob
from reconciler.model.tracking import Committed
from reconciler.operations.watch.report import PassReporter
from reconciler.operations.watch.state import Checkout
from reconciler.operations.watch.wakeups import Chance, Wakes, backoff

FETCH_TIMEOUT = 900.0
"""The time limit of a fetch in seconds: the first one transfers the branch's whole history."""

_REF = "refs/watched"
_CANT_FETCH = (
    "check the address and the branch, and that git's credential helper or ssh key lets this user read it: "
    "git can't ask here"
)
_NO_CREDENTIALS = "other processes can see the address: keep the secret in a git credential helper"
# user@host:path of ssh, but no path with a colon, no option and no mistyped URL.
_SCP = re.compile(
    r"(?!(?:https?|ssh|file|git):)(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9][\w.-]*:(?!:)[^\0\n]+", re.ASCII
)
_PROTOCOLS = {"https": ("https", "ssh"), "ssh": ("https", "ssh"), "file": ("file",)}
# Garbage collection stays in the foreground, so that it ends with this process.
_FETCHING = (
    *("-c", "gc.autoDetach=false", "-c", "maintenance.autoDetach=false"),
    *("-c", "fetch.recurseSubmodules=false", "-c", "submodule.recurse=false"),
)
# Without settings, attributes that name a filter have no effect.
_NO_SETTINGS = {
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def checked_url(url: str) -> str:
    """Return the address of a remote; raises UsageError unless it is https, ssh or file without a secret."""
    parts = _parts_of(url)
    if parts is None:
        raise UsageError(
            f"{quote(url)} is not the address of a repository that can be watched",
            hint="write https://…, ssh://…, user@host:path or file:///…",
        )
    scheme, user, password = parts
    if password or (user and scheme == "https"):
        raise UsageError("the address of the repository holds credentials", hint=_NO_CREDENTIALS)
    return url


def _parts_of(url: str) -> tuple[str, str, str] | None:
    """Return protocol, user and password; None if the address is invalid or reads as a program's option."""
    if _SCP.fullmatch(url) and "://" not in url:
        return "ssh", "", ""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return None
    if not url.isprintable() or parts.scheme not in _PROTOCOLS or host.startswith("-"):
        return None
    if (parts.scheme == "file") != (not host) or not parts.path.strip("/"):
        return None
    if (parts.username or "").startswith("-"):
        return None
    return parts.scheme, parts.username or "", parts.password or ""


def checked_branch(name: str) -> str:
    """Return the name of a branch; raises UsageError if it is invalid."""
    if Git(Path.cwd()).ask("check-ref-format", f"refs/heads/{name}") is None or name.startswith("-"):
        raise UsageError(f"{quote(name)} is not a branch name")
    return name


class Clone:
    """Clone of a branch in a private folder below the home, locked by the process that uses it.

    Attributes:
        tree: The folder with an exact checkout of the newest fetched commit.
        commit: That commit; "" before the first fetch.
    """

    def __init__(self, home: Path, url: str, branch: str, environ: Mapping[str, str]) -> None:
        parts = _parts_of(url)
        assert parts is not None, "`checked_url` returned the address"
        name = hashlib.sha256(f"{url}\0{branch}".encode()).hexdigest()[:16]
        self._folder = home / "watch" / name
        self._git_folder = self._folder / "git"
        self._url = url
        self._branch = branch
        self._environ = environ
        self._protocols = _PROTOCOLS[parts[0]]
        self._lock = -1
        self.tree = self._folder / "tree"
        self.commit = ""

    def open(self) -> None:
        """Lock the clone, and remove leftovers of a killed process; raises ServiceError for a held lock."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                "this branch is already being watched: another process uses its clone",
                hint="stop that process, or name another folder in RECONCILER_HOME",
            ) from None
        except OSError as error:
            raise ServiceError(f"{self._folder} can't be used: {error.strerror}") from None
        # git refuses to work beside its lock files, which a killed process leaves behind.
        for lock_file in self._git_folder.rglob("*.lock"):
            lock_file.unlink()
        _remove(self.tree)

    def close(self) -> None:
        """Unlock the clone."""
        if self._lock >= 0:
            os.close(self._lock)

    def refresh(self) -> bool:
        """Fetch the branch and check out a new commit; return True for a new commit.

        Raises:
            GitError: The fetch failed; the earlier checkout stays.
        """
        self._fetch()
        newest = Git(self._git_folder, self._environ, bare=True).commit(_REF)
        if newest is None:
            raise GitError(f"the branch {self._branch} doesn't point to a commit")
        if newest == self.commit:
            return False
        self._check_out(newest)
        self.commit = newest
        return True

    def _fetch(self) -> None:
        if not (self._git_folder / "HEAD").is_file():
            _remove(self._git_folder)
            Git(self._folder, self._environ).run(
                "init", "--quiet", "--bare", "--template=", "--object-format=sha1", str(self._git_folder)
            )
        refspec = f"refs/heads/{self._branch}:{_REF}"
        options = ("--quiet", "--force", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
        git = Git(self._git_folder, self._environ, protocols=self._protocols, bare=True)
        fetch = (*_FETCHING, "fetch", *options, "--end-of-options", self._url, refspec)
        try:
            git.run(*fetch, timeout=FETCH_TIMEOUT)
        except GitError as error:
            message = f"{one_line(self._url)} can't be fetched: {error.message}"
            raise GitError(message, hint=error.hint or _CANT_FETCH) from None

    def _check_out(self, commit: str) -> None:
        # Into a new folder that then replaces the old one, so that no file of another commit remains.
        made = self._folder / "tree.new"
        _remove(made)
        made.mkdir()
        for left in (self._git_folder / "index", self._git_folder / "index.lock"):
            left.unlink(missing_ok=True)
        git = Git(made, {**self._environ, **_NO_SETTINGS})
        at = (f"--git-dir={self._git_folder}", f"--work-tree={made}", "-c", "core.bare=false")
        git.run(*at, "checkout", "--quiet", "--force", "--detach", commit, timeout=FETCH_TIMEOUT)
        (made / ".git").write_text(f"gitdir: {self._git_folder}\n", encoding="utf-8")
        Git(self._git_folder, self._environ, bare=True).run("config", "core.bare", "false")
        _remove(self.tree)
        made.rename(self.tree)


def _remove(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


@dataclass(slots=True)
class RemoteBranch:
    """Branch of a remote, fetched every `interval` seconds, with a backoff after failures."""

    clone: Clone
    environ: Mapping[str, str]
    environment: str | None
    interval: float
    wakes: Wakes
    reporter: PassReporter
    chance: Chance
    due: float = field(default=0.0, init=False)
    _failures: int = field(default=0, init=False)

    def refresh(self, changed: bool) -> bool:
        """Fetch the branch if due; report an error and keep the previous commit."""
        if time.monotonic() < self.due:
            return False
        moved = False
        try:
            # A fetch from a slow remote must not delay a stop.
            with self.wakes.left_off_at_stop():
                moved = self.clone.refresh()
            self._failures = 0
            self.reporter.fetched(self.clone.commit if moved else "", None)
        except (GitError, MachineError) as error:
            self._failures += 1
            self.reporter.fetched("", error)
        except OSError as error:
            self._failures += 1
            self.reporter.fetched("", machine_error(error))
        later = backoff(self._failures, self.chance) if self._failures else 0.0
        self.due = time.monotonic() + self.interval + later
        return moved

    def checkout(self) -> Checkout | None:
        """Return the last fetched commit; None before the first."""
        clone = self.clone
        if not clone.commit:
            return None
        # No submodule is fetched.
        index = Committed(GitIndex(clone.tree, self.environ).submodules)
        return Checkout(
            clone.tree, clone.commit, self.environ, self.environment, is_exported=True, index=index
        )

    def follow(self, jobs: Sequence[DesiredJob]) -> None:
        """Do nothing: only a fetch brings changes."""
