"""Files of a commit, written on request into a private folder.

They have the bytes that git stores: no filter, attribute or setting changes them, and no work tree is checked
out. Names in trees are untrusted. Each folder is opened by its name in its parent, never through a link, so
no file is written outside; and git gets only the ids of objects.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from reconciler.base.errors import NotFoundError, ReconcilerError, UsageError
from reconciler.base.git_command import SHA, VERIFY, Git, GitError
from reconciler.base.safe_files import new_file, open_folder
from reconciler.git.index import objects_of_submodules
from reconciler.git.objects import Objects, too_much
from reconciler.git.tree_object import Entry, entries
from reconciler.model.tracking import Committed

MAX_ENTRIES = 100_000
"""The maximum number of files, folders and links that are visited or written."""

Names = tuple[str, ...]
"""A path as names from the top downwards; a requested path may contain `..`."""
Selector = Callable[[str], bool]
"""A predicate of file names: True for a file to write."""

_IGNORE_FILE = ".gitignore"
_MAX_DEPTH = 256
_MAX_LINKS = 40  # as many as Linux follows
_MAX_LINK_BYTES = 4096
_SHALLOW = (
    "this clone is shallow: fetch more of it; in GitHub Actions, give actions/checkout a fetch-depth "
    "of 2 for HEAD^1, or of 0 for the whole history"
)
_NO_ENTRIES: Mapping[str, Entry] = {}


@contextmanager
def revision(
    root: Path, name: str, environ: Mapping[str, str], *, with_submodules: bool = False
) -> Iterator[Revision]:
    """Open the files of a commit below `root`; a temporary folder holds those that are written to disk.

    Args:
        root: A folder of a work tree; paths in the commit are relative to the same folder.
        name: The commit in git's notation: a branch, a tag, `HEAD^1`, a hash.
        with_submodules: True if the files of submodules, at their recorded commits, are files of the commit
            too, as far as the work tree has fetched them.

    Raises:
        UsageError: The folder is in no repository.
        NotFoundError: The commit, or an object of it, is missing in the repository.
        GitError: git is missing or fails.
        ReconcilerError: The commit exceeds a limit, or contains a file that can't be written here.
    """
    objects = objects_of_submodules(root, environ) if with_submodules else ()
    git = Git(root, environ, objects=objects)
    below = _prefix(git, root)
    sha = _commit(git, name)
    with (
        _write_errors(sha),
        tempfile.TemporaryDirectory(prefix="reconciler-") as folder,
        closing(Objects(git)) as commit_objects,
    ):
        top = _tree_below(commit_objects, sha, below)
        yield Revision(sha, Path(folder).resolve(), top, commit_objects, with_submodules=with_submodules)


def merge_base(root: Path, name: str, environ: Mapping[str, str]) -> str:
    """Return the newest common ancestor of a commit and HEAD, 40 hex digits; raise as `revision` does."""
    git = Git(root, environ)
    _prefix(git, root)
    sha = _commit(git, name)
    # Changes that the other branch made since are no changes of this one.
    base = (git.ask("merge-base", sha, "HEAD") or "").strip()
    if not SHA.fullmatch(base):
        git.refuse_corrupt("merge-base", sha, "HEAD")
        hint = _SHALLOW if _is_shallow(git) else "name a commit that shares history with HEAD"
        raise NotFoundError(f'"{name}" and HEAD have no common commit in this repository', hint=hint)
    return base


def _prefix(git: Git, root: Path) -> Names:
    try:
        prefix = git.run("rev-parse", "--show-prefix")
    except GitError as error:
        if error.hint:
            raise
        message = f"git finds no repository in {root}: {error.message}"
        raise UsageError(message, hint="--base compares with a commit: run it in a git checkout") from None
    folder = os.fsdecode(prefix).removesuffix("\n").removesuffix("/")
    return tuple(folder.split("/")) if prefix.strip() else ()


def _commit(git: Git, name: str) -> str:
    sha = git.commit(name) if name else None
    if sha is None:
        git.refuse_corrupt(*VERIFY, f"{name}^{{commit}}")
        advice = "name a branch, a tag or a commit that exists here; `git fetch` gets others"
        hint = _SHALLOW if _is_shallow(git) else advice
        raise NotFoundError(f'there is no commit "{name}" in this repository', hint=hint)
    return sha


def _is_shallow(git: Git) -> bool:
    return (git.ask("rev-parse", "--is-shallow-repository") or "").strip() == "true"


@contextmanager
def _write_errors(sha: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if error.errno in (errno.EEXIST, errno.ELOOP, errno.ENOTDIR, errno.EILSEQ):
            hint = "some of its file names can't be used on this file system"
        else:
            hint = "it is written to the folder for temporary files: set TMPDIR to another one"
        raise ReconcilerError(f"commit {sha[:12]} can't be written out: {reason}", hint=hint) from None


def _tree_below(objects: Objects, sha: str, below: Names) -> str:
    """Return the id of the tree of a commit's folder; "" if the commit has no such folder."""
    id = _tree_of(objects, sha)
    for name in below:
        entry = entries(objects.read(id, "tree")).get(name)
        if entry is None or not entry.is_folder:
            return ""
        id = entry.id
    return id


