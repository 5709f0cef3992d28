"""Files below a job's output directory, and the metrics in some of them.

docs/show.md documents the convention for metrics: JSON objects with numbers, in files with certain names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.google.object_store import ObjectStore, StoredObject
from reconciler.google.session import Session
from reconciler.model.claim import time_of
from reconciler.model.details import JobDetails, MetricsFile, Output, OutputFile, numbers_of

_FIELDS = "name,generation,size,updated"
_MOST_FILES = 1000
_NAMES = ("*metrics*.json", "*results*.json", "eval*.json")
_FOLDERS = ("", "model/", "checkpoints/", "logs/")
"""Folders of metrics: the output directory, and those in it that the services name to trainers."""
_MOST_METRICS = 8
_LARGEST = 64 * 1024  # bytes of a metrics file


def with_outputs(details: JobDetails, session: Session, uri: str, environ: Mapping[str, str]) -> JobDetails:
    """Add the files of a run's output directory, and their metrics.

    Runs of one manifest share the directory. Files that are older than the run are marked, and give no
    metrics.

    Args:
        uri: The directory, gs://…; "" for none.
    """
    if not uri:
        return details
    bucket, _, path = uri.removeprefix("gs://").rstrip("/").partition("/")
    prefix = f"{path}/" if path else ""
    output = Output(uri, str(session.folder_of(uri, environ) or ""))
    store = ObjectStore(session.connection, bucket, _FIELDS)
    try:
        objects, is_complete = store.first_objects(prefix, _MOST_FILES)
        files = tuple(_file(each, prefix, details.create_time) for each in objects)
        details = replace(details, output=replace(output, files=files, is_complete=is_complete))
        # The metrics may come after the first objects.
        candidates = objects if is_complete else _direct_objects(store, prefix)
    except ServiceError as error:
        return replace(details, output=output, unread={**details.unread, "output": error.message})
    return _with_metrics(details, store, candidates, prefix)


def _direct_objects(store: ObjectStore, prefix: str) -> list[StoredObject]:
    found = (store.first_objects(prefix + folder, _MOST_FILES, delimiter="/")[0] for folder in _FOLDERS)
    return [each for objects in found for each in objects]


def _file(found: StoredObject, prefix: str, since: str) -> OutputFile:
    size = int(found.size) if found.size.isdecimal() and len(found.size) < 20 else 0
    updated, created = time_of(found.updated), time_of(since)
    is_older = updated is not None and created is not None and updated < created
    return OutputFile(found.name.removeprefix(prefix), size, found.updated, is_older)


def _with_metrics(
    details: JobDetails, store: ObjectStore, objects: list[StoredObject], prefix: str
) -> JobDetails:
    files = [(_file(each, prefix, details.create_time), each) for each in objects]
    wanted = sorted((pair for pair in files if _is_metrics(pair[0])), key=lambda pair: _order(pair[0].name))
    found: list[MetricsFile] = []
    unread: dict[str, str] = {}
    for file, stored in wanted[:_MOST_METRICS]:
        try:
            values = numbers_of(_object(file, store, stored).items())
        except (ServiceError, ValueError) as error:
            unread.setdefault("metrics", f"{file.name}: {getattr(error, 'message', error)}")
        else:
            found += [MetricsFile(file.name, values)] if values else []
    return replace(details, metrics=tuple(found), unread={**unread, **details.unread})


def _is_metrics(file: OutputFile) -> bool:
    folder, slash, name = file.name.rpartition("/")
    is_named = any(fnmatchcase(name.lower(), pattern) for pattern in _NAMES)
    return is_named and folder + slash in _FOLDERS and not file.is_older


def _order(name: str) -> tuple[int, str]:
    folder, slash, _ = name.rpartition("/")
    return _FOLDERS.index(folder + slash), name


def _object(file: OutputFile, store: ObjectStore, stored: StoredObject) -> Mapping[str, object]:
    """Return the JSON object in a file; raise ServiceError or ValueError."""
    if file.size > _LARGEST:
        raise ValueError(f"larger than {_LARGEST // 1024} KiB")
    content = store.read(stored)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
