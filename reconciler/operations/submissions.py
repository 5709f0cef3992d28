"""Submissions of one plan: sent concurrently, and repeated until the outcome of each is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil

from reconciler.base.concurrency import RunTasks
from reconciler.base.errors import NotFoundError, ReconcilerError, ServiceError
from reconciler.model.cause import held
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import Change
from reconciler.model.ports import Ports
from reconciler.planning.outcome import Outcome, Status
from reconciler.submission.protocol import Order, SubmissionResult, Submitter
from reconciler.submission.quota import NotBegunError, Quota


@dataclass(frozen=True, slots=True)
class Submission:
    """Change that submits a job, with its order.

    Attributes:
        stage: Uploads the job's package; raises ServiceError.
    """

    change: Change
    order: Order
    stage: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Standing:
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


Listener = Callable[[Standing], None]
"""Called with the progress after each change, from one thread at a time."""


@dataclass(slots=True, eq=False)
class _Open:
    """Submission without an outcome.

    Attributes:
        settled: Its last known state.
        due: Time of the next attempt, by the monotonic clock.
        is_reported: True once the wait was reported.
    """

    submission: Submission
    settled: SubmissionResult
    due: float
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
    _open: list[_Open] = field(default_factory=list, init=False)
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
        return {one.submission.change.base_name for one in self._open}

    def begin(self, submissions: Sequence[Submission]) -> Iterator[Outcome]:
        """Send each submission; yield the outcomes that are known at once.

        `end` continues the submissions with an unknown outcome, and those that have to be sent again.
        """
        self._total = len(submissions)
        self._report_progress()
        for submission, result in self.together([partial(self._send, one) for one in submissions]):
            if isinstance(result, Outcome):
                yield self._counted(result)
            else:
                # Other submissions took time since: an unknown outcome may be known already.
                delay = 0.0 if result.until else delay_of(result, self.pause) or 0.0
                self._open.append(_Open(submission, result, self.ports.clock.monotonic() + delay))
                self._report_progress()

    def end(self) -> Iterator[Outcome]:
        """Repeat the open submissions until the time limit; yield the outcome of each."""
        end = self.ports.clock.monotonic() + self.patience
        while self._open:
            now = self.ports.clock.monotonic()
            due = [one for one in self._open if one.due <= now]
            for one, result in self.together([partial(self._retry, one) for one in due]):
                if isinstance(result, Outcome):
                    self._open.remove(one)
                    yield self._counted(result)
                else:
                    self._postpone(one, result)
            # A submission that is due only after the time limit is left to the next apply.
            for one in [one for one in self._open if one.due > end or not self.go_on()]:
                self._open.remove(one)
                yield self._counted(self._outcome(one.submission, one.settled))
            if self._open:
                left = min(one.due for one in self._open) - self.ports.clock.monotonic()
                # No sleep is longer than the pause, so that a stop is noticed soon.
                self.ports.clock.sleep(min(max(0.0, left), self.pause))

    def _send(self, submission: Submission) -> tuple[Submission, Outcome | SubmissionResult]:
        change = submission.change
        if not self.go_on():
            return submission, Outcome(change, Status.SKIPPED)
        try:
            submission.stage()
            return submission, self._result(submission)
        except NotBegunError as error:
            # No request was sent, so the job certainly does not exist: skipped, not failed.
            return submission, Outcome(change, Status.SKIPPED, error=error.message or None)
        except ReconcilerError as error:
            return submission, failed(change, error)

    def _retry(self, one: _Open) -> tuple[_Open, Outcome | SubmissionResult]:
        try:
            return one, self._result(one.submission)
        except NotBegunError:
            return one, self._outcome(one.submission, one.settled)
        except ReconcilerError as error:
            return one, failed(one.submission.change, error)

    def _result(self, submission: Submission) -> Outcome | SubmissionResult:
        """Return the outcome of a submission, or its state if another attempt can change that."""
        settled = Submitter(self.ports, self._quota).submit(submission.order)
        waits = delay_of(settled, self.pause) is not None
        return settled if waits else self._outcome(submission, settled)

    def _postpone(self, one: _Open, settled: SubmissionResult) -> None:
        one.settled = settled
        one.due = self.ports.clock.monotonic() + (delay_of(settled, self.pause) or 0.0)
        if settled.until and not one.is_reported:
            one.is_reported = True
            self._report_wait(waiting_line(settled))

    def _outcome(self, submission: Submission, settled: SubmissionResult) -> Outcome:
        change, claim = submission.change, settled.claim
        if claim.state is ClaimState.BOUND:
            state = self._state(claim, settled.job)
            return Outcome(change, Status.APPLIED, state=state, resource=claim.resource)
        return Outcome(change, Status.FAILED, error=unsettled_reason(settled))

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
            self.listener(Standing(self._total, self._done, self._failed, len(self._open), held, left))


def delay_of(settled: SubmissionResult, pause: float) -> float | None:
    """Return the seconds until another attempt can change a submission's state; None if none can.

    While the outcome is unknown, these are `pause`.
    """
    if settled.until is not None:
        return pause
    claim = settled.claim
    if claim.state is not ClaimState.REJECTED or claim.not_before is None or settled.now is None:
        return None
    # The service's time is in whole seconds: after a part of one, it would be read again and again.
    return max(0.0, ceil((claim.not_before - settled.now).total_seconds()))


def waiting_line(settled: SubmissionResult) -> str:
    """Return a line about the wait for a submission's outcome and its time limit."""
    name, until = settled.claim.job_name, f"{settled.until:%H:%M:%S}"
    return f"{name}: its request may have created a job; looking for it until {until} UTC at the latest"


def unsettled_reason(settled: SubmissionResult) -> str:
    """Return the reason for a submission without a run, with the next step."""
    claim = settled.claim
    after = f" after {settled.until:%H:%M:%S} UTC" if settled.until else ""
    if claim.state is ClaimState.PENDING:
        why = f" ({settled.cause})" if settled.cause else ""
        return f"it is not known whether a job was created{why}: the next apply{after} finds out"
    if claim.state is ClaimState.HELD and settled.until:
        return f"an earlier request may still create a job: it can be submitted again{after}"
    if claim.state is ClaimState.REJECTED:
        later = f"; not submitted again before {claim.not_before:%H:%M:%S} UTC" if claim.not_before else ""
        return f"{claim.error}{later}"
    return held(claim)


def failed(change: Change, error: ReconcilerError) -> Outcome:
    """Return the outcome of a failed change."""
    # An outcome, not an exception: one failure must not stop the other changes.
    reason = f"{error.message.removesuffix('.')} ({error.hint})" if error.hint else error.message
    return Outcome(change, Status.FAILED, error=reason)
