"""The submissions of one plan: sent side by side, and gone on with until what came of each is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from reconciler.base.concurrency import RunTasks
from reconciler.base.errors import NotFoundError, ReconcilerError, ServiceError
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import Change
from reconciler.model.ports import Ports
from reconciler.planning.outcome import Outcome, Status
from reconciler.submission.protocol import Order, Settlement, Submitter
from reconciler.submission.quota import NotBegunError, Quota


@dataclass(frozen=True, slots=True)
class Submission:
    """One change that submits a job, and how that is done.

    Attributes:
        stage: Uploads what the job stages; raises ServiceError.
    """

    change: Change
    order: Order
    stage: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the submissions of one plan have come.

    Attributes:
        total: How many there are.
        done: How many of them have an outcome.
        failed: How many of those aren't submitted.
        open: How many more were sent, and wait for what comes of it or for being sent again.
        held: Seconds in which nothing is sent, as the service's quota is used up; 0 for none.
        left: The least seconds until all are sent; None where no pace is kept.
    """

    total: int
    done: int = 0
    failed: int = 0
    open: int = 0
    held: float = 0.0
    left: float | None = None


Listener = Callable[[Standing], None]
"""Gets how far the submissions have come whenever that changes, from one thread at a time."""


@dataclass(slots=True, eq=False)
class _Open:
    """A submission that was begun, and isn't done with.

    Attributes:
        settled: What was last known of it.
        due: When it is looked at again, by the process's clock.
    """

    submission: Submission
    settled: Settlement
    due: float
    is_told: bool = False


class Submissions:
    """Brings submissions as far as they come within patience.

    Args:
        ports: The target.
        together: Runs several.
        patience: Seconds to wait for what isn't known at once, and for a quota.
        pause: Seconds between two looks meanwhile.
        tell: Gets a line about what is waited for, from one thread at a time.
        go_on: Asked before each submission and each wait, from any thread.
        listener: Gets how far they have come.
    """

    def __init__(
        self,
        ports: Ports,
        together: RunTasks,
        patience: float,
        pause: float,
        tell: Callable[[str], None],
        go_on: Callable[[], bool],
        listener: Listener,
    ) -> None:
        self._ports = ports
        self._clock = ports.clock
        self._together = together
        self._patience = patience
        self._pause = pause
        self._tell = tell
        self._go_on = go_on
        self._listener = listener
        self._telling = threading.Lock()
        self._open: list[_Open] = []
        self._total = self._done = self._failed = 0
        self._quota = Quota(ports.clock, ports.chance, ports.bounds.pace, patience, pause, self._told, go_on)

    @property
    def waiting(self) -> set[str]:
        """The base names of those that aren't done with."""
        return {one.submission.change.base_name for one in self._open}

    def begin(self, submissions: Sequence[Submission]) -> Iterator[Outcome]:
        """Send each; the outcomes of those that are done with, as they come.

        Those whose outcome isn't known, and those that are to be sent again, are left to `end`.
        """
        self._total = len(submissions)
        self._stands()
        for submission, result in self._together([partial(self._sent, one) for one in submissions]):
            if isinstance(result, Outcome):
                yield self._counted(result)
            else:
                # An outcome that isn't known may be known by now.
                delay = 0.0 if result.until else delay_of(result, self._pause) or 0.0
                self._open.append(_Open(submission, result, self._clock.monotonic() + delay))
                self._stands()

    def end(self) -> Iterator[Outcome]:
        """What became of the others, looked at in turn until that is known or patience is over."""
        end = self._clock.monotonic() + self._patience
        while self._open:
            now = self._clock.monotonic()
            due = [one for one in self._open if one.due <= now]
            for one, result in self._together([partial(self._again, one) for one in due]):
                if isinstance(result, Outcome):
                    self._open.remove(one)
                    yield self._counted(result)
                else:
                    self._put_off(one, result)
            for one in [one for one in self._open if one.due > end or not self._go_on()]:
                self._open.remove(one)
                yield self._counted(self._outcome(one.submission, one.settled))
            if self._open:
                left = min(one.due for one in self._open) - self._clock.monotonic()
                self._clock.sleep(min(max(0.0, left), self._pause))

    def _sent(self, submission: Submission) -> tuple[Submission, Outcome | Settlement]:
        change = submission.change
        if not self._go_on():
            return submission, Outcome(change, Status.SKIPPED)
        try:
            submission.stage()
            return submission, self._result(submission)
        except NotBegunError as error:
            return submission, Outcome(change, Status.SKIPPED, error=error.message or None)
        except ReconcilerError as error:
            return submission, failed(change, error)

    def _again(self, one: _Open) -> tuple[_Open, Outcome | Settlement]:
        try:
            return one, self._result(one.submission)
        except NotBegunError:
            return one, self._outcome(one.submission, one.settled)
        except ReconcilerError as error:
            return one, failed(one.submission.change, error)

    def _result(self, submission: Submission) -> Outcome | Settlement:
        """What came of one: its outcome, or how far it came where more may come of it."""
        settled = Submitter(self._ports, self._quota).settle(submission.order)
        waits = delay_of(settled, self._pause) is not None
        return settled if waits else self._outcome(submission, settled)

    def _put_off(self, one: _Open, settled: Settlement) -> None:
        one.settled = settled
        one.due = self._clock.monotonic() + (delay_of(settled, self._pause) or 0.0)
        if settled.until and not one.is_told:
            one.is_told = True
            self._told(unknown_said(settled))

    def _outcome(self, submission: Submission, settled: Settlement) -> Outcome:
        change, claim = submission.change, settled.claim
        if claim.state is ClaimState.BOUND:
            state = self._state(claim, settled.job)
            return Outcome(change, Status.APPLIED, state=state, resource=claim.resource)
        return Outcome(change, Status.FAILED, error=said_of(settled))

    def _state(self, claim: Claim, job: ActualJob | None) -> State | None:
        """The job's state; None where it is gone or can't be asked: that it was submitted is known."""
        if job is not None:
            return job.state
        try:
            return self._ports.jobs.read(claim.api_version, claim.kind, claim.resource).state
        except (ServiceError, NotFoundError):
            return claim.ended

    def _counted(self, outcome: Outcome) -> Outcome:
        self._done += 1
        self._failed += outcome.status is not Status.APPLIED
        self._stands()
        return outcome

    def _told(self, line: str) -> None:
        with self._telling:
            self._tell(line)
        self._stands()

    def _stands(self) -> None:
        with self._telling:
            held, pace = self._quota.held_for, self._ports.bounds.pace
            left = held + pace * (self._total - self._done) if pace else None
            self._listener(Standing(self._total, self._done, self._failed, len(self._open), held, left))


