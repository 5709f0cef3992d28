"""Comparison of the files that were read with the files of the commit that jobs carry.

A job is made of

- its manifest's file;
- `reconciler.yaml`, or its absence;
- the source tree of its package, as `reconciler.packaging.source_tree` defines it: the path, the executable
  bit and the bytes of every included file, links followed. A file that only the work tree or only the
  commit has is a difference. Files that the repository's `.gitignore` files exclude are not part of either.

The comparison is of bytes as they were read, by their digests, and of blobs as git stores them: no file of
the work tree is read again, and no filter, line-end conversion or hook runs. So a file that a checkout
converts (`core.autocrlf`, `eol=crlf`, `ident`) differs; jobs that differ in line ends alone are told apart. A
file in Git LFS is equal if its pointer names the SHA-256 of the file that was read. The files of a submodule
are those of the commit that is recorded for it, from the submodule's own repository.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from reconciler.base.checkout import repository_in
from reconciler.base.errors import InvalidError, ReconcilerError
from reconciler.base.git_command import Git
from reconciler.git.commit import head_of, why_no_head
from reconciler.git.revision import Names, Revision, revision
from reconciler.manifests.checked_files import digest_of
from reconciler.manifests.files import real_path
from reconciler.manifests.packages import PackageFolder, PackageOf, is_below_any, package_folder
from reconciler.manifests.settings import FILE_NAME, JOBS_FOLDER, Config, is_manifest
from reconciler.model.plan import DesiredJob, Plan
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.packaging.source_tree import SourceTree, read_source_tree

if TYPE_CHECKING:
    from reconciler.operations.load_desired import Desired

MAX_LINES = 5
"""Maximum number of differing files that are named."""

_NOT_IN = "is not in"
_LINE_ENDS = "has other line ends than in"


class Origin(Struct, frozen=True):
    """The commit of a pass's jobs.

    Attributes:
        commit: The commit that jobs carry, 40 hex digits; "" for none.
        made: The names of the jobs that are made of the commit's files, without jobs that were not compared.
        differences: By name of each other compared job, the first difference, as a clause.
        line_ends: Of these, by name, the jobs that differ in line ends alone: the paths that differ.
        elsewhere: Differences that belong to no job, as clauses: a manifest that only the commit has, for
            example.
        all_compared: True if every desired job was compared.
        brought_by: By base name with '-' as '_', the commit that brought a submitted job's content; by
            default `commit`.
        reason: The reason for a missing commit, as a clause; "" with a commit, or without a repository.
    """

    commit: str = ""
    made: Collection[str] = ()
    differences: Mapping[str, str] = {}
    line_ends: Mapping[str, Sequence[str]] = {}
    elsewhere: tuple[str, ...] = ()
    all_compared: bool = False
    reason: str = ""
    brought_by: Mapping[str, str] = {}

    @property
    def exact(self) -> str:
        """The commit with exactly the desired jobs, each made of its files; "" for none."""
        return self.commit if self.all_compared and not self.differences and not self.elsewhere else ""

    def commit_of(self, job: DesiredJob) -> str:
        """Return the commit that a job carries, which brought its content; "" for none."""
        return self.brought_by.get(job.manifest.base_name, self.commit) if job.job_name in self.made else ""

    def line_end_reasons(self) -> dict[str, Reason]:
        """Return why jobs that differ in line ends alone must not be submitted, by name."""
        return {
            name: because(
                ReasonCode.OTHER_LINE_ENDS,
                difference=self.differences[name],
                paths=" ".join(map(shlex.quote, paths)),
            )
            for name, paths in self.line_ends.items()
        }

    def part(self, plan: Plan) -> Plan:
        """Return the part of a plan that is the commit's: the whole plan only if all jobs are."""
        if self.exact:
            return plan
        changes = tuple(c for c in plan.changes if c.desired and c.desired.job_name in self.made)
        return Plan(plan.target, changes, (), plan.digest, whole=False)


NO_ORIGIN = Origin()
"""Origin of jobs that were not compared with a commit."""


