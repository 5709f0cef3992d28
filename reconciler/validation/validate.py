"""From files to manifests, with every problem of every file.

A file is read quickly where nothing is odd about it, or not at all where it is remembered, and looked at
closely where anything is. What other files decide is decided here: repeated names, packages and what is in
them, how much there is in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconciler.diagnostics import Problem, capped
from reconciler.manifest import Manifest
from reconciler.validation.files import Found, ManifestFile, find_manifests, real_path
from reconciler.validation.findings import Rules
from reconciler.validation.packages import (
    Below,
    PackageFolder,
    PackageOf,
    Packages,
    hidden_folders,
    is_below_any,
    package_folder,
)
from reconciler.validation.reading import Reading
from reconciler.validation.remembered import AS_IS, Identities, KnownDocument, KnownFile, Memory

if TYPE_CHECKING:
    # Importing PyYAML takes a while, and isn't needed where all files are remembered.
    from reconciler.validation.examined import ExaminedFile

__all__ = ["PackageOf", "Validation", "check_document", "validate"]

MAX_TOTAL_BYTES = 200 * 1024 * 1024
MAX_TOTAL_ALIASED = 1_000_000
"""How many values aliases may stand for in all: with them few bytes are many values, and much work."""


_Entry = tuple[ManifestFile, "KnownFile | ExaminedFile"]


@dataclass(frozen=True, slots=True)
class Validation:
    """What came of validating.

    Attributes:
        manifests: The valid documents, sorted by file and line; their specs in canonical form.
        problems: Sorted, without repeats, at most 100 a file and then how many more; none if all is valid.
        files: How many files were looked at; those in packages don't count.
        invalid: The base names of documents that aren't valid, as far as they can be read, '-' as '_'.
        identities: Of each manifest; () where they aren't known yet.
    """

    manifests: tuple[Manifest, ...]
    problems: tuple[Problem, ...]
    files: int
    invalid: frozenset[str] = frozenset()
    identities: tuple[Identities, ...] = field(default=(), compare=False, repr=False)


def validate(
    root: Path,
    paths: Sequence[Path],
    filled: frozenset[str] = frozenset(),
    package_of: PackageOf = package_folder,
    memory: Memory | None = None,
    *,
    whole: bool = False,
) -> Validation:
    """Check all manifests below `paths`.

    Args:
        root: The repository's root, which packages have to be inside.
        paths: Files and folders, relative to the working directory.
        filled: The fields that an environment's defaults give where a manifest leaves them out.
        package_of: Finds the packages' folders; called for each manifest, before anything in one is looked
            at.
        memory: What earlier passes found; it is brought up to date.
        whole: Whether the memory is to forget what isn't below `paths`.

    Raises:
        UsageError: A path isn't there.
    """
    memory = Memory() if memory is None else memory
    memory.attune(filled)
    found = find_manifests(root, paths)
    files, _ = found
    with Reading(files, memory, MAX_TOTAL_BYTES) as reading:
        return _Validator(root, found, reading, memory, package_of).result(whole=whole)


def check_document(
    data: bytes, schema: Mapping[str, Any], path: str, rules: Rules = lambda value: ()
) -> tuple[Any, list[Problem]]:
    """Return the value of a file that holds one document, such as `reconciler.yaml`, and its problems.

    Args:
        data: The file's bytes.
        schema: The document's schema.
        path: The file's name in the problems.
        rules: Yields the mistakes that the schema cannot express; takes a document of any shape.

    Returns:
        The document's value, None for an empty file and where there are problems; and the problems, as in
        `Validation`.
    """
    if (valid := _valid_document(data, schema)) is not None and not any(rules(valid)):
        return valid, []
    from reconciler.validation.examined import document_problems  # with PyYAML and jsonschema

    value, problems = document_problems(data, schema, path, rules)
    return value, capped(problems)


def _valid_document(data: bytes, schema: Mapping[str, Any]) -> Any:
    """The value of a file's one document where it is surely valid, found quickly; else None."""
    from reconciler.validation.load import clean_documents
    from reconciler.validation.secrets import may_hold_secrets
    from reconciler.validation.verdict import is_valid

    documents = clean_documents(data) or []
    if len(documents) != 1 or may_hold_secrets(data) or not is_valid(documents[0].value, schema):
        return None
    return documents[0].value


