"""What the repository wants: manifests, the code they stage, and the names that follow from both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from reconciler import schemas
from reconciler.canonical import canonical_spec
from reconciler.config import Environment
from reconciler.diagnostics import Problem
from reconciler.engines import engine_class
from reconciler.errors import InvalidError
from reconciler.manifest import Manifest, unpacked
from reconciler.naming import identities, job_name, label_of
from reconciler.plan import DesiredJob
from reconciler.validation.remembered import Identities

if TYPE_CHECKING:
    # Most repositories' jobs bring no code.
    from reconciler.sources.sdist import Sdist
    from reconciler.sources.sourcetree import SourceTree
    from reconciler.stagedcode import CodeReader


class Desired(Struct, frozen=True):
    """All wanted jobs, with the code that was read to name them.

    Attributes:
        jobs: Sorted by base name.
        archives: By job name, what is staged; exactly the bytes that the name was made of. Each is made when
            it is first asked for.
        code: By job name, the source tree as it was read; nothing for a job without a package.
    """

    jobs: tuple[DesiredJob, ...]
    archives: Mapping[str, Sdist]
    code: Mapping[str, SourceTree] = {}


def desired_jobs(
    root: Path,
    manifests: Sequence[Manifest],
    environment: Environment,
    known: Sequence[Identities] = (),
) -> Desired:
    """The wanted jobs of valid manifests; raises InvalidError with every reason why code can't be staged.

    The arguments are those of `stageable_jobs`.
    """
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
    """The wanted jobs whose code can be staged, and every reason why the code of the others can't.

    Args:
        root: The repository's root.
        manifests: All valid ones.
        environment: Where the jobs are for.
        known: Of each manifest the identities, as `Validation.identities` has them; by default none is known.
    """
    reader: CodeReader | None = None
    jobs = []
    trees: dict[str, SourceTree] = {}
    for manifest, found in zip(manifests, known or repeat(()), strict=False):
        if manifest.package is None:
            jobs.append(_job(manifest, found, "", environment))
            continue
        reader = reader or _code_reader(root)
        module = _module(manifest)
        if tree := reader.read(manifest, manifest.package, module):
            job = _job(manifest, found, tree.digest, environment)
            reader.archives.add(job.job_name, tree, manifest.name, module)
            trees[job.job_name] = tree
            jobs.append(job)
    jobs.sort(key=lambda job: job.manifest.base_name)
    desired = Desired(tuple(jobs), reader.archives if reader else {}, trees)
    return desired, reader.problems if reader else []


def code_problems(root: Path, manifests: Sequence[Manifest]) -> list[Problem]:
    """Why the code of valid manifests can't be staged; nothing of it is run to find out."""
    reader: CodeReader | None = None
    for manifest in manifests:
        if manifest.package is not None:
            reader = reader or _code_reader(root)
            reader.read(manifest, manifest.package, _module(manifest))
    return reader.problems if reader else []


def _code_reader(root: Path) -> CodeReader:
    from reconciler.stagedcode import CodeReader  # what it takes to make archives is slow to import

    return CodeReader(root)


def _module(manifest: Manifest) -> str:
    return engine_class(manifest.api_version).module(manifest.kind, manifest.spec)


def _job(manifest: Manifest, known: Identities, code: str, environment: Environment) -> DesiredJob:
    packed = manifest.packed
    if not known:
        schema = schemas.manifest_schema(manifest.api_version, manifest.kind)
        assert schema is not None, "a valid manifest has a schema"
        packed = canonical_spec(manifest.spec, schema)
        known = tuple((each, label_of(each)) for each in identities(manifest, packed, code))
    whole, *earlier = [identity for identity, _ in known]
    name = job_name(manifest.base_name, whole)
    if environment.defaults:
        engine = engine_class(manifest.api_version)
        packed = engine.with_defaults(manifest.kind, unpacked(packed), environment.defaults, name)
    keys = tuple([key for _, key in known])
    return DesiredJob(manifest, whole, name, code, packed, tuple(earlier), keys)
