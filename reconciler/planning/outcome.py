"""Results of applied changes, progress of submissions, and the status of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from reconciler.base.errors import ReconcilerError
from reconciler.model.cause import Cause
from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.manifest import Manifest
from reconciler.model.plan import Change
from reconciler.model.reason import Reason, ReasonCode, because


class Status(StrEnum):
    """Result of one change."""

    APPLIED = "applied"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one change, with its job.

    Attributes:
        state: The job's last known state; None without a job.
        reason: Why the change wasn't carried out, or the error of its job; None for neither.
        resource: The job's resource name; "" without a job.
        cause: The cause of the job's end other than SUCCEEDED.
    """

    change: Change
    status: Status
    state: State | None = None
    reason: Reason | None = None
    resource: str = ""
    cause: Cause | None = None


def failed(change: Change, error: ReconcilerError) -> Outcome:
    """Return the outcome of a failed change."""
    # An outcome, not an exception: one failure must not stop the other changes.
    reason = because(ReasonCode.ERROR, message=error.message, hint=error.hint)
    return Outcome(change, Status.FAILED, reason=reason)


@dataclass(frozen=True, slots=True)
class SubmitProgress:
    """Progress of the submissions of one plan.

    Attributes:
        total: The number of submissions.
        done: The number with an outcome.
        failed: The number of those that were not submitted.
        open: The number that were sent and have no outcome yet, or wait to be sent again.
        held: Seconds until the service's quota allows the next request; 0 if it does now.
        left: Minimum number of seconds until all are sent; None without a limit on the rate.
    """

    total: int
    done: int = 0
    failed: int = 0
    open: int = 0
    held: float = 0.0
    left: float | None = None


class Condition(StrEnum):
    """Conditions of a job for readers, in the order of the attention that they need.

    A job whose next submission is blocked has the condition of its newest run: only a plan decides what is
    blocked.
    """

    FAILED = "failed"
    UNREADABLE = "unreadable"
    HELD = "held"
    REFUSED = "refused"
    UNKNOWN = "outcome unknown"
    DELETED = "deleted outside"
    GIVEN_UP = "given up"
    CANCELLED = "cancelled"
    RUNNING = "running"
    PREPARING = "preparing"
    QUEUED = "queued"
    CANCELLING = "cancelling"
    NOT_SUBMITTED = "not submitted"
    SUCCEEDED = "succeeded"
    SUSPENDED = "suspended"


_OF_STATE = {state: Condition(state.lower()) for state in State}
_OF_CLAIM: Mapping[str, Condition] = {
    "none": Condition.NOT_SUBMITTED,
    ClaimState.PENDING: Condition.UNKNOWN,
    ClaimState.BOUND: Condition.DELETED,
    ClaimState.REJECTED: Condition.REFUSED,
    ClaimState.HELD: Condition.HELD,
}
_LEFT = (Condition.FAILED, Condition.CANCELLED, Condition.DELETED, Condition.NOT_SUBMITTED)
"""Conditions of a suspended job that need no attention."""


class JobStatus(Struct, frozen=True, gc=False):
    """Row of `status`: a run, an attempt without a run, or a desired job without an attempt.

    Attributes:
        claim: The state of its claim, or "none".
        error: The run's error, or the recorded reason of its cancel.
        reason: The reason for a missing run; None with a run, and for a job that was never submitted.
        cause: The cause of an end other than SUCCEEDED.
        given_up: True if a person decided against further requests.
        current: True for the newest attempt at the manifest's content, or the newest run without a manifest.
        unreadable: True if the embedded service can't read a part of the run's record.
        run_labels: The labels of the run.
        manifest: The manifest of its base name; None for none.
        result: The result of a succeeded run in a few words: its best metric, or its output directory.
    """

    job_name: str
    base_name: str
    kind: str
    state: State | None
    claim: str
    service_state: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    error: str = ""
    reason: Reason | None = None
    resource: str = ""
    url: str = ""
    commit: str = ""
    attempt: int = 1
    cause: Cause | None = None
    given_up: bool = False
    current: bool = False
    unreadable: bool = False
    run_labels: Mapping[str, str] = {}
    manifest: Manifest | None = None
    result: str = ""

    @property
    def condition(self) -> Condition:
        """The run's state, or the reason for a missing run."""
        if self.unreadable:
            return Condition.UNREADABLE
        if self.state is None and self.given_up:
            return Condition.GIVEN_UP
        condition = _OF_CLAIM[self.claim] if self.state is None else _OF_STATE[self.state]
        is_left = self.current and self.manifest is not None and self.manifest.reconcile.suspend
        return Condition.SUSPENDED if is_left and condition in _LEFT else condition

    @property
    def is_open(self) -> bool:
        """True if the run goes on, or a run may still come of the submission."""
        if self.state is not None:
            return not self.state.ended
        return self.claim in (ClaimState.PENDING, ClaimState.HELD) and not self.given_up

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the run and of the manifest."""
        return {**self.run_labels, **(self.manifest.labels if self.manifest else {})}