def _tree_of(objects: Objects, sha: str) -> str:
    """Return the id of a commit's tree."""
    head = objects.read(sha, "commit").partition(b"\n")[0]
    return head.removeprefix(b"tree ").decode()


class Revision:
    """Files of a commit, written on request.

    A submodule is an empty folder, unless its files are opened too.

    Attributes:
        sha: The commit, 40 hex digits.
        root: The folder of the written files.
        index: The index of the written files, and of submodules among them whose files aren't opened.
    """

    def __init__(
        self, sha: str, root: Path, top: str, objects: Objects, *, with_submodules: bool = False
    ) -> None:
        self.sha = sha
        self.root = root
        self._unread: dict[str, str] = {}
        self.index = Committed(self._unread)
        self._with_submodules = with_submodules
        self._objects = objects
        self._top = Entry(stat.S_IFDIR, top)
        self._trees: dict[str, Mapping[str, Entry]] = {"": _NO_ENTRIES}
        self._links: dict[str, str] = {}
        self._made: set[Names] = set()
        self._with_ignore_file: set[Names] = set()
        self._done: set[tuple[Names, Selector]] = set()
        self._entries_left = MAX_ENTRIES

    def lay_out(self, path: Names, selects: Selector, beside: Names = ()) -> bool:
        """Write a file, or the selected files below a folder, and the targets of links among them.

        Return True if the path exists in the commit. The `.gitignore` files of each folder and its parents
        are written too. Files that exist already stay.

        Args:
            path: The path from the top, which may lead through links.
            selects: The selector of files in folders, and of links to files.
            beside: The path of a file; a folder that contains it isn't written.
        """
        real = self.place(path)
        if real is None:
            return False
        if not beside or beside[: len(real)] != real:
            if self.entry(real).is_folder:
                with self._opened(real):
                    self._lay_out_all([real], selects)
            else:
                self._lay_out_all([real], selects)
        return True

    def _lay_out_all(self, paths: list[Names], selects: Selector) -> None:
        while paths:
            path = paths.pop()
            # Links can lead to the same folder several times, and in circles.
            if (path, selects) in self._done:
                continue
            self._done.add((path, selects))
            self._count(path)
            self._ignore_files(path)
            entry = self.entry(path)
            if entry.is_folder:
                paths += self._folder(path, entry, selects)
            elif entry.is_file:
                self._file(path, entry)
            elif entry.is_submodule:
                self._unread_submodule(path, entry)

    def _unread_submodule(self, path: Names, entry: Entry) -> None:
        self._unread["/".join(path)] = entry.id
        with self._opened(path):
            pass

    def _ignore_files(self, path: Names) -> None:
        """Write the `.gitignore` files of a folder and its parents."""
        for depth in range(len(path), -1, -1):
            folder = path[:depth]
            if folder in self._with_ignore_file:
                return
            self._with_ignore_file.add(folder)
            entry = self._tree(self.entry(folder)).get(_IGNORE_FILE)
            if entry and entry.is_file:
                self._file((*folder, _IGNORE_FILE), entry)

    def _folder(self, path: Names, folder: Entry, selects: Selector) -> Iterator[Names]:
        """Write a folder's links; yield the places of selected files, of subfolders and of links' targets."""
        for name, entry in self._tree(folder).items():
            below = (*path, name)
            if entry.is_link:
                target = self.place(below)
                if target is not None and (self.entry(target).is_folder or selects(name)):
                    yield target
            elif entry.is_folder or selects(name):
                yield below

    def place(self, path: Names) -> Names | None:
        """Resolve a path, writing the links on the way; return None if it leads to no entry of the commit."""
        real: Names = ()
        todo = [*reversed(path)]
        links = 0
        while todo:
            step = todo.pop()
            if step == "..":
                if not real:
                    return None
                real = real[:-1]
                continue
            here = self.entry(real)
            if here.is_submodule:
                self._unread_submodule(real, here)
            entry = self._tree(here).get(step)
            if entry is None:
                return None
            real = (*real, step)
            if entry.is_link:
                links += 1
                target = self._link(real, entry)
                if links > _MAX_LINKS or target.startswith("/"):
                    return None
                real = real[:-1]
                todo += (name for name in reversed(target.split("/")) if name not in ("", "."))
        return real

    def submodule(self, path: Names) -> tuple[Names, str]:
        """Return the innermost submodule that a path is or leads into, and its commit; () and "" for none."""
        for depth in range(len(path), 0, -1):
            above = self.place(path[: depth - 1])
            entry = self._tree(self.entry(above)).get(path[depth - 1]) if above is not None else None
            if entry is not None and (entry.is_submodule or entry.commit):
                return path[:depth], entry.commit or entry.id
        return (), ""

    def listed(self, path: Names) -> Mapping[str, Entry]:
        """Return the entries of the folder at `path`, by name; none if it is no folder."""
        return self._tree(self.entry(path))

    def contents(self, ids: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of files, in the order of their ids; read them all."""
        return self._objects.read_many(ids, "blob")

    def entry(self, path: Names) -> Entry:
        """Return the entry at a place of the commit."""
        entry = self._top
        for name in path:
            entry = self._tree(entry)[name]
        return entry

    def _tree(self, folder: Entry) -> Mapping[str, Entry]:
        """Return the entries of a folder; none if the entry is no folder."""
        if not folder.is_folder:
            return _NO_ENTRIES
        if folder.id not in self._trees:
            children = entries(self._objects.read(folder.id, "tree"))
            if self._with_submodules:
                children = {name: self._opened_submodule(entry) for name, entry in children.items()}
            self._trees[folder.id] = children
        return self._trees[folder.id]

    def _opened_submodule(self, entry: Entry) -> Entry:
        """Return the folder in the place of a fetched submodule; any other entry as it is."""
        if entry.is_submodule:
            with suppress(NotFoundError):
                return Entry(stat.S_IFDIR, _tree_of(self._objects, entry.id), entry.id)
        return entry

    def _link(self, path: Names, entry: Entry) -> str:
        """Return the target of a link, and write the link the first time."""
        if entry.id not in self._links:
            text = self._objects.read(entry.id, "blob", _MAX_LINK_BYTES)
            self._links[entry.id] = os.fsdecode(text)
        target = self._links[entry.id]
        if path not in self._made:
            self._make(path)
            with self._opened(path[:-1]) as above:
                os.symlink(target, path[-1], dir_fd=above)
        return target

    def _file(self, path: Names, entry: Entry) -> None:
        if path in self._made:
            return
        self._make(path)
        # git keeps a single bit of the mode: executable by the owner.
        mode = stat.S_IRWXU if entry.mode & stat.S_IXUSR else stat.S_IRUSR | stat.S_IWUSR
        with self._opened(path[:-1]) as above, new_file(path[-1], above, mode) as file:
            for piece in self._objects.chunks(entry.id, "blob"):
                file.write(piece)

    @contextmanager
    def _opened(self, path: Names) -> Iterator[int]:
        """Open the folder at `path`; create missing folders on the way."""
        folder = open_folder(self.root)
        try:
            for depth, name in enumerate(path, 1):
                if path[:depth] not in self._made:
                    self._make(path[:depth])
                    os.mkdir(name, stat.S_IRWXU, dir_fd=folder)
                below = open_folder(name, folder=folder)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)

    def _make(self, path: Names) -> None:
        self._made.add(path)
        self._count(path)

    def _count(self, path: Names) -> None:
        # The limits bound the work on a hostile commit, whose trees can contain themselves many times.
        self._entries_left -= 1
        if len(path) > _MAX_DEPTH:
            raise too_much(f"{_MAX_DEPTH} nested folders")
        if self._entries_left < 0:
            raise too_much(f"{MAX_ENTRIES:,} files")
