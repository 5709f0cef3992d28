"""Results of a run: the files of its output directory, and the numbers in its metrics files.

docs/show.md documents the convention for metrics: JSON objects with numbers, in files with certain names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from reconciler.base.errors import ServiceError
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.object_store import ObjectStore, StoredObject
from reconciler.model.claim import time_of
from reconciler.model.details import MetricsFile, Output, OutputFile, Study
from reconciler.model.fields import numbers_of
from reconciler.model.job import ActualJob
from reconciler.operations.session import Session
from reconciler.output.terminal import number_text

_FIELDS = "name,generation,size,updated,timeCreated"
_MOST_FILES = 1000
_METRICS_NAMES = ("*metrics*.json", "*results*.json", "eval*.json")
_METRICS_FOLDERS = ("", "model/", "checkpoints/", "logs/")
"""Folders of metrics: the output directory, and those in it that the services name to trainers."""
_MOST_METRICS = 8
LARGEST_METRICS = 64 * 1024
"""Bytes of the largest metrics file that is read."""
_MOST_SHOWN = 3
"""Metrics that `result_text` names."""


class MetricsObject(Struct, frozen=True):
    """Metrics file of a run.

    Attributes:
        name: Relative to the output directory.
        size: In bytes.
        store: The bucket.
        stored: The object.
    """

    name: str
    size: int
    store: ObjectStore
    stored: StoredObject


class Results(Struct, frozen=True):
    """Results of a run.

    Attributes:
        output: Its output directory; None without one.
        metrics: The numbers in its metrics files.
        unread: Reason by the part that could not be read: output, metrics.
    """

    output: Output | None = None
    metrics: tuple[MetricsFile, ...] = ()
    unread: Mapping[str, str] = {}


def results_of(session: Session, uri: str, since: str, environ: Mapping[str, str]) -> Results:
    """Return the results in an output directory.

    Several runs may share the directory. Files that are older than the run are marked, and give no metrics.

    Args:
        session: The environment.
        uri: The directory (gs://…); "" for none.
        since: Time of the run's creation (RFC 3339).
        environ: The environment variables.
    """
    if not uri:
        return Results()
    store, prefix = _place_of(session, uri)
    output = Output(uri, _folder(session, uri, environ))
    try:
        objects, is_complete = store.first_objects(prefix, _MOST_FILES)
        # The metrics may come after the first objects.
        candidates = objects if is_complete else _direct_objects(store, prefix)
    except ServiceError as error:
        return Results(output, unread={"output": error.message})
    files = tuple(_file(stored, prefix, since) for stored in objects)
    metrics, unread = _metrics(_metrics_objects(store, prefix, since, candidates))
    return Results(Output(uri, output.folder, files, is_complete), metrics, unread)


def result_text(study: Study | None, results: Results) -> str:
    """Return the result of a succeeded run in a few words.

    It is the metric of the best trial, else the first metrics that the run wrote, else its output directory.
    """
    if study is not None and study.best is not None:
        metric = study.goals[0].metric
        name = metric.rpartition("/")[2]
        return f"{name} {number_text(study.best.metrics[metric])} in trial {study.best.id}"
    values = [pair for file in results.metrics for pair in file.values.items()][:_MOST_SHOWN]
    if values:
        return ", ".join(f"{name} {number_text(value)}" for name, value in values)
    return results.output.uri if results.output else ""


def short_result(session: Session, run: ActualJob, environ: Mapping[str, str]) -> str:
    """Return the result of a succeeded run, which has its spec, in a few words; "" for none."""
    engine = engine_spec(run.api_version)
    study = engine.study(run)
    uri = "" if study and study.best else engine.output_directory(run.kind, run.spec)
    return result_text(study, results_of(session, uri, run.create_time, environ))


def _folder(session: Session, uri: str, environ: Mapping[str, str]) -> str:
    """Return the directory's folder on this machine; "" for none, and on a runner, which ends with it."""
    folder = session.folder_of(uri, environ)
    return "" if folder is None or session.connection.endpoint.on_runner else str(folder)


def _direct_objects(store: ObjectStore, prefix: str) -> list[StoredObject]:
    listings = (
        store.first_objects(prefix + folder, _MOST_FILES, delimiter="/")[0] for folder in _METRICS_FOLDERS
    )
    return [stored for objects in listings for stored in objects]


def _file(stored: StoredObject, prefix: str, since: str) -> OutputFile:
    size = int(stored.size) if stored.size.isdecimal() and len(stored.size) < 20 else 0
    updated, created = time_of(stored.updated), time_of(since)
    is_older = updated is not None and created is not None and updated < created
    return OutputFile(stored.name.removeprefix(prefix), size, stored.updated, is_older)


def metrics_objects(session: Session, uri: str, since: str) -> list[MetricsObject]:
    """Return the metrics files in an output directory that aren't older than a run, as `results_of` has them.

    Raises:
        ServiceError: The directory can't be listed.
    """
    store, prefix = _place_of(session, uri)
    return _metrics_objects(store, prefix, since, _direct_objects(store, prefix))


def generation_of(session: Session, uri: str) -> str:
    """Return the present generation of an object (gs://…), "" if it is missing; raise ServiceError."""
    store, prefix = _place_of(session, uri)
    stored, _ = store.find(prefix.removesuffix("/"))
    return stored.generation if stored else ""


def json_object(metrics: MetricsObject) -> Mapping[str, object] | None:
    """Return the JSON object in a metrics file, None if it is something else; raise ServiceError."""
    try:
        value = json.loads(metrics.store.read(metrics.stored))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _place_of(session: Session, uri: str) -> tuple[ObjectStore, str]:
    """Return the bucket of a directory (gs://…), and the beginning of its objects' names."""
    bucket, _, path = uri.removeprefix("gs://").rstrip("/").partition("/")
    return ObjectStore(session.connection, bucket, _FIELDS), f"{path}/" if path else ""


def _metrics_objects(
    store: ObjectStore, prefix: str, since: str, objects: Iterable[StoredObject]
) -> list[MetricsObject]:
    files = ((_file(stored, prefix, since), stored) for stored in objects)
    metrics = [
        MetricsObject(file.name, file.size, store, stored) for file, stored in files if _is_metrics(file)
    ]
    return sorted(metrics, key=lambda metrics: _order(metrics.name))


def _metrics(objects: Sequence[MetricsObject]) -> tuple[tuple[MetricsFile, ...], dict[str, str]]:
    """Return the numbers of the metrics files, and the reason why the first unreadable one can't be read."""
    metrics: list[MetricsFile] = []
    unread: dict[str, str] = {}
    for file in objects[:_MOST_METRICS]:
        try:
            values = numbers_of(_json_object(file).items())
        except (ServiceError, ValueError) as error:
            unread.setdefault("metrics", f"{file.name}: {getattr(error, 'message', error)}")
        else:
            metrics += [MetricsFile(file.name, values)] if values else []
    return tuple(metrics), unread


def _is_metrics(file: OutputFile) -> bool:
    folder, slash, name = file.name.rpartition("/")
    is_named = any(fnmatchcase(name.lower(), pattern) for pattern in _METRICS_NAMES)
    return is_named and folder + slash in _METRICS_FOLDERS and not file.is_older


def _order(name: str) -> tuple[int, str]:
    folder, slash, _ = name.rpartition("/")
    return _METRICS_FOLDERS.index(folder + slash), name


def _json_object(file: MetricsObject) -> Mapping[str, object]:
    """Return the JSON object in a file; raise ServiceError or ValueError."""
    if file.size > LARGEST_METRICS:
        raise ValueError(f"larger than {LARGEST_METRICS // 1024} KiB")
    if (value := json_object(file)) is None:
        raise ValueError("not a JSON object")
    return value
