"""Validation of manifests: all problems of all files.

A file gets a fast check if it is regular, and a slow check if it isn't. This module adds the rules across
files: unique names, packages and their modules, limits on the total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, msgpack
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem, Rules, UnplacedWarning, capped
from reconciler.base.workers import WorkerProcesses, process_count
from reconciler.manifests.checked_files import CheckedFile, CheckedFiles, digest_of
from reconciler.manifests.fast_validate import check_files
from reconciler.manifests.files import Folders, Found, ManifestFile, find_manifests, real_path
from reconciler.manifests.packages import (
    PackageFolder,
    PackageOf,
    Packages,
    hidden_folders,
    is_below_any,
    package_folder,
)
from reconciler.manifests.pipelines import MODEL_ID, new_model_id
from reconciler.manifests.schemas import is_valid
from reconciler.manifests.secrets import may_hold_secrets
from reconciler.manifests.yaml_load import clean_documents
from reconciler.model.manifest import TRAINING_PIPELINE, Manifest
from reconciler.model.tracking import COMMITTED, Index

if TYPE_CHECKING:
    from reconciler.manifests.diagnose import DiagnosedFile


FEWEST = 200
"""Least number of unread files for worker processes: starting them takes as long as reading some dozens."""
MAX_TOTAL_BYTES = 200 * 1024 * 1024
MAX_TOTAL_ALIASED = 1_000_000
"""Most values that exist only through aliases, in all files: a few bytes can repeat many values."""

_PIECE = 32  # files that are checked together


_results = msgpack.Decoder(list[CheckedFile | None])


class _FileReader:
    """Reader of files that checks those with a new content; the arguments are those of `validate`."""

    def __init__(
        self, filled: frozenset[str], checked: CheckedFiles, folders: Folders, *, with_identities: bool
    ) -> None:
        self.filled = filled
        self.checked = checked
        self._folders = folders
        self._with_identities = with_identities

    def contents(self, files: Sequence[ManifestFile]) -> Iterator[CheckedFile | bytes | Problem]:
        """Yield each file's record if the fast check accepts it, else its bytes or why they can't be read."""
        sizes = accumulate(file.size for file in files)
        # Files behind the limit aren't read ahead: the caller stops there.
        near = [file for file, size in zip(files, sizes, strict=True) if size <= MAX_TOTAL_BYTES]
        results = self._read_ahead(near)
        for file in files:
            checked = next(results, None)
            if checked is not None:
                self.checked.add(self.filled, checked)
            yield checked or self.bytes_of(file)

    def bytes_of(self, file: ManifestFile) -> bytes | Problem:
        """Return the bytes of a file."""
        return self._folders.read(file)

    def _read_ahead(self, files: Sequence[ManifestFile]) -> Iterator[CheckedFile | None]:
        """Yield the result for each file, in order; several processes share the work if it is much."""
        pieces = [files[start : start + _PIECE] for start in range(0, len(files), _PIECE)]
        count = 1
        if len(files) >= FEWEST:
            count = process_count()
        shares = self._read_shares(pieces, count) if count > 1 else {}
        for number, piece in enumerate(pieces):
            share = shares.get(number % count)
            # The share of a process that failed is left to this process.
            yield from self._read(piece) if share is None else islice(share, len(piece))

    def _read_shares(
        self, pieces: Sequence[Sequence[ManifestFile]], count: int
    ) -> dict[int, Iterator[CheckedFile | None]]:
        """Return the results of each process by its number; every `count`-th piece is its share."""

        def work(share: int) -> bytes:
            return msgpack.encode(self._read_all(pieces[share::count]))

        with WorkerProcesses(work, range(1, count)) as workers:
            results = self._read_all(pieces[::count])
            others = {share: iter(_results.decode(data)) for share, data in workers.results()}
        return {0: iter(results), **others}

    def _read_all(self, pieces: Iterable[Sequence[ManifestFile]]) -> list[CheckedFile | None]:
        return [checked for piece in pieces for checked in self._read(piece)]

    def _read(self, files: Iterable[ManifestFile]) -> list[CheckedFile | None]:
        """Read and check some files; None stands for one that needs the slow check."""
        contents: dict[bytes, bytes] = {}
        digests: list[bytes] = []
        for file in files:
            data = self._folders.read(file)
            if isinstance(data, Problem):
                digests.append(b"")
                continue
            digests.append(digest_of(data))
            contents[digests[-1]] = data
        records = {digest: self.checked.find(self.filled, digest) for digest in contents}
        new = {digest: data for digest, data in contents.items() if records[digest] is None}
        if new:
            records |= check_files(new, self.filled, with_identities=self._with_identities)
        return [records.get(digest) for digest in digests]


_Entry = tuple[ManifestFile, "CheckedFile | DiagnosedFile"]


class Validation(Struct, frozen=True):
    """Result of a validation.

    Attributes:
        manifests: The valid documents, sorted by file and line; their specs in canonical form.
        problems: Sorted, without repeats, at most 100 a file and then the number of further ones.
        warnings: What is probably a mistake in the documents.
        files: Number of files, without those in packages.
        invalid: The base names of invalid documents, as far as they are readable, '-' as '_'.
    """

    manifests: tuple[Manifest, ...]
    problems: tuple[Problem, ...]
    files: int
    invalid: frozenset[str] = frozenset()
    warnings: tuple[UnplacedWarning, ...] = ()


def validate(
    root: Path,
    paths: Sequence[Path],
    filled: frozenset[str] = frozenset(),
    package_of: PackageOf = package_folder,
    checked: CheckedFiles | None = None,
    index: Index = COMMITTED,
    *,
    with_identities: bool = True,
) -> Validation:
    """Check all manifests below `paths`.

    Args:
        root: The repository's root, which has to contain the packages.
        paths: Files and folders, relative to the working directory.
        filled: The fields that an environment's defaults give, so that a manifest may omit them.
        package_of: Finds the packages' folders; called for each manifest, before reading any package.
        checked: Checked files of earlier passes; those of this pass are added.
        index: What git tracks; by default everything, as among files that were written from a commit.
        with_identities: False if nobody needs the identities of the manifests.

    Raises:
        UsageError: A path is missing.
    """
    checked = CheckedFiles() if checked is None else checked
    search_result = find_manifests(root, paths, index)
    with Folders() as folders:
        reader = _FileReader(filled, checked, folders, with_identities=with_identities)
        packages = Packages(real_path(root), package_of, index)
        return _Validator(root, search_result, reader, packages).result()


def check_document(
    data: bytes, schema: Mapping[str, Any], path: str, rules: Rules = lambda value: ()
) -> tuple[Any, list[Problem]]:
    """Return the value of a file with one document, such as `reconciler.yaml`, and its problems.

    The value is None if the file is empty or a problem is more than a warning. The problems include warnings,
    name the file as `path`, and are limited in number as in `Validation`.
    """
    if (valid := _valid_document(data, schema)) is not None and not any(rules(valid)):
        return valid, []
    from reconciler.manifests.diagnose import document_problems  # with PyYAML, for what is wrong

    value, problems = document_problems(data, schema, path, rules)
    return value, capped(problems)


def _valid_document(data: bytes, schema: Mapping[str, Any]) -> Any:
    """Return the value of a file's only document if the fast check accepts it, else None."""
    documents = clean_documents(data) or []
    if len(documents) != 1 or may_hold_secrets(data) or not is_valid(documents[0].value, schema):
        return None
    return documents[0].value


