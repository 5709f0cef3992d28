"""Loader of the desired jobs from a repository's manifests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import InvalidError
from reconciler.google.engines import engine_class
from reconciler.manifests import schemas
from reconciler.manifests.cache import Identities, Memory, open_cache
from reconciler.manifests.paths import check_found, manifest_paths
from reconciler.manifests.settings import Config, Environment
from reconciler.manifests.validate import validate
from reconciler.model.manifest import Manifest, unpacked
from reconciler.model.naming import canonical_spec, identities, job_name, label_of
from reconciler.model.plan import DesiredJob

if TYPE_CHECKING:
    from reconciler.packaging.sdist import Sdist
    from reconciler.packaging.source_tree import SourceTree, SourceTreeError


class Desired(Struct, frozen=True):
    """All desired jobs, with the code that their names were computed from.

    Attributes:
        jobs: The jobs, sorted by base name.
        archives: The builders of staged archives by job name, each from exactly the code that was named.
        code: The source tree as it was read, by job name; without jobs that have no package.
    """

    jobs: tuple[DesiredJob, ...]
    archives: Mapping[str, Callable[[], Sdist]]
    code: Mapping[str, SourceTree] = {}


def desired_jobs(
    root: Path,
    manifests: Sequence[Manifest],
    environment: Environment,
    known: Sequence[Identities] = (),
) -> Desired:
    """Return the result of `stageable_jobs`; raise InvalidError with every problem of staged code."""
    desired, problems = stageable_jobs(root, manifests, environment, known)
    if problems:
        raise InvalidError("some packages can't be staged", problems=problems)
    return desired


def stageable_jobs(
    root: Path,
    manifests: Sequence[Manifest],
    environment: Environment,
    known: Sequence[Identities] = (),
) -> tuple[Desired, list[Problem]]:
    """Return the desired jobs with code that can be staged, and the problems of the other jobs' code.

    `known` has the identities of each manifest, as `Validation.identities`; by default they are computed.
    """
    reader = _CodeReader(root)
    jobs: list[DesiredJob] = []
    archives: dict[str, Callable[[], Sdist]] = {}
    trees: dict[str, SourceTree] = {}
    for manifest, found in zip(manifests, known or repeat(()), strict=False):
        if manifest.package is None:
            jobs.append(_job(manifest, found, "", environment))
        # The name contains the code's digest, so a job with unreadable code has none.
        elif tree := reader.read(manifest, manifest.package):
            job = _job(manifest, found, tree.digest, environment)
            archives[job.job_name] = _archive(tree, manifest)
            trees[job.job_name] = tree
            jobs.append(job)
    jobs.sort(key=lambda job: job.manifest.base_name)
    return Desired(tuple(jobs), archives, trees), reader.problems


def code_problems(root: Path, manifests: Sequence[Manifest]) -> list[Problem]:
    """Return the reasons why the code of valid manifests can't be staged, without running any of it."""
    reader = _CodeReader(root)
    for manifest in manifests:
        if manifest.package is not None:
            reader.read(manifest, manifest.package)
    return reader.problems


class _CodeReader:
    """Reader that reads each package folder once, however many jobs stage it.

    Attributes:
        problems: The reasons why packages can't be staged.
    """

    def __init__(self, root: Path) -> None:
        self.problems: list[Problem] = []
        self._root = root
        self._trees: dict[Path, SourceTree | SourceTreeError] = {}
        self._checked: set[tuple[Path, str]] = set()

    def read(self, manifest: Manifest, folder: Path) -> SourceTree | None:
        """Return the code of a job in `folder`; add to `problems` and return None if it can't be staged."""
        # Slow to import, and needed only for jobs with a package.
        from reconciler.packaging.sdist import check_sdist
        from reconciler.packaging.source_tree import SourceTreeError

        module = _module(manifest)
        try:
            tree = self._tree(folder)
            if (folder, module) not in self._checked:
                check_sdist(tree, module)
                self._checked.add((folder, module))
        except SourceTreeError as error:
            self.problems += [
                Problem(manifest.path, manifest.line, 1, "/package/path", finding.message, finding.hint)
                for finding in error.findings
            ]
            return None
        return tree

    def _tree(self, folder: Path) -> SourceTree:
        from reconciler.packaging.source_tree import SourceTreeError, read_source_tree

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


def _archive(tree: SourceTree, manifest: Manifest) -> Callable[[], Sdist]:
    """Return a builder of the archive of exactly this code, which builds it once."""
    from reconciler.packaging.sdist import build_sdist

    return cache(partial(build_sdist, tree, manifest.name, _module(manifest)))


def _module(manifest: Manifest) -> str:
    return engine_class(manifest.api_version).module(manifest.kind, manifest.spec)


def _job(manifest: Manifest, known: Identities, code: str, environment: Environment) -> DesiredJob:
    packed = manifest.packed
    if not known:
        # The cache has no identities of a manifest that changed, or whose package's code is part of them.
        schema = schemas.manifest_schema(manifest.api_version, manifest.kind)
        assert schema is not None, "a valid manifest has a schema"
        packed = canonical_spec(manifest.spec, schema)
        known = tuple((each, label_of(each)) for each in identities(manifest, packed, code))
    # The first identity names the job; the others are those of older versions of the hash.
    identity, *earlier = [each for each, _ in known]
    name = job_name(manifest.base_name, identity)
    # Defaults come after the name: a changed default must not submit every job again.
    if environment.defaults:
        engine = engine_class(manifest.api_version)
        packed = engine.with_defaults(manifest.kind, unpacked(packed), environment.defaults, name)
    keys = tuple([key for _, key in known])
    return DesiredJob(manifest, identity, name, code, packed, tuple(earlier), keys)


def load_desired(
    config: Config, environment: Environment, paths: Sequence[Path], memory: Memory | None = None
) -> Desired:
    """Return the jobs of the manifests under `paths`.

    Args:
        paths: Files and folders, as `manifest_paths` takes them.
        memory: The known manifests of a process that loads them repeatedly, updated by this call; by default
            the cache on disk.

    Raises:
        InvalidError: Manifests are invalid, or packages can't be staged; it has every problem.
        UsageError: A path does not exist.
    """
    root, filled = config.root, frozenset(environment.defaults)
    below = manifest_paths(root, paths)
    with open_cache(root, filled, os.environ) if memory is None else nullcontext(memory) as known:
        found = validate(root, below, filled, memory=known, whole=not paths)
    check_found(found, paths)
    if found.problems:
        raise InvalidError("some manifests are not valid", problems=found.problems)
    return desired_jobs(root, found.manifests, environment, found.identities)
