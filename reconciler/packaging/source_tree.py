"""Files of the code that a job stages, read without leaving the repository's root, and their hash.

A package includes every regular file below its folder, except

- files that a `.gitignore` excludes, from the repository's root down to the file's folder, with git's rules.
  The exclude files of the user and of the clone differ between machines, and aren't read. A tracked file that
  a `.gitignore` excludes is excluded too;
- files that are never code: `.git`, `.reconciler`, `.venv`, `__pycache__`, `.DS_Store`, `*.pyc`, `*.pyo`;
- what editors and notebooks leave (`model.tracking.is_leftover`), unless git tracks it.

A link stands for its target, a file or a folder, unless the target is excluded in its own place. An absolute
link, and a link that leads out of the repository, to a missing or excluded file or in a circle, is an error:
its target would differ between machines. A `.gitignore` that is a link is ignored, as in git. Empty folders
are omitted. Where git says that the checkout can't have executable bits (`core.fileMode`) or links
(`core.symlinks`), the bits are those of git's index, and a link's text in the place of a link is an error.

A pointer of Git LFS is read as the file that it stands for, of which only the SHA-256 is known. A submodule
whose files aren't here is one entry with its recorded commit. Neither can be staged.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NoReturn

from reconciler.base.diagnostics import quote
from reconciler.base.errors import InvalidError, check_machine
from reconciler.model.stand_ins import Submodule, pointer_digest
from reconciler.model.tracking import COMMITTED, GET_LEFT_OUT, Committed, Index
from reconciler.packaging.work_tree import Folder, Names, UnfitError, WorkTree, not_a_file, refuse_excluded

MAX_FILES = 10_000
"""The maximum number of files and folders in a package."""
MAX_BYTES = 200_000_000
"""The maximum number of bytes in a package."""
MAX_DEPTH = 64
"""The maximum depth of nested folders."""

_NEEDS_LINKS = "get it by `git config core.symlinks true`, then remove the file and `git restore` it"

_DOMAIN = b"reconciler source tree 1\n"
# Names with control characters, line ends or marks of direction could forge or reorder lines of output. A
# backslash is a separator on Windows.
_UNFIT_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\\]")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """File of a package.

    Attributes:
        path: The path from the package's folder, with "/".
        executable: True if its owner may execute it: the only bit of the mode that git keeps.
        content: The bytes; b"" for a file that isn't here.
        pointer: The SHA-256 of the bytes, 64 hex digits, if only a pointer of Git LFS is here; else "".
        submodule: The submodule that this stands for, if its files aren't here; else None.
    """

    path: str
    executable: bool
    content: bytes
    pointer: str = ""
    submodule: Submodule | None = None

    @property
    def is_here(self) -> bool:
        """True if the bytes are known."""
        return not self.pointer and self.submodule is None

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the bytes; of a submodule that of its commit, and of the path in it."""
        if self.submodule:
            return hashlib.sha256(os.fsencode(f"{self.submodule.commit}/{self.submodule.below}")).digest()
        return bytes.fromhex(self.pointer) if self.pointer else hashlib.sha256(self.content).digest()

    def is_same(self, other: SourceFile) -> bool:
        """Return True if the other file has the same bytes, whatever its path and mode."""
        is_submodule = self.submodule is not None
        return is_submodule == (other.submodule is not None) and self.digest == other.digest


@dataclass(frozen=True, slots=True)
class SourceTree:
    """Files of a package, sorted by unique path.

    Attributes:
        files: The files.
        digest: The SHA-256 over all files, 64 hex digits: of each file the path, a zero byte, "x" or "-" ("s"
            for a submodule), and its digest.
        former: The digest by the reading of versions up to 0.2, which asked no index, where that is another
            one; "" for none. Jobs may exist under its names.
    """

    files: tuple[SourceFile, ...]
    former: str = ""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        files = tuple(sorted(self.files, key=lambda file: file.path))
        object.__setattr__(self, "files", files)
        object.__setattr__(self, "digest", _digest(files))

    @property
    def missing(self) -> tuple[SourceFile, ...]:
        """The files that aren't here."""
        return tuple(file for file in self.files if not file.is_here)

    @property
    def has_name(self) -> bool:
        """True if the names of its jobs are known: every file's SHA-256 is."""
        return not any(file.submodule for file in self.files)


@dataclass(frozen=True, order=True, slots=True)
class SourceFinding:
    """Reason for refusing a folder.

    Attributes:
        path: The affected path, relative to the repository's root, with "/".
        message: A sentence that names the path.
        hint: The remedy.
        field: The field of the manifest's `package` that leads there.
    """

    path: str
    message: str
    hint: str
    field: str = "path"