def origin_of(
    config: Config,
    desired: Desired,
    jobs: Collection[DesiredJob],
    environ: Mapping[str, str],
    *,
    whole: bool,
) -> Origin:
    """Compare the files that jobs were made of with the commit that they would carry.

    It is the checked-out commit, or the head of the pull request if its merge commit is checked out.

    Args:
        jobs: The jobs to compare.
        whole: True if `desired` has all jobs of the work tree: then a manifest that only the commit has is a
            difference.

    Returns:
        An origin without a commit if there is no repository, or the commit can't be read.
    """
    head = head_of(config.root, environ)
    if head is None:
        return Origin(reason=why_no_head(config.root, environ))
    is_merge = head.carried != head.checked_out
    if is_merge and Git(config.root, environ).commit(head.carried) is None:
        missing = f"commit {head.carried[:7]}, the pull request's head, is not in this checkout of its merge"
        return Origin(reason=f"{missing}: give actions/checkout a fetch-depth of 2, or check out the head")
    try:
        with revision(config.root, head.carried, environ, with_submodules=True) as commit:
            comparison = _Comparison(commit, config, desired, jobs, environ)
            by_name = {job.job_name: comparison.differences(job) for job in jobs}
            elsewhere = comparison.elsewhere(whole=whole)
    except (ReconcilerError, OSError) as error:
        # A disk without room for the commit's files must not keep jobs from being submitted.
        why = error.message if isinstance(error, ReconcilerError) else error.strerror
        return Origin(reason=f"commit {head.carried[:7]} can't be compared: {why}")
    return Origin(
        head.carried,
        frozenset(name for name, differences in by_name.items() if not differences),
        {name: differences[0].clause for name, differences in by_name.items() if differences},
        {
            name: [path for difference in differences for path in difference.line_ends]
            for name, differences in by_name.items()
            if differences and all(difference.line_ends for difference in differences)
        },
        elsewhere,
        all_compared=len(jobs) == len(desired.jobs),
    )


def exported(commit: str, desired: Desired) -> Origin:
    """Return the origin of jobs that were read from files which this process wrote from a commit."""
    return Origin(commit, frozenset(job.job_name for job in desired.jobs), all_compared=True)


def uncarried(origin: Origin, jobs: Iterable[DesiredJob]) -> list[str]:
    """Return why jobs carry no commit: a line for each differing file, and then a count."""
    jobs = [job for job in jobs if not origin.commit_of(job)]
    if not origin.commit:
        return [f"the submitted jobs carry no commit: {origin.reason}"] if origin.reason and jobs else []
    by_difference = defaultdict(list)
    for job in jobs:
        if difference := origin.differences.get(job.job_name):
            by_difference[difference].append(job.manifest.name)
    lines = [f"{difference}: {_names(named)} no commit" for difference, named in by_difference.items()]
    more = [name for named in [*by_difference.values()][MAX_LINES:] for name in named]
    return [
        *lines[:MAX_LINES],
        *([f"{len(lines) - MAX_LINES} more files differ: {_names(more)} no commit"] if more else []),
    ]


def _names(named: list[str]) -> str:
    # Each subject comes with its verb, so that the number agrees.
    if len(named) == 1:
        return f"{named[0]} carries"
    return f"{named[0]} and {len(named) - 1} more job{'' if len(named) == 2 else 's'} carry"


class _Difference(NamedTuple):
    """How a file or a package differs from the commit's.

    Attributes:
        clause: What differs, for readers.
        line_ends: If nothing but line ends differs, the files, by their paths from the root.
    """

    clause: str
    line_ends: Sequence[str] = ()


