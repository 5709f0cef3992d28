"""Code that jobs stage: each package is read once, and archived when a job is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from reconciler.base.diagnostics import Problem, pointer_of
from reconciler.google.engines import engine_class
from reconciler.manifests.files import real_path
from reconciler.manifests.yaml_load import position_in
from reconciler.model.manifest import Manifest
from reconciler.packaging.sdist import Sdist, build_sdist, check_sdist
from reconciler.packaging.source_tree import SourceTree, SourceTreeError, read_source_tree


class CodeReader:
    """Reader that reads each package folder once, however many jobs stage it.

    Attributes:
        problems: The reasons why packages can't be staged.
        archives: The builders of the added jobs' archives, by job name. Each builds its archive once.
    """

    def __init__(self, root: Path) -> None:
        self.problems: list[Problem] = []
        self.archives: dict[str, Callable[[], Sdist]] = {}
        self._root = root
        self._trees: dict[Path, SourceTree | SourceTreeError] = {}
        self._checked: set[tuple[Path, str]] = set()

    def read(self, manifest: Manifest, folder: Path) -> SourceTree | None:
        """Return the code of a job in its package folder; None, and `problems`, if it can't be staged."""
        module = _module(manifest)
        try:
            tree = self._tree(folder)
            if (folder, module) not in self._checked:
                check_sdist(tree, module)
                self._checked.add((folder, module))
        except SourceTreeError as error:
            keys = ("package", "path")
            place = position_in(real_path(self._root / manifest.path), keys, manifest.line)
            self.problems += [
                Problem(manifest.path, *place, pointer_of(keys), finding.message, finding.hint)
                for finding in error.findings
            ]
            return None
        return tree

    def add_archive(self, job_name: str, manifest: Manifest, tree: SourceTree) -> None:
        """Add a job's archive, to be built from the source tree that its name was computed from."""
        self.archives[job_name] = cache(partial(build_sdist, tree, _module(manifest)))

    def _tree(self, folder: Path) -> SourceTree:
        if folder not in self._trees:
            try:
                self._trees[folder] = read_source_tree(folder, self._root)
            except SourceTreeError as error:
                # Kept, so that each job of the package reports the problem without another read.
                self._trees[folder] = error
        found = self._trees[folder]
        if isinstance(found, SourceTreeError):
            raise found
        return found


def code_problems(root: Path, manifests: Sequence[Manifest]) -> list[Problem]:
    """Return the reasons why the code of valid manifests can't be staged, without running any of it."""
    reader = CodeReader(root)
    for manifest in manifests:
        if manifest.package is not None:
            reader.read(manifest, manifest.package)
    return reader.problems


def _module(manifest: Manifest) -> str:
    return engine_class(manifest.api_version).module(manifest.kind, manifest.spec)
