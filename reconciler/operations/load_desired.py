"""Loader of the desired jobs from a repository's manifests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem, counted, similar_word
from reconciler.base.errors import InvalidError, NotFoundError
from reconciler.base.warning_kinds import WarningKind
from reconciler.engines.spec.container_command import shown_command
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.engines.spec.output_folder import with_own_folder
from reconciler.engines.spec.vertex_ai import with_command
from reconciler.git.index import GitIndex
from reconciler.manifests import schemas
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.files import real_path
from reconciler.manifests.settings import Config, Environment, check_found
from reconciler.manifests.validate import validate
from reconciler.manifests.warnings import NO_WARNINGS, Warnings, warnings_of
from reconciler.model.canonical import canonical_spec
from reconciler.model.manifest import Manifest, unpacked
from reconciler.model.naming import NAME_AT_APPLY, identities, job_name, label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.selection import EVERYTHING, Selection
from reconciler.model.stand_ins import GET_LFS_FILE, CodeUse
from reconciler.model.tracking import COMMITTED, Index
from reconciler.operations.jobs_folder import left_out_manifests, manifest_paths
from reconciler.operations.publication_rules import publication_problems
from reconciler.operations.staged_code import CodeReader, lock_file, pointers_in

if TYPE_CHECKING:
    from reconciler.packaging.sdist import Sdist
    from reconciler.packaging.source_tree import SourceTree


_ADD_IT = "add it by `git add --force`, or exclude it in a .gitignore"


class Desired(Struct, frozen=True):
    """All desired jobs, with the code that their names were computed from.

    Attributes:
        jobs: The jobs, sorted by base name.
        archives: The builders of staged archives by job name, each from exactly the code that was named.
        code: The source tree as it was read, by job name; without jobs that have no package.
        warnings: What is probably a mistake in the manifests and settings.
        whole: True if these are all jobs of the repository: a job that is missing was removed.
        is_part: True if a person named some of the jobs.
    """

    jobs: tuple[DesiredJob, ...]
    archives: Mapping[str, Callable[[], Sdist]]
    code: Mapping[str, SourceTree] = {}
    warnings: Warnings = NO_WARNINGS
    whole: bool = True
    is_part: bool = False


def desired_jobs(
    root: Path,
    manifests: Sequence[Manifest],
    environment: Environment,
    index: Index = COMMITTED,
    use: CodeUse = CodeUse.NAMED,
) -> Desired:
    """Return the desired jobs of valid manifests; raise InvalidError with every problem of staged code.

    The arguments are those of `stageable_jobs`.
    """
    desired, problems = stageable_jobs(root, manifests, environment, index, use)
    if problems:
        raise InvalidError("some packages can't be staged", problems=problems)
    return desired


def stageable_jobs(
    root: Path,
    manifests: Sequence[Manifest],
    environment: Environment,
    index: Index = COMMITTED,
    use: CodeUse = CodeUse.NAMED,
) -> tuple[Desired, list[Problem]]:
    """Return the desired jobs with code that can be used, and the problems of the other jobs' code.

    Args:
        root: The repository's root.
        manifests: All valid manifests.
        environment: The environment of the jobs.
        index: What git tracks; by default everything, as among files that were written from a commit.
        use: What the code is read for, which decides what may stand for its files.
    """
    reader: CodeReader | None = None
    jobs = []
    trees: dict[str, SourceTree] = {}
    for manifest in manifests:
        if manifest.package is None:
            jobs.append(_job(manifest, None, environment))
            continue
        reader = reader or _code_reader(root, index, use)
        # The name contains the code's digest, so a job with unreadable code has none.
        if tree := reader.read(manifest, manifest.package):
            job = _job(manifest, tree, environment)
            reader.add_archive(job.job_name, manifest, tree)
            trees[job.job_name] = tree
            jobs.append(job)
    jobs.sort(key=lambda job: job.manifest.base_name)
    desired = Desired(tuple(jobs), reader.archives if reader else {}, trees)
    return desired, reader.problems if reader else []


def _code_reader(root: Path, index: Index, use: CodeUse) -> CodeReader:
    # Slow to import, and needed only for jobs with a package.
    return CodeReader(root, index, use)


def _job(manifest: Manifest, tree: SourceTree | None, environment: Environment) -> DesiredJob:
    packed, labelled = manifest.packed, manifest.identities
    code = tree.digest if tree else ""
    codes = (code, tree.former) if tree and tree.former not in ("", code) else (code,)
    if not labelled:
        # The package's code is part of a job's identities, and only read here.
        spec = manifest.spec
        schema = schemas.manifest_schema(manifest.api_version, manifest.kind, spec=spec)
        assert schema is not None, "a valid manifest has a schema"
        packed = canonical_spec(spec, schema)
        computed = (identity for one in codes for identity in identities(manifest, packed, one))
        labelled = tuple((identity, label_of(identity)) for identity in computed)
    # The first identity names the job; the others are those of older versions of the hash, or of the reading.
    identity, *earlier = [identity for identity, _ in labelled]
    name = job_name(manifest.base_name, identity)
    if tree and not tree.has_name:
        name = f"{manifest.base_name} ({NAME_AT_APPLY})"
    # Defaults come after the name: a changed default must not submit every job again.
    if environment.outputs == "own":
        packed = with_own_folder(manifest.api_version, manifest.kind, packed, name)
    if environment.defaults:
        engine = engine_spec(manifest.api_version)
        packed = engine.with_defaults(manifest.kind, unpacked(packed), environment.defaults, name)
    if tree and manifest.module:
        # Only Vertex AI's jobs run staged code in containers.
        command = shown_command(manifest.module, lock_file(manifest, tree))
        packed = with_command(manifest.kind, unpacked(packed), command)
    keys = tuple([key for _, key in labelled])
    published = environment.published(manifest)
    return DesiredJob(manifest, identity, name, code, packed, tuple(earlier), keys, published)


def load_desired(
    config: Config,
    environment: Environment,
    paths: Sequence[Path],
    checked: CheckedFiles | None = None,
    selection: Selection = EVERYTHING,
    index: Index | None = None,
    use: CodeUse = CodeUse.NAMED,
) -> Desired:
    """Return the jobs of the manifests under `paths`.

    Args:
        config: The settings.
        environment: The environment of the jobs.
        paths: Files and folders, as `manifest_paths` takes them.
        checked: The checked files of the last load, in a process that loads them repeatedly; replaced by
            those of this one.
        selection: The jobs to return; the manifests of others must be valid too.
        index: What git tracks; by default git is asked.
        use: What the code is read for, which decides what may stand for its files.

    Raises:
        GitError: In GitHub Actions, git can't read the repository.
        InvalidError: Manifests are invalid, or packages can't be staged; it has every problem.
        UsageError: A path does not exist; or none is named, and `jobs` is lost.
        NotFoundError: No job has a selected name, or none has the selected labels.
    """
    root = config.root
    index = index or GitIndex(root, os.environ)
    below, missing = manifest_paths(root, paths)
    validation = validate(root, below, environment.filled, checked=checked, index=index)
    if checked is not None:
        checked.end_pass()
    check_found(validation, paths)
    publications = publication_problems(root, validation.manifests, config, environment)
    if problems := (*validation.problems, *publications.errors):
        raise InvalidError("some manifests are not valid", problems=problems)
    desired = desired_jobs(root, validation.manifests, environment, index, use)
    jobs = selected_jobs(desired.jobs, selection) if selection else desired.jobs
    is_part = bool(paths or selection)
    left_out = () if is_part else left_out_manifests(root, index)[1]
    of_git = (*_hidden_code(root, desired, index), *_unread(index)) if isinstance(index, GitIndex) else ()
    unread = isinstance(index, GitIndex) and index.refusal
    return replace(
        desired,
        jobs=jobs,
        warnings=warnings_of(
            config,
            (
                *config.warnings,
                *missing,
                *left_out,
                *of_git,
                *validation.warnings,
                *_pointers(root, desired),
            ),
        ),
        whole=not (is_part or left_out or unread),
        is_part=is_part,
    )


def _hidden_code(root: Path, desired: Desired, index: GitIndex) -> Iterator[Problem]:
    """Yield warnings about files of packages that only an exclude file of this clone or user hides."""
    folders = {job.manifest.package: job.job_name for job in desired.jobs if job.manifest.package}
    paths = [
        (folder.relative_to(real_path(root)) / file.path).as_posix()
        for folder, name in sorted(folders.items())
        for file in desired.code[name].files
    ]
    for path in index.hidden(paths):
        said = (
            "git doesn't track this file, which is part of a job's code, and ignores it by other rules than"
        )
        message = f"{said} those of .gitignore files from here downwards"
        yield Problem(path, 1, 1, "", message, _ADD_IT, WarningKind.UNTRACKED_CODE)


def pointers_of(root: Path, desired: Desired, jobs: Iterable[DesiredJob]) -> list[str]:
    """Return the paths of the files in jobs' packages of which only the Git LFS pointer is here, sorted."""
    trees = {job.manifest.package: desired.code[job.job_name] for job in jobs if job.manifest.package}
    if not any(tree.missing for tree in trees.values()):
        return []
    folders = {folder.relative_to(real_path(root)).as_posix(): tree for folder, tree in trees.items()}
    return sorted({path for folder, tree in folders.items() for path in pointers_in(folder, tree)})


