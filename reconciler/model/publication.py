"""Publications: the stable address of the model that a repository asks for, and the objects stored there.

Below the address `to`, each published run has a folder with its job's name, whose objects are written once:

    JOB_NAME/…                 copies of the run's files
    JOB_NAME/manifest.json     their record (`PublishedModel`)
    current.json               the folder of the model in place (`CurrentModel`), replaced by its generation

Who reads `current.json` and then the files that it names never sees files of two models. Others may write
there too: everything is bounded and checked while it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from reconciler.model.claim import checked

FORMAT = 1
CURRENT = "current.json"
MANIFEST = "manifest.json"
MOST_FILES = 10_000
"""Most objects of one publication."""
MOST_ANCESTORS = 50
"""Number of ancestors of its commit that `current.json` names, the newest ones."""
LARGEST_CURRENT = 64 * 1024
LARGEST_MANIFEST = 32 * 1024 * 1024
"""Bytes of the largest objects that are read; a file's entry takes at most 2 KiB."""

_Commit = Annotated[str, Meta(pattern=r"\A([0-9a-f]{40})?\Z")]
_Ancestors = Annotated[tuple[_Commit, ...], Meta(max_length=MOST_ANCESTORS)]
_Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_JobName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]{1,128}\Z")]
_Text = Annotated[str, Meta(max_length=1024)]


class CurrentModel(Struct, frozen=True, rename="camel"):
    """Stored form of `current.json`.

    Attributes:
        folder: The model's folder (gs://…): `to`, and the job's name.
        job_name: The run's job.
        base_name: As written in the manifest.
        hash: The job's identity, 64 hex digits.
        source, environment: The repository's id and the environment that publish here.
        commit: The commit that the apply had checked out; "" for none.
        ancestors: Its newest ancestors that the clone had, newest first.
        time: When it was published, by Cloud Storage's clock.
    """

    folder: _Text
    job_name: _JobName
    base_name: _Text
    hash: _Hash
    source: _Text
    environment: _Text
    commit: _Commit
    time: datetime
    ancestors: _Ancestors = ()
    format_version: int = FORMAT


class InPlace(Struct, frozen=True, array_like=True):
    """What the summary of ended runs says of a model that a look found in its place.

    Attributes:
        to: The address.
        time: That of `CurrentModel`.
    """

    to: str
    time: datetime


class PublishedFile(Struct, frozen=True, rename="camel"):
    """File of a published model.

    Attributes:
        name: Relative to the model's folder.
        generation: That of the run's own object, which was copied.
        size: In bytes.
        crc32c: In base64, as Cloud Storage has it.
    """

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    generation: Annotated[str, Meta(pattern=r"\A[0-9]{1,19}\Z")]
    size: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    crc32c: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9+/]{6}==\Z")]


class PublishedModel(Struct, frozen=True, rename="camel"):
    """Stored form of `manifest.json`: what a published model is, and where it comes from.

    Attributes:
        job_name, base_name, hash, source, environment, commit, time: As those of `CurrentModel` when the
            model was published first.
        origin: The folder (gs://…) that was copied.
        resource: The run's resource name.
        metrics: The values that were judged, by metric.
        files: The copied files, sorted by name.
    """

    job_name: _JobName
    base_name: _Text
    hash: _Hash
    source: _Text
    environment: _Text
    commit: _Commit
    time: datetime
    origin: _Text
    resource: _Text = ""
    metrics: Mapping[str, float] = {}
    files: Annotated[tuple[PublishedFile, ...], Meta(max_length=MOST_FILES)] = ()
    format_version: int = FORMAT


def model_folder(to: str, job_name: str) -> str:
    """Return the folder (gs://…) of a job's model below an address."""
    return f"{to}/{job_name}"


def current_json(current: CurrentModel) -> bytes:
    """Return the stored form of `current.json`."""
    return _indented(current)


def published_json(published: PublishedModel) -> bytes:
    """Return the stored form of `manifest.json`."""
    return _indented(published)


def current_of(content: bytes, to: str) -> CurrentModel:
    """Return the content that `current_json` wrote for an address.

    Raises:
        ValueError: It is something else, of another version, too long, or names a folder outside the address.
    """
    if len(content) > LARGEST_CURRENT:
        raise ValueError(f"it has {len(content):,} bytes, and the longest has {LARGEST_CURRENT:,}")
    current = _decoded(content, CurrentModel)
    if current.folder != model_folder(to, current.job_name):
        raise ValueError("it names a folder that isn't its job's below the address")
    return current


def published_of(content: bytes, job_name: str) -> PublishedModel:
    """Return the content that `published_json` wrote for a job; raise ValueError as `current_of` does."""
    if len(content) > LARGEST_MANIFEST:
        raise ValueError(f"it has {len(content):,} bytes, and the longest has {LARGEST_MANIFEST:,}")
    published = _decoded(content, PublishedModel)
    if published.job_name != job_name:
        raise ValueError("it is of another job than its folder")
    return published


def _indented(value: Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


_Stored = TypeVar("_Stored", CurrentModel, PublishedModel)


def _decoded(content: bytes, type_: type[_Stored]) -> _Stored:
    try:
        version = msgspec.json.decode(content, type=_Versioned).format_version
        if version != FORMAT:
            raise ValueError(f"it has format version {version}, not {FORMAT}")
        value = msgspec.json.decode(content, type=type_)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    checked(value.time)
    return value


class _Versioned(Struct, rename="camel"):
    format_version: int
