"""Measurements of the metrics that a manifest's `expect` names, of a run that succeeded."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct

from reconciler.base.errors import ServiceError
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.responses import ApiError
from reconciler.model.claim import time_of
from reconciler.model.details import Study
from reconciler.model.expectation import Measured, Missing
from reconciler.model.job import ActualJob
from reconciler.operations.results import (
    LARGEST_METRICS,
    MetricsObject,
    generation_of,
    json_object,
    metrics_objects,
)
from reconciler.operations.session import Session

_LATE = timedelta(seconds=10)
"""Time after the end of a run in which its last files may still appear."""
_MOST_FILES = 50
"""Metrics files of a run that are read, in the order in which `show` lists them."""
_MOST_NAMED = 3
"""Files that are named where a metric has no value: the records of 20 metrics stay small."""


class Measurements(Struct, frozen=True):
    """Measured metrics by name; and why the others can't be read now, "" if there are none."""

    metrics: Mapping[str, Measured]
    unread: str = ""


def measure(session: Session, run: ActualJob, names: Collection[str]) -> Measurements:
    """Return the named metrics of a run, which has its spec and its body.

    In tuning a metric of the study is that of its best trial; the others are of that trial's files.
    """
    engine = engine_spec(run.api_version)
    study = engine.study(run)
    of_study = {goal.metric for goal in study.goals} if study else set()
    metrics = {name: _of_study(study, name) for name in names if study and name in of_study}
    rest = [name for name in names if name not in metrics]
    folder = engine.output_directory(run.kind, run.spec)
    if study and not study.best:
        metrics |= dict.fromkeys(rest, Measured(missing=Missing.NO_TRIAL))
    elif not folder:
        metrics |= dict.fromkeys(rest, Measured(missing=Missing.NO_FOLDER))
    elif rest:
        below = f"{study.best.id}/" if study and study.best else ""
        try:
            objects = metrics_objects(session, f"{folder}/{below}", run.create_time)[:_MOST_FILES]
            metrics |= _of_files(objects, rest, below, run.end_time)
        except ServiceError as error:
            # Neither a value nor a miss: whoever may read it, or a later pass, measures it.
            return Measurements(metrics, _unread(error, f"{folder}/{below}".rstrip("/")))
    return Measurements(metrics)


def _unread(error: ServiceError, folder: str) -> str:
    """Return why the metrics of a folder can't be read, and what permits it."""
    bucket = "/".join(folder.split("/")[:3])
    way_out = ""
    if isinstance(error, ApiError) and error.status in (401, 403):
        way_out = f"; {error.remedy or f'whoever applies needs roles/storage.objectViewer for {bucket}'}"
    return f"{folder}: {error.message.removesuffix('.')}{way_out}"


def _is_later(created: str, end: str) -> bool:
    """Return True for a file of another run, or of a person, that was written after the run had ended."""
    written, ended = time_of(created), time_of(end)
    return written is not None and ended is not None and written - ended > _LATE


def _of_study(study: Study, name: str) -> Measured:
    if study.best is None:
        return Measured(missing=Missing.NO_TRIAL)
    value = study.best.metrics.get(name)
    return Measured(missing=Missing.NO_NUMBER) if value is None else _measured(value, (), ())


def _of_files(
    objects: Collection[MetricsObject], names: Collection[str], below: str, end: str
) -> dict[str, Measured]:
    contents: list[tuple[MetricsObject, Mapping[str, object]]] = []
    unusable: dict[Missing, list[MetricsObject]] = {}
    for metrics in objects:
        if _is_later(metrics.stored.time_created, end):
            unusable.setdefault(Missing.WRITTEN_LATER, []).append(metrics)
        elif metrics.size > LARGEST_METRICS:
            unusable.setdefault(Missing.TOO_LARGE, []).append(metrics)
        elif (content := json_object(metrics)) is None:
            unusable.setdefault(Missing.NOT_JSON, []).append(metrics)
        else:
            contents.append((metrics, content))
    return {name: _of_file(name, contents, unusable, below) for name in names}


def _of_file(
    name: str,
    contents: Collection[tuple[MetricsObject, Mapping[str, object]]],
    unusable: Mapping[Missing, Sequence[MetricsObject]],
    below: str,
) -> Measured:
    holding = [(metrics, content[name]) for metrics, content in contents if name in content]
    if holding:
        first, value = holding[0]
        # Values that aren't equal, NaN among them, are two.
        other = next((metrics for metrics, again in holding[1:] if again != value), None)
        blamed = [first, other] if other else [first]
        files, generations = _named(blamed, below)
        if other:
            return Measured(missing=Missing.TWO_VALUES, files=files, generations=generations)
        return _measured(value, files, generations)
    for missing in (Missing.TOO_LARGE, Missing.NOT_JSON, Missing.WRITTEN_LATER):
        if missing in unusable:
            return Measured(None, missing, *_named(unusable[missing], below))
    missing = Missing.NOT_NAMED if contents else Missing.NO_FILE
    return Measured(None, missing, *_named([metrics for metrics, _ in contents], below))


def _measured(value: object, files: tuple[str, ...], generations: tuple[str, ...]) -> Measured:
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        is_number = False
    if not is_number:
        return Measured(None, Missing.NO_NUMBER, files, generations)
    assert isinstance(value, int | float), "it is a number"
    return Measured(float(value), None, files, generations)


def _named(objects: Sequence[MetricsObject], below: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    objects = objects[:_MOST_NAMED]
    return tuple(below + each.name for each in objects), tuple(each.stored.generation for each in objects)


def changed_files(session: Session, folder: str, metrics: Mapping[str, Measured]) -> Iterator[str]:
    """Yield the judged files that changed or went since, relative to the folder; raise ServiceError."""
    judged = {
        file: generation
        for measured in metrics.values()
        for file, generation in zip(measured.files, measured.generations, strict=True)
    }
    for file, generation in sorted(judged.items()):
        if generation_of(session, f"{folder}/{file}") != generation:
            yield file