def about_pointers(paths: Sequence[str]) -> str:
    """Return that apply needs the files of these pointers, at least one, as a clause after the first path."""
    more = f", as {counted(len(paths) - 1, 'more file')} of the code" if paths[1:] else ""
    said = "apply needs the file, for which its action has `lfs: true`"
    return f"is a Git LFS pointer, and not the file itself{more}: {said}"


def _pointers(root: Path, desired: Desired) -> Iterator[Problem]:
    """Yield a warning about files of which only the pointer is here."""
    if paths := pointers_of(root, desired, desired.jobs):
        message = f"this {about_pointers(paths)}"
        yield Problem(paths[0], 1, 1, "", message, GET_LFS_FILE, WarningKind.LFS_POINTER)


def _unread(index: GitIndex) -> Iterator[Problem]:
    """Yield a warning if git can't read the repository; raise GitError in Actions."""
    refusal = index.refusal
    if refusal is None:
        return
    # There, jobs without a commit, and commits without statuses, would go unnoticed.
    if os.environ.get("GITHUB_ACTIONS") == "true":
        raise refusal
    said = "git can't read this repository, so jobs carry no commit, and none counts as removed"
    message = f"{said}: {refusal.message}"
    yield Problem(".", 1, 1, "", message, refusal.hint, WarningKind.UNREADABLE_GIT)


def selected_jobs(jobs: Sequence[DesiredJob], selection: Selection) -> tuple[DesiredJob, ...]:
    """Return the jobs of a selection; raise NotFoundError if a name, or all of the labels, match none."""
    for name in selection.names:
        one = Selection((name,))
        if not any(one.has_name(job.manifest.base_name, job.job_name) for job in jobs):
            similar = similar_word(name, [job.manifest.name for job in jobs])
            hint = f"did you mean {similar}?" if similar else "see `reconciler status`"
            raise NotFoundError(f'no manifest is named "{name}"', hint=hint)
    matches = tuple(
        job
        for job in jobs
        if selection.has_name(job.manifest.base_name, job.job_name)
        and selection.has_labels(job.manifest.labels)
    )
    if not matches:
        raise NotFoundError("no manifest has these names and labels", hint="see `reconciler status`")
    return matches
