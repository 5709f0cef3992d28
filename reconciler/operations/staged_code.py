"""The code that jobs stage: read once for all jobs, and made into archives for those that are submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from reconciler.base.diagnostics import Problem
from reconciler.model.manifest import Manifest
from reconciler.packaging.sdist import Sdist, build_sdist, check_sdist
from reconciler.packaging.source_tree import SourceTree, SourceTreeError, read_source_tree


class Archives(Mapping[str, Sdist]):
    """Archives by job name, each made when it is first asked for."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Sdist]] = {}
        self._made: dict[str, Sdist] = {}

    def add(self, job_name: str, tree: SourceTree, name: str, module: str) -> None:
        """Have the archive of a job made of `tree`, from which the job got its name; see `build_sdist`."""
        self._makers[job_name] = partial(build_sdist, tree, name, module)

    def __getitem__(self, job_name: str) -> Sdist:
        if job_name not in self._made:
            self._made[job_name] = self._makers[job_name]()
        return self._made[job_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class CodeReader:
    """Reads each package folder once, however many jobs stage it.

    Attributes:
        problems: What can't be staged.
        archives: Of the jobs that were added.
    """

    def __init__(self, root: Path) -> None:
        self.problems: list[Problem] = []
        self.archives = Archives()
        self._root = root
        self._trees: dict[Path, SourceTree | SourceTreeError] = {}
        self._fitting: set[tuple[Path, str]] = set()

    def read(self, manifest: Manifest, folder: Path, module: str) -> SourceTree | None:
        """The code of a job; None where it can't be staged.

        Args:
            manifest: Where problems are told of.
            folder: Its package.
            module: What the job runs.
        """
        try:
            tree = self._tree(folder)
            self._check(folder, tree, module)
        except SourceTreeError as error:
            self.problems += [
                Problem(manifest.path, manifest.line, 1, "/package/path", finding.message, finding.hint)
                for finding in error.findings
            ]
            return None
        return tree

    def _tree(self, folder: Path) -> SourceTree:
        if folder not in self._trees:
            try:
                self._trees[folder] = read_source_tree(folder, self._root)
            except SourceTreeError as error:
                self._trees[folder] = error
        found = self._trees[folder]
        if isinstance(found, SourceTreeError):
            raise found
        return found

    def _check(self, folder: Path, tree: SourceTree, module: str) -> None:
        """Raise SourceTreeError where there can be no archive for a job that runs `module`."""
        if (folder, module) not in self._fitting:
            check_sdist(tree, module)
            self._fitting.add((folder, module))