class _Validator:
    """Check of all files together; the arguments are those of `validate`."""

    def __init__(self, root: Path, search_result: Found, reader: _FileReader, packages: Packages) -> None:
        self._files, self._obstacles = search_result
        self._reader = reader
        self._root = real_path(root)
        self._packages = packages

    def result(self) -> Validation:
        """Return the result and add to the checked files; call it once."""
        entries = self._load_all()
        # The slow check reads a file again, which may have changed: compute the hidden folders again, until
        # all remaining checked files fit together.
        while True:
            hidden = hidden_folders(self._package_folders(entries))
            # Each folder is tested once, as most contain many files.
            folders = {file.folder for file, _ in entries} if hidden else set()
            inside = {folder for folder in folders if is_below_any(Path(folder, "file"), hidden)}
            visible = [entry for entry in entries if entry[0].folder not in inside]
            conflicting = self._conflicting(visible)
            if not conflicting:
                break
            for index, (file, _) in enumerate(entries):
                if file.real in conflicting:
                    entries[index] = (file, self._diagnosed(file, self._reader.bytes_of(file)))
        problems = [
            obstacle.problem for obstacle in self._obstacles if not is_below_any(obstacle.path, hidden)
        ]
        return self._combine(visible, problems)

    def _load_all(self) -> list[_Entry]:
        """Return all files up to the first that exceeds a limit on the total."""
        loaded: list[_Entry] = []
        size = aliased = 0
        for file, content in zip(self._files, self._reader.contents(self._files), strict=True):
            file_result = content if isinstance(content, CheckedFile) else self._diagnosed(file, content)
            loaded.append((file, file_result))
            size += file_result.size
            aliased += file_result.aliased
            if size > MAX_TOTAL_BYTES or aliased > MAX_TOTAL_ALIASED:
                loaded[-1] = (file, self._with_too_much(file, file_result, size))
                break
        return loaded

    def _with_too_much(
        self, file: ManifestFile, file_result: CheckedFile | DiagnosedFile, size: int
    ) -> DiagnosedFile:
        """Return a file's result with the problem that it exceeds the limit, and without its documents."""
        limit = f"{MAX_TOTAL_BYTES // 1024**2} MB"
        if size <= MAX_TOTAL_BYTES:
            limit = f"{MAX_TOTAL_ALIASED:,} values behind aliases"
        message = (
            f"the manifests contain more than {limit} up to this file; from here on they are not checked"
        )
        result = self._diagnosed(file, Problem(file.path, 1, 1, "", message, "name fewer paths"))
        result.problems[:0] = [] if isinstance(file_result, CheckedFile) else file_result.problems
        return result

    def _diagnosed(self, file: ManifestFile, content: bytes | Problem) -> DiagnosedFile:
        from reconciler.manifests.diagnose import DiagnosedFile, diagnose  # with PyYAML, for what is wrong

        if isinstance(content, Problem):
            return DiagnosedFile(file.path, problems=[content])
        return diagnose(file, content, self._reader.filled, self._packages.folder)

    def _package_folders(self, entries: Iterable[_Entry]) -> Iterator[PackageFolder]:
        for file, file_result in entries:
            if isinstance(file_result, CheckedFile):
                for manifest in file_result.manifests:
                    if manifest.written:
                        yield self._packages.folder(file, manifest.written)
            else:
                yield from (job.package for job in file_result.jobs if job.package is not None)

    def _conflicting(self, entries: Sequence[_Entry]) -> set[str]:
        """Return the places of checked files with a mistaken package, or a repeated name or `modelId`."""
        names = [name for _, file_result in entries for name in _base_names(file_result)]
        checked = [
            (file, file_result) for file, file_result in entries if isinstance(file_result, CheckedFile)
        ]
        conflicting = {
            file.real
            for file, file_result in checked
            for manifest in file_result.manifests
            if manifest.written and not self._packages.fits(file, manifest.written, manifest.python_modules)
        }
        model_ids = [name for _, file_result in entries for name in _new_model_ids(file_result)]
        if len(set(model_ids)) < len(model_ids):
            repeated = {name for name, count in Counter(model_ids).items() if count > 1}
            conflicting |= {
                file.real
                for file, file_result in checked
                if not repeated.isdisjoint(_new_model_ids(file_result))
            }
        if len(set(names)) < len(names):
            repeated = {name for name, count in Counter(names).items() if count > 1}
            conflicting |= {
                file.real
                for file, file_result in checked
                if not repeated.isdisjoint(_base_names(file_result))
            }
        return conflicting

    def _manifests(self, file: ManifestFile, file_result: CheckedFile | DiagnosedFile) -> Iterator[Manifest]:
        """Yield the valid manifests of a file."""
        if isinstance(file_result, CheckedFile):
            for manifest in file_result.manifests:
                package = self._packages.folder(file, manifest.written).real if manifest.written else None
                yield replace(manifest, path=file.path, digest=file_result.digest, package=package)
        else:
            for job in file_result.checked:
                if job.is_valid:
                    package = job.package.real if job.package else None
                    yield replace(job.manifest, path=file.path, digest=file_result.digest, package=package)

    def _combine(self, entries: Sequence[_Entry], problems: list[Problem]) -> Validation:
        diagnosed = [file_result for _, file_result in entries if not isinstance(file_result, CheckedFile)]
        warnings: list[UnplacedWarning] = []
        for file, file_result in entries:
            if isinstance(file_result, CheckedFile):
                warnings += (replace(warning, path=file.path) for warning in file_result.warnings)
                continue
            file_result.check(self._root)
            problems += file_result.problems
            warnings += file_result.warnings
        if diagnosed:
            from reconciler.manifests.diagnose import repeated_model_ids, repeated_names  # as in `_diagnosed`

            checked = [job for file_result in diagnosed for job in file_result.checked]
            problems += repeated_names(checked)
            warnings += repeated_model_ids(checked)
        manifests = tuple(
            [manifest for file, file_result in entries for manifest in self._manifests(file, file_result)]
        )
        invalid = {
            job.base_name for file_result in diagnosed for job in file_result.jobs if not job.is_valid
        } - {""}
        return Validation(
            manifests, tuple(capped(problems)), len(entries), frozenset(invalid), tuple(warnings)
        )


def _new_model_ids(file_result: CheckedFile | DiagnosedFile) -> list[str]:
    """Return the ids of new models that a file's pipelines name; those of invalid ones may be among them."""
    if isinstance(file_result, CheckedFile):
        pipelines = [manifest for manifest in file_result.manifests if manifest.kind == TRAINING_PIPELINE]
        ids = [new_model_id(pipeline.spec) for pipeline in pipelines]
    else:
        ids = [job.document.text_at(MODEL_ID) for job in file_result.checked]
    return [model_id for model_id in ids if model_id]


def _base_names(file_result: CheckedFile | DiagnosedFile) -> list[str]:
    if isinstance(file_result, CheckedFile):
        return [manifest.base_name for manifest in file_result.manifests]
    return [job.base_name for job in file_result.checked if job.base_name]
