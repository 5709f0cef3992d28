"""The files of a commit, laid out in a private folder as far as they are asked for.

They are read as git stores them: no filter, no attribute and no setting changes a byte, and nothing is
checked out. What a tree names isn't trusted. Each folder is opened by its bare name in the one above, never
through a link, so nothing is written outside; and git is asked for objects by their ids alone.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from reconciler.base.errors import NotFoundError, ReconcilerError, UsageError
from reconciler.base.git_command import Git, GitError
from reconciler.git.objects import Entry, Objects, entries, objects_of, too_much

MAX_ENTRIES = 100_000
"""How many files, folders and links may be looked at, and laid out."""

Names = tuple[str, ...]
"""Where something is: the names from the top downwards; a path that is asked for may have `..` among them."""
Wanted = Callable[[str], bool]
"""Whether a file of this name is laid out."""

_IGNORE_FILE = ".gitignore"
_MAX_DEPTH = 256
_MAX_LINKS = 40  # as many as Linux follows
_MAX_LINK_BYTES = 4096
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ENTRIES: Mapping[str, Entry] = {}


@contextmanager
def revision(root: Path, name: str, environ: Mapping[str, str]) -> Iterator[Revision]:
    """The files of a commit below the folder `root`; what was laid out is gone at the end.

    Args:
        root: A folder of a work tree; the commit's files count from the same folder.
        name: The commit, as git takes it: a branch, a tag, `HEAD^1`, a hash.
        environ: The environment variables.

    Raises:
        UsageError: There is no repository.
        NotFoundError: It has no such commit, or not all of it is here.
        GitError: git isn't there, or fails.
        ReconcilerError: The commit holds more than is laid out, or what can't be laid out here.
    """
    git = Git(root, environ)
    below = _prefix(git, root)
    sha = _commit(git, name)
    with (
        _laying_out(sha),
        tempfile.TemporaryDirectory(prefix="reconciler-") as folder,
        objects_of(git) as found,
    ):
        yield Revision(sha, Path(folder).resolve(), _tree_below(found, sha, below), found)


def _prefix(git: Git, root: Path) -> Names:
    """Where `root` is in the repository."""
    try:
        told = git.run("rev-parse", "--show-prefix")
    except GitError as error:
        if error.hint:
            raise
        message = f"git finds no repository in {root}: {error.message}"
        raise UsageError(message, hint="--base compares with a commit: run it in a git checkout") from None
    return tuple(os.fsdecode(told).removesuffix("\n").removesuffix("/").split("/")) if told.strip() else ()


def _commit(git: Git, name: str) -> str:
    sha = git.commit(name) if name else None
    if sha is None:
        is_shallow = (git.ask("rev-parse", "--is-shallow-repository") or "").strip() == "true"
        hint = (
            "this clone is shallow: fetch more of it; in GitHub Actions, give actions/checkout a fetch-depth "
            "of 2 for HEAD^1, or of 0 for all there is"
            if is_shallow
            else "name a branch, a tag or a commit that is here; `git fetch` brings what isn't"
        )
        raise NotFoundError(f'there is no commit "{name}" in this repository', hint=hint)
    return sha


@contextmanager
def _laying_out(sha: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if error.errno in (errno.EEXIST, errno.ELOOP, errno.ENOTDIR, errno.EILSEQ):
            hint = "its names can't all be used on this file system"
        else:
            hint = "it is laid out in the folder for temporary files: TMPDIR names another"
        raise ReconcilerError(f"commit {sha[:12]} can't be laid out: {reason}", hint=hint) from None


def _tree_below(objects: Objects, sha: str, below: Names) -> str:
    """The id of the tree of a commit's folder; "" where it has none."""
    head = objects.read(sha, "commit").partition(b"\n")[0]
    id = head.removeprefix(b"tree ").decode()
    for name in below:
        entry = entries(objects.read(id, "tree")).get(name)
        if entry is None or not entry.is_folder:
            return ""
        id = entry.id
    return id


