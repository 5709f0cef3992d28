"""Measurements that trials report by the published protocol of cloudml-hypertune.

A reporter writes JSON lines into the file named by CLOUD_ML_HP_METRIC_FILE. It rewrites the file with each
report and keeps the last hundred lines, so the file is read whole, again and again, while the trial runs. A
line is `{"accuracy": "0.75", "global_step": "2", "timestamp": 1795247970.25, "trial": "7",
"checkpoint_path": ""}`.
"""

from __future__ import annotations

import json
import math
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.training_service.state.records import details_of
from reconciler.training_service.state.trial_records import Measurement, TrialRecord, UnusableReports
from reconciler.training_service.tuning.study import Metric, Study

MOST_MEASUREMENTS = 1000
"""The number of measurements kept of a trial, the newest."""

_LARGEST_FILE = 4 * 1024 * 1024  # bytes; the protocol's hundred lines are some 20 KB
_NOT_TAGS = frozenset({"global_step", "timestamp", "trial", "checkpoint_path"})
_MOST_TAGS = 5
_LONGEST_TAG = 100
_SETTLED = 0.1  # seconds after which a further change shows in the file's time

_Signature = tuple[int, int, int]


class ReportedMetrics:
    """Collector of a running trial's reports, however often its file is rewritten.

    Values that aren't finite numbers count as missing: JSON can't express them.

    Attributes:
        path: The metrics file; it may appear later, or never.
        tags: The names of the metrics to collect.
        began: The start of the trial in seconds since the epoch.
    """

    def __init__(self, path: Path, tags: Iterable[str], began: float) -> None:
        self.path = path
        self.tags = frozenset(tags)
        self.began = began
        self._reported: set[tuple[str, float, float, int]] = set()
        self._measurements: list[Measurement] = []
        self._other_tags: dict[str, None] = {}
        self._not_finite: dict[str, None] = {}
        self._signature: _Signature | None = None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements so far."""
        return tuple(self._measurements)

    @property
    def unusable(self) -> UnusableReports:
        """The reports so far that gave no measurement."""
        return UnusableReports(tuple(self._other_tags), tuple(self._not_finite))

    def has(self, tag: str) -> bool:
        """Return True if a metric was reported with a number."""
        return any(tag == reported for reported, *_ in self._reported)

    def poll(self) -> tuple[Measurement, ...] | None:
        """Return all measurements so far if the last call missed some; None otherwise. Cheap."""
        text = self._changed()
        before = len(self._reported)
        for tag, value, moment, step in self._reports(text):
            report = (tag, value, moment, step)
            if report not in self._reported:
                self._reported.add(report)
                self._add(tag, value, max(0.0, moment - self.began), step)
        if len(self._reported) == before:
            return None
        del self._measurements[:-MOST_MEASUREMENTS]
        return self.measurements

    def _changed(self) -> str:
        """Return the file's text; "" if the file hasn't changed."""
        try:
            status = self.path.stat()
            signature = (status.st_mtime_ns, status.st_size, status.st_ino)
            if signature == self._signature or not stat.S_ISREG(status.st_mode):
                return ""
            with self.path.open("rb") as file:
                content = file.read(_LARGEST_FILE)
        except OSError:
            return ""
        # Two changes within the clock's tick leave the same time: read a file that is so new again.
        settled = time.time() - status.st_mtime > _SETTLED
        self._signature = signature if settled else None
        return content.decode("utf-8", "replace")

    def _reports(self, text: str) -> Iterator[tuple[str, float, float, int]]:
        """Tag, value, time and step of each report; the last line may be half written."""
        for line in text.splitlines():
            try:
                report = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(report, dict):
                moment = _number(report.get("timestamp"))
                step = _number(report.get("global_step"))
                self._note_other_tags(report)
                for tag in sorted(self.tags & report.keys()):
                    value = _number(report[tag])
                    if value is not None:
                        yield tag, value, self.began if moment is None else moment, _step(step)
                    else:
                        self._not_finite[tag] = None

    def _note_other_tags(self, report: Mapping[str, object]) -> None:
        for tag in report:
            is_other = tag not in self.tags | _NOT_TAGS and len(tag) <= _LONGEST_TAG
            if is_other and len(self._other_tags) < _MOST_TAGS:
                self._other_tags[tag] = None

    def _add(self, tag: str, value: float, elapsed: float, step: int) -> None:
        # A reporter writes several metrics of one step one after the other: join them.
        last = self._measurements[-1] if self._measurements else None
        if last and last.step == step and tag not in last.metrics:
            self._measurements[-1] = replace(last, elapsed=elapsed, metrics={**last.metrics, tag: value})
        else:
            self._measurements.append(Measurement(step, elapsed, {tag: value}))


def final_of(study: Study, measurements: Sequence[Measurement]) -> Measurement | None:
    """Return an ended trial's final measurement; None if a metric was never reported.

    It is the last measurement with all metrics, or the best of these by the first metric. If no measurement
    has all metrics, it is made of the last value of each.
    """
    names = [metric.name for metric in study.metrics]
    whole = [
        measurement for measurement in measurements if all(name in measurement.metrics for name in names)
    ]
    if whole and study.best_measurement:
        first = study.metrics[0]
        return max(whole, key=lambda measurement: first.merit(measurement.metrics[first.name]))
    if whole:
        return whole[-1]
    values: dict[str, float] = {}
    for measurement in measurements:
        values |= measurement.metrics
    if not measurements or not all(name in values for name in names):
        return None
    return replace(measurements[-1], metrics={name: values[name] for name in names})


def why_without_metric(
    metrics: Iterable[str], measurements: Sequence[Measurement], unusable: UnusableReports
) -> tuple[str, dict[str, str]]:
    """Return why an ended trial has no final measurement, as a sentence and as the cause of its end."""
    measured = {name for measurement in measurements for name in measurement.metrics}
    missing = [name for name in metrics if name not in measured]
    said = f"The trial has ended without reporting {', '.join(missing)}"
    about = {"metric": missing[0]} if missing else {}
    if not_finite := [name for name in missing if name in unusable.not_finite]:
        said += ": its value is no finite number"
        about = {"metric": not_finite[0], "notFinite": "true"}
    elif missing and unusable.other_tags:
        said += f": it reported {', '.join(unusable.other_tags)}"
        likely = [tag for tag in unusable.other_tags if missing[0] in tag or tag in missing[0]]
        about["reported"] = (likely or unusable.other_tags)[0]
    return f"{said}.", details_of("NO_METRIC", **about)


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one trial, larger is better: `merits` at `positions` in ascending order, at least one."""

    positions: tuple[float, ...]
    merits: tuple[float, ...]

    @property
    def last(self) -> float:
        """Last position."""
        return self.positions[-1]

    def until(self, position: float) -> tuple[float, ...]:
        """Return the merits up to a position."""
        return tuple(merit for at, merit in zip(self.positions, self.merits, strict=True) if at <= position)


def curve_of(trial: TrialRecord, metric: Metric, *, by_elapsed: bool) -> Curve | None:
    """Return a trial's curve by its steps, or by the seconds since it began; None without measurements."""
    merits: dict[float, float] = {}
    for measurement in trial.measurements:
        position = measurement.elapsed if by_elapsed else float(measurement.step)
        if position > 0 and metric.name in measurement.metrics:
            merits[position] = metric.merit(measurement.metrics[metric.name])
    positions = tuple(sorted(merits))
    return Curve(positions, tuple(merits[position] for position in positions)) if positions else None


def _step(number: float | None) -> int:
    return min(max(0, int(number or 0)), 2**63 - 1)  # the API's step is a 64-bit integer


def _number(value: object) -> float | None:
    """Return a finite number; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)  # reporters write numbers as strings
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