class _Comparison:
    """Comparison of the files that were read with the files of one commit, for `origin_of`."""

    def __init__(
        self,
        commit: Revision,
        config: Config,
        desired: Desired,
        jobs: Iterable[DesiredJob],
        environ: Mapping[str, str],
    ) -> None:
        self._commit = commit
        self._environ = environ
        self._root = real_path(config.root)
        self._desired = desired
        self._tree_paths = {job.manifest.path: self._tree_path(job.manifest.path) for job in jobs}
        settings = self._tree_path(FILE_NAME)
        ids = [
            *{commit.entry(tree_path).id for tree_path in (*self._tree_paths.values(), settings) if tree_path}
        ]
        self._digests = dict(zip(ids, map(digest_of, commit.contents(ids)), strict=True))
        self._package_of = laying_out(commit)
        self._folders: dict[tuple[Names, str], Path] = {}
        self._packages: dict[tuple[Path, str], _Difference | None] = {}
        self._settings = self._differing(FILE_NAME, settings, config.digest)

    def differences(self, job: DesiredJob) -> list[_Difference]:
        """Return what differs of a job: the settings, its manifest and its package."""
        path = job.manifest.path
        manifest = self._differing(path, self._tree_paths[path], job.manifest.digest)
        # The package is that of the commit's manifest.
        package = self._differing_package(job) if self._tree_paths[path] else None
        return [difference for difference in (self._settings, manifest, package) if difference]

    def elsewhere(self, *, whole: bool) -> tuple[str, ...]:
        """Return the differences that belong to no job: the settings', and manifests that were not read."""
        settings = (self._settings.clause,) if self._settings else ()
        return (*settings, *self._unread()) if whole else settings

    def _tree_path(self, path: str) -> Names | None:
        """Return the place of a file in the commit, links followed; None if it has no such file."""
        tree_path = self._commit.place(PurePosixPath(path).parts) if not path.startswith("/") else None
        return tree_path if tree_path is not None and self._commit.entry(tree_path).is_file else None

    def _differing(self, path: str, tree_path: Names | None, digest: bytes) -> _Difference | None:
        """Return how a file that was read, or was not there, differs; None if it does not."""
        if tree_path is None:
            return _Difference(self._clause(path, _NOT_IN)) if digest else None
        if not digest:
            return _Difference(self._clause(path, "is only in"))
        id = self._commit.entry(tree_path).id
        if self._digests.get(id) == digest:
            return None
        (kept,) = self._commit.contents([id])
        if self._submodule(path)[0]:
            return _Difference(self._clause(path, "differs from"))
        plain = _without_returns(kept)
        if digest in (digest_of(plain), digest_of(plain.replace(b"\n", b"\r\n"))):
            return _Difference(self._clause(path, _LINE_ENDS), [path])
        return _Difference(self._clause(path, "differs from"))

    def _clause(self, path: str, how: str) -> str:
        commit = f"commit {self._commit.sha[:7]}"
        folder, recorded = self._submodule(path)
        if not folder:
            return f"{path} {how} {commit}"
        submodule = self._root / folder
        if repository_in(submodule) and Git(submodule, self._environ).commit("HEAD") == recorded:
            return f"{path} {how} commit {recorded[:7]} of the submodule {folder}, which {commit} records"
        return f"{folder} is a submodule at another commit than {recorded[:7]}, which {commit} records"

    def _submodule(self, path: str) -> tuple[str, str]:
        """Return the submodule with a file, and the commit that is recorded for it; "" and "" for none."""
        folder, recorded = self._commit.submodule(PurePosixPath(path).parts)
        return "/".join(folder), recorded

    def _differing_package(self, job: DesiredJob) -> _Difference | None:
        if job.manifest.package is None:
            return None
        folder = self._folder(job)
        # Several jobs share a package.
        key = (folder, job.code)
        if key not in self._packages:
            self._packages[key] = self._differing_tree(folder, job, job.manifest.package)
        return self._packages[key]

    def _folder(self, job: DesiredJob) -> Path:
        """Return the folder in which the commit's package of a job was written."""
        # The path of the manifest is resolved in the commit, whose links may differ from the work tree's.
        tree_path = self._tree_paths[job.manifest.path]
        assert tree_path, "only manifests of the commit are compared"
        key = (tree_path[:-1], job.manifest.written)
        if key not in self._folders:
            manifest = self._commit.root.joinpath(*tree_path)
            self._folders[key] = self._package_of(manifest, job.manifest.written).real
        return self._folders[key]

    def _differing_tree(self, folder: Path, job: DesiredJob, package: Path) -> _Difference | None:
        shown = package.relative_to(self._root).as_posix()
        if not folder.is_relative_to(self._commit.root) or not folder.is_dir():
            return _Difference(self._clause(shown, _NOT_IN))
        try:
            kept = read_source_tree(folder, self._commit.root, self._commit.index)
        except InvalidError:
            return _Difference(self._clause(shown, "can't be staged as it is in"))
        if kept.digest == job.code:
            return None
        read = self._desired.code[job.job_name]
        difference = _differing_file(read, kept)
        if difference is None:
            return None
        path, how = difference
        converted = [f"{shown}/{file}" for file in _converted(read, kept)]
        # `git restore` reaches no file of a submodule.
        if any(self._submodule(file)[0] for file in converted):
            converted = []
        return _Difference(self._clause(f"{shown}/{path}", _LINE_ENDS if converted else how), converted)

    def _unread(self) -> list[str]:
        """Return the manifests of the commit that were not read from the work tree."""
        staged = (job for job in self._desired.jobs if job.manifest.package)
        packages = {self._folder(job) for job in staged if self._tree_paths[job.manifest.path]}
        read = set(self._tree_paths.values())
        unread = sorted(tree_path for tree_path in manifest_places(self._commit) if tree_path not in read)
        return [
            # Git allows names that aren't UTF-8.
            self._clause(os.fsencode("/".join(tree_path)).decode("utf-8", "backslashreplace"), "is only in")
            for tree_path in unread
            if not is_below_any(self._commit.root.joinpath(*tree_path), packages)
        ]