class Revision:
    """A commit's files, of which those are laid out that were asked for.

    Attributes:
        sha: The commit, 40 hex digits.
        root: The folder in which they are laid out.
    """

    def __init__(self, sha: str, root: Path, top: str, objects: Objects) -> None:
        self.sha = sha
        self.root = root
        self._objects = objects
        self._top = Entry(stat.S_IFDIR, top)
        self._trees: dict[str, Mapping[str, Entry]] = {"": _NO_ENTRIES}
        self._links: dict[str, str] = {}
        self._made: set[Names] = set()
        self._with_ignore_file: set[Names] = set()
        self._done: set[tuple[Names, Wanted]] = set()
        self._entries_left = MAX_ENTRIES

    def lay_out(self, path: Names, wanted: Wanted, beside: Names = ()) -> bool:
        """Lay out a file, or of a folder what is wanted with all below, and what links in it lead to.

        With each folder comes its own `.gitignore` and that of all above. What is there already stays.

        Args:
            path: From the top, by way of whatever links.
            wanted: By which names the files of folders are chosen, and the links to files.
            beside: The path of a file; a folder that this is in isn't laid out.

        Returns:
            Whether the commit has it.
        """
        place = self.place(path)
        if place is None:
            return False
        if not beside or beside[: len(place)] != place:
            if self.entry(place).is_folder:
                with self._opened(place):
                    self._lay_out_all([place], wanted)
            else:
                self._lay_out_all([place], wanted)
        return True

    def _lay_out_all(self, places: list[Names], wanted: Wanted) -> None:
        while places:
            place = places.pop()
            if (place, wanted) in self._done:
                continue
            self._done.add((place, wanted))
            self._count(place)
            self._ignore_files(place)
            entry = self.entry(place)
            if entry.is_folder:
                places += self._folder(place, entry, wanted)
            elif entry.is_file:
                self._file(place, entry)

    def _ignore_files(self, place: Names) -> None:
        """Lay out the `.gitignore` of a folder, and of all above."""
        for depth in range(len(place), -1, -1):
            folder = place[:depth]
            if folder in self._with_ignore_file:
                return
            self._with_ignore_file.add(folder)
            entry = self._tree(self.entry(folder)).get(_IGNORE_FILE)
            if entry and entry.is_file:
                self._file((*folder, _IGNORE_FILE), entry)

    def _folder(self, place: Names, folder: Entry, wanted: Wanted) -> Iterator[Names]:
        """Lay out a folder's own files and links; what is to be laid out besides."""
        for name, entry in self._tree(folder).items():
            below = (*place, name)
            if entry.is_link:
                target = self._target_of_link(below, entry)
                if target is not None and (self.entry(target).is_folder or wanted(name)):
                    yield target
            elif entry.is_folder or wanted(name):
                yield below

    def _target_of_link(self, place: Names, entry: Entry) -> Names | None:
        self._link(place, entry)
        return self.place(place)

    def place(self, path: Names) -> Names | None:
        """Where a path really leads, the links on the way laid out; None where to nothing in the commit."""
        place: Names = ()
        todo = [*reversed(path)]
        links = 0
        while todo:
            step = todo.pop()
            if step == "..":
                if not place:
                    return None
                place = place[:-1]
                continue
            entry = self._tree(self.entry(place)).get(step)
            if entry is None:
                return None
            place = (*place, step)
            if entry.is_link:
                links += 1
                target = self._link(place, entry)
                if links > _MAX_LINKS or target.startswith("/"):
                    return None
                place = place[:-1]
                todo += (name for name in reversed(target.split("/")) if name not in ("", "."))
        return place

    def listed(self, place: Names) -> Mapping[str, Entry]:
        """Return the entries of the folder at `place`, by name; none if it is no folder."""
        return self._tree(self.entry(place))

    def contents(self, ids: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of files, in the order of their ids; read them all."""
        return self._objects.read_many(ids, "blob")

    def entry(self, place: Names) -> Entry:
        """Return the entry at a place of the commit."""
        entry = self._top
        for name in place:
            entry = self._tree(entry)[name]
        return entry

    def _tree(self, folder: Entry) -> Mapping[str, Entry]:
        """What a folder holds; nothing where it is none."""
        if not folder.is_folder:
            return _NO_ENTRIES
        if folder.id not in self._trees:
            self._trees[folder.id] = entries(self._objects.read(folder.id, "tree"))
        return self._trees[folder.id]

    def _link(self, place: Names, entry: Entry) -> str:
        """Where a link points to; it is laid out at first sight."""
        if entry.id not in self._links:
            text = self._objects.read(entry.id, "blob", _MAX_LINK_BYTES)
            self._links[entry.id] = os.fsdecode(text)
        target = self._links[entry.id]
        if place not in self._made:
            self._make(place)
            with self._opened(place[:-1]) as above:
                os.symlink(target, place[-1], dir_fd=above)
        return target

    def _file(self, place: Names, entry: Entry) -> None:
        if place in self._made:
            return
        self._make(place)
        mode = stat.S_IRWXU if entry.mode & stat.S_IXUSR else stat.S_IRUSR | stat.S_IWUSR
        with self._opened(place[:-1]) as above:
            fd = os.open(place[-1], _NEW_FILE, mode, dir_fd=above)
            with os.fdopen(fd, "wb") as file:
                for piece in self._objects.chunks(entry.id, "blob"):
                    file.write(piece)

    @contextmanager
    def _opened(self, place: Names) -> Iterator[int]:
        """The folder at `place`, made where it isn't there, open."""
        fd = os.open(self.root, _OPEN_FOLDER)
        try:
            for depth, name in enumerate(place, 1):
                if place[:depth] not in self._made:
                    self._make(place[:depth])
                    os.mkdir(name, stat.S_IRWXU, dir_fd=fd)
                below = os.open(name, _OPEN_FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def _make(self, place: Names) -> None:
        self._made.add(place)
        self._count(place)

    def _count(self, place: Names) -> None:
        self._entries_left -= 1
        if len(place) > _MAX_DEPTH:
            raise too_much(f"{_MAX_DEPTH} folders within each other")
        if self._entries_left < 0:
            raise too_much(f"{MAX_ENTRIES:,} files")
