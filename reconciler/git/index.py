"""git's index: the files that git tracks, their modes, and those that it leaves out of the work tree."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath

from msgspec import Struct

from reconciler.base import safe_files
from reconciler.base.checkout import checkout_of, git_folder, repository_in
from reconciler.base.git_command import Git, GitError

_SUBMODULE = 0o160000
_LEFT_OUT = "S"  # the tag of `git ls-files -t` for skip-worktree
# https://git-scm.com/docs/index-format: the signature, and version 2, which has no extended flags.
_PLAIN_INDEX = b"DIRC\x00\x00\x00\x02"
# What `git init` writes where executable bits and links work; it counts before the user's and the machine's.
_USUAL = re.compile(rb"^[ \t]*filemode[ \t]*=[ \t]*true\b", re.IGNORECASE | re.MULTILINE)
_UNUSUAL = re.compile(
    rb"filemode[ \t]*(?!=[ \t]*true\b)[^ \t]|symlinks|\[include|worktreeconfig", re.IGNORECASE
)
_MOST = 1 << 20
_MOST_INDEX = 1 << 28
# The mode of a submodule, as each version of the format has it in an entry.
_SUBMODULE_MODE = _SUBMODULE.to_bytes(4)
_SETTINGS = r"^core\.(filemode|symlinks)$"


class IndexEntry(Struct, frozen=True, gc=False):
    """Tracked file.

    Attributes:
        mode: Its mode in git: 0o100644, 0o100755, 0o120000 for a link or 0o160000 for a submodule.
        is_left_out: True if git may leave it out of the work tree (skip-worktree): in a sparse checkout.
        is_unmerged: True if a merge of it left a conflict.
        commit: The recorded commit of a submodule, 40 hex digits; "" for others.
    """

    mode: int
    is_left_out: bool
    is_unmerged: bool
    commit: str = ""


class GitIndex:
    """Index of the files below a folder, read when it is first needed, and once.

    It is empty without a repository, and where git refuses to read it. All paths are relative to the folder,
    with "/". As the start of git takes as long as a short plan, the repository's own files decide first
    whether it has to be asked.

    Args:
        root: A folder of the work tree.
        environ: The environment variables.
        by_record: True if the recorded commits of submodules are to stand for their files, fetched or not.
    """

    def __init__(self, root: Path, environ: Mapping[str, str], *, by_record: bool = False) -> None:
        self._root = root
        self._environ = environ
        self._by_record = by_record

    @property
    def refusal(self) -> GitError | None:
        """The error of git, if it was asked or has to be, as for a repository of another user; else None."""
        # In Actions, git may be missing altogether: actions/checkout then brings files without a repository.
        is_to_be_asked = self._environ.get("GITHUB_ACTIONS") == "true" or not self._is_own
        return self._listed[1] if is_to_be_asked or "_listed" in vars(self) else None

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """The tracked files that git may leave out of the work tree, sorted."""
        if self._has_plain_entries:
            return ()
        return tuple(sorted(path for path, entry in self.entries.items() if entry.is_left_out))

    @cached_property
    def entries(self) -> Mapping[str, IndexEntry]:
        """The tracked files by path."""
        lines = self._listed[0].decode("utf-8", "surrogateescape").split("\0")
        entries = {}
        for line in filter(None, lines):
            about, _, path = line.partition("\t")
            tag, digits, id, stage = about.split(" ")
            mode = int(digits, 8)
            commit = id if mode == _SUBMODULE else ""
            entries[path] = IndexEntry(mode, tag == _LEFT_OUT, stage != "0", commit)
        return entries

    @cached_property
    def links(self) -> tuple[str, ...]:
        """The tracked links, where some of the tracked files may be missing or other ones; else none."""
        if not self.left_out and self._settings.get("core.symlinks") != "false":
            return ()
        return tuple(path for path, entry in self.entries.items() if stat.S_ISLNK(entry.mode))

    @cached_property
    def submodules(self) -> Mapping[str, str]:
        """The recorded commits of the submodules, by path.

        Raises:
            GitError: There are submodules, and git can't read the index.
        """
        if not self._may_have_submodules:
            return {}
        return {path: entry.commit for path, entry in self.entries.items() if entry.commit}

    @cached_property
    def unread(self) -> Mapping[str, str]:
        """The recorded commits of submodules that aren't fetched, or of all `by_record`, by path.

        It has those in fetched submodules too.
        """
        if self._by_record:
            return self.submodules
        commits = {}
        for path, commit in self.submodules.items():
            folder = self._root / path
            if _is_unfetched(folder):
                commits[path] = commit
            elif repository_in(folder):
                inner = GitIndex(folder, self._environ).unread
                commits |= {f"{path}/{below}": recorded for below, recorded in inner.items()}
        return commits

    def tracks(self, path: str) -> bool:
        """Return True for a tracked file, for a folder with one, and for what a submodule has."""
        return path in self.entries or path in self._folders or self._is_in_submodule(path)

    def is_executable(self, path: str) -> bool | None:
        """Return git's executable bit of a file; None where the file system's counts (core.fileMode)."""
        if self._settings.get("core.filemode") != "false" or self._listed[1]:
            return None
        if self._is_in_submodule(path):
            return None
        entry = self.entries.get(path)
        return entry is not None and bool(entry.mode & stat.S_IXUSR)

    def is_link(self, path: str) -> bool:
        """Return True for a link in git that the checkout has as a file (core.symlinks)."""
        if self._settings.get("core.symlinks") != "false":
            return False
        entry = self.entries.get(path)
        return entry is not None and stat.S_ISLNK(entry.mode)

    def hidden(self, paths: Iterable[str]) -> list[str]:
        """Return the untracked files that git ignores, in order, if it has exclude files beside `.gitignore`.

        The caller has left out what a `.gitignore` of the root or below it excludes.
        """
        if not self._checkout or not self._has_own_excludes:
            return []
        untracked = [path for path in paths if path not in self.entries]
        asked = "".join(f"{path}\0" for path in untracked).encode("utf-8", "surrogateescape")
        # Without a match, git ends as with an error.
        said = self._git.ask("check-ignore", "-z", "--stdin", stdin=asked) if untracked else ""
        return [path for path in (said or "").split("\0") if path]

    @cached_property
    def _listed(self) -> tuple[bytes, GitError | None]:
        try:
            if self._checkout:
                return self._git.run("ls-files", "--stage", "-t", "-z"), None
            self._git.run("--version")
        except GitError as error:
            return b"", error
        return b"", None

    @cached_property
    def _git(self) -> Git:
        return Git(self._root, self._environ)

    @cached_property
    def _folders(self) -> frozenset[str]:
        return frozenset(parent.as_posix() for path in self.entries for parent in PurePosixPath(path).parents)

    def _is_in_submodule(self, path: str) -> bool:
        above = (self.entries.get(parent.as_posix()) for parent in PurePosixPath(path).parents)
        return any(entry and entry.commit for entry in above)

    @property
    def _may_have_submodules(self) -> bool:
        """True unless the index's file shows that it has no submodule; raise GitError if git can't tell."""
        folder = git_folder(self._checkout) if self._checkout else None
        if self._checkout is None or (folder and not os.path.lexists(folder / "index")):
            return False
        data = self._own_file("index", _MOST_INDEX)
        # The bytes may be there by chance: git tells.
        is_possible = not data or len(data) == _MOST_INDEX or _SUBMODULE_MODE in data
        if data and is_possible and self._listed[1]:
            raise self._listed[1]
        return is_possible

    @cached_property
    def _settings(self) -> Mapping[str, str]:
        config = self._own_file("config")
        if not self._checkout or (_USUAL.search(config) and not _UNUSUAL.search(config)):
            return {}
        said = self._git.ask("config", "--bool", "-z", "--get-regexp", _SETTINGS) or ""
        return dict(line.split("\n", 1) for line in said.split("\0") if "\n" in line)

    @cached_property
    def _checkout(self) -> Path | None:
        """The top of the repository's checkout; None without a repository."""
        checkout = checkout_of(self._root)
        return checkout if checkout and repository_in(checkout) else None

    @property
    def _is_own(self) -> bool:
        """True if git reads the repository without a `safe.directory`: its folders are this user's."""
        if self._checkout is None:
            return True
        folders = {self._checkout, repository_in(self._checkout), git_folder(self._checkout)}
        with suppress(OSError):
            return all(folder and folder.lstat().st_uid == os.geteuid() for folder in folders)
        return False

    @property
    def _has_plain_entries(self) -> bool:
        """True if no file may be left out: only a later version of the format has a place for that mark."""
        folder = git_folder(self._checkout) if self._checkout else None
        if self._checkout is None or (folder and not os.path.lexists(folder / "index")):
            return True
        return self._own_file("index", len(_PLAIN_INDEX)) == _PLAIN_INDEX

    @property
    def _has_own_excludes(self) -> bool:
        """True if the clone or the user may exclude files beside those of each `.gitignore`."""
        if any(line and not line.startswith(b"#") for line in self._own_file("info/exclude").splitlines()):
            return True
        home = Path(self._environ.get("HOME", "/"))
        user_folder = Path(self._environ.get("XDG_CONFIG_HOME") or home / ".config") / "git"
        settings = (home / ".gitconfig", user_folder / "config", Path("/etc/gitconfig"))
        named = (self._own_file("config"), *map(_content, settings))
        return os.path.lexists(user_folder / "ignore") or any(
            b"excludesfile" in text.lower() for text in named
        )

    def _own_file(self, name: str, most: int = _MOST) -> bytes:
        """Return the first bytes of a file in git's own folder; b"" if only git can find or read it."""
        folder = git_folder(self._checkout) if self._checkout else None
        with suppress(OSError):
            # In several parts (core.splitIndex), the first one tells nothing of the others.
            if folder and not any(entry.name.startswith("sharedindex.") for entry in os.scandir(folder)):
                # A linked work tree shares all but its index with the repository.
                shared = folder / os.fsdecode(_content(folder / "commondir").rstrip(b"\n"))
                return _content(folder / name, most) or _content(shared / name, most)
        return b""


def objects_of_submodules(root: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders of objects of the fetched submodules below `root`, and of those in them."""
    for path in GitIndex(root, environ).submodules:
        # Without a repository of its own, git would take the folder for a part of the one around it.
        if folder := git_folder(root / path):
            yield folder / "objects"
            yield from objects_of_submodules(root / path, environ)


def _is_unfetched(folder: Path) -> bool:
    """Return True if a submodule's folder is missing or has no file."""
    try:
        with os.scandir(folder) as entries:
            return all(entry.name == ".git" for entry in entries)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # whoever reads it gets the error


def _content(file: Path, most: int = _MOST) -> bytes:
    """Return the first bytes of a file; b"" for none."""
    with suppress(OSError):
        return safe_files.read_file(file, most, follow=True)[0]
    return b""
