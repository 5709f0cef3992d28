"""The repository's folders, read so that no link leads out of it, not even one that is swapped in meanwhile.

Each folder and file is opened by its bare name in the folder above (`dir_fd`), never through a link
(`O_NOFOLLOW`). What a link points to is worked out name by name, and then opened in the same way from the
root downwards. So whatever is opened is what was decided on, and below the root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.base.diagnostics import quote
from reconciler.packaging import gitignore

Names = tuple[str, ...]
"""Where something is: the names from the root downwards, none of them a link's."""
Rules = tuple[gitignore.Rule, ...]
"""What one `.gitignore` says."""

NEVER_CODE = frozenset({".git", ".reconciler", ".venv", "__pycache__", ".ds_store"})
"""What git, this tool, virtual environments, Python and the Finder keep beside code; in any case of letters.

It never counts, whatever a `.gitignore` says: it differs between machines, and `.git` may hold credentials.
"""
BYTE_CODE = (".pyc", ".pyo")
"""The endings of files that never count either."""
MAX_IGNORE_BYTES = 64 * 1024
"""The largest `.gitignore` that is read; ten times what is common."""

_IGNORE_FILE = ".gitignore"
_MAX_LINKS = 40  # as many as Linux follows
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a fifo would wait for somebody who writes.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class UnfitError(Exception):
    """Something that can't be part of a package.

    Attributes:
        message: What is wrong, to be read behind a path ("is a fifo").
        hint: What to do about it.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def not_a_file(mode: int) -> UnfitError:
    """The error for something with this `st_mode` that is no file, folder or link."""
    kind = _KINDS.get(stat.S_IFMT(mode), "no file")
    return UnfitError(f"is {kind}", "take it away, or exclude it in a .gitignore")


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder.

    Attributes:
        names: Where it is.
        rules: Of each folder from the root down to this one, in this order.
        fd: Its descriptor.
        inode: Device and inode, by which the same folder is known again.
    """

    names: Names
    rules: tuple[Rules, ...]
    fd: int
    inode: tuple[int, int]

    def entries(self) -> list[os.DirEntry[str]]:
        """What it holds, sorted by name."""
        with os.scandir(self.fd) as found:
            return sorted(found, key=lambda entry: entry.name)

    def reason_to_exclude(self, name: str, *, folder: bool) -> str:
        """Why the entry `name` doesn't count, as a clause; "" where it does.

        The innermost `.gitignore` with a pattern that matches decides.
        """
        if name.lower() in NEVER_CODE or name.lower().endswith(BYTE_CODE):
            return f"{quote(name)} never is code"
        names = [os.fsencode(part) for part in (*self.names, name)]
        for depth in reversed(range(len(self.rules))):
            rule = gitignore.decide(self.rules[depth], names[depth:], folder=folder)
            if rule is not None:
                file = "/".join((*self.names[:depth], _IGNORE_FILE))
                return "" if rule.negated else f"line {rule.line} of {quote(file)} excludes {quote(name)}"
        return ""

    def read(self, name: str, limit: int) -> tuple[bytes, bool]:
        """The first `limit` bytes of the file `name`, and whether its owner may execute it."""
        with os.fdopen(os.open(name, _OPEN_FILE, dir_fd=self.fd), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise not_a_file(mode)
            return file.read(limit), bool(mode & stat.S_IXUSR)

    def link_target(self, name: str) -> str | None:
        """What the entry `name` points to; None where it is no link.

        A name is only found as it is spelt, also where the file system would take it in other letters.
        """
        if all(entry.name != name for entry in self.entries()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        mode = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        return os.readlink(name, dir_fd=self.fd) if stat.S_ISLNK(mode) else None


class WorkTree:
    """The folders below a repository's root.

    Its methods raise UnfitError for what can't be part of a package, and OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._rules: dict[Names, Rules] = {}

    @contextmanager
    def opened(self, names: Names) -> Iterator[Folder]:
        """The folder at `names`, open; refused where it doesn't count."""
        with ExitStack() as stack:
            fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            folder = self._folder(fd, (), ())
            for name in names:
                refuse_excluded(folder, name, folder=True)
                folder = stack.enter_context(self.child(folder, name))
            yield folder

    @contextmanager
    def child(self, parent: Folder, name: str) -> Iterator[Folder]:
        """The folder `name` of an open one, open too."""
        fd = os.open(name, _OPEN_FOLDER, dir_fd=parent.fd)
        try:
            yield self._folder(fd, (*parent.names, name), parent.rules)
        finally:
            os.close(fd)

    def resolve(self, start: Names, path: str) -> Names:
        """Where `path`, read from the folder at `start`, leads by way of whatever links."""
        names = list(start)
        todo = _steps(path)
        links = 0
        while todo:
            step = todo.pop()
            if step == "..":
                if not names:
                    hint = "put a copy of what is needed into the repository"
                    raise UnfitError("leads out of the repository", hint)
                names.pop()
                continue
            target = self._link_target(tuple(names), step)
            if target is None:
                names.append(step)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise UnfitError("leads in a circle", "let it point to a file or a folder")
            todo += _steps(target)
        return tuple(names)

    def _link_target(self, names: Names, name: str) -> str | None:
        try:
            with self.opened(names) as folder:
                return folder.link_target(name)
        except (FileNotFoundError, NotADirectoryError):
            raise UnfitError("isn't there", "write the path of something in this repository") from None

    def _folder(self, fd: int, names: Names, above: tuple[Rules, ...]) -> Folder:
        status = os.fstat(fd)
        folder = Folder(names, above, fd, (status.st_dev, status.st_ino))
        if names not in self._rules:
            self._rules[names] = _ignore_rules(folder)
        return replace(folder, rules=(*above, self._rules[names]))


def refuse_excluded(parent: Folder, name: str, *, folder: bool) -> None:
    """Raise UnfitError where the entry `name` of an open folder doesn't count."""
    if reason := parent.reason_to_exclude(name, folder=folder):
        raise UnfitError(f"doesn't count: {reason}", "name what is part of the repository")


def _steps(path: str) -> list[str]:
    """The names in a path, the first one last."""
    if path.startswith("/"):
        raise UnfitError("leads out of the repository, here or on another machine", "write a relative path")
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _ignore_rules(folder: Folder) -> Rules:
    """The rules of a folder's own `.gitignore`; as to git, one that is a link has none."""
    try:
        mode = os.stat(_IGNORE_FILE, dir_fd=folder.fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return ()
    if not stat.S_ISREG(mode):
        return ()
    data, _ = folder.read(_IGNORE_FILE, MAX_IGNORE_BYTES + 1)
    if len(data) > MAX_IGNORE_BYTES:
        raise UnfitError(
            f"holds a .gitignore of more than {MAX_IGNORE_BYTES:,} bytes", "write fewer patterns"
        )
    return gitignore.parse(data)
