"""Submissions of one plan: sent concurrently, and repeated until the outcome of each is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil

from reconciler.base.concurrency import RunTasks
from reconciler.base.errors import NotFoundError, ReconcilerError, ServiceError
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import Change
from reconciler.model.ports import Ports
from reconciler.model.reason import ReasonCode, because, unsettled_reason
from reconciler.planning.outcome import Outcome, Status, SubmitProgress, failed
from reconciler.submission.protocol import Order, SubmissionResult, Submitter
from reconciler.submission.quota import NotBegunError, Quota

Listener = Callable[[SubmitProgress], None]
"""Called with the progress after each change, from one thread at a time."""


@dataclass(slots=True, eq=False)
class Submission:
    """Change that submits a job, with its order.

    Attributes:
        stage: Uploads the job's package; raises ServiceError.
        result: That of its last attempt; None before the first.
        due: Time of the next attempt, by the monotonic clock.
        is_reported: True once the wait was reported.
    """

    change: Change
    order: Order
    stage: Callable[[], None]
    result: SubmissionResult | None = None
    due: float = 0.0
    is_reported: bool = False


@dataclass(slots=True)
class Submissions:
    """Runner of submissions within a time limit.

    Attributes:
        ports: The target.
        together: Runs several tasks, concurrently or in order.
        patience: Seconds to wait for unknown outcomes, and for a quota.
        pause: Seconds between two attempts.
        on_wait: Called with a line about each wait, from one thread at a time.
        go_on: Called before each submission and each wait, from any thread; False stops.
        listener: Called with the progress.
    """

    ports: Ports
    together: RunTasks
    patience: float
    pause: float
    on_wait: Callable[[str], None]
    go_on: Callable[[], bool]
    listener: Listener
    # Submissions report from several threads; listeners are called from one at a time.
    _reporting: threading.Lock = field(default_factory=threading.Lock, init=False)
    _open: list[Submission] = field(default_factory=list, init=False)
    _total: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    _failed: int = field(default=0, init=False)
    _quota: Quota = field(init=False)

    def __post_init__(self) -> None:
        clock, chance, pace = self.ports.clock, self.ports.chance, self.ports.bounds.pace
        self._quota = Quota(clock, chance, pace, self.patience, self.pause, self._report_wait, self.go_on)

    @property
    def waiting(self) -> set[str]:
        """Return the base names of the submissions without an outcome."""
        return {one.change.base_name for one in self._open}

    def begin(self, submissions: Sequence[Submission]) -> Iterator[Outcome]:
        """Send each submission; yield the outcomes that are known at once.

        `end` continues the submissions with an unknown outcome, and those that have to be sent again.
        """
        self._total = len(submissions)
        self._report_progress()
        for one, result in self.together([partial(self._attempt, one) for one in submissions]):
            if isinstance(result, Outcome):
                yield self._counted(result)
            else:
                # Other submissions took time since: an unknown outcome may be known already.
                delay = 0.0 if result.until else delay_of(result, self.pause) or 0.0
                one.due = self.ports.clock.monotonic() + delay
                self._open.append(one)
                self._report_progress()

    def end(self) -> Iterator[Outcome]:
        """Repeat the open submissions until the time limit; yield the outcome of each."""
        end = self.ports.clock.monotonic() + self.patience
        while self._open:
            now = self.ports.clock.monotonic()
            due = [one for one in self._open if one.due <= now]
            for one, result in self.together([partial(self._attempt, one) for one in due]):
                if isinstance(result, Outcome):
                    self._open.remove(one)
                    yield self._counted(result)
                else:
                    self._postpone(one, result)
            # A submission that is due only after the time limit is left to the next apply.
            for one in [one for one in self._open if one.due > end or not self.go_on()]:
                self._open.remove(one)
                yield self._counted(self._outcome(one))
            if self._open:
                left = min(one.due for one in self._open) - self.ports.clock.monotonic()
                # No sleep is longer than the pause, so that a stop is noticed soon.
                self.ports.clock.sleep(min(max(0.0, left), self.pause))

    def _attempt(self, one: Submission) -> tuple[Submission, Outcome | SubmissionResult]:
        """Send a submission; return its outcome, or its state if another attempt can change that."""
        try:
            if one.result is None:
                if not self.go_on():
                    raise NotBegunError("")
                one.stage()
            one.result = Submitter(self.ports, self._quota).submit(one.order)
            waits = delay_of(one.result, self.pause) is not None
            return one, one.result if waits else self._outcome(one)
        except NotBegunError as error:
            if one.result:
                return one, self._outcome(one)
            # No request was sent, so the job certainly does not exist: skipped, not failed.
            reason = because(ReasonCode.ERROR, message=error.message) if error.message else None
            return one, Outcome(one.change, Status.SKIPPED, reason=reason)
        except ReconcilerError as error:
            return one, failed(one.change, error)

    def _postpone(self, one: Submission, result: SubmissionResult) -> None:
        one.due = self.ports.clock.monotonic() + (delay_of(result, self.pause) or 0.0)
        if result.until and not one.is_reported:
            one.is_reported = True
            self._report_wait(waiting_line(result))

    def _outcome(self, one: Submission) -> Outcome:
        result = one.result
        assert result is not None, "only a submission that was sent has an outcome of the service"
        claim = result.claim
        if claim.state is ClaimState.BOUND:
            state = self._state(claim, result.job)
            return Outcome(one.change, Status.APPLIED, state=state, resource=claim.resource)
        reason = unsettled_reason(claim, result.until, result.cause)
        return Outcome(one.change, Status.FAILED, reason=reason)

    def _state(self, claim: Claim, job: ActualJob | None) -> State | None:
        if job is not None:
            return job.state
        try:
            return self.ports.jobs.read(claim.api_version, claim.kind, claim.resource).state
        except (ServiceError, NotFoundError):
            # The claim proves the submission: a run that is deleted or can't be read is no failure.
            return claim.ended

    def _counted(self, outcome: Outcome) -> Outcome:
        self._done += 1
        self._failed += outcome.status is not Status.APPLIED
        self._report_progress()
        return outcome

    def _report_wait(self, line: str) -> None:
        with self._reporting:
            self.on_wait(line)
        self._report_progress()

    def _report_progress(self) -> None:
        with self._reporting:
            held, pace = self._quota.held_for, self.ports.bounds.pace
            left = held + pace * (self._total - self._done) if pace else None
            self.listener(SubmitProgress(self._total, self._done, self._failed, len(self._open), held, left))


def delay_of(result: SubmissionResult, pause: float) -> float | None:
    """Return the seconds until another attempt can change a submission's state; None if none can.

    While the outcome is unknown, these are `pause`.
    """
    if result.until is not None:
        return pause
    claim = result.claim
    if claim.state is not ClaimState.REJECTED or claim.not_before is None or result.now is None:
        return None
    # The service's time is in whole seconds: after a part of one, it would be read again and again.
    return max(0.0, ceil((claim.not_before - result.now).total_seconds()))


def waiting_line(result: SubmissionResult) -> str:
    """Return a line about the wait for a submission's outcome and its time limit."""
    name, until = result.claim.job_name, f"{result.until:%H:%M:%S}"
    return f"{name}: its request may have created a job; looking for it until {until} UTC at the latest"
