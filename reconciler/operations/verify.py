"""Verification of a publication: the record's job by the repository, and its files by a listing.

The record is unsigned: a writer of the bucket can write it too. The comparison finds mistakes, and changes
beside the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from reconciler.base.errors import NotFoundError, UsageError
from reconciler.base.git_command import Git, GitError
from reconciler.git.revision import Revision, revision
from reconciler.google.publication_store import PublicationStore
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.settings import FILE_NAME, JOBS_FOLDER, from_document, is_manifest, read_document
from reconciler.manifests.validate import validate
from reconciler.model.manifest import Publish
from reconciler.model.naming import job_name
from reconciler.model.plan import DesiredJob
from reconciler.model.publication import CURRENT, MANIFEST, CurrentModel, PublishedModel
from reconciler.model.selection import Selection
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.load_desired import load_desired, selected_jobs, stageable_jobs
from reconciler.operations.origin import laying_out
from reconciler.operations.publications import differences
from reconciler.operations.session import Session

_CURRENT_URI = re.compile(rf"(?P<to>gs:/(?:/[^/]+)+)/{re.escape(CURRENT)}")
_NO_GIT = "verify computes the job's name from the repository: run it in a git checkout"


class DifferenceKind(StrEnum):
    """Kinds of differences of a publication."""

    NO_COMMIT = "no-commit"
    COMMIT_MISSING = "commit-missing"
    NOT_COMPUTED = "not-computed"
    OTHER_SOURCE = "other-source"
    NO_JOB = "no-job"
    OTHER_HASH = "other-hash"
    OTHER_NAME = "other-name"
    NO_RECORD = "no-record"
    OTHER_RECORD = "other-record"
    FILE_MISSING = "file-missing"
    FILE_CHANGED = "file-changed"
    FILE_UNKNOWN = "file-unknown"


class PublicationDifference(Struct, frozen=True):
    """A difference, with a sentence about it."""

    kind: DifferenceKind
    message: str


class Verification(Struct, frozen=True):
    """Result of a verification.

    Attributes:
        to: The address.
        current: The publication in place.
        model: Its record; None if it is missing.
        differences: Empty if all agrees.
    """

    to: str
    current: CurrentModel
    model: PublishedModel | None
    differences: tuple[PublicationDifference, ...]


def address_of(session: Session, name: str) -> str:
    """Return the address of gs://…/current.json, or that of the publications of a job.

    Raises:
        NotFoundError: No manifest has this name, or it has no `publish`.
        UsageError: It is another object's address.
    """
    if name.startswith("gs://"):
        match = _CURRENT_URI.fullmatch(name)
        if match is None:
            raise UsageError(f"{name} is no {CURRENT}", hint=f"write gs://BUCKET/FOLDER/{CURRENT}, or a name")
        return match["to"]
    jobs = load_desired(session.config, session.environment, []).jobs
    (job,) = selected_jobs(jobs, Selection((name,)))
    if job.publish is None:
        raise NotFoundError(
            f"{name} isn't published", hint="add `publish` to its manifest: docs/results.md says how"
        )
    return job.publish.to


def verify(session: Session, to: str, environ: Mapping[str, str]) -> Verification:
    """Compare the publication at an address with the repository, and with its objects.

    Raises:
        NotFoundError: Nothing is published there.
        ServiceError: It can't be read or used.
        UsageError: There is no git repository.
    """
    store = PublicationStore(session.connection, to)
    current = store.current().current
    if current is None:
        raise NotFoundError(f"nothing is published at {to}", hint="see `reconciler status`")
    model = store.model(current.job_name)
    found = [*_of_job(session, current, environ), *_of_record(current, model)]
    if model is not None:
        found += _of_files(store, to, model)
    return Verification(to, current, model, tuple(found))


def _of_job(
    session: Session, current: CurrentModel, environ: Mapping[str, str]
) -> Iterator[PublicationDifference]:
    """Yield how the recorded job differs from the one that the repository has at the recorded commit."""
    sha, root = current.commit, session.config.root
    if not sha:
        yield PublicationDifference(
            DifferenceKind.NO_COMMIT,
            "the record has no commit, so the job's name can't be computed: it was published from a work "
            "tree without a commit, or with changes",
        )
        return
    git = Git(root, environ)
    try:
        git.run("rev-parse", "--git-dir")
    except GitError as error:
        raise UsageError(f"git can't read {root}: {error.message}", hint=error.hint or _NO_GIT) from None
    if git.commit(sha) is None:
        git.refuse_corrupt("cat-file", "-e", f"{sha}^{{commit}}")
        yield PublicationDifference(
            DifferenceKind.COMMIT_MISSING,
            f"commit {sha[:12]} isn't in this clone: `git fetch origin {sha}` gets it, if the remote has it",
        )
        return
    with revision(root, sha, environ, with_submodules=True) as commit:
        yield from _of_commit(commit, current)


def _of_commit(commit: Revision, current: CurrentModel) -> Iterator[PublicationDifference]:
    at = f"at commit {commit.sha[:12]}"
    commit.lay_out((FILE_NAME,), FILE_NAME.__eq__)
    document, problems, _ = read_document(commit.root)
    config = from_document(commit.root, document)
    environment = config.environments.get(current.environment)
    if problems or environment is None:
        why = "isn't valid" if problems else f'has no environment "{current.environment}"'
        yield PublicationDifference(
            DifferenceKind.NOT_COMPUTED, f"{FILE_NAME} {why} {at}, so nothing is computed"
        )
        return
    if config.source != current.source:
        yield PublicationDifference(
            DifferenceKind.OTHER_SOURCE,
            f'the record is of source "{current.source}", and {FILE_NAME} has "{config.source}" {at}',
        )
    commit.lay_out((JOBS_FOLDER,), is_manifest)
    folder = commit.root / JOBS_FOLDER
    paths = [folder] if folder.exists() else []
    # No file of the repository is run: names are made of its bytes.
    validation = validate(
        commit.root, paths, environment.filled, laying_out(commit), CheckedFiles(), commit.index
    )
    manifests = [one for one in validation.manifests if one.name == current.base_name]
    if not manifests:
        invalid = validation.problems
        why = f", where {len(invalid)} problems keep manifests from being read" if invalid else ""
        yield PublicationDifference(
            DifferenceKind.NO_JOB, f"no manifest is named {current.base_name} {at}{why}"
        )
        return
    desired, unfit = stageable_jobs(commit.root, manifests, environment, commit.index, CodeUse.NAMED)
    for problem in unfit:
        yield PublicationDifference(
            DifferenceKind.NOT_COMPUTED,
            f"the name of {current.base_name} can't be computed {at}: {problem.path}: {problem.message}",
        )
    for job in desired.jobs:
        yield from _of_identity(job, current, at)


def _of_identity(job: DesiredJob, current: CurrentModel, at: str) -> Iterator[PublicationDifference]:
    identities = (job.identity, *job.earlier)
    if current.hash not in identities:
        yield PublicationDifference(
            DifferenceKind.OTHER_HASH,
            f"the record's hash is {current.hash}, and that of {current.base_name} is {job.identity} {at}",
        )
    names = {job_name(job.manifest.base_name, identity) for identity in identities}
    # A further attempt at the same content has its number behind the name.
    if re.sub(r"(?<=_[0-9a-f]{16})_[0-9]+\Z", "", current.job_name) not in names:
        yield PublicationDifference(
            DifferenceKind.OTHER_NAME,
            f"the record's job is {current.job_name}, and {current.base_name} is {job.job_name} {at}",
        )


def _of_record(current: CurrentModel, model: PublishedModel | None) -> Iterator[PublicationDifference]:
    """Yield how the model's record differs from `current.json`."""
    if model is None:
        yield PublicationDifference(DifferenceKind.NO_RECORD, f"{current.folder} has no {MANIFEST}")
        return
    for name in ("hash", "base_name", "source"):
        ours, its = getattr(current, name), getattr(model, name)
        if ours != its:
            shown = name.replace("_", " ")
            yield PublicationDifference(
                DifferenceKind.OTHER_RECORD, f'{MANIFEST} has the {shown} "{its}", and {CURRENT} "{ours}"'
            )


def _of_files(store: PublicationStore, to: str, model: PublishedModel) -> Iterator[PublicationDifference]:
    """Yield how the objects in the model's folder differ from its record, by one listing."""
    recorded = {file.name for file in model.files}
    missing, changed = differences(store, Publish(to), model)
    for name in missing:
        yield PublicationDifference(DifferenceKind.FILE_MISSING, f"{name} is missing")
    for name in changed:
        if name in recorded:
            yield PublicationDifference(
                DifferenceKind.FILE_CHANGED, f"{name} has another size or checksum than {MANIFEST} says"
            )
        else:
            yield PublicationDifference(DifferenceKind.FILE_UNKNOWN, f"{name} isn't in {MANIFEST}")
