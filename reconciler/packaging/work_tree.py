"""Folders below a repository's root, walked without leaving it, and what git's rules exclude there.

Each folder and file is opened by its name in its open parent (`dir_fd`), never through a link (`O_NOFOLLOW`).
The target of a link is resolved name by name, and then opened in the same way from the root downwards. Every
opened file is therefore the checked file, and lies below the root, even if a link is swapped in concurrently.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.base.diagnostics import quote
from reconciler.base.safe_files import IrregularFileError, kind_of, opened_folder, read_file
from reconciler.model.stand_ins import Submodule, submodule_at
from reconciler.model.tracking import GET_LEFT_OUT, Index, is_leftover
from reconciler.packaging import gitignore

Names = tuple[str, ...]
"""A path as names from the root downwards, none of them a link."""
Rules = tuple[gitignore.Rule, ...]
"""The rules of a `.gitignore`."""

MAX_IGNORE_BYTES = 64 * 1024
"""The maximum size of a `.gitignore`, ten times a common one."""

# Names of files of git, this tool, virtual environments, Python and the Finder beside code; in any case. They
# are always excluded, whatever a `.gitignore` says: they differ between machines, and `.git` may contain
# credentials.
_NEVER_CODE = frozenset({".git", ".reconciler", ".venv", "__pycache__", ".ds_store"})
_BYTE_CODE = (".pyc", ".pyo")
_IGNORE_FILE = ".gitignore"
_MAX_LINKS = 40  # as many as Linux follows


class UnfitError(Exception):
    """Error for an entry that can't be part of a package.

    Attributes:
        message: The reason, to follow a path ("is a fifo").
        hint: The remedy.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def not_a_file(mode: int) -> UnfitError:
    """Return the error for an entry with this `st_mode` that is no file, folder or link."""
    return UnfitError(f"is {kind_of(mode)}", "remove it, or exclude it in a .gitignore")