class _Validator:
    """The check of all files together; the arguments are those of `validate`."""

    def __init__(
        self, root: Path, found: Found, reading: Reading, memory: Memory, package_of: PackageOf
    ) -> None:
        self._files, self._obstacles = found
        self._reading = reading
        self._memory = memory
        self._root = real_path(root)
        self._packages = Packages(self._root, package_of)

    def result(self, *, whole: bool) -> Validation:
        """Return the result, and bring the memory up to date; call it once."""
        entries = self._load_all()
        if whole:
            kept = {found.digest for _, found in entries if isinstance(found, KnownFile)}
            self._memory.keep_only({file.place for file in self._files}, kept)
        while True:
            hidden = hidden_folders(self._package_folders(entries))
            below = Below(hidden)
            seen = [entry for entry in entries if not below.holds(entry[0].place)] if hidden else entries
            suspects = self._suspects(seen)
            if not suspects:
                break
            entries = [
                (file, self._again(file) if file.place in suspects else found) for file, found in entries
            ]
        problems = [part.problem for part in self._obstacles if not is_below_any(part.place, hidden)]
        return self._joined(seen, problems)

    def _load_all(self) -> list[_Entry]:
        """All files up to the one with which there is too much."""
        loaded: list[_Entry] = []
        size = aliased = 0
        for file, content in zip(self._files, self._reading, strict=True):
            found = content if isinstance(content, KnownFile) else self._examined(file, content)
            loaded.append((file, found))
            size += found.size
            aliased += found.aliased
            if size > MAX_TOTAL_BYTES or aliased > MAX_TOTAL_ALIASED:
                loaded[-1] = (file, _with_too_much(file, found, size))
                break
        return loaded

    def _examined(self, file: ManifestFile, content: bytes | Problem) -> ExaminedFile:
        from reconciler.validation.examined import ExaminedFile, examine

        if isinstance(content, Problem):
            return ExaminedFile(file.path, problems=[content])
        return examine(file, content, self._memory.filled, self._packages.folder)

    def _again(self, file: ManifestFile) -> ExaminedFile:
        """Look closely at a file that is known, as there is a problem that the file alone doesn't tell."""
        return self._examined(file, self._reading.bytes_of(file))

    def _package_folders(self, entries: Iterable[_Entry]) -> Iterator[PackageFolder]:
        for file, found in entries:
            if isinstance(found, KnownFile):
                for document in found.documents:
                    if document.package:
                        yield self._packages.folder(file.place, document.package)
            else:
                yield from (job.package for job in found.jobs if job.package is not None)

    def _suspects(self, entries: Sequence[_Entry]) -> set[str]:
        """The places of known files that have a problem together with others: a package, or a name."""
        names = [name for _, found in entries for name in _base_names(found)]
        known = [(file.place, found) for file, found in entries if isinstance(found, KnownFile)]
        suspects = {
            place
            for place, found in known
            for document in found.documents
            if document.package and not self._packages.fits(place, document.package, document.modules)
        }
        if len(set(names)) < len(names):
            repeated = {name for name, count in Counter(names).items() if count > 1}
            suspects |= {place for place, found in known if not repeated.isdisjoint(_base_names(found))}
        return suspects

    def _joined(self, entries: Sequence[_Entry], problems: list[Problem]) -> Validation:
        examined = [found for _, found in entries if not isinstance(found, KnownFile)]
        for each in examined:
            each.check(self._root)
            problems += each.problems
        if examined:
            from reconciler.validation.examined import repeated_names

            problems += repeated_names(job for each in examined for job in each.checked)
        manifests: list[Manifest] = []
        identities: list[Identities] = []
        for file, found in entries:
            if isinstance(found, KnownFile):
                for document in found.documents:
                    package = (
                        self._packages.folder(file.place, document.package) if document.package else None
                    )
                    manifests.append(_manifest(document, file.path, package, found.digest))
                    identities.append(document.identities)
            else:
                valid = [job for job in found.checked if job.is_valid]
                manifests += (_manifest(job.known, file.path, job.package, found.digest) for job in valid)
                identities += (() for _ in valid)
        invalid = {job.base_name for each in examined for job in each.jobs if not job.is_valid} - {""}
        return Validation(
            tuple(manifests), tuple(capped(problems)), len(entries), frozenset(invalid), tuple(identities)
        )


def _base_names(found: KnownFile | ExaminedFile) -> list[str]:
    if isinstance(found, KnownFile):
        return [document.name.replace("-", "_") for document in found.documents]
    return [job.base_name for job in found.checked if job.base_name]


def _with_too_much(file: ManifestFile, found: KnownFile | ExaminedFile, size: int) -> ExaminedFile:
    """A file with which the limits are passed: nothing in it counts any more."""
    from reconciler.validation.examined import ExaminedFile

    limit = f"{MAX_TOTAL_BYTES // 1024**2} MB"
    if size <= MAX_TOTAL_BYTES:
        limit = f"{MAX_TOTAL_ALIASED:,} values behind aliases"
    message = f"up to this file, the manifests hold more than {limit}; from here on they are not checked"
    problems = [] if isinstance(found, KnownFile) else found.problems
    return ExaminedFile(
        file.path, problems=[*problems, Problem(file.path, 1, 1, "", message, "name fewer paths")]
    )


def _manifest(document: KnownDocument, path: str, package: PackageFolder | None, digest: bytes) -> Manifest:
    return Manifest(
        api_version=document.api_version,
        kind=document.kind,
        name=document.name,
        packed=document.spec,
        labels=document.labels,
        package=package.real if package is not None else None,
        reconcile=document.reconcile or AS_IS,
        path=path,
        line=document.line,
        written=document.package,
        digest=digest,
    )
