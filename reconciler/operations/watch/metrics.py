"""Metrics of `watch`, in Prometheus' format."""

from __future__ import annotations

import time
from collections import Counter as Count
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from reconciler.base.listener.message import Response
from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.plan import Drift, DriftKind
from reconciler.operations.watch.state import Result
from reconciler.submission.observe import Observed

# Without this, each counter gets a second time series with the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it

_UNRESOLVED = (ClaimState.PENDING, ClaimState.HELD)


class Metrics:
    """Metrics of the loop; every label value is exported from the start.

    Attributes:
        submissions, fetch_failures: Counters of submitted jobs, and of failed fetches of the remote branch.
        invalid, unposted: Gauges of files with problems, and of statuses that could not be posted.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._registry = CollectorRegistry()
        self._passes = self._counter("passes", "Passes, by how they ended.", "result", Result)
        self.submissions = self._counter("submissions", "Jobs that were submitted.")
        self.fetch_failures = self._counter("fetch_failures", "Fetches of the remote branch that failed.")
        self._last = self._gauge("last_pass_timestamp_seconds", "When the last pass ended.")
        self._success = self._gauge(
            "last_success_timestamp_seconds", "When a pass last completed without a failure."
        )
        self._duration = self._gauge("last_pass_duration_seconds", "How long the last pass took.")
        self._refused = self._gauge("refused", "1 while a limit stops the passes, else 0.")
        self.invalid = self._gauge("manifests_invalid", "Files with problems, at the last pass.")
        self.unposted = self._gauge("statuses_unposted", "Statuses that the last pass couldn't post.")
        self._jobs = self._gauge("jobs", "Runs of this repository, by state.", "state", State)
        self._claims = self._gauge("claims", "Unresolved submissions, by state.", "state", _UNRESOLVED)
        self._drift = self._gauge("drift_findings", "Drift findings, by kind.", "kind", DriftKind)

    def passed(self, result: Result, seconds: float) -> None:
        """Record the end of a pass."""
        self._passes.labels(str(result)).inc()
        now = self._now()
        self._last.set(now)
        self._duration.set(seconds)
        self._refused.set(result is Result.REFUSED)
        if result is Result.SUCCEEDED:
            self._success.set(now)

    def seen(self, observed: Observed) -> None:
        """Set the numbers of runs and open claims."""
        _set(self._jobs, State, (run.state for run in observed.runs))
        _set(self._claims, _UNRESOLVED, (claim.state for claim in observed.claims.values()))

    def drifted(self, findings: Iterable[Drift]) -> None:
        """Set the numbers of the plan's drift findings."""
        _set(self._drift, DriftKind, (finding.kind for finding in findings))

    def page(self) -> Response:
        """Return all metrics in Prometheus' text format."""
        return Response(200, (("Content-Type", CONTENT_TYPE_PLAIN_0_0_4),), generate_latest(self._registry))

    def _counter(self, name: str, help_text: str, label: str = "", values: Iterable[str] = ()) -> Counter:
        made = Counter(f"reconciler_{name}", help_text, [label] if label else [], registry=self._registry)
        for value in values:
            made.labels(str(value))
        return made

    def _gauge(self, name: str, help_text: str, label: str = "", values: Iterable[str] = ()) -> Gauge:
        made = Gauge(f"reconciler_{name}", help_text, [label] if label else [], registry=self._registry)
        for value in values:
            made.labels(str(value))
        return made


def _set(gauge: Gauge, values: Iterable[str], occurrences: Iterable[str]) -> None:
    count = Count(str(value) for value in occurrences)
    # Values that are not found are set to 0, or their last figure would stay.
    for value in values:
        gauge.labels(str(value)).set(count[str(value)])
