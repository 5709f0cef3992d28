"""Records of trials as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TrialState(StrEnum):
    """State of a trial; each API derives its own names from these."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"  # early stopping, or its job is being cancelled
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Return whether the state is final."""
        return self in (TrialState.SUCCEEDED, TrialState.FAILED, TrialState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Metrics that a trial reported at one step.

    Attributes:
        step: The trainer's own count; 0 if it has none.
        elapsed: Seconds since the trial began to run.
        metrics: Values by metric id (Vertex AI) or tag (ml).
    """

    step: int
    elapsed: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UnusableReports:
    """Reports of a trial that give no measurement of its study's metrics.

    Attributes:
        other_tags: Tags that the study doesn't have, in the order of their first reports.
        not_finite: Metrics of the study with a value that is no finite number, in that order.
    """

    other_tags: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial of a tuning job.

    Attributes:
        job: The job's `id`.
        number: From 1.
        parameters: The value of each active hyper-parameter by name, in the order of the specification:
            numbers, or strings for categories.
        create_time, start_time, end_time: RFC 3339 in UTC, "" if not reached.
        measurements: Reported measurements, oldest first.
        final: The measurement that counts, once the trial has ended.
        stopped_early: Whether early stopping ended it; its state is then SUCCEEDED.
        message: Reason for the final state, "" for none.
        error_details: The cause of the final state, from `details_of`.
    """

    job: int
    number: int
    parameters: Mapping[str, float | int | str]
    create_time: str
    state: TrialState = TrialState.QUEUED
    start_time: str = ""
    end_time: str = ""
    measurements: tuple[Measurement, ...] = ()
    final: Measurement | None = None
    stopped_early: bool = False
    message: str = ""
    error_details: Mapping[str, str] = field(default_factory=dict)
