"""Safe execution of git: a repository's settings can't make it run other programs.

Repositories can configure hooks, file monitors, filters, remote helpers and lazy fetches, which all run
programs. Every command here disables them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from reconciler.base.errors import ReconcilerError, check_machine
from reconciler.base.sanitize import one_line

if TYPE_CHECKING:
    import subprocess

TIMEOUT = 60.0

SHA = re.compile(r"[0-9a-f]{40}")
"""The full hash of a commit."""

VERIFY = ("rev-parse", "--verify", "--quiet", "--end-of-options")
"""The arguments before a name of a commit, whose hash git then prints."""

_FILTER = re.compile(r"filter\..+(?=\.[^.]+\Z)", re.DOTALL)
_FILTER_OFF = ("clean=", "process=", "smudge=", "required=false")
# Only the repository's filters are disabled: those of the user and the machine are as trusted as git itself.
_OWN_SCOPES = ("local", "worktree")
# git sets these for its hooks. Inherited by a command that a hook runs, they select another repository.
_ALTERNATES = "GIT_ALTERNATE_OBJECT_DIRECTORIES"
_ELSEWHERE = (
    _ALTERNATES,
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
# Disables hooks and file monitors.
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
# A commit can contain a folder that looks like a bare repository and brings settings of its own.
_NOT_BARE = ("-c", "safe.bareRepository=explicit")
# Disables remote helpers, fetches of the objects that a partial clone lacks, prompts, and translated
# messages.
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


# git's words for an object that it can't read: its file is empty, is not compressed, ends too early, or has
# another checksum.
_CORRUPT = re.compile(
    rb"^(?:error|fatal): (?:inflate: |object file .* is empty$|unable to (?:unpack|stream) [0-9a-f]{40} "
    rb"|corrupt loose object |(?:loose|packed) object [0-9a-f]{40} .* is corrupt$)",
    re.MULTILINE,
)
# What git prints to run for a repository of another user ("dubious ownership").
_TRUSTING = re.compile(rb"git config --global --add safe\.directory [^\n]+")
_OBJECT = re.compile(rb"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")


class GitError(ReconcilerError):
    """Error for a missing or failed git; the message is the line in which git reports the reason."""


class CorruptObjectError(GitError):
    """Error for an object that git has and can't read."""

    def __init__(self, id: str = "") -> None:
        what = f"git's object {id} is" if id else "git's objects are"
        super().__init__(f"{what} corrupt", hint="see `git fsck`, or clone the repository anew")


class Git:
    """Runner of git in one folder that prevents git from running other programs.

    Args:
        root: A folder of the work tree.
        environ: The environment variables, by default the process's.
        protocols: The permitted protocols of remotes, as in GIT_ALLOW_PROTOCOL; none by default.
        bare: True if `root` is a repository without a work tree. False makes git ignore bare repositories, as
            a commit can contain a folder that looks like one.
        objects: Folders of other repositories' objects, which git reads like its own.
    """

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str] | None = None,
        *,
        protocols: Sequence[str] = (),
        bare: bool = False,
        objects: Iterable[Path] = (),
    ) -> None:
        given = os.environ if environ is None else environ
        self._root = root
        self._git = ("git", *_HARMLESS) if bare else ("git", *_HARMLESS, *_NOT_BARE)
        self._environ = {
            **{name: value for name, value in given.items() if name not in _ELSEWHERE},
            **_ENVIRONMENT,
            **({"GIT_ALLOW_PROTOCOL": ":".join(protocols)} if protocols else {}),
        }
        if alternates := [_quoted(os.fspath(folder)) for folder in objects]:
            self._environ[_ALTERNATES] = os.pathsep.join(alternates)

    def run(self, *arguments: str, stdin: bytes = b"", timeout: float = TIMEOUT) -> bytes:
        """Return the output of git; raises GitError."""
        import subprocess  # slow to import, and most commands start no git

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
            if is_corrupt(error.stderr):
                raise CorruptObjectError(_object_in(error.stderr)) from None
            reason = _reason(error.stderr) or f"git exited with {error.returncode}"
            trusting = _TRUSTING.search(error.stderr)
            hint = f"if you trust it, run `{trusting[0].decode(errors='replace')}`" if trusting else ""
            raise GitError(reason, hint=hint) from None
        except subprocess.TimeoutExpired:
            raise GitError(f"git took longer than {timeout:.0f} s") from None
        except OSError as error:
            raise _cant_be_run(error) from None
        return done.stdout

    def start(self, *arguments: str, stderr: BinaryIO) -> subprocess.Popen[bytes]:
        """Start git with pipes for its input and output, and a file for its error output."""
        import subprocess  # as in `run`

        try:
            return subprocess.Popen(
                [*self._git, *arguments],
                cwd=self._root,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        except OSError as error:
            raise _cant_be_run(error) from None

    def refuse_corrupt(self, *arguments: str) -> None:
        """Raise CorruptObjectError if git fails because of an object that it can't read."""
        try:
            self.run(*arguments)
        except CorruptObjectError:
            raise
        except GitError:
            return

    def ask(self, *arguments: str, stdin: bytes = b"") -> str | None:
        """Return the output of git; None if git is missing or fails."""
        try:
            return self.run(*arguments, stdin=stdin).decode("utf-8", "surrogateescape")
        except GitError:
            return None

    def commit(self, name: str) -> str | None:
        """Return the full hash of the commit that `name` refers to; None if no such commit exists."""
        output = self.ask(*VERIFY, f"{name}^{{commit}}")
        sha = (output or "").strip()
        return sha if SHA.fullmatch(sha) else None

    def is_clean(self) -> bool:
        """Return True if the work tree equals its commit, whatever the settings would omit."""
        switched_off = self.filters_off()
        if switched_off is None:
            return False
        status = ("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none")
        return self.ask(*switched_off, *status) == ""

    def filters_off(self) -> list[str] | None:
        """Return options that disable the filters of the repository's settings; None if impossible."""
        listed = self.ask("config", "--list", "--show-scope", "--includes", "--name-only", "-z")
        if listed is None:
            return None
        fields = listed.split("\0")
        names = {name for scope, name in zip(fields[::2], fields[1::2], strict=False) if scope in _OWN_SCOPES}
        sections = {match[0] for name in names if (match := _FILTER.match(name))}
        # `-c` ends a name at its first "=", so no option can disable such a filter.
        if any("=" in section for section in sections):
            return None
        settings = [f"{section}.{off}" for section in sorted(sections) for off in _FILTER_OFF]
        return [word for setting in settings for word in ("-c", setting)]


def is_corrupt(stderr: bytes) -> bool:
    """Return True if git's error output is about an object that it has and can't read."""
    return _CORRUPT.search(stderr) is not None


def _quoted(path: str) -> str:
    """Return a path as git takes it in a list of folders of objects, where it may have any characters."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _object_in(stderr: bytes) -> str:
    match = _OBJECT.search(stderr)
    return match[0].decode() if match else ""


def _cant_be_run(error: OSError) -> GitError:
    check_machine(error, "git can't be run")
    return GitError(f"git can't be run: {error.strerror}", hint="install git")


def _reason(stderr: bytes) -> str:
    # The first error line: advice may follow it.
    lines = [line for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return one_line((errors or lines[-1:])[0]) if lines else ""