class SourceTreeError(InvalidError):
    """Error for a folder that can't be staged.

    Attributes:
        findings: All reasons, sorted; at least one.
    """

    def __init__(self, findings: Iterable[SourceFinding]) -> None:
        self.findings = tuple(sorted(findings))
        first, *others = self.findings
        more = f" (and {len(others)} more)" if others else ""
        super().__init__(first.message + more, hint=first.hint)


def read_source_tree(folder: Path, root: Path, index: Index = COMMITTED) -> SourceTree:
    """Read the included files of `folder`.

    Args:
        folder: The package's folder.
        root: The repository's root, from which `.gitignore` files are read and which no link may leave.
        index: What git tracks; by default everything, as among files that were written from a commit.

    Raises:
        SourceTreeError: A file can't be staged, or the folder has no included file.
    """
    package = Path(os.path.relpath(folder, root)).as_posix()
    tree, is_adapted = _read(package, root, index)
    if not is_adapted:
        return tree
    with suppress(SourceTreeError):
        former, _ = _read(package, root, Committed(index.unread))
        # A file that changed in between would make another content pass for this one.
        read = {file.path: file for file in former.files}
        if all(file.path in read and file.is_same(read[file.path]) for file in tree.files):
            return replace(tree, former=former.digest)
    return tree


def _read(package: str, root: Path, index: Index) -> tuple[SourceTree, bool]:
    """Return the files, and True if the index may have changed them; raise SourceTreeError."""
    reader = _Reader(WorkTree(root, index), package)
    reader.read()
    if reader.findings:
        raise SourceTreeError(reader.findings)
    return SourceTree(tuple(reader.files)), reader.is_adapted


def _digest(files: Iterable[SourceFile]) -> str:
    whole = hashlib.sha256(_DOMAIN)
    # Unambiguous: a path contains no zero byte, and the rest of each file's input is always 33 bytes.
    for file in files:
        kind = b"s" if file.submodule else b"x" if file.executable else b"-"
        whole.update(file.path.encode("utf-8") + b"\0" + kind)
        whole.update(file.digest)
    return whole.hexdigest()


class _FullError(Exception):
    """Signal that the package exceeds a limit; ends the reading."""


