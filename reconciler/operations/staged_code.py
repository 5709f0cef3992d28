"""Code that jobs stage: each package is read once and archived for submissions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath

from reconciler.base.checkout import repository_in
from reconciler.base.diagnostics import Problem, counted, pointer_of, quote
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.manifests.files import real_path
from reconciler.manifests.yaml_load import position_in
from reconciler.model.manifest import Manifest
from reconciler.model.stand_ins import GET_LFS_FILE, CodeUse, fetching
from reconciler.model.tracking import COMMITTED, Index
from reconciler.packaging.sdist import Sdist, build_code, build_sdist, check_code, check_sdist, place_in_code
from reconciler.packaging.source_tree import (
    SourceFinding,
    SourceTree,
    SourceTreeError,
    read_source_tree,
)


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
                position = position_in(real_path(self._root / manifest.path), keys, manifest.line)
                problem = Problem(manifest.path, *position, pointer_of(keys), finding.message, finding.hint)
                self.problems.append(problem)
            return None
        return tree

    def add_archive(self, job_name: str, manifest: Manifest, tree: SourceTree) -> None:
        """Add a job's archive, to be built from the source tree that its name was computed from."""
        build = partial(build_code, tree, manifest.module) if manifest.module else None
        self.archives[job_name] = cache(build or partial(build_sdist, tree, _module(manifest)))


def code_problems(root: Path, manifests: Sequence[Manifest], index: Index = COMMITTED) -> list[Problem]:
    """Return the reasons of `readable_code` alone."""
    return readable_code(root, manifests, index)[1]


def readable_code(
    root: Path, manifests: Sequence[Manifest], index: Index = COMMITTED
) -> tuple[list[tuple[Manifest, SourceTree]], list[Problem]]:
    """Return the valid manifests with code, with its files, and why other code couldn't be staged.

    No code runs. Files that only this checkout lacks, of Git LFS and of submodules, are no reason.
    """
    reader = CodeReader(root, index, CodeUse.COMPARED)
    read = []
    for manifest in manifests:
        if manifest.package is not None and (tree := reader.read(manifest, manifest.package)):
            read.append((manifest, tree))
    return read, reader.problems


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
    return engine_spec(manifest.api_version).module(manifest.kind, manifest.spec)
