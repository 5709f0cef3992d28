"""A branch of a remote repository, fetched and checked out for the loop alone.

What a repository says is data: no hook, filter, submodule or large-file helper runs, neither when it is
fetched nor when it is checked out. Credentials are git's own concern: the helpers that the user's settings
name are asked, and nobody is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from reconciler.base.diagnostics import quote
from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.git_command import Git, GitError
from reconciler.base.sanitize import one_line

FETCH_TIMEOUT = 900.0
"""Seconds that one fetch may take: the first one brings the branch's whole history."""

_REF = "refs/watched"
_CANT_FETCH = (
    "check the address and the branch, and that git's credential helper or ssh key lets this user read it: "
    "nobody is asked"
)
_NO_CREDENTIALS = "every process can see the address: let a credential helper of git keep what is secret"
# user@host:path, as ssh has it; a path before the first colon, an option or a mistyped URL is none.
_SCP = re.compile(
    r"(?!(?:https?|ssh|file|git):)(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9][\w.-]*:(?!:)[^\0\n]+", re.ASCII
)
_PROTOCOLS = {"https": ("https", "ssh"), "ssh": ("https", "ssh"), "file": ("file",)}
# Collecting garbage goes on in the foreground, where an end of ours ends it too.
_FETCHING = (
    *("-c", "gc.autoDetach=false", "-c", "maintenance.autoDetach=false"),
    *("-c", "fetch.recurseSubmodules=false", "-c", "submodule.recurse=false"),
)
# Without anybody's settings no name of a filter means anything.
_NO_SETTINGS = {
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def checked_url(url: str) -> str:
    """The address of a remote; raises UsageError where it isn't https, ssh or file, or holds a secret."""
    address = _address(url)
    if address is None:
        raise UsageError(
            f"{quote(url)} is no address of a repository that can be watched",
            hint="write https://…, ssh://…, user@host:path or file:///…",
        )
    scheme, user, password = address
    if password or (user and scheme == "https"):
        raise UsageError("the address of the repository holds credentials", hint=_NO_CREDENTIALS)
    return url


def _address(url: str) -> tuple[str, str, str] | None:
    """Protocol, user and password; None where it is no address, or a program would read an option in it."""
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
    """The name of a branch; raises UsageError where no branch can have it."""
    if Git(Path.cwd()).ask("check-ref-format", f"refs/heads/{name}") is None or name.startswith("-"):
        raise UsageError(f"{quote(name)} is no name of a branch")
    return name


class Clone:
    """The branch, in a folder of its own below the home; one process at a time has it.

    Attributes:
        tree: Where the newest commit that was fetched is checked out, exactly.
        commit: That commit; "" before the first.

    Args:
        home: Where runs leave their things.
        url: The remote, as `checked_url` gave it.
        branch: The branch.
        environ: The environment variables.
    """

    def __init__(self, home: Path, url: str, branch: str, environ: Mapping[str, str]) -> None:
        address = _address(url)
        assert address is not None, "the address was checked"
        name = hashlib.sha256(f"{url}\0{branch}".encode()).hexdigest()[:16]
        self._folder = home / "watch" / name
        self._git_folder = self._folder / "git"
        self._url = url
        self._branch = branch
        self._environ = environ
        self._protocols = _PROTOCOLS[address[0]]
        self._lock = -1
        self.tree = self._folder / "tree"
        self.commit = ""

    def open(self) -> None:
        """Make it this process's, and remove what a killed one left; raises ServiceError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                "this branch is watched already: another process has its clone",
                hint="end that one, or name another folder in RECONCILER_HOME",
            ) from None
        except OSError as error:
            raise ServiceError(f"{self._folder} can't be used: {error.strerror}") from None
        for left in self._git_folder.rglob("*.lock"):
            left.unlink()
        _remove(self.tree)

    def close(self) -> None:
        """Let another process have it."""
        if self._lock >= 0:
            os.close(self._lock)

    def refresh(self) -> bool:
        """Fetch the branch, and check it out where it has moved; whether it had.

        Raises:
            GitError: It can't be fetched; what was fetched before stays.
        """
        self._fetch()
        newest = Git(self._git_folder, self._environ, bare=True).commit(_REF)
        if newest is None:
            raise GitError(f"what the branch {self._branch} points to is no commit")
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
        wanted = f"refs/heads/{self._branch}:{_REF}"
        options = ("--quiet", "--force", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
        git = Git(self._git_folder, self._environ, protocols=self._protocols, bare=True)
        fetch = (*_FETCHING, "fetch", *options, "--end-of-options", self._url, wanted)
        try:
            git.run(*fetch, timeout=FETCH_TIMEOUT)
        except GitError as error:
            said = f"{one_line(self._url)} can't be fetched: {error.message}"
            raise GitError(said, hint=error.hint or _CANT_FETCH) from None

    def _check_out(self, commit: str) -> None:
        """Make the tree anew beside the old one, which it then replaces: no file of another commit stays."""
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
