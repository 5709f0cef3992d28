"""From files to manifests, with every problem of every file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reconciler.diagnostics import MAX_COUNTED_PER_FILE, Problem, capped, pointer_of, quote
from reconciler.manifest import Manifest, Reconcile
from reconciler.validation.checks import domain_findings, python_modules
from reconciler.validation.envelope import schema_of
from reconciler.validation.explain import findings
from reconciler.validation.files import ManifestFile, find_manifests, leads_out, read_file, real_path
from reconciler.validation.findings import Finding, Keys
from reconciler.validation.load import Document, load_documents
from reconciler.validation.packages import PackageFolder, hidden_folders, is_below_any, package_folder
from reconciler.validation.secrets import secrets

MAX_TOTAL_BYTES = 200 * 1024 * 1024
MAX_TOTAL_ALIASED = 1_000_000
"""How many values aliases may stand for in all: with them few bytes are many values, and much work."""

PackageOf = Callable[[Path, str], PackageFolder]
"""Finds the folder that `package.path` of a manifest's file means."""

_NAME: Keys = ("metadata", "name")
_PACKAGE: Keys = ("package", "path")


@dataclass(frozen=True, slots=True)
class Validation:
    """What came of validating.

    Attributes:
        manifests: The valid documents, sorted by file and line.
        problems: Sorted, without repeats, at most 100 a file and then how many more; none if all is valid.
        files: How many files were looked at; those in packages don't count.
        invalid: The base names of documents that aren't valid, as far as they can be read, '-' as '_'.
    """

    manifests: tuple[Manifest, ...]
    problems: tuple[Problem, ...]
    files: int
    invalid: frozenset[str] = frozenset()


def validate(
    root: Path,
    paths: Sequence[Path],
    filled: frozenset[str] = frozenset(),
    package_of: PackageOf = package_folder,
) -> Validation:
    """Check all manifests below `paths`.

    Args:
        root: The repository's root, which packages have to be inside.
        paths: Files and folders, relative to the working directory.
        filled: The fields that an environment's defaults give where a manifest leaves them out.
        package_of: Finds the packages' folders; called once for each manifest, before anything in one is
            looked at.

    Raises:
        UsageError: A path isn't there.
    """
    files, obstacles = find_manifests(root, paths)
    loaded = _load_all(files, filled, package_of)
    hidden = hidden_folders(job.package for file in loaded for job in file.jobs if job.package)
    seen = [file for file in loaded if not is_below_any(file.real, hidden)]
    problems = [part.problem for part in obstacles if not is_below_any(part.place, hidden)]
    for file in seen:
        _check_file(file, real_path(root))
        problems += file.problems
    jobs = [job for file in seen for job in file.checked if not isinstance(job.schema, Finding)]
    problems += _repeated_names(jobs)
    manifests = tuple(_manifest(job) for job in jobs if job.is_valid)
    invalid = {job.base_name for file in seen for job in file.jobs if job.base_name and not job.is_valid}
    return Validation(manifests, tuple(capped(problems)), len(seen), frozenset(invalid))


def load_and_check(file: Path, schema: Mapping[str, Any], path: str) -> tuple[Any, list[Problem]]:
    """A file that holds one document, such as `reconciler.yaml`, and what is wrong with it.

    Args:
        file: Where it is.
        schema: What it has to be valid by.
        path: What the problems call it.

    Returns:
        The document's value, None for an empty file and where there are problems; and the problems, as in
        `Validation`.
    """
    real = real_path(file)
    data = read_file(real, path) if real.is_relative_to(real_path(file.parent)) else leads_out(path)
    if isinstance(data, Problem):
        return None, [data]
    documents, problems = load_documents(data, path)
    if found := secrets(data, documents, path):
        return None, capped(found)
    for document in documents[1:]:
        message = "the file holds a second document"
        problems.append(Problem(path, document.line, 1, "", message, "remove it, and the line --- above it"))
    for document in documents[:1]:
        problems += (_problem(path, document, finding) for finding in findings(document, schema))
    value = documents[0].value if documents and not problems else None
    return value, capped(problems)


@dataclass(slots=True)
class _Job:
    """A document that is meant as a manifest."""

    path: str
    document: Document
    schema: Mapping[str, Any] | Finding
    package: PackageFolder | None
    is_valid: bool = False

    @property
    def base_name(self) -> str:
        """The name in the form in which no two may be equal; "" where it has none."""
        name = _text_at(self.document, _NAME)
        return name.replace("-", "_")


@dataclass(slots=True)
class _File:
    """A file that may hold manifests, as far as it could be read.

    Attributes:
        has_secrets: Whether its problems are the secrets in it; any other one might quote them.
    """

    path: str
    real: Path
    jobs: list[_Job] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    has_secrets: bool = False

    @property
    def checked(self) -> list[_Job]:
        """The documents that are looked at any further."""
        return [] if self.has_secrets else self.jobs


