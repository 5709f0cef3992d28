"""What the manifests and settings of the work tree propose over those of a commit; no service is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.config import LOCAL, Environment
from reconciler.desired import stageable_jobs
from reconciler.diagnostics import Problem, capped
from reconciler.errors import UsageError
from reconciler.manifests import JOBS_FOLDER, check_found, is_manifest, laying_out, manifest_paths
from reconciler.plan import DesiredJob
from reconciler.planning.proposal import Proposal
from reconciler.planning.proposing import propose
from reconciler.proposedsettings import proposed_settings
from reconciler.reconcile import hours_of
from reconciler.revision import Names, revision
from reconciler.validation.packages import PackageOf, package_folder
from reconciler.validation.remembered import Memory
from reconciler.validation.validate import Validation, validate


def proposal_of(
    root: Path, environment: str | None, base: str, paths: Sequence[Path], environ: Mapping[str, str]
) -> Proposal:
    """The proposal of the manifests below `paths` over those of the commit `base`, each with its settings.

    Where the work tree's settings can't be used, their problems are all that there is beside their changes.

    Args:
        root: The work tree's root.
        environment: Where the jobs are for, by default `local`.
        base: The commit, as git takes it.
        paths: Files and folders that are there on one side at least; by default `jobs` at the root.
        environ: The environment variables.

    Raises:
        UsageError: There is no git repository, or a path or the environment isn't there on either side.
        NotFoundError: There is no such commit.
        ReconcilerError: The commit can't be read.
    """
    named = {path: _names(root, path) for path in paths or [root / JOBS_FOLDER]}
    with revision(root, base, environ) as commit:
        settings = proposed_settings(root, commit, environment or LOCAL)
        if settings.sides is None:
            return Proposal(
                settings.target,
                commit.sha,
                (),
                settings.problems,
                settings=settings.changes,
                notes=settings.notes,
            )
        old, new = settings.sides
        there = [names for names in named.values() if commit.lay_out(names, is_manifest)]
        for path, names in named.items():
            if names not in there and not os.path.lexists(path):
                if paths:
                    raise UsageError(f"there is no file or folder {path}, nor was there one in {base}")
                manifest_paths(root, paths)
        memory = Memory()  # most files are the same on both sides
        before = _read(
            commit.root,
            [commit.root.joinpath(*names) for names in there],
            old,
            laying_out(commit),
            memory,
        )
    after = _read(root, [path for path in named if os.path.lexists(path)], new, package_folder, memory)
    if not before.files:
        check_found(after.found, paths)
    found = propose(
        settings.target,
        commit.sha,
        before.jobs,
        after.jobs,
        hours_of,
        whole=not paths,
        invalid=after.invalid,
        problems=after.problems,
        base_problems=len(before.problems),
    )
    return replace(found, settings=settings.changes, notes=settings.notes)


@dataclass(frozen=True, slots=True)
class _Side:
    """The manifests of one side.

    Attributes:
        found: What came of validating.
        jobs: Of those that are valid and whose code can be staged.
        problems: Of the others, sorted.
    """

    found: Validation
    jobs: tuple[DesiredJob, ...]
    problems: tuple[Problem, ...]

    @property
    def files(self) -> int:
        return self.found.files

    @property
    def invalid(self) -> set[str]:
        """The base names of the others."""
        named = {manifest.base_name for manifest in self.found.manifests}
        return {*self.found.invalid, *named} - {job.manifest.base_name for job in self.jobs}


def _read(
    root: Path, paths: Sequence[Path], environment: Environment, package_of: PackageOf, memory: Memory
) -> _Side:
    found = validate(root, paths, frozenset(environment.defaults), package_of, memory)
    desired, unfit = stageable_jobs(root, found.manifests, environment, found.identities)
    return _Side(found, desired.jobs, tuple(sorted([*found.problems, *capped(unfit)])))


def _names(root: Path, path: Path) -> Names:
    """Where a path is below the root."""
    straight = Path(os.path.normpath(path.absolute()))
    for place in (straight, straight.resolve()):
        if place.is_relative_to(root):
            return place.relative_to(root).parts
    raise UsageError(f"{path} is outside the repository", hint="--base compares what git keeps of it")
