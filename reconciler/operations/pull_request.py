"""`plan --base`: plan from the jobs and settings of a commit to those of the work tree, offline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from reconciler.base.diagnostics import Problem, capped, quote
from reconciler.base.errors import UsageError
from reconciler.git.index import GitIndex
from reconciler.git.revision import Names, Revision, merge_base, revision
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.files import real_path
from reconciler.manifests.packages import PackageOf, package_folder
from reconciler.manifests.settings import (
    FILE_NAME,
    JOBS_FOLDER,
    LOCAL,
    Config,
    Environment,
    check_found,
    from_document,
    is_manifest,
    read_document,
)
from reconciler.manifests.validate import Validation, validate
from reconciler.manifests.warnings import warnings_of
from reconciler.model.diff import Comparison
from reconciler.model.plan import Change, DesiredJob, Edit, Plan, Target
from reconciler.model.selection import EVERYTHING, Selection
from reconciler.model.stand_ins import CodeUse
from reconciler.model.tracking import Index
from reconciler.operations.code_warnings import warnings_of_code
from reconciler.operations.earlier_code import LineCounter
from reconciler.operations.jobs_folder import left_out_manifests, manifest_paths
from reconciler.operations.load_desired import (
    Desired,
    about_pointers,
    pointers_of,
    selected_jobs,
    stageable_jobs,
)
from reconciler.operations.origin import laying_out
from reconciler.operations.plan import hours_of, target_of, with_output_folders, with_refusals
from reconciler.operations.publication_rules import PublicationProblems, publication_problems
from reconciler.planning.proposal import only_of, propose
from reconciler.planning.settings_changes import changed_settings

_NOT_COMPARED = f"The jobs aren't compared until {FILE_NAME} is fixed."
_BASE_INVALID = f"The base's {FILE_NAME} isn't valid, so every setting counts as new."
_ELSEWHERE = (
    "Jobs or claims move to another place. Earlier runs aren't known there, so unchanged jobs may be "
    "submitted again."
)


def proposal_of(
    root: Path,
    environment: str | None,
    base: str,
    paths: Sequence[Path],
    environ: Mapping[str, str],
    selection: Selection = EVERYTHING,
) -> Plan:
    """Return the plan of the manifests below `paths` over those of the base commit, each with its settings.

    The base commit is the merge base of `base` and HEAD.

    If the work tree's settings are invalid, only the settings are compared.

    Args:
        environment: The environment of the jobs, by default `local`.
        base: The branch or commit, as git takes it.
        paths: Files and folders that exist on at least one side; by default `jobs` at the root.
        selection: The jobs to compare, as either side has them.

    Raises:
        UsageError: There is no git repository, or neither side has a path or the environment.
        NotFoundError: The commit does not exist, or shares no commit with HEAD; or no job is selected.
        ReconcilerError: The commit can't be read.
    """
    named = {path: _names(root, path) for path in paths or [root / JOBS_FOLDER]}
    checked = CheckedFiles()  # most files are the same on both sides
    with revision(root, merge_base(root, base, environ), environ) as commit:
        config, target, sides, comparison = _compare_settings(root, commit, environment or LOCAL)
        if sides is None:
            return Plan(target, (), (), None, comparison=comparison)
        laid_out = {path: names for path, names in named.items() if commit.lay_out(names, is_manifest)}
        for path in paths:
            if path not in laid_out and not os.path.lexists(path):
                raise UsageError(f"there is no file or folder {path}, nor was there one in {base}")
        missing = manifest_paths(root, paths)[1]
        # Only the needed files of the commit are written to its temporary folder, which the `with` removes.
        base_paths = [commit.root.joinpath(*names) for names in laid_out.values()]
        old, before, of_base = _load(
            commit.root, base_paths, sides[0], laying_out(commit), checked, commit.index
        )
    local_paths = [path for path in named if os.path.lexists(path)]
    index = GitIndex(root, environ, by_record=True)  # of submodules, the base has no files either
    new, after, problems = _load(root, local_paths, sides[1], package_folder, checked, index)
    publications = publication_problems(root, new.manifests, config, sides[1])
    after, problems = _publishable(after, publications), tuple(sorted([*problems, *publications.errors]))
    # A work tree without manifests is an error unless the base has some, which the plan removes.
    if not old.files:
        check_found(new, paths)
    left_out, partial = left_out_manifests(root, index)
    of_code = warnings_of_code(after, root, sides[1])
    found = warnings_of(config, [*comparison.warnings, *missing, *partial, *new.warnings, *of_code]).placed()
    comparison = replace(comparison, problems=problems, base_problems=len(of_base), warnings=tuple(found))
    remaining = [job for job in before.jobs if job.manifest.path not in left_out]
    hours = _hours(remaining), _hours(after.jobs)
    invalid = {*new.invalid, *(manifest.base_name for manifest in new.manifests)}
    plan = propose(target, comparison, remaining, after.jobs, hours, whole=not paths, invalid=invalid)
    if selection and not problems:
        plan = only_of(plan, selected_jobs((*before.jobs, *after.jobs), selection))
    return with_refusals(with_output_folders(_with_code(plan, root, before, after)), sides[1].limits)


def _publishable(desired: Desired, publications: PublicationProblems) -> Desired:
    """Return the jobs without those whose address is refused."""
    jobs = [job for job in desired.jobs if job.manifest.base_name not in publications.refused]
    return replace(desired, jobs=tuple(jobs))


def _hours(jobs: Iterable[DesiredJob]) -> dict[str, float]:
    return {job.manifest.base_name: hours_of(job) for job in jobs}


def _names(root: Path, path: Path) -> Names:
    """Return the names that lead from the root to a path."""
    straight = Path(os.path.normpath(path.absolute()))
    # The path itself first: a link within the repository is compared as git stores it.
    for candidate in (straight, straight.resolve()):
        if candidate.is_relative_to(root):
            return candidate.relative_to(root).parts
    raise UsageError(f"{path} is outside the repository", hint="--base compares only files in the repository")


def _load(
    root: Path,
    paths: Sequence[Path],
    environment: Environment,
    package_of: PackageOf,
    checked: CheckedFiles,
    index: Index,
) -> tuple[Validation, Desired, tuple[Problem, ...]]:
    validation = validate(root, paths, environment.filled, package_of, checked, index)
    desired, unfit = stageable_jobs(root, validation.manifests, environment, index, CodeUse.COMPARED)
    return validation, desired, tuple(sorted([*validation.problems, *capped(unfit)]))


def _with_code(plan: Plan, root: Path, before: Desired, after: Desired) -> Plan:
    """Return the plan with what a reader has to know of the jobs' code."""
    return _with_pointers(_with_files(plan, root, before, after), root, after)


