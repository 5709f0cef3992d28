"""What trials report, by the published protocol of cloudml-hypertune.

A reporter writes JSON lines into the file that CLOUD_ML_HP_METRIC_FILE names, and rewrites it with each
report, keeping the last hundred: the file is read whole, again and again, while the trial runs. A line is
`{"accuracy": "0.75", "global_step": "2", "timestamp": 1795247970.25, "trial": "7", "checkpoint_path": ""}`.
"""

from __future__ import annotations

import json
import math
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from reconciler.training_service.state.records import Measurement
from reconciler.training_service.tuning.study import Study

MOST_MEASUREMENTS = 1000
"""So many measurements of a trial are kept, the newest."""

_LARGEST_FILE = 4 * 1024 * 1024  # bytes; the protocol's hundred lines are some 20 KB
_SETTLED = 0.1  # seconds after which a file's time shows any further change

_Signature = tuple[int, int, int]


class ReportedMetrics:
    """Gathers what a running trial reports, however often its file is rewritten.

    Values that aren't finite numbers count as not reported: JSON has no form for them.

    Attributes:
        path: The metrics file; it may come later, or never.
        tags: The metrics that count.
        began: The system's time (seconds since the epoch) at which the trial began to run.
    """

    def __init__(self, path: Path, tags: Iterable[str], began: float) -> None:
        self.path = path
        self.tags = frozenset(tags)
        self.began = began
        self._seen: set[tuple[str, float, float, int]] = set()
        self._found: list[Measurement] = []
        self._signature: _Signature | None = None

    def look(self) -> tuple[Measurement, ...] | None:
        """All measurements so far, where there are new ones since the last look; else None. Cheap."""
        text = self._changed()
        before = len(self._seen)
        for tag, value, moment, step in self._reports(text):
            report = (tag, value, moment, step)
            if report not in self._seen:
                self._seen.add(report)
                self._take(tag, value, max(0.0, moment - self.began), step)
        if len(self._seen) == before:
            return None
        del self._found[:-MOST_MEASUREMENTS]
        return tuple(self._found)

    def _changed(self) -> str:
        """What is in the file, "" where it is as it was at the last look."""
        try:
            status = self.path.stat()
            signature = (status.st_mtime_ns, status.st_size, status.st_ino)
            if signature == self._signature or not stat.S_ISREG(status.st_mode):
                return ""
            with self.path.open("rb") as file:
                found = file.read(_LARGEST_FILE)
        except OSError:
            return ""
        # A file that changes twice within the clock's tick keeps its time: look at a new one again.
        settled = time.time() - status.st_mtime > _SETTLED
        self._signature = signature if settled else None
        return found.decode("utf-8", "replace")

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
                for tag in sorted(self.tags & report.keys()):
                    value = _number(report[tag])
                    if value is not None:
                        yield tag, value, self.began if moment is None else moment, _step(step)

    def _take(self, tag: str, value: float, elapsed: float, step: int) -> None:
        """Several metrics of one step are told one after the other: one measurement."""
        last = self._found[-1] if self._found else None
        if last and last.step == step and tag not in last.metrics:
            self._found[-1] = replace(last, elapsed=elapsed, metrics={**last.metrics, tag: value})
        else:
            self._found.append(Measurement(step, elapsed, {tag: value}))


def final_of(study: Study, measurements: Sequence[Measurement]) -> Measurement | None:
    """The measurement that counts of a trial that has ended, None where it never reported all metrics.

    The last one, or the best by the first metric. Where no measurement has all metrics, because they were
    told at different steps, it is made of the last value of each.
    """
    names = [metric.name for metric in study.metrics]
    whole = [each for each in measurements if all(name in each.metrics for name in names)]
    if whole and study.best_measurement:
        first = study.metrics[0]
        return max(whole, key=lambda each: first.merit(each.metrics[first.name]))
    if whole:
        return whole[-1]
    values: dict[str, float] = {}
    for each in measurements:
        values |= each.metrics
    if not measurements or not all(name in values for name in names):
        return None
    return replace(measurements[-1], metrics={name: values[name] for name in names})


def _step(number: float | None) -> int:
    """As a 64-bit integer that isn't negative."""
    return min(max(0, int(number or 0)), 2**63 - 1)


def _number(value: object) -> float | None:
    """A finite number, which reporters write as a string."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
