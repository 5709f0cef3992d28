"""Commits and objects of a repository, read and made without running programs that its settings name."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from reconciler.base.errors import MachineError, NotFoundError, ReconcilerError
from reconciler.base.git_command import (
    SHA,
    TIMEOUT,
    VERIFY,
    CorruptObjectError,
    Git,
    GitError,
    is_corrupt,
)
from reconciler.base.replaced_files import write_file
from reconciler.base.sanitize import one_line


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
    own, around = (_top_of(folder) for folder in (file.parent, root))
    if own != around:
        where = os.path.relpath(own, root)
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


MAX_BYTES = 1_000_000_000
"""The maximum number of bytes to read, trees included."""

_CHUNK = 1 << 20
# Ids per request: they fit into the smallest pipe, 4 KiB. With more, git and this process could deadlock.
_GROUP = 64
_ID_BYTES = 20
_MODE = re.compile(rb"[0-7]{5,6}")
_GITLINK = 0o160000
_WHOLE_CLONE = (
    "a clone made with --filter lacks objects, and this command fetches none: "
    "run `git fetch --refetch --no-filter`"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a tree.

    Attributes:
        mode: The mode in git.
        id: The object's, 40 hex digits.
        commit: The recorded commit of a submodule whose tree this is; "" for others.
    """

    mode: int
    id: str
    commit: str = ""

    @property
    def is_folder(self) -> bool:
        """Return True for a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Return True for a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        """Return True for a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def is_submodule(self) -> bool:
        """Return True for a commit of another repository."""
        return self.mode == _GITLINK


class Objects:
    """Reader of objects through a single `git cat-file` process."""

    def __init__(self, git: Git) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as git runs)
        self._git = git.start("cat-file", "--batch", stderr=self._errors)
        assert self._git.stdin, "it is a pipe"
        assert self._git.stdout, "it is a pipe"
        self._requests, self._responses = self._git.stdin, self._git.stdout
        self._left = MAX_BYTES

    def close(self) -> None:
        """Kill the git process."""
        self._git.kill()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._responses.close()
        self._git.wait()
        self._errors.close()

    def read(self, id: str, kind: str, most: int = MAX_BYTES) -> bytes:
        """Return a small object as bytes."""
        return b"".join(self.chunks(id, kind, most))

    def chunks(self, id: str, kind: str, most: int = MAX_BYTES) -> Iterator[bytes]:
        """Yield the bytes of an object in chunks; the caller must read them to the end."""
        self._request([id])
        yield from self._response(id, kind, most)

    def read_many(self, ids: Sequence[str], kind: str) -> Iterator[bytes]:
        """Yield complete objects in the order of their ids; the caller must read them all."""
        # Groups let git send objects while this process reads, instead of taking turns.
        for start in range(0, len(ids), _GROUP):
            group = ids[start : start + _GROUP]
            self._request(group)
            for id in group:
                yield b"".join(self._response(id, kind, MAX_BYTES))

    def _response(self, id: str, kind: str, most: int) -> Iterator[bytes]:
        left = self._size(id, kind)
        # The limit on all objects bounds the work on a hostile commit.
        self._left -= left
        if left > most or self._left < 0:
            raise too_much(f"{MAX_BYTES // 1_000_000:,} MB")
        while left:
            piece = self._receive(id, min(left, _CHUNK))
            left -= len(piece)
            yield piece
        self._receive(id, 1)  # the line end after each object

    def _request(self, ids: Sequence[str]) -> None:
        try:
            self._requests.write("".join(f"{id}\n" for id in ids).encode())
            self._requests.flush()
        except BrokenPipeError:
            self._ended(ids[0])

    def _size(self, id: str, kind: str) -> int:
        # `<id> <type> <size>` or `<id> missing`: https://git-scm.com/docs/git-cat-file#_batch_output
        fields = self._responses.readline().split()
        if len(fields) == 2 and fields[1] == b"missing":
            self._refuse_corrupt(id)
            hint = f"{_WHOLE_CLONE}; or see `git fsck`"
            raise NotFoundError(f"git has no object {id}, which the commit needs", hint=hint)
        if len(fields) != 3:
            self._ended(id)
        if fields[1].decode() != kind:
            raise GitError(f"git's object {id} is not a {kind}", hint="see `git fsck`")
        return int(fields[2])

    def _receive(self, id: str, size: int) -> bytes:
        piece = self._responses.read(size)
        if len(piece) < size:
            self._ended(id)
        return piece

    def _ended(self, id: str) -> NoReturn:
        self._git.wait(TIMEOUT)
        self._refuse_corrupt(id)
        raise GitError("git ended while the commit was read", hint=f"{_WHOLE_CLONE}; or see `git fsck`")

    def _refuse_corrupt(self, id: str) -> None:
        self._errors.seek(0)
        if is_corrupt(self._errors.read(_CHUNK)):
            raise CorruptObjectError(id)


def too_much(what: str) -> ReconcilerError:
    """Return the error for a commit that exceeds a limit."""
    return ReconcilerError(
        f"the commit holds more than {what} of manifests and the code that they name",
        hint="name the files or folders of some manifests",
    )


def entries(data: bytes) -> Mapping[str, Entry]:
    """Parse a tree object: for each entry the mode, a blank, the name, a zero byte and the id."""
    found: dict[str, Entry] = {}
    while data:
        head, _, rest = data.partition(b"\0")
        mode, _, name = head.partition(b" ")
        id, data = rest[:_ID_BYTES], rest[_ID_BYTES:]
        if not _is_sound(mode, name) or len(id) < _ID_BYTES:
            shown = one_line(name.decode("utf-8", "backslashreplace"))
            raise GitError(
                f'the commit has an entry that git doesn\'t make: "{shown}"', hint="see `git fsck`"
            )
        found[os.fsdecode(name)] = Entry(int(mode, 8), id.hex())
    return found


def _is_sound(mode: bytes, name: bytes) -> bool:
    # git writes no other names, but a crafted object can: these would lead out of the folder.
    return _MODE.fullmatch(mode) is not None and name not in (b"", b".", b"..") and b"/" not in name
