"""What the repository wants: manifests, the code they stage, and the names that follow from both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reconciler import schemas
from reconciler.canonical import canonical_spec
from reconciler.config import Environment
from reconciler.diagnostics import Problem
from reconciler.engines import engine_class
from reconciler.errors import InvalidError
from reconciler.manifest import JsonObject, Manifest
from reconciler.naming import identities, job_name
from reconciler.plan import DesiredJob
from reconciler.sources.sdist import Sdist, build_sdist
from reconciler.sources.sourcetree import SourceTree, SourceTreeError, read_source_tree


@dataclass(frozen=True, slots=True)
class Desired:
    """All wanted jobs, with the code that was read to name them.

    Attributes:
        jobs: Sorted by base name.
        archives: By job name, what is staged; exactly the bytes that the name was made of.
    """

    jobs: tuple[DesiredJob, ...]
    archives: Mapping[str, Sdist]


def desired_jobs(root: Path, manifests: Sequence[Manifest], environment: Environment) -> Desired:
    """The wanted jobs of valid manifests; raises InvalidError with every reason why code can't be staged."""
    desired, problems = stageable_jobs(root, manifests, environment)
    if problems:
        raise InvalidError("some packages can't be staged", problems=problems)
    return desired


def stageable_jobs(
    root: Path, manifests: Sequence[Manifest], environment: Environment
) -> tuple[Desired, list[Problem]]:
    """The wanted jobs whose code can be staged, and every reason why the code of the others can't."""
    code = _CodeReader(root)
    jobs, archives = [], {}
    for manifest in manifests:
        found = code.read(manifest)
        if found is None and manifest.package is not None:
            continue
        job = _job(manifest, found.tree.digest if found else "", environment)
        jobs.append(job)
        if found:
            archives[job.job_name] = found.archive
    return Desired(tuple(sorted(jobs, key=lambda job: job.manifest.base_name)), archives), code.problems


def code_problems(root: Path, manifests: Sequence[Manifest]) -> list[Problem]:
    """Why the code of valid manifests can't be staged; nothing of it is run to find out."""
    code = _CodeReader(root)
    for manifest in manifests:
        code.read(manifest)
    return code.problems


@dataclass(frozen=True, slots=True)
class _Code:
    """What a job stages."""

    tree: SourceTree
    archive: Sdist


class _CodeReader:
    """Reads each package folder once, however many jobs stage it, and collects what can't be staged."""

    def __init__(self, root: Path) -> None:
        self.problems: list[Problem] = []
        self._root = root
        self._trees: dict[Path, SourceTree | SourceTreeError] = {}

    def read(self, manifest: Manifest) -> _Code | None:
        """The code of a job; None where it stages none, or where it can't be staged."""
        if manifest.package is None:
            return None
        try:
            tree = self._tree(manifest.package)
            module = engine_class(manifest.api_version).module(manifest.kind, manifest.spec)
            return _Code(tree, build_sdist(tree, manifest.name, module))
        except SourceTreeError as error:
            self.problems += [
                Problem(manifest.path, manifest.line, 1, "/package/path", finding.message, finding.hint)
                for finding in error.findings
            ]
            return None

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


def _job(manifest: Manifest, code: str, environment: Environment) -> DesiredJob:
    schema = schemas.manifest_schema(manifest.api_version, manifest.kind)
    assert schema is not None, "a valid manifest has a schema"
    spec = canonical_spec(manifest.spec, schema)
    whole, *earlier = identities(manifest, spec, code)
    name = job_name(manifest.base_name, whole)
    filled = _with_defaults(manifest, spec, environment, name)
    return DesiredJob(manifest, whole, name, code, filled, tuple(earlier))


def _with_defaults(manifest: Manifest, spec: JsonObject, environment: Environment, name: str) -> JsonObject:
    if not environment.defaults:
        return spec
    engine = engine_class(manifest.api_version)
    return engine.with_defaults(manifest.kind, spec, environment.defaults, name)
