"""Code that jobs stage: each package is read once, archived for submissions, compared with earlier code."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path, PurePosixPath

from reconciler.base.checkout import repository_in
from reconciler.base.diagnostics import Problem, counted, pointer_of, quote
from reconciler.base.errors import ReconcilerError
from reconciler.base.git_command import SHA
from reconciler.git.revision import revision
from reconciler.google.engines import engine_class
from reconciler.manifests.files import real_path
from reconciler.manifests.yaml_load import position_in
from reconciler.model.diff import FileChange
from reconciler.model.manifest import Manifest
from reconciler.model.naming import label_of
from reconciler.model.plan import Change
from reconciler.model.stand_ins import GET_LFS_FILE, CodeUse, fetching
from reconciler.model.tracking import COMMITTED, Index
from reconciler.packaging.sdist import Sdist, build_code, build_sdist, check_code, check_sdist, place_in_code
from reconciler.packaging.source_tree import (
    SourceFile,
    SourceFinding,
    SourceTree,
    SourceTreeError,
    read_source_tree,
)
from reconciler.planning.comparison import CODE_POINTER

_MOST_READ = 20
"""Largest number of folders of commits that a plan reads for its comparison."""
_MOST_STEPS = 1_000_000
_HEAD = 8000


class CodeReader:
    """Reader that reads each package folder once, however many jobs stage it.

    Args:
        root: The repository's root.
        index: What git tracks.
        use: What the code is read for.

    Attributes:
        problems: The reasons why packages can't be used so.
        archives: The builders of the added jobs' archives, by job name. Each builds its archive once.
    """

    def __init__(self, root: Path, index: Index, use: CodeUse) -> None:
        self.problems: list[Problem] = []
        self.archives: dict[str, Callable[[], Sdist]] = {}
        self._root = root
        self._tree = cache(partial(_tree_or_error, root=root, index=index, use=use))
        self._checked: set[tuple[Path, str, str, str]] = set()

    def read(self, manifest: Manifest, folder: Path) -> SourceTree | None:
        """Return the code of a job in its package folder; None, and `problems`, if it can't be staged."""
        module = _module(manifest)
        key = (folder, manifest.module, manifest.requirements, module)
        tree = self._tree(folder)
        try:
            if isinstance(tree, SourceTreeError):
                raise tree
            if key not in self._checked:
                if manifest.module:
                    check_code(tree, manifest.module, manifest.requirements)
                else:
                    check_sdist(tree, module)
                self._checked.add(key)
        except SourceTreeError as error:
            for finding in error.findings:
                keys = ("package", finding.field)
                place = position_in(real_path(self._root / manifest.path), keys, manifest.line)
                found = Problem(manifest.path, *place, pointer_of(keys), finding.message, finding.hint)
                self.problems.append(found)
            return None
        return tree

    def add_archive(self, job_name: str, manifest: Manifest, tree: SourceTree) -> None:
        """Add a job's archive, to be built from the source tree that its name was computed from."""
        build = partial(build_code, tree, manifest.module) if manifest.module else None
        self.archives[job_name] = cache(build or partial(build_sdist, tree, _module(manifest)))


class EarlierCode:
    """Comparison of the code of changed jobs with the code of their earlier runs, by git's objects."""

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self._root = real_path(root)
        self._environ = environ
        self._counter = LineCounter()
        self._trees: dict[tuple[str, str], SourceTree | None] = {}

    def changed_files(self, change: Change, code: Mapping[str, SourceTree]) -> tuple[FileChange, ...]:
        """Return the changed files of a job's code; empty if the earlier code isn't known.

        Args:
            change: The change of the job.
            code: The code of the desired jobs, by job name.
        """
        job, earlier = change.desired, change.earlier_commit
        tree = code.get(job.job_name) if job else None
        if job is None or tree is None or job.manifest.package is None or not SHA.fullmatch(earlier):
            return ()
        folder = job.manifest.package.relative_to(self._root).as_posix()
        key = (earlier, folder)
        if key not in self._trees:
            # Each commit costs a process of git.
            self._trees[key] = self._read(*key) if len(self._trees) < _MOST_READ else None
        old = self._trees[key]
        digest = next((field.before for field in change.fields if field.pointer == CODE_POINTER), None)
        # The commit's code may differ from the run's, as after a move of the package.
        if old is None or label_of(old.digest) != digest:
            return ()
        return self._counter.changed_files(folder, old, tree)

    def _read(self, sha: str, folder: str) -> SourceTree | None:
        """Return the source tree of a commit's folder; None if it can't be read here."""
        # A shallow or partial clone lacks it, and a plan needs it for its readers only.
        with (
            suppress(ReconcilerError, OSError),
            revision(self._root, sha, self._environ, with_submodules=True) as commit,
        ):
            if commit.lay_out(PurePosixPath(folder).parts, lambda name: True):
                return read_source_tree(commit.root / folder, commit.root, commit.index)
        return None


