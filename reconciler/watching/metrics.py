"""What Prometheus is told of the loop."""

from __future__ import annotations

import time
from collections import Counter as Count
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from reconciler.claim import ClaimState
from reconciler.job import State
from reconciler.plan import Drift, DriftKind
from reconciler.submission.observation import Observed
from reconciler.watching.turn import Result

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
# When a counter was made is a figure of its own otherwise, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it

_OPEN = (ClaimState.PENDING, ClaimState.HELD)


class Metrics:
    """The figures, each under its name; every label value is there from the beginning."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._registry = CollectorRegistry()
        self._passes = self._counter("passes", "Passes, by how they ended.", "result", Result)
        self._submissions = self._counter("submissions", "Jobs that were submitted.")
        self._fetches = self._counter("fetch_failures", "Fetches of the remote branch that failed.")
        self._last = self._gauge("last_pass_timestamp_seconds", "When the last pass ended.")
        self._success = self._gauge("last_success_timestamp_seconds", "When a pass last did all it had to.")
        self._duration = self._gauge("last_pass_duration_seconds", "How long the last pass took.")
        self._refused = self._gauge("refused", "1 while a limit stops the passes, else 0.")
        self._invalid = self._gauge("manifests_invalid", "Files with problems, at the last pass.")
        self._unposted = self._gauge("statuses_unposted", "Statuses that the last pass couldn't post.")
        self._jobs = self._gauge("jobs", "Runs of this repository, by state.", "state", State)
        self._claims = self._gauge("claims", "Submissions that aren't settled, by state.", "state", _OPEN)
        self._drift = self._gauge("drift_findings", "What drifted, by kind.", "kind", DriftKind)

    def passed(self, result: Result, seconds: float) -> None:
        """A pass ended."""
        self._passes.labels(str(result)).inc()
        now = self._now()
        self._last.set(now)
        self._duration.set(seconds)
        self._refused.set(result is Result.REFUSED)
        if result is Result.SUCCEEDED:
            self._success.set(now)

    def invalid(self, files: int) -> None:
        """So many files have problems."""
        self._invalid.set(files)

    def submitted(self, jobs: int) -> None:
        """So many jobs were submitted."""
        self._submissions.inc(jobs)

    def seen(self, observed: Observed) -> None:
        """What there is now."""
        _set(self._jobs, State, (run.state for run in observed.runs))
        _set(self._claims, _OPEN, (claim.state for claim in observed.known.values()))

    def drifted(self, findings: Iterable[Drift]) -> None:
        """What the plan found."""
        _set(self._drift, DriftKind, (finding.kind for finding in findings))

    def unposted(self, statuses: int) -> None:
        """So many statuses couldn't be posted."""
        self._unposted.set(statuses)

    def fetch_failed(self) -> None:
        """The remote branch couldn't be fetched."""
        self._fetches.inc()

    def text(self) -> bytes:
        """All figures in Prometheus' text format, of type CONTENT_TYPE."""
        return generate_latest(self._registry)

    def _counter(self, name: str, said: str, label: str = "", values: Iterable[str] = ()) -> Counter:
        made = Counter(f"reconciler_{name}", said, [label] if label else [], registry=self._registry)
        for value in values:
            made.labels(str(value))
        return made

    def _gauge(self, name: str, said: str, label: str = "", values: Iterable[str] = ()) -> Gauge:
        made = Gauge(f"reconciler_{name}", said, [label] if label else [], registry=self._registry)
        for value in values:
            made.labels(str(value))
        return made


def _set(gauge: Gauge, values: Iterable[str], found: Iterable[str]) -> None:
    count = Count(str(value) for value in found)
    for value in values:
        gauge.labels(str(value)).set(count[str(value)])