def manifest_places(commit: Revision) -> Iterator[Names]:
    """Yield the places of a commit's manifests, as `find_manifests` finds them, those in packages too."""
    top = commit.place((JOBS_FOLDER,))
    waiting = [top] if top is not None else []
    done: set[Names] = set()
    while waiting:
        folder = waiting.pop()
        # Links can form a cycle.
        if folder in done:
            continue
        done.add(folder)
        for name in commit.listed(folder):
            tree_path = commit.place((*folder, name))
            if tree_path is not None and commit.entry(tree_path).is_folder:
                waiting += [] if name.startswith(".") else [tree_path]
            # A broken link named like a manifest counts: a work tree with it is invalid.
            elif is_manifest(name):
                yield tree_path or (*folder, name)


def _differing_file(read: SourceTree, kept: SourceTree) -> tuple[str, str] | None:
    """Return the path of the first file that differs, and the difference; None if all are equal."""
    ours, theirs = ({file.path: file for file in tree.files} for tree in (read, kept))
    for path in sorted({*ours, *theirs}):
        mine, its = ours.get(path), theirs.get(path)
        if mine is None or its is None:
            return path, "is only in" if mine is None else _NOT_IN
        if mine.executable != its.executable:
            return path, "has a different executable bit than in"
        if not mine.is_same(its):
            return path, "differs from"
    return None


def _converted(read: SourceTree, kept: SourceTree) -> list[str]:
    """Return the paths of the files that differ in line ends; none if anything else differs too."""
    ours, theirs = ([(file.path, file.executable) for file in tree.files] for tree in (read, kept))
    if ours != theirs:
        return []
    pairs = [pair for pair in zip(read.files, kept.files, strict=True) if not pair[0].is_same(pair[1])]
    same = all(_without_returns(mine.content) == _without_returns(its.content) for mine, its in pairs)
    return [mine.path for mine, _ in pairs] if same else []


def _without_returns(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def laying_out(commit: Revision) -> PackageOf:
    """Return a finder of packages among a commit's files, which writes each found package to a folder."""

    def found(manifest: Path, written: str) -> PackageFolder:
        file = manifest.relative_to(commit.root).parts
        if not written.startswith("/"):
            folder = (*file[:-1], *PurePosixPath(written).parts)
            commit.lay_out(folder, lambda name: True, beside=file)
        return package_folder(manifest, written)

    return found
