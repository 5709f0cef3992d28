"""Slow check of files that reports each problem with its place and a hint.

Its verdict is final. It reads a document again to find the places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reconciler.base.diagnostics import (
    MAX_COUNTED_PER_FILE,
    Finding,
    Keys,
    Problem,
    Rules,
    UnplacedWarning,
    quote,
)
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.checked_files import digest_of
from reconciler.manifests.explain import findings, with_boolean_hints
from reconciler.manifests.fast_validate import manifest_of
from reconciler.manifests.files import ManifestFile
from reconciler.manifests.packages import PACKAGE_PATH, PackageFolder
from reconciler.manifests.pipelines import MODEL_ID, new_model_id
from reconciler.manifests.plain_form import keys_in_camel_case, plain_form
from reconciler.manifests.rules import domain_findings, python_modules
from reconciler.manifests.schemas import schema_of
from reconciler.manifests.secrets import secrets
from reconciler.manifests.yaml_document import Document
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import Manifest
from reconciler.model.stand_ins import pointer_digest

FolderOf = Callable[[ManifestFile, str], PackageFolder]
"""Finds the folder of `package.path` for the manifest in a file."""

_NAME: Keys = ("metadata", "name")
# Everything reads these files, and the plan of a pull request never gets files of Git LFS.
_GET_LFS_TEXT = (
    "get it by `git lfs pull`, in GitHub Actions by `lfs: true` of the apply action; a pull request's plan "
    "needs it in git: add the line `PATH -filter -diff -merge` to .gitattributes, then run "
    "`git add --renormalize PATH`"
)


@dataclass(slots=True)
class DiagnosedJob:
    """Document that is meant as a manifest.

    Attributes:
        path: Its file's name for users.
        schema: Schema of its kind, or the reason why it has none.
        package: The folder of its code; None without `package`.
        is_valid: True once a check has found no problem.
    """

    path: str
    document: Document
    schema: Mapping[str, Any] | Finding
    package: PackageFolder | None
    is_valid: bool = False

    @property
    def base_name(self) -> str:
        """The name with '-' as '_', which must be unique; "" if it is missing or unreadable."""
        return self.document.text_at(_NAME).replace("-", "_")

    @property
    def manifest(self) -> Manifest:
        """The manifest of a valid job, without its file."""
        assert isinstance(self.schema, Mapping), "a valid manifest has a schema"
        return manifest_of(self.document.value, self.document.line, self.schema)


@dataclass(slots=True)
class DiagnosedFile:
    """File that may contain manifests.

    Attributes:
        path: Its name for users.
        size: Number of bytes read.
        digest: Result of `digest_of` for its bytes; b"" if it is unreadable.
        has_secrets: True if its problems are secrets. No other problem is reported then, because the message
            might quote a secret.
        filled: The fields that its manifests may omit.
        warnings: What is probably a mistake in its manifests.
    """

    path: str
    size: int = 0
    digest: bytes = b""
    jobs: list[DiagnosedJob] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    has_secrets: bool = False
    filled: frozenset[str] = frozenset()
    warnings: list[UnplacedWarning] = field(default_factory=list)

    @property
    def aliased(self) -> int:
        """Number of values that exist only through aliases."""
        return sum(job.document.aliased for job in self.jobs)

    @property
    def checked(self) -> list[DiagnosedJob]:
        """Documents of a known kind, which get all further checks."""
        return [] if self.has_secrets else [job for job in self.jobs if not isinstance(job.schema, Finding)]

    def check(self, root: Path) -> None:
        """Add the problems and warnings of each document, up to the limit of problems; call it once.

        `root` is the repository's, without links.
        """
        for job in () if self.has_secrets else self.jobs:
            # Further problems are not even counted, so a hostile file costs no more time.
            if len(self.problems) >= MAX_COUNTED_PER_FILE:
                return
            if isinstance(job.schema, Finding):
                # Reading the document has reported the unreadable values already.
                job_findings = [job.schema] if job.schema.keys not in job.document.unreadable else []
            else:
                self.problems = with_boolean_hints(self.problems, job.document, job.schema)
                rules = partial(domain_findings, filled=self.filled)
                job_findings = findings(job.document, job.schema, rules)
                reported = job.document.unreadable | {finding.keys for finding in job_findings}
                if job.package is not None and PACKAGE_PATH not in reported:
                    modules = python_modules(job.document.value)
                    job_findings += job.package.findings(
                        root, (module for module in modules if module[0] not in reported)
                    )
            errors = [finding for finding in job_findings if not finding.kind]
            self.problems += (job.document.problem(self.path, finding) for finding in errors)
            for finding in job_findings:
                if finding.kind and len(self.warnings) < MAX_COUNTED_PER_FILE:
                    self.warnings.append(UnplacedWarning.of(self.path, job.document.line, finding))
            job.is_valid = not errors and not job.document.is_flawed


def diagnose(file: ManifestFile, data: bytes, filled: frozenset[str], folder_of: FolderOf) -> DiagnosedFile:
    """Read the documents of a file and find the packages of its jobs, without checking them."""
    if pointer_digest(data):
        return DiagnosedFile(file.path, len(data), digest_of(data), problems=[_is_pointer(file.path)])
    documents, problems = load_documents(data, file.path)
    if not documents and not problems:
        hint = "write a job, or remove the file"
        problems.append(Problem(file.path, 1, 1, "", "the file contains no job", hint))
    for document in documents:
        schema = schema_of(document.value, filled)
        if not isinstance(schema, Finding):
            document.value = plain_form(document.value, schema)
            document.unreadable |= {keys_in_camel_case(keys) for keys in document.unreadable}
    # Secrets replace all other problems, whose messages might quote them.
    secret_problems = secrets(data, documents, file.path)
    jobs = [_job(file, document, filled, folder_of) for document in documents]
    return DiagnosedFile(
        file.path,
        len(data),
        digest_of(data),
        jobs,
        secret_problems or problems,
        has_secrets=bool(secret_problems),
        filled=filled,
    )


def repeated_names(jobs: Iterable[DiagnosedJob]) -> Iterator[Problem]:
    """Mark each job as invalid whose name an earlier job has, and yield its problem."""
    first: dict[str, DiagnosedJob] = {}
    for job in jobs:
        other = first.setdefault(job.base_name, job) if job.base_name else job
        if other is job:
            continue
        job.is_valid = False
        name, other_name = job.document.text_at(_NAME), other.document.text_at(_NAME)
        line = other.document.position(_NAME).line
        location = f"line {line}" if other.path == job.path else f"{other.path}, line {line}"
        alike = "" if name == other_name else f" as {quote(other_name)} ('-' and '_' count as equal)"
        message = f"the name {quote(name)} is already used{alike} in {location}"
        yield job.document.problem(job.path, Finding(_NAME, message, "choose another name"))


def repeated_model_ids(jobs: Iterable[DiagnosedJob]) -> Iterator[UnplacedWarning]:
    """Yield a warning for each valid pipeline whose new model has the id of an earlier pipeline's."""
    first: dict[str, DiagnosedJob] = {}
    for job in jobs:
        model_id = new_model_id(job.document.value["spec"]) if job.is_valid else ""
        other = first.setdefault(model_id, job) if model_id else job
        if other is job:
            continue
        line = other.document.position(MODEL_ID).line
        place = f"line {line}" if other.path == job.path else f"{other.path}, line {line}"
        message = (
            f"{place} registers the new model {quote(model_id)} too: the run that ends second trains, "
            "and then can't register its model"
        )
        hint = 'write another "modelId", or "parentModel" once the model exists'
        finding = Finding(MODEL_ID, message, hint, kind=WarningKind.MODEL_ID)
        yield UnplacedWarning.of(job.path, job.document.line, finding)


