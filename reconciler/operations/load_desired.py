"""Load the jobs that a repository's manifests ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import InvalidError
from reconciler.google.engines import engine_class
from reconciler.manifests import schemas
from reconciler.manifests.cache import Identities, Memory, remembering
from reconciler.manifests.paths import check_found, manifest_paths
from reconciler.manifests.settings import Config, Environment
from reconciler.manifests.validate import validate
from reconciler.model.manifest import Manifest, unpacked
from reconciler.model.naming import canonical_spec, identities, job_name, label_of
from reconciler.model.plan import DesiredJob

if TYPE_CHECKING:
    from reconciler.operations.staged_code import CodeReader
    from reconciler.packaging.sdist import Sdist
    from reconciler.packaging.source_tree import SourceTree


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
    from reconciler.operations.staged_code import (
        CodeReader,  # what it takes to make archives is slow to import
    )

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


def load_desired(
    config: Config, environment: Environment, paths: Sequence[Path], memory: Memory | None = None
) -> Desired:
    """Return the jobs that the manifests under `paths` ask for.

    Args:
        config: The settings.
        environment: The environment that the jobs are for.
        paths: Files and folders, as `manifest_paths` takes them.
        memory: The known manifests of a process that loads them repeatedly, which it keeps up to date; by
            default, the cache on disk.

    Raises:
        InvalidError: Manifests are not valid, or packages can't be staged; it has every problem.
        UsageError: A path does not exist.
    """
    root, filled = config.root, frozenset(environment.defaults)
    below = manifest_paths(root, paths)
    with remembering(root, filled, os.environ) if memory is None else nullcontext(memory) as known:
        found = validate(root, below, filled, memory=known, whole=not paths)
    check_found(found, paths)
    if found.problems:
        raise InvalidError("some manifests are not valid", problems=found.problems)
    return desired_jobs(root, found.manifests, environment, found.identities)