def _load_all(files: Iterable[ManifestFile], filled: frozenset[str], package_of: PackageOf) -> list[_File]:
    loaded: list[_File] = []
    size = aliased = 0
    for file in files:
        data = read_file(file.real, file.path)
        if isinstance(data, Problem):
            loaded.append(_File(file.path, file.real, problems=[data]))
            continue
        entry = _load(file, data, filled, package_of)
        loaded.append(entry)
        size += len(data)
        aliased += sum(job.document.aliased for job in entry.jobs)
        if size > MAX_TOTAL_BYTES or aliased > MAX_TOTAL_ALIASED:
            limit = f"{MAX_TOTAL_BYTES // 1024**2} MB"
            if size <= MAX_TOTAL_BYTES:
                limit = f"{MAX_TOTAL_ALIASED:,} values behind aliases"
            message = (
                f"up to this file, the manifests hold more than {limit}; from here on they are not checked"
            )
            entry.jobs.clear()
            entry.problems.append(Problem(file.path, 1, 1, "", message, "name fewer paths"))
            break
    return loaded


def _load(file: ManifestFile, data: bytes, filled: frozenset[str], package_of: PackageOf) -> _File:
    documents, problems = load_documents(data, file.path)
    if not documents and not problems:
        hint = "write a job, or remove the file"
        problems.append(Problem(file.path, 1, 1, "", "the file holds no job", hint))
    found = secrets(data, documents, file.path)
    jobs = [_job(file, document, filled, package_of) for document in documents]
    return _File(file.path, file.real, jobs, found or problems, has_secrets=bool(found))


def _job(file: ManifestFile, document: Document, filled: frozenset[str], package_of: PackageOf) -> _Job:
    schema = schema_of(document.value, filled)
    written = _text_at(document, _PACKAGE) if not isinstance(schema, Finding) else ""
    package = package_of(file.real, written) if written else None
    return _Job(file.path, document, schema, package)


def _check_file(file: _File, root: Path) -> None:
    """Add the problems of each document; ends early where they are too many to be told."""
    for job in file.checked:
        if len(file.problems) >= MAX_COUNTED_PER_FILE:
            return
        if isinstance(job.schema, Finding):
            found = [job.schema] if job.schema.keys not in job.document.unreadable else []
        else:
            found = findings(job.document, job.schema, domain_findings)
            found += _package_findings(job, root, {finding.keys for finding in found})
        file.problems += (_problem(file.path, job.document, finding) for finding in found)
        job.is_valid = not found and not job.document.is_flawed


def _package_findings(job: _Job, root: Path, told: set[Keys]) -> Iterator[Finding]:
    if job.package is None or _PACKAGE in told:
        return
    if mistake := job.package.mistake(root):
        yield Finding(_PACKAGE, *mistake)
        return
    for keys, module in python_modules(job.document.value):
        if keys not in told and keys not in job.document.unreadable and job.package.lacks(module):
            message = f"the package {quote(job.package.written)} has no module {quote(module)}"
            similar = job.package.similar_module(module)
            hint = f"did you mean {quote(similar)}?" if similar else "name a module that is in it"
            yield Finding(keys, message, hint)


def _repeated_names(jobs: Iterable[_Job]) -> Iterator[Problem]:
    """The jobs whose name another one has, the first of them left out; they aren't valid then."""
    first: dict[str, _Job] = {}
    for job in jobs:
        other = first.setdefault(job.base_name, job) if job.base_name else job
        if other is job:
            continue
        job.is_valid = False
        name, other_name = _text_at(job.document, _NAME), _text_at(other.document, _NAME)
        line = other.document.position(_NAME).line
        place = f"line {line}" if other.path == job.path else f"{other.path}, line {line}"
        alike = "" if name == other_name else f" as {quote(other_name)} ('-' and '_' count as equal)"
        message = f"the name {quote(name)} is taken{alike} in {place}"
        yield _problem(job.path, job.document, Finding(_NAME, message, "choose another name"))


def _problem(path: str, document: Document, finding: Finding) -> Problem:
    place = document.position(finding.keys, of_key=finding.of_key)
    pointer = pointer_of(finding.keys)
    return Problem(path, place.line, place.column, pointer, finding.message, finding.hint)


def _text_at(document: Document, keys: Keys) -> str:
    """The text that `keys` lead to; "" where there is none, or none that can be used."""
    value: Any = document.value
    for depth, key in enumerate(keys):
        if not isinstance(value, dict) or keys[: depth + 1] in document.unreadable:
            return ""
        value = value.get(key)
    return value if isinstance(value, str) else ""


def _manifest(job: _Job) -> Manifest:
    value: Mapping[str, Any] = job.document.value
    metadata, wishes = value["metadata"], value.get("reconcile", {})
    return Manifest(
        api_version=value["apiVersion"],
        kind=value["kind"],
        name=metadata["name"],
        spec=value["spec"],
        labels=metadata.get("labels", {}),
        package=job.package.real if job.package else None,
        reconcile=Reconcile(
            suspend=wishes.get("suspend", False),
            attempts=int(wishes.get("attempts", 1)),
            rerun=wishes.get("rerun", ""),
            on_change=wishes.get("onChange", "keep"),
            on_delete=wishes.get("onDelete", "keep"),
        ),
        path=job.path,
        line=job.document.line,
    )
