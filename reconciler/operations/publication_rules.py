"""Mistakes in the addresses of publications that other manifests or the environment's places take part in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from reconciler.base.diagnostics import (
    Finding,
    Keys,
    Problem,
    UnplacedWarning,
    Warned,
    capped,
    pointer_of,
    quote,
)
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.files import read_one
from reconciler.manifests.publications import ELSEWHERE, RESERVED, bucket_of, relation_of
from reconciler.manifests.settings import FILE_NAME, Config, Environment
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.manifest import Manifest
from reconciler.operations.folder_warnings import written_folder

if TYPE_CHECKING:
    from reconciler.manifests.yaml_document import Document


class _Writer(NamedTuple):
    """Who writes to an output folder: the first manifest that names it; None for those that name none."""

    folder: str
    manifest: Manifest | None


class PublicationProblems(NamedTuple):
    """Problems of the addresses that manifests publish to.

    Attributes:
        errors: Sorted, at most 100 a file.
        warnings: What is probably a mistake.
        refused: The base names of the manifests with errors, '-' as '_'.
    """

    errors: Sequence[Problem] = ()
    warnings: Sequence[Warned] = ()
    refused: frozenset[str] = frozenset()


def publication_problems(
    root: Path, manifests: Sequence[Manifest], config: Config, environment: Environment
) -> PublicationProblems:
    """Return the problems of the addresses that valid manifests publish to.

    Args:
        root: The repository's root.
        manifests: All valid manifests.
        config: The settings.
        environment: The environment of the jobs.
    """
    publishing = [manifest for manifest in manifests if manifest.publish is not None]
    if not publishing:
        return PublicationProblems()
    files = _Files(root)
    errors, refused = list[Problem](), set[str]()
    warnings: list[Warned] = []
    for manifest, finding in _Rules(manifests, config, environment).findings(publishing):
        if manifest is None:
            warnings.append(files.problem(manifest, finding))
        elif finding.kind:
            warnings.append(UnplacedWarning.of(manifest.path, manifest.line, finding))
        else:
            errors.append(files.problem(manifest, finding))
            refused.add(manifest.base_name)
    return PublicationProblems(capped(errors), warnings, frozenset(refused))


class _Rules:
    """What the addresses are compared with; the arguments are those of `publication_problems`."""

    def __init__(self, manifests: Iterable[Manifest], config: Config, environment: Environment) -> None:
        self._environment = environment
        self._reserved = _reserved(config)
        self._writers = _writers(manifests, environment)
        self._containing: dict[str, _Writer] = {}
        for writer in self._writers.values():
            for place in _above(writer.folder):
                self._containing.setdefault(place, writer)
        self._buckets: dict[str, _Writer | None] = {}
        for writer in self._writers.values():
            self._buckets.setdefault(bucket_of(writer.folder), writer)
        if environment.engine == "local":
            self._buckets = {**dict.fromkeys(config.buckets), **self._buckets}
        self._first: dict[str, Manifest] = {}

    def findings(self, publishing: Sequence[Manifest]) -> Iterator[tuple[Manifest | None, Finding]]:
        """Yield the findings, each with its manifest; None for one of the settings."""
        addresses = [(manifest, self._address(manifest)) for manifest in publishing]
        for manifest, address in addresses:
            self._first.setdefault(address, manifest)
        defaults: dict[str, Finding] = {}
        for manifest, address in addresses:
            keys: Keys = ("publish", "to") if manifest.publish and manifest.publish.to else ("publish",)
            of_key = len(keys) == 1
            if error := self._error(manifest, address):
                message, hint = error
                yield manifest, Finding(keys, f"{quote(address)} {message}", hint, of_key=of_key)
            elif (bucket := bucket_of(address)) in self._buckets:
                kind = WarningKind.PUBLICATION_BUCKET
                warning = Finding(keys, self._doubt(bucket), ELSEWHERE, kind=kind)
                if of_key:
                    defaults.setdefault(bucket, warning)
                else:
                    yield manifest, warning
        for finding in defaults.values():
            yield None, replace(finding, keys=("environments", self._environment.name, "defaults", "publish"))

    def _address(self, manifest: Manifest) -> str:
        publish = self._environment.published(manifest)
        assert publish is not None, "only manifests that publish are asked about"
        return publish.to

    def _error(self, manifest: Manifest, address: str) -> tuple[str, str] | None:
        """Return what is wrong with an address, and what to write; None for nothing."""
        above = _above(address)
        if owner := self._reserved.get(bucket_of(address)):
            return f"is in {owner}", ELSEWHERE
        inside = next((self._writers[place] for place in (address, *above) if place in self._writers), None)
        if writer := inside or self._containing.get(address):
            return f"{relation_of(address, writer.folder)} {self._output_folder(writer)}", ELSEWHERE
        if (other := self._first[address]) is not manifest:
            return f"is the address of {_placed(other, manifest)} already", "write another address"
        if place := next((place for place in above if place in self._first), ""):
            outer = _placed(self._first[place], manifest)
            return f"lies in {quote(place)}, the address of {outer}", "write an address outside of it"
        return None

    def _doubt(self, bucket: str) -> str:
        writer = self._buckets[bucket]
        risk = "a training job could replace a published model"
        if writer is None:
            return f'all jobs reach {quote(bucket)} by "buckets" in {FILE_NAME}: {risk}'
        return f"{self._output_folder(writer)} is in the same bucket: {risk}"

    def _output_folder(self, writer: _Writer) -> str:
        if writer.manifest is None:
            name = quote(self._environment.name)
            return f"the default output folder {quote(writer.folder)} of the environment {name}"
        return f"the output folder {quote(writer.folder)} of {_placed(writer.manifest)}"


def _reserved(config: Config) -> dict[str, str]:
    """Return the buckets that nothing is published to, each with what it is."""
    buckets: dict[str, str] = {}
    for environment in config.environments.values():
        places = {"claimsBucket": environment.claims_bucket, "stagingBucket": environment.staging_bucket}
        for field, bucket in places.items():
            buckets.setdefault(bucket, f"the {RESERVED[field]} of the environment {quote(environment.name)}")
    return buckets


def _writers(manifests: Iterable[Manifest], environment: Environment) -> dict[str, _Writer]:
    """Return who writes to output folders, by folder."""
    writers: dict[str, _Writer] = {}
    for manifest in manifests:
        if folder := written_folder(manifest):
            writers.setdefault(folder, _Writer(folder, manifest))
    if folder := environment.defaults.get("baseOutputDirectory", ""):
        writers.setdefault(folder, _Writer(folder, None))
    return writers


def _above(place: str) -> Sequence[str]:
    """Return the folders that a folder (gs://…) lies in, up to its bucket."""
    return _and_above(place.rpartition("/")[0])


# Of 10,000 folders, most lie in a few.
@lru_cache(1000)
def _and_above(place: str) -> Sequence[str]:
    return () if place == "gs:/" else (place, *_above(place))


def _placed(manifest: Manifest, beside: Manifest | None = None) -> str:
    """Return a manifest's name and place, without the file that `beside` is in too."""
    file = "" if beside and beside.path == manifest.path else f"{manifest.path}, "
    return f"{quote(manifest.name)} ({file}line {manifest.line})"


class _Files:
    """Files with mistakes; each is read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._documents: dict[str, Mapping[int, Document]] = {}

    def problem(self, manifest: Manifest | None, finding: Finding) -> Problem:
        """Return a finding in a manifest as a problem with its place; None stands for the settings."""
        path, line = (manifest.path, manifest.line) if manifest else (FILE_NAME, 0)
        documents = self._read(path)
        document = documents.get(line) if manifest else next(iter(documents.values()), None)
        if document is None:  # the file has changed since
            pointer = pointer_of(finding.keys)
            return Problem(path, line or 1, 1, pointer, finding.message, finding.hint, finding.kind)
        return document.problem(path, finding)

    def _read(self, path: str) -> Mapping[int, Document]:
        if path not in self._documents:
            data = read_one(self._root / path, path)
            documents = [] if isinstance(data, Problem) else load_documents(data, path)[0]
            self._documents[path] = {document.line: document for document in documents}
        return self._documents[path]