@dataclass(frozen=True, slots=True)
class Folder:
    """Open folder.

    Attributes:
        names: Its path.
        rules: The rules of each folder from the root down to this one, in this order.
        fd: Its file descriptor.
        inode: Device and inode, the folder's identity.
        index: What git tracks.
    """

    names: Names
    rules: tuple[Rules, ...]
    fd: int
    inode: tuple[int, int]
    index: Index

    def entries(self) -> list[os.DirEntry[str]]:
        """Return the entries, sorted by name."""
        with os.scandir(self.fd) as entries:
            return sorted(entries, key=lambda entry: entry.name)

    def reason_to_exclude(self, name: str, *, folder: bool) -> str:
        """Return the reason for excluding the entry `name`, as a clause; "" for an included entry."""
        if name.lower() in _NEVER_CODE or name.lower().endswith(_BYTE_CODE):
            return f"{quote(name)} is never code"
        if self.is_left_over(name, folder=folder):
            return f"an editor leaves {quote(name)}, and git doesn't track it"
        names = [os.fsencode(part) for part in (*self.names, name)]
        # The innermost `.gitignore` with a matching pattern decides, as in git.
        for depth in reversed(range(len(self.rules))):
            rule = gitignore.decide(self.rules[depth], names[depth:], folder=folder)
            if rule is not None:
                file = "/".join((*self.names[:depth], _IGNORE_FILE))
                return "" if rule.negated else f"line {rule.line} of {quote(file)} excludes {quote(name)}"
        return ""

    def is_left_over(self, name: str, *, folder: bool) -> bool:
        """Return True for an entry that an editor left, and that git doesn't track."""
        return is_leftover(name, folder=folder) and not self.index.tracks(self.path(name))

    def missing(self, present: Collection[str], paths: Iterable[str], *, folders: bool) -> Iterator[Names]:
        """Yield the tracked paths, from this folder, that are included and whose first step is missing.

        Args:
            present: The names that are there.
            paths: The paths, from the root.
            folders: True if they are those of folders.
        """
        above = self.path("")
        for path in paths:
            names = tuple(path.removeprefix(above).split("/"))
            if path.startswith(above) and names[0] not in present and self._includes(names, folder=folders):
                yield names

    def _includes(self, names: Names, *, folder: bool) -> bool:
        # Of a folder that isn't there, the rules around it are known.
        steps = (replace(self, names=(*self.names, *names[:depth])) for depth in range(len(names)))
        excluded = (
            step.reason_to_exclude(name, folder=folder or depth + 1 < len(names))
            for depth, (step, name) in enumerate(zip(steps, names, strict=True))
        )
        return not any(excluded)

    def path(self, name: str) -> str:
        """Return the path of the entry `name` from the root."""
        return "/".join((*self.names, name))

    def read(self, name: str, limit: int) -> tuple[bytes, bool]:
        """Return the first `limit` bytes of the file `name`, and True if its owner may execute it."""
        try:
            content, status = read_file(name, limit, folder=self.fd)
        except IrregularFileError as error:
            raise not_a_file(error.mode) from None
        return content, bool(status.st_mode & stat.S_IXUSR)

    def link_target(self, name: str) -> str | None:
        """Return the target of the link `name`; None if the entry is no link."""
        # Compare names exactly: some file systems ignore case, and the result must not depend on the machine.
        if all(entry.name != name for entry in self.entries()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        mode = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        return os.readlink(name, dir_fd=self.fd) if stat.S_ISLNK(mode) else None


class WorkTree:
    """Folders below a repository's root.

    The methods raise UnfitError for entries that can't be part of a package, and OSError.
    """

    def __init__(self, root: Path, index: Index) -> None:
        self._root = root
        self._index = index
        self._rules: dict[Names, Rules] = {}

    @contextmanager
    def opened(self, names: Names) -> Iterator[Folder]:
        """Open the folder at `names`; raises UnfitError if a folder on the way is excluded."""
        with ExitStack() as stack:
            fd = stack.enter_context(opened_folder(self._root, follow=True))
            folder = self._folder(fd, (), ())
            for name in names:
                refuse_excluded(folder, name, folder=True)
                folder = stack.enter_context(self.child(folder, name))
            yield folder

    def submodule(self, names: Names) -> Submodule | None:
        """Return the submodule without files that a resolved path is or leads into; None for none."""
        return submodule_at("/".join(names), self._index.unread)

    @contextmanager
    def child(self, parent: Folder, name: str) -> Iterator[Folder]:
        """Open the folder `name` in an open folder."""
        with opened_folder(name, folder=parent.fd) as fd:
            yield self._folder(fd, (*parent.names, name), parent.rules)

    def resolve(self, start: Names, path: str) -> Names:
        """Resolve `path`, relative to the folder at `start`, through links.

        What follows a submodule without files stays as it is.
        """
        names, todo, links = list(start), _steps(path), 0
        while todo and "/".join(names) not in self._index.unread:
            step = todo.pop()
            if step == "..":
                if not names:
                    hint = "put a copy of what is needed into the repository"
                    raise UnfitError("leads out of the repository", hint)
                names.pop()
                continue
            # Its folder may be missing.
            is_unread = "/".join([*names, step]) in self._index.unread
            target = None if is_unread else self._link_target(tuple(names), step)
            if target is None:
                names.append(step)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise UnfitError("leads in a circle", "point it to a file or a folder")
            todo += _steps(target)
        return (*names, *reversed(todo))

    def _link_target(self, names: Names, name: str) -> str | None:
        try:
            with self.opened(names) as folder:
                return folder.link_target(name)
        except (FileNotFoundError, NotADirectoryError):
            raise UnfitError("does not exist", "write the path of something in this repository") from None

    def _folder(self, fd: int, names: Names, above: tuple[Rules, ...]) -> Folder:
        status = os.fstat(fd)
        folder = Folder(names, above, fd, (status.st_dev, status.st_ino), self._index)
        if names not in self._rules:
            self._rules[names] = _ignore_rules(folder)
        return replace(folder, rules=(*above, self._rules[names]))


def refuse_excluded(parent: Folder, name: str, *, folder: bool) -> None:
    """Raise UnfitError if the entry `name` of an open folder is excluded."""
    if reason := parent.reason_to_exclude(name, folder=folder):
        raise UnfitError(
            f"is not part of the code: {reason}", "name something that is part of the repository"
        )


def _steps(path: str) -> list[str]:
    """Return the names in a path in reverse order."""
    if path.startswith("/"):
        raise UnfitError("leads out of the repository, here or on another machine", "write a relative path")
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _ignore_rules(folder: Folder) -> Rules:
    try:
        mode = os.stat(_IGNORE_FILE, dir_fd=folder.fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        if folder.path(_IGNORE_FILE) in folder.index.left_out:
            what = f"needs {quote(folder.path(_IGNORE_FILE))}, which git leaves out of the work tree"
            raise UnfitError(what, GET_LEFT_OUT) from None
        return ()
    # git ignores a `.gitignore` that is a link.
    if not stat.S_ISREG(mode):
        return ()
    data, _ = folder.read(_IGNORE_FILE, MAX_IGNORE_BYTES + 1)
    if len(data) > MAX_IGNORE_BYTES:
        size = f"{MAX_IGNORE_BYTES:,} bytes"
        raise UnfitError(f"holds a .gitignore of more than {size}", "write fewer patterns")
    return gitignore.parse(data)