class _Reader:
    """Reader of a package that collects all findings.

    A `path` begins at the package. Behind a link, it isn't the path in the repository (`Folder.names`).

    Attributes:
        is_adapted: True if git's index excluded an entry or gave a file another executable bit.
        files: The included files.
        findings: The reasons for refusing the folder.
    """

    def __init__(self, tree: WorkTree, package: str) -> None:
        self._tree = tree
        self._package = package
        self._entries = 0
        self._bytes = 0
        self.is_adapted = False
        self.files: list[SourceFile] = []
        self.findings: list[SourceFinding] = []

    def read(self) -> None:
        """Read the included files into `files`, and the reasons for refusing the folder into `findings`."""
        with suppress(_FullError), self._noting(()):
            self._read_package()
        if not self.files and not self.findings:
            self._note((), "contains no file to package", "put code there, or correct the .gitignore files")

    def _read_package(self) -> None:
        # Above a missing submodule, folders may be missing too.
        if self._add_submodule(PurePosixPath(self._package).parts, ()):
            return
        names = self._tree.resolve((), self._package)
        try:
            with self._tree.opened(names) as folder:
                self._read_folder(folder, (), frozenset())
        except NotADirectoryError:
            raise UnfitError("is not a folder", "write the path of the folder that holds the code") from None

    def _read_folder(self, folder: Folder, path: Names, above: frozenset[tuple[int, int]]) -> None:
        # A link to a folder around it would repeat the folder without end.
        if folder.inode in above:
            raise UnfitError("leads back to a folder that contains it", "point it to something else")
        if len(path) > MAX_DEPTH:
            raise UnfitError(f"is nested deeper than {MAX_DEPTH} folders", "nest it less deep")
        above |= {folder.inode}
        folded: dict[str, str] = {}
        entries = folder.entries()
        present = [entry.name for entry in entries]
        for names in folder.missing(present, folder.index.left_out, folders=False):
            self._note((*path, *map(_shown, names)), "is left out of the work tree by git", GET_LEFT_OUT)
        for names in folder.missing(present, folder.index.unread, folders=True):
            self._add_submodule((*folder.names, *names), (*path, *map(_shown, names)))
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if folder.reason_to_exclude(entry.name, folder=is_folder):
                self.is_adapted |= folder.is_left_over(entry.name, folder=is_folder)
                continue
            name = _shown(entry.name)
            with self._noting((*path, name)):
                self._count()
                _refuse_unfit_name(entry.name)
                _refuse_same_name(folded, name)
                self._read_entry(folder, entry, (*path, name), above)

    def _read_entry(
        self, folder: Folder, entry: os.DirEntry[str], path: Names, above: frozenset[tuple[int, int]]
    ) -> None:
        if not entry.is_symlink():
            self._read_thing(folder, entry.name, path, above)
            return
        target = os.readlink(entry.name, dir_fd=folder.fd)
        try:
            self._read_target(self._tree.resolve(folder.names, target), path, above)
        except UnfitError as error:
            message = f"is a link to {quote(_shown(target))}, which {error.message}"
            raise UnfitError(message, error.hint) from None

    def _read_target(self, names: Names, path: Names, above: frozenset[tuple[int, int]]) -> None:
        if not names:
            raise UnfitError("is the repository's root", "point it to what the package needs")
        if self._add_submodule(names, path):
            return
        with self._tree.opened(names[:-1]) as parent:
            mode = os.stat(names[-1], dir_fd=parent.fd, follow_symlinks=False).st_mode
            refuse_excluded(parent, names[-1], folder=stat.S_ISDIR(mode))
            self._read_thing(parent, names[-1], path, above)

    def _read_thing(self, parent: Folder, name: str, path: Names, above: frozenset[tuple[int, int]]) -> None:
        mode = os.stat(name, dir_fd=parent.fd, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if self._add_submodule((*parent.names, name), path):
                return
            with self._tree.child(parent, name) as folder:
                self._read_folder(folder, path, above)
        elif stat.S_ISREG(mode):
            self._read_file(parent, name, path)
        else:
            raise not_a_file(mode)

    def _read_file(self, parent: Folder, name: str, path: Names) -> None:
        index, index_path = parent.index, parent.path(name)
        if index.is_link(index_path):
            raise UnfitError("is a link in git, and here a file with the link's text", _NEEDS_LINKS)
        # One byte more than the rest of the limit shows that the limit is exceeded.
        content, executable = parent.read(name, MAX_BYTES - self._bytes + 1)
        if (in_git := index.is_executable(index_path)) is not None and in_git != executable:
            self.is_adapted, executable = True, in_git
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            self._refuse_more(f"more than {MAX_BYTES // 1_000_000} MB")
        pointer = pointer_digest(content)
        self.files.append(SourceFile("/".join(path), executable, b"" if pointer else content, pointer))

    def _add_submodule(self, names: Names, path: Names) -> bool:
        """Add the submodule without files that resolved names are or lead into; return True for one."""
        submodule = self._tree.submodule(names)
        if submodule:
            self.files.append(SourceFile("/".join(path), False, b"", submodule=submodule))
        return submodule is not None

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MAX_FILES:
            self._refuse_more(f"more than {MAX_FILES:,} files and folders")

    def _refuse_more(self, amount: str) -> NoReturn:
        hint = "exclude files other than code in a .gitignore; a job reads its data from Cloud Storage"
        self._note((), f"holds {amount}", hint)
        raise _FullError

    @contextmanager
    def _noting(self, path: Names) -> Iterator[None]:
        """Turn an error inside the block into a finding about `path`."""
        try:
            yield
        except UnfitError as error:
            self._note(path, error.message, error.hint)
        except OSError as error:
            check_machine(error, f"{self._place(path)} can't be read")
            reason = error.strerror or type(error).__name__
            self._note(path, f"can't be read: {reason}", "make it readable, or exclude it in a .gitignore")

    def _place(self, path: Names) -> str:
        return PurePosixPath(_shown(self._package), *path).as_posix()

    def _note(self, path: Names, message: str, hint: str) -> None:
        shown_path = self._place(path)
        self.findings.append(SourceFinding(shown_path, f"{quote(shown_path)} {message}", hint))


def _shown(name: str) -> str:
    """Return a name as text in any locale, with escapes for bytes that aren't UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _refuse_unfit_name(name: str) -> None:
    """Raise UnfitError for a name that another system would change or that isn't printable."""
    try:
        text = os.fsencode(name).decode("utf-8")
    except UnicodeDecodeError:
        raise UnfitError("has a name that isn't UTF-8", "give it another name") from None
    if _UNFIT_NAME.search(text):
        raise UnfitError("has a control character or a backslash in its name", "give it another name")
    if not unicodedata.is_normalized("NFC", text):
        hint = "give it the name in Unicode's composed form (NFC)"
        raise UnfitError("has a name that another system may spell in other bytes", hint)


def _refuse_same_name(folded: dict[str, str], name: str) -> None:
    # Two such names are a single file on macOS and Windows.
    other = folded.setdefault(unicodedata.normalize("NFC", name.casefold()), name)
    if other != name:
        message = f"is the same as {quote(other)} except for upper and lower case"
        raise UnfitError(message, "give one of them another name")