def delay_of(settled: Settlement, pause: float) -> float | None:
    """The seconds after which another look may bring a submission further; None where none can.

    Args:
        settled: How far it came.
        pause: Seconds between two looks for what isn't known.
    """
    if settled.until is not None:
        return pause
    claim = settled.claim
    if claim.state is not ClaimState.REJECTED or claim.not_before is None or settled.now is None:
        return None
    return max(0.0, (claim.not_before - settled.now).total_seconds())


def unknown_said(settled: Settlement) -> str:
    """That the outcome of a submission is waited for, and until when."""
    name, until = settled.claim.job_name, f"{settled.until:%H:%M:%S}"
    return f"{name}: whether a job was created is not known; looking for it, {until} UTC at most"


def said_of(settled: Settlement) -> str:
    """Why a submission isn't bound, and what happens next or what to do."""
    claim = settled.claim
    after = f" after {settled.until:%H:%M:%S} UTC" if settled.until else ""
    if claim.state is ClaimState.PENDING:
        why = f" ({settled.said})" if settled.said else ""
        return f"whether a job was created is not known{why}: the next apply{after} settles it"
    if claim.state is ClaimState.HELD and settled.until:
        return f"an earlier request may still make a job: it can be sent again{after}"
    if claim.state is ClaimState.REJECTED:
        later = f"; not sent again before {claim.not_before:%H:%M:%S} UTC" if claim.not_before else ""
        return f"{claim.error}{later}"
    return f"{claim.error}; run `reconciler resolve {claim.job_name} --resubmit` or `--give-up`"


def failed(change: Change, error: ReconcilerError) -> Outcome:
    """One failed change stops no other: what is left undone is in the next plan."""
    said = f"{error.message} ({error.hint})" if error.hint else error.message
    return Outcome(change, Status.FAILED, error=said)