def document_problems(
    data: bytes, schema: Mapping[str, Any], path: str, rules: Rules
) -> tuple[Any, list[Problem]]:
    """Return the value of a file's only document, None for an empty file, and its problems.

    The arguments are those of `check_document`.
    """
    if pointer_digest(data):
        return None, [_is_pointer(path)]
    documents, problems = load_documents(data, path)
    if secret_problems := secrets(data, documents, path):
        return None, secret_problems
    for document in documents[1:]:
        message = "the file contains a second document"
        problems.append(Problem(path, document.line, 1, "", message, "remove it, and the line --- above it"))
    for document in documents[:1]:
        problems = with_boolean_hints(problems, document, schema)
        problems += (document.problem(path, finding) for finding in findings(document, schema, rules))
    is_valid = all(problem.kind for problem in problems)
    return (documents[0].value if documents and is_valid else None), problems


def _is_pointer(path: str) -> Problem:
    return Problem(path, 1, 1, "", "this is a Git LFS pointer, and not the file itself", _GET_LFS_TEXT)


def _job(file: ManifestFile, document: Document, filled: frozenset[str], folder_of: FolderOf) -> DiagnosedJob:
    schema = schema_of(document.value, filled)
    written = document.text_at(PACKAGE_PATH) if not isinstance(schema, Finding) else ""
    package = folder_of(file, written) if written else None
    return DiagnosedJob(file.path, document, schema, package)