class LineCounter:
    """Counter of added and removed lines, as few as possible, within a budget for all files together."""

    def __init__(self) -> None:
        # A hostile pair of files would take quadratic time.
        self._steps = _MOST_STEPS
        self._files: dict[tuple[str, str, str], tuple[FileChange, ...]] = {}

    def changed_files(
        self, folder: str, before: SourceTree | None, after: SourceTree | None
    ) -> tuple[FileChange, ...]:
        """Return the files that differ between two source trees; None for no code.

        Args:
            folder: The package's folder, relative to the repository's root.
            before: The earlier code.
            after: The code of the work tree.
        """
        # Several jobs share a package.
        key = (folder, before.digest if before else "", after.digest if after else "")
        if key not in self._files:
            old, new = ({file.path: file for file in tree.files} if tree else {} for tree in (before, after))
            pairs = {path: (old.get(path), new.get(path)) for path in sorted({*old, *new})}
            self._files[key] = tuple(
                FileChange((PurePosixPath(folder) / path).as_posix(), *self._counts(*pair), _about(*pair))
                for path, pair in pairs.items()
                if not _is_unchanged(*pair)
            )
        return self._files[key]

    def _counts(self, old: SourceFile | None, new: SourceFile | None) -> tuple[int | None, int | None]:
        if old and new and old.is_same(new):
            return 0, 0
        if not all(file.is_here for file in (old, new) if file):
            return None, None
        before, after = (file.content if file else b"" for file in (old, new))
        # Git's rule for a binary file.
        if b"\0" in before[:_HEAD] or b"\0" in after[:_HEAD]:
            return None, None
        removed, added = before.splitlines(keepends=True), after.splitlines(keepends=True)
        edits = self._edits(removed, added)
        if edits is None:
            fewer, more = Counter(removed), Counter(added)
            return (more - fewer).total(), (fewer - more).total()
        return (edits + len(added) - len(removed)) // 2, (edits - len(added) + len(removed)) // 2

    def _edits(self, old: list[bytes], new: list[bytes]) -> int | None:
        """Return the number of edits between two lists, by Myers' algorithm; None if it takes too long."""
        reached = {1: 0}
        for edits in range(len(old) + len(new) + 1):
            for diagonal in range(-edits, edits + 1, 2):
                left, right = reached.get(diagonal - 1, -1), reached.get(diagonal + 1, -1)
                start = x = right if left < right else left + 1
                while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                    x += 1
                reached[diagonal] = x
                if x >= len(old) and x - diagonal >= len(new):
                    return edits
                self._steps -= 1 + x - start
            if self._steps < 0:
                return None
        return None


def _is_unchanged(old: SourceFile | None, new: SourceFile | None) -> bool:
    return bool(old and new and old.executable == new.executable and old.is_same(new))


def _about(old: SourceFile | None, new: SourceFile | None) -> str:
    """Return what is known of a file that isn't here on both sides; "" for others."""
    files = [file for file in (old, new) if file]
    if any(file.submodule for file in files):
        sides = (file.submodule.commit[:7] if file and file.submodule else "none" for file in (old, new))
        return f"submodule {' → '.join(sides)}"
    return "Git LFS" if any(file.pointer for file in files) else ""


def code_problems(root: Path, manifests: Sequence[Manifest], index: Index = COMMITTED) -> list[Problem]:
    """Return the reasons why no code of valid manifests could be staged, without running any of it.

    Files that only this checkout lacks, of Git LFS and of submodules, are none.
    """
    reader = CodeReader(root, index, CodeUse.COMPARED)
    for manifest in manifests:
        if manifest.package is not None:
            reader.read(manifest, manifest.package)
    return reader.problems


def _tree_or_error(folder: Path, root: Path, index: Index, use: CodeUse) -> SourceTree | SourceTreeError:
    # Returned, so that it can be cached: each job of the package reports it without another read.
    try:
        tree = read_source_tree(folder, root, index)
    except SourceTreeError as error:
        return error
    package = folder.relative_to(real_path(root)).as_posix()
    findings = [*_missing_files(tree, package, real_path(root), use)]
    return SourceTreeError(findings) if findings else tree


def _missing_files(tree: SourceTree, package: str, root: Path, use: CodeUse) -> Iterator[SourceFinding]:
    """Yield why a package can't be used so: its unfetched submodules, and its first pointer."""
    if use is CodeUse.COMPARED:
        return
    for submodule in sorted({file.submodule for file in tree.missing if file.submodule}):
        path = os.fsencode(submodule.path).decode("utf-8", "backslashreplace")
        around = next((p for p in PurePosixPath(path).parents if p.name and repository_in(root / p)), None)
        hint = fetching(path, around.as_posix() if around else "")
        yield SourceFinding(path, f"{quote(path)} is a submodule that isn't fetched", hint)
    pointers = pointers_in(package, tree)
    if use is CodeUse.STAGED and pointers:
        others = f", as {counted(len(pointers) - 1, 'more file')} of the package" if pointers[1:] else ""
        message = f"{quote(pointers[0])} is a Git LFS pointer, and not the file itself{others}"
        yield SourceFinding(pointers[0], message, GET_LFS_FILE)


def pointers_in(package: str, tree: SourceTree) -> list[str]:
    """Return the paths, from the root, of a package's files of which only the pointer is here."""
    return [(PurePosixPath(package) / file.path).as_posix() for file in tree.missing if file.pointer]


def lock_file(manifest: Manifest, tree: SourceTree) -> str:
    """Return the path, in its archive, of the lock file that a job's containers install; "" for none."""
    return manifest.requirements and place_in_code(tree, manifest.module, manifest.requirements)


def _module(manifest: Manifest) -> str:
    return engine_class(manifest.api_version).module(manifest.kind, manifest.spec)
