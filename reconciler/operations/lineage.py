"""The commits that brought the jobs of a checkout, by the trees of git's commits.

Only files that differ from those of the next commit are read. A manifest is the same job where its own bytes
and the tree of its package's folder are the same objects, with every `.gitignore` above. A package with links
is always read, and the name of its job decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import PurePosixPath
from typing import NamedTuple

from msgspec.structs import replace

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import NotFoundError, ReconcilerError
from reconciler.git.history import GitHistory
from reconciler.git.revision import Names, Revision, revision
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.settings import FILE_NAME, Config, Environment, read_document
from reconciler.manifests.validate import validate
from reconciler.model.applied_tree import AppliedTree
from reconciler.model.commit_record import CommitRecord
from reconciler.model.plan import DesiredJob
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.load_desired import Desired, stageable_jobs
from reconciler.operations.origin import Origin, laying_out, manifest_places
from reconciler.planning.attempts import keys_of
from reconciler.planning.lineage import (
    CommitTree,
    Lineage,
    WantedContent,
    applied_before,
    known_lineage,
    lineage_of,
    newest_whole,
    tree_of_record,
    with_verdicts,
)
from reconciler.reporting.status import invalid_text

MOST_TOLD_APART = 50
"""Passed-over commits whose own jobs are told apart, the newest ones."""

MOST_PASSED_OVER = 2 * MOST_TOLD_APART
"""Passed-over commits that get a status at all."""


def read_lineage(
    config: Config,
    environment: Environment,
    desired: Desired,
    origin: Origin,
    records: Mapping[str, CommitRecord],
    applied: AppliedTree | None,
    environ: Mapping[str, str],
    *,
    goes_back: bool,
) -> Lineage:
    """Return where the jobs of the checked-out commit come from.

    Where no commit is known that was applied before, it brings all of them. Where git can't compare with that
    one, as in a shallow checkout, its record tells which contents it had.

    Args:
        config: The settings.
        environment: The environment of the jobs.
        desired: The jobs.
        origin: The result of their comparison with the commit.
        records: The records of commits, by commit.
        applied: The record of the tree that was applied last.
        environ: The environment variables, for git.
        goes_back: True if a person asked to apply this commit over a newer one: the two are compared then.
    """
    head = origin.commit
    made = [job for job in desired.jobs if job.job_name in origin.made]
    if lineage := known_lineage(records, head, made):
        return lineage
    groups = [
        (sha, *(applied.ancestors if applied and applied.commit == sha else ()))
        for sha in applied_before(records, head)
    ]
    if not groups and applied and applied.commit != head:
        groups = [(applied.commit, *applied.ancestors)]
    if not groups:
        return Lineage()
    # A clone without some objects, or a disk without room for them, must not keep jobs from running.
    with suppress(ReconcilerError, OSError):
        done = with_verdicts(records)
        history = GitHistory(config.root, environ)
        first, skipped = _passed_over(history, head, groups)
        if first == head and not goes_back:
            return Lineage()  # another process has applied a newer commit meanwhile
        first = groups[-1][0] if first == head else first
        reader = _Reader(config, environment, desired, origin, environ)
        trees = reader.since(history, first, skipped[:MOST_TOLD_APART])
        if done.isdisjoint(group[0] for group in groups):
            # Nobody was told of the jobs that it has.
            trees = [CommitTree("", {}), *trees] if trees[0].sha in (group[0] for group in groups) else []
        trees = [replace(tree, has_verdict=tree.sha in done) for tree in trees]
        parts = [sha for sha in skipped[MOST_TOLD_APART:] if sha not in done]
        return lineage_of(trees, parts) if trees else Lineage()
    newest = newest_whole(records.values())
    if newest is None or newest.sha == head:
        return Lineage()
    return lineage_of([tree_of_record(newest), CommitTree(head, {"": tuple(_contents(desired.jobs))})])


def _passed_over(history: GitHistory, head: str, groups: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """Return the commit to compare with, and HEAD's first parents since it, newest first.

    Each group names a commit that was applied before, with its known ancestors. Of several, which concurrent
    processes applied, the oldest counts.

    Raises:
        NotFoundError: The clone has no common ancestor.
    """
    ancestors = [common for group in groups if (common := history.nearest_common(group))]
    if not ancestors or history.head != head:
        raise NotFoundError("no commit that was applied before is in this clone")
    since = {common: history.since(common, MOST_PASSED_OVER) for common in ancestors}
    first = max(ancestors, key=lambda common: len(since[common]))
    return first, since[first]


def _contents(jobs: Iterable[DesiredJob]) -> Iterator[WantedContent]:
    for job in jobs:
        reconcile = job.manifest.reconcile
        if not reconcile.suspend:
            yield WantedContent(
                job.manifest.name, keys_of(job), reconcile.attempts, job.manifest.expect, job.publish
            )


class _File(NamedTuple):
    """A manifest in a commit: the id of its bytes, and the state of each package that its jobs name."""

    id: str
    packages: tuple[str, ...]


class _Reader:
    """Reader of the jobs of several commits; the arguments are those of `read_lineage`.

    Attributes:
        head: The jobs of the checked-out commit.
    """

    def __init__(
        self,
        config: Config,
        environment: Environment,
        desired: Desired,
        origin: Origin,
        environ: Mapping[str, str],
    ) -> None:
        self._root = config.root
        self._environ = environ
        self._environment = environment
        self._whole = desired.whole
        self._checked = CheckedFiles()
        # Paths of packages as written, by the place and the bytes of a manifest.
        self._written: dict[tuple[Names, str], tuple[str, ...]] = {}
        self._contents: dict[tuple[Names, _File], tuple[WantedContent, ...]] = {}
        self._with_links: dict[str, bool] = {}
        # Of one commit: the folder of each package as written in a folder's manifests, and its state.
        self._states: dict[tuple[Names, str], tuple[Names | None, str]] = {}
        by_path: dict[str, list[DesiredJob]] = {}
        for job in desired.jobs:
            by_path.setdefault(job.manifest.path, []).append(job)
        files: dict[str, tuple[WantedContent, ...]] = {}
        with revision(self._root, origin.commit, environ, with_submodules=True) as commit:
            self._settings = _settings_id(commit)
            for path, jobs in by_path.items():
                tree_path = commit.place(PurePosixPath(path).parts)
                files["/".join(tree_path) if tree_path else path] = tuple(_contents(jobs))
                # A filter makes the others differ from git's bytes: they stay with this commit.
                if tree_path is not None and all(job.job_name in origin.made for job in jobs):
                    self._learn(commit, tree_path, jobs)
        self._paths = frozenset(files)
        self.head = CommitTree(origin.commit, files)

    def since(self, history: GitHistory, first: str, skipped: Sequence[str]) -> list[CommitTree]:
        """Return the jobs of a commit, of HEAD's first parents since it, and of HEAD, oldest first.

        `skipped` are these parents, newest first. Some may not descend from the commit, which a merge joins
        to them: these are compared with what came before them.
        """
        trees = [self.head, *(self._tree(sha) for sha in skipped)]  # the next ones read less
        base = self._tree(first)
        descendants = history.descendants(first) if skipped else ()
        beside = [tree.sha for tree in trees[1:] if tree.sha not in descendants]
        if beside:
            last = len(trees) - 1 - len(beside)
            trees[last] = replace(trees[last], joined=base)
            parent = history.first_parent(beside[-1])
            base = self._tree(parent) if parent else CommitTree("", {})
        return [base, *trees[::-1]]

    def _tree(self, sha: str) -> CommitTree:
        with revision(self._root, sha, self._environ, with_submodules=True) as commit:
            by_path: dict[Names, tuple[WantedContent, ...] | None] = {}
            packages: set[Names] = set()
            self._states = {}
            unread = []
            for tree_path in manifest_places(commit):
                if not self._whole and "/".join(tree_path) not in self._paths:
                    continue
                file = self._file(commit, tree_path)
                if file is not None and (tree_path, file) in self._contents:
                    by_path[tree_path] = self._contents[tree_path, file]
                    packages.update(self._packages(commit, tree_path, self._written[tree_path, file.id]))
                else:
                    unread.append(tree_path)
            problems = [*self._load(commit, unread, by_path, packages), *self._settings_problems(commit)]
            visible = {
                "/".join(tree_path): contents
                for tree_path, contents in by_path.items()
                if not _is_below_any(tree_path, packages)
            }
            problems = [p for p in problems if not _is_below_any(PurePosixPath(p.path).parts, packages)]
        for path in _with_repeated_names(visible):
            visible[path] = None
            problems.append(Problem(path, 1, 1, "", "several jobs have one name", "rename one"))
        return CommitTree(
            sha, visible, invalid_text("some manifests are not valid", problems) if problems else ""
        )

    def _load(
        self,
        commit: Revision,
        tree_paths: Sequence[Names],
        by_path: dict[Names, tuple[WantedContent, ...] | None],
        packages: set[Names],
    ) -> list[Problem]:
        """Read manifests into `by_path`, and places of packages into `packages`; return the problems."""
        if not tree_paths:
            return []
        there = [tree_path for tree_path in tree_paths if commit.lay_out(tree_path, lambda name: True)]
        broken = ["/".join(tree_path) for tree_path in tree_paths if tree_path not in there]
        paths = [commit.root.joinpath(*tree_path) for tree_path in there]
        filled = self._environment.filled
        valid = validate(commit.root, paths, filled, laying_out(commit), self._checked, commit.index)
        # Nothing is staged: a pointer of Git LFS and a submodule's recorded commit stand for files.
        desired, unfit = stageable_jobs(
            commit.root,
            valid.manifests,
            self._environment,
            commit.index,
            CodeUse.COMPARED,
        )
        problems = [
            *valid.problems,
            *unfit,
            *(Problem(path, 1, 1, "", "a broken link", "") for path in broken),
        ]
        bad = {problem.path for problem in problems}
        for tree_path in tree_paths:
            path = "/".join(tree_path)
            jobs = [job for job in desired.jobs if job.manifest.path == path]
            # Without the files of a submodule, a job's name isn't known.
            is_known = all(desired.code[job.job_name].has_name for job in jobs if job.manifest.package)
            is_read = path not in bad and is_known
            by_path[tree_path] = tuple(_contents(jobs)) if is_read else None
            if is_read:
                self._learn(commit, tree_path, jobs)
            packages.update(self._packages(commit, tree_path, _written(jobs)))
        return problems

    def _learn(self, commit: Revision, tree_path: Names, jobs: Sequence[DesiredJob]) -> None:
        """Remember the jobs of a manifest, for other commits with the same bytes."""
        self._written[tree_path, commit.entry(tree_path).id] = _written(jobs)
        file = self._file(commit, tree_path)
        assert file is not None, "its packages were remembered"
        self._contents[tree_path, file] = tuple(_contents(jobs))

    def _file(self, commit: Revision, tree_path: Names) -> _File | None:
        """Return the state of a manifest; None if another commit's bytes have to be read first."""
        id = commit.entry(tree_path).id
        written = self._written.get((tree_path, id))
        if written is None:
            return None
        return _File(id, tuple(self._package(commit, tree_path, path)[1] for path in written))

    def _package(self, commit: Revision, tree_path: Names, written: str) -> tuple[Names | None, str]:
        """Return the place of a package's folder, and what tells whether another commit's is the same."""
        # Many manifests of a folder share a package.
        key = (tree_path[:-1], written)
        if key not in self._states:
            folder = commit.place((*tree_path[:-1], *PurePosixPath(written).parts))
            self._states[key] = folder, self._state(commit, folder) if folder is not None else ""
        return self._states[key]

    def _state(self, commit: Revision, folder: Names) -> str:
        ids = [commit.entry(folder).id]
        for depth in range(len(folder)):
            ignored = commit.listed(folder[:depth]).get(".gitignore")
            ids.append(ignored.id if ignored else "")
        return " ".join([*ids, *([commit.sha] if self._has_links(commit, folder) else [])])

    def _has_links(self, commit: Revision, folder: Names) -> bool:
        id = commit.entry(folder).id
        if id not in self._with_links:
            self._with_links[id] = any(
                entry.is_link or (entry.is_folder and self._has_links(commit, (*folder, name)))
                for name, entry in commit.listed(folder).items()
            )
        return self._with_links[id]

    def _packages(self, commit: Revision, tree_path: Names, written: Iterable[str]) -> Iterator[Names]:
        folders = (self._package(commit, tree_path, path)[0] for path in written)
        return (folder for folder in folders if folder is not None)

    def _settings_problems(self, commit: Revision) -> list[Problem]:
        """Return the problems of a commit's settings, unless they are those of the checked-out commit."""
        if _settings_id(commit) == self._settings:
            return []
        commit.lay_out((FILE_NAME,), FILE_NAME.__eq__)
        return read_document(commit.root)[1]


def _settings_id(commit: Revision) -> str:
    tree_path = commit.place((FILE_NAME,))
    return commit.entry(tree_path).id if tree_path is not None else ""


def _is_below_any(tree_path: Names, folders: Set[Names]) -> bool:
    return any(tree_path[:depth] in folders for depth in range(1, len(tree_path)))


def _with_repeated_names(files: Mapping[str, tuple[WantedContent, ...] | None]) -> list[str]:
    """Return the paths of manifests with a name that several jobs have."""
    names = {path: [job.name.replace("-", "_") for job in jobs or ()] for path, jobs in files.items()}
    counts = Counter(name for job_names in names.values() for name in job_names)
    return [path for path, job_names in names.items() if any(counts[name] > 1 for name in job_names)]


def _written(jobs: Iterable[DesiredJob]) -> tuple[str, ...]:
    return tuple(sorted({job.manifest.written for job in jobs if job.manifest.package}))