def _with_files(plan: Plan, root: Path, before: Desired, after: Desired) -> Plan:
    """Return the plan with the changed files of each job whose code changed."""
    if not any(change.code_changed for change in plan.changes):
        return plan
    counter = LineCounter()
    old = {job.manifest.base_name: before.code.get(job.job_name) for job in before.jobs}

    def changed(change: Change) -> Change:
        job = change.desired
        if not change.code_changed or job is None:
            return change
        # A job that no longer has a package lists its files by their path in it.
        folder = "."
        if job.manifest.package:
            folder = job.manifest.package.relative_to(real_path(root)).as_posix()
        files = counter.changed_files(folder, old[job.manifest.base_name], after.code.get(job.job_name))
        return replace(change, files=files)

    return replace(plan, changes=tuple(map(changed, plan.changes)))


def _with_pointers(plan: Plan, root: Path, after: Desired) -> Plan:
    """Return the plan with a note if apply needs files of new or changed jobs that are pointers here."""
    jobs = [c.desired for c in plan.changes if c.desired and c.edit in (Edit.NEW, Edit.CHANGED)]
    paths = pointers_of(root, after, jobs)
    if not paths or plan.comparison is None:
        return plan
    notes = (*plan.comparison.notes, f"{quote(paths[0])} {about_pointers(paths)}.")
    return replace(plan, comparison=replace(plan.comparison, notes=notes))


def _compare_settings(
    root: Path, commit: Revision, name: str
) -> tuple[Config, Target, tuple[Environment, Environment] | None, Comparison]:
    """Compare the settings of the work tree at `root` with the commit's.

    Returns:
        The work tree's settings, the target of environment `name`, the environment by the commit's settings
        and by the work tree's, and the comparison. With problems there are no environments, and the target is
        the commit's, if any.

    Raises:
        UsageError: Neither side has the environment.
        ReconcilerError: The commit can't be read.
    """
    commit.lay_out((FILE_NAME,), FILE_NAME.__eq__)
    old, base_problems, _ = read_document(commit.root)
    new, problems, warnings = read_document(root)
    before, after = from_document(commit.root, old), from_document(root, new)
    was = None if base_problems else before.environments.get(name)
    changes = () if problems else changed_settings(old, new, name)
    problems = problems or [*_missing(root, commit.root, after, name if was else LOCAL)]
    if problems:
        target = target_of(before, was) if was else Target(name, "", "", "")
        comparison = Comparison(commit.sha, tuple(problems), settings=changes, notes=(_NOT_COMPARED,))
        return after, target, None, comparison
    now = after.environment(name)
    if base_problems:
        notes = [_BASE_INVALID]
    elif was is None:
        notes = [f"The base has no environment {quote(name)}: its jobs are read with this one's settings."]
    else:
        notes = [_ELSEWHERE] * (_place(before, was) != _place(after, now))
    comparison = Comparison(commit.sha, settings=changes, notes=tuple(notes), warnings=warnings)
    return after, target_of(after, now), (was or now, now), comparison


def _missing(root: Path, base: Path, after: Config, name: str) -> Iterator[Problem]:
    """Return the problem of settings that the base has and the work tree lacks, such as the environment."""
    if (base / FILE_NAME).exists() and not (root / FILE_NAME).exists():
        hint = "restore it; without any settings it may be empty"
        yield Problem(FILE_NAME, 1, 1, "", "the file was removed, and all settings with it", hint)
    elif name not in after.environments:
        names = ", ".join(sorted(after.environments))
        message = f"there is no environment {quote(name)} for this plan"
        yield Problem(FILE_NAME, 1, 1, "/environments", message, f"the file has: {names}")


def _place(config: Config, environment: Environment) -> tuple[object, ...]:
    """Return all settings that determine the location of runs and their records."""
    records = environment.claims_bucket, environment.instance, dict(environment.endpoints)
    return (config.source, environment.engine, environment.project, environment.location, *records)
