"""Validation of manifests: all problems of all files.

A file is skipped if the cache has it, gets a fast check if it is regular, and a slow check if it isn't. This
module adds the rules across files: unique names, packages and their modules, limits on the total.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, msgpack

from reconciler.base.diagnostics import Problem, capped
from reconciler.manifests.cache import AS_IS, Identities, KnownDocument, KnownFile, Memory, digest_of
from reconciler.manifests.files import (
    Folders,
    Found,
    ManifestFile,
    Signature,
    can_be_trusted,
    find_manifests,
    real_path,
)
from reconciler.manifests.findings import Rules
from reconciler.manifests.packages import (
    Below,
    PackageFolder,
    PackageOf,
    Packages,
    hidden_folders,
    is_below_any,
    package_folder,
)
from reconciler.model.manifest import Manifest

if TYPE_CHECKING:
    from reconciler.manifests.examine import ExaminedFile
    from reconciler.manifests.process_pool import Workers


FEWEST = 200
"""Least number of unread files for worker processes: starting them takes as long as reading some dozens."""
MAX_TOTAL_BYTES = 200 * 1024 * 1024
MAX_TOTAL_ALIASED = 1_000_000
"""Most values that exist only through aliases, in all files: a few bytes can repeat many values."""

_PIECE = 32  # files that are checked together


class _Read(Struct, frozen=True, array_like=True):
    """A process's result for one file.

    Attributes:
        digest: Of its bytes; b"" if they can't be read.
        signature: None if it can't be trusted.
        known: None if the file needs the slow check or if the memory has its content already.
    """

    digest: bytes
    signature: Signature | None
    known: KnownFile | None


_UNREAD = _Read(b"", None, None)
_results = msgpack.Decoder(list[_Read])


class Reading:
    """Contents of files, in the order of the files.

    Args:
        files: The files.
        memory: Known contents; new ones are added.
        most_bytes: Size from which on files aren't read ahead, because the caller stops there.
    """

    def __init__(self, files: Sequence[ManifestFile], memory: Memory, most_bytes: int) -> None:
        self._files = files
        self._memory = memory
        self._folders = Folders()
        self._known = [memory.at_place(file.place, file.signature) for file in files]
        self._unread: list[int] = []
        size = 0
        for index, file in enumerate(files):
            if self._known[index] is None:
                self._unread.append(index)
            size += file.signature.size
            if size > most_bytes:
                break

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folders.close()

    def __iter__(self) -> Iterator[KnownFile | bytes | Problem]:
        """Yield each file's record if it is known, else its bytes, or the problem of reading it."""
        results = self._read_by_workers()
        pieces = {index: piece for piece in range(self._pieces) for index in self._indices(piece)}
        for index, file in enumerate(self._files):
            known = self._known[index]
            if known is None:
                piece = pieces.get(index)
                if piece is not None and index not in results:
                    results |= zip(self._indices(piece), self._read(self._indices(piece)), strict=True)
                known = self._remember(file, results.pop(index, _UNREAD))
            yield self.bytes_of(file) if known is None else known

    def bytes_of(self, file: ManifestFile) -> bytes | Problem:
        """Return the bytes of a file, known or not."""
        found = self._folders.read(file)
        return found if isinstance(found, Problem) else found.data

    def _remember(self, file: ManifestFile, read: _Read) -> KnownFile | None:
        known = read.known or self._memory.with_digest(read.digest)
        if known is not None:
            self._memory.remember(known, file.place, read.signature)
        return known

    def _read(self, indices: Sequence[int]) -> list[_Read]:
        """Read some files, and check those whose content the memory lacks."""
        contents: dict[bytes, bytes] = {}
        found: list[tuple[bytes, Signature | None]] = []
        for index in indices:
            now = time.time_ns()  # before reading, so that a later write can't have an older time
            content = self._folders.read(self._files[index])
            if isinstance(content, Problem):
                found.append((b"", None))
                continue
            digest = digest_of(content.data)
            if self._memory.with_digest(digest) is None:
                contents[digest] = content.data
            signature = content.signature
            is_sure = signature is not None and can_be_trusted(signature, now)
            found.append((digest, signature if is_sure else None))
        known: dict[bytes, KnownFile] = {}
        if contents:
            from reconciler.manifests.fast_validate import known_files  # PyYAML is slow to import

            known = known_files(contents, self._memory.filled)
        return [_Read(digest, signature, known.get(digest)) for digest, signature in found]

    def _workers(self) -> Workers | None:
        """Return processes at work on the unread files; None if they would not help."""
        from reconciler.manifests.process_pool import MOST, Workers, can_fork, count_of_processors

        count = min(count_of_processors(), MOST)
        if count < 2 or not can_fork():
            return None
        import reconciler.manifests.fast_validate  # noqa: F401  (imported once, not in each process)

        return Workers(self._pieces, self._check_piece, count)

    def _check_piece(self, piece: int) -> bytes:
        return msgpack.encode(self._read(self._indices(piece)))

    def _read_by_workers(self) -> dict[int, _Read]:
        """Return the processes' results by index of the file, as far as they got."""
        workers = self._workers() if len(self._unread) >= FEWEST else None
        if workers is None:
            return {}
        with workers:
            return {
                index: read
                for piece, results in workers.results()
                for index, read in zip(self._indices(piece), _results.decode(results), strict=True)
            }

    @property
    def _pieces(self) -> int:
        return -(-len(self._unread) // _PIECE)

    def _indices(self, piece: int) -> list[int]:
        return self._unread[piece * _PIECE : (piece + 1) * _PIECE]


_Entry = tuple[ManifestFile, "KnownFile | ExaminedFile"]


@dataclass(frozen=True, slots=True)
class Validation:
    """Result of a validation.

    Attributes:
        manifests: The valid documents, sorted by file and line; their specs in canonical form.
        problems: Sorted, without repeats, at most 100 a file and then the number of further ones.
        files: Number of files, without those in packages.
        invalid: The base names of invalid documents, as far as they are readable, '-' as '_'.
        identities: Of each manifest; () if they aren't computed yet.
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
        root: The repository's root, which has to contain the packages.
        paths: Files and folders, relative to the working directory.
        filled: The fields that an environment's defaults give, so that a manifest may omit them.
        package_of: Finds the packages' folders; called for each manifest, before reading any package.
        memory: Results of earlier passes; it is updated.
        whole: If True, the memory forgets files that aren't below `paths`.

    Raises:
        UsageError: A path is missing.
    """
    memory = Memory() if memory is None else memory
    memory.set_filled(filled)
    found = find_manifests(root, paths)
    files, _ = found
    with Reading(files, memory, MAX_TOTAL_BYTES) as reading:
        return _Validator(root, found, reading, memory, package_of).result(whole=whole)


def check_document(
    data: bytes, schema: Mapping[str, Any], path: str, rules: Rules = lambda value: ()
) -> tuple[Any, list[Problem]]:
    """Return the value of a file with one document, such as `reconciler.yaml`, and its problems.

    Args:
        data: The file's bytes.
        schema: The document's schema.
        path: The file's name in the problems.
        rules: Yields the mistakes that the schema cannot express; takes a document of any shape.

    Returns:
        The document's value, None for an empty file or with problems; and the problems, as in `Validation`.
    """
    if (valid := _valid_document(data, schema)) is not None and not any(rules(valid)):
        return valid, []
    from reconciler.manifests.examine import document_problems  # with PyYAML and jsonschema

    value, problems = document_problems(data, schema, path, rules)
    return value, capped(problems)


def _valid_document(data: bytes, schema: Mapping[str, Any]) -> Any:
    """Return the value of a file's only document if the fast check accepts it, else None."""
    from reconciler.manifests.schemas import is_valid
    from reconciler.manifests.secrets import may_hold_secrets
    from reconciler.manifests.yaml_load import clean_documents

    documents = clean_documents(data) or []
    if len(documents) != 1 or may_hold_secrets(data) or not is_valid(documents[0].value, schema):
        return None
    return documents[0].value


class _Validator:
    """Check of all files together; the arguments are those of `validate`."""

    def __init__(
        self, root: Path, found: Found, reading: Reading, memory: Memory, package_of: PackageOf
    ) -> None:
        self._files, self._obstacles = found
        self._reading = reading
        self._memory = memory
        self._root = real_path(root)
        self._packages = Packages(self._root, package_of)

    def result(self, *, whole: bool) -> Validation:
        """Return the result and update the memory; call it once."""
        entries = self._load_all()
        if whole:
            kept = {found.digest for _, found in entries if isinstance(found, KnownFile)}
            self._memory.keep_only({file.place for file in self._files}, kept)
        # The slow check reads a file again, which may have changed: compute the hidden folders again, until
        # all remaining known files fit together.
        while True:
            hidden = hidden_folders(self._package_folders(entries))
            below = Below(hidden)
            visible = [entry for entry in entries if not below.holds(entry[0].place)] if hidden else entries
            conflicting = self._conflicting(visible)
            if not conflicting:
                break
            for index, (file, _) in enumerate(entries):
                if file.place in conflicting:
                    entries[index] = (file, self._examined(file, self._reading.bytes_of(file)))
        problems = [part.problem for part in self._obstacles if not is_below_any(part.place, hidden)]
        return self._combine(visible, problems)

    def _load_all(self) -> list[_Entry]:
        """Return all files up to the first that exceeds a limit on the total."""
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
        from reconciler.manifests.examine import ExaminedFile, examine

        if isinstance(content, Problem):
            return ExaminedFile(file.path, problems=[content])
        return examine(file, content, self._memory.filled, self._packages.folder)

    def _package_folders(self, entries: Iterable[_Entry]) -> Iterator[PackageFolder]:
        for file, found in entries:
            if isinstance(found, KnownFile):
                for document in found.documents:
                    if document.package:
                        yield self._packages.folder(file.place, document.package)
            else:
                yield from (job.package for job in found.jobs if job.package is not None)

    def _conflicting(self, entries: Sequence[_Entry]) -> set[str]:
        """Return the places of known files with a mistaken package or a repeated name."""
        names = [name for _, found in entries for name in _base_names(found)]
        known = [(file.place, found) for file, found in entries if isinstance(found, KnownFile)]
        conflicting = {
            place
            for place, found in known
            for document in found.documents
            if document.package and not self._packages.fits(place, document.package, document.modules)
        }
        if len(set(names)) < len(names):
            repeated = {name for name, count in Counter(names).items() if count > 1}
            conflicting |= {place for place, found in known if not repeated.isdisjoint(_base_names(found))}
        return conflicting

    def _combine(self, entries: Sequence[_Entry], problems: list[Problem]) -> Validation:
        examined = [found for _, found in entries if not isinstance(found, KnownFile)]
        for each in examined:
            each.check(self._root)
            problems += each.problems
        if examined:
            from reconciler.manifests.examine import repeated_names

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
    """Return a file's result with the problem that it exceeds the limit, and without its documents."""
    from reconciler.manifests.examine import ExaminedFile

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
