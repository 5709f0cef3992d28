"""World of the model: the contents of a state, and its changes by time and by the service.

Times are differences in ticks, and each count stops at the value from which on it has no effect. So the
number of states is finite although time never ends: the check needs no horizon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

NO_TRY = -1
FOREIGN = -2
"""Number, in place of a try's, of a foreign job with our key label and another body."""

EXPIRED = -1
"""Remainder of an expired credential."""


class ClaimState(StrEnum):
    ABSENT = "absent"
    PENDING = "pending"
    BOUND = "bound"
    REJECTED = "rejected"
    HELD = "held"


class Request(StrEnum):
    """Position of a try's request."""

    NOT_SENT = "not sent"
    ON_THE_WAY = "on the way"
    """May stay in the network for ever; the service checks the credential at its arrival."""
    ACCEPTED = "accepted"
    """May still become a job, or never."""
    CREATED = "created"
    REFUSED = "refused"
    GONE = "gone"
    """Accepted, but too long ago to still become a job."""


class Job(StrEnum):
    """State of a try's job."""

    NONE = "none"
    LIVE = "live"
    FAILED = "failed"
    UNSTARTED = "unstarted"
    """Ended as FAILED in its set-up: that uses up no attempt."""
    CANCELLED = "cancelled"
    """Cancelled by the repair, by an apply with other content, or by a person."""


class Step(StrEnum):
    """Next step of a reconciler. Between two steps it may be paused for any time, or die."""

    START = "starts a pass"
    LOOK = "looks for the job"
    CHECK_TIME = "reads the time"
    LOOK_AGAIN = "looks again"
    MINT = "mints a credential"
    WRITE_PENDING = "writes PENDING"
    READ_BACK = "reads the claim back"
    SEND = "sends the request"
    AWAIT = "awaits the answer"
    WRITE_BOUND = "writes BOUND"
    WRITE_REJECTED = "writes REJECTED"
    WRITE_HELD = "writes HELD"
    AUDIT = "lists all jobs of the key"
    CANCEL = "cancels a duplicate"
    REBIND = "binds the claim to the job that is kept"


class Claim(NamedTuple):
    """Durable knowledge about an attempt; `tries` newest last, `job` the try whose job it has.

    `stopped` is the recorded reason of an apply that cancels the job for other content.
    """

    state: ClaimState = ClaimState.ABSENT
    generation: int = 0
    tries: tuple[int, ...] = ()
    job: int = NO_TRY
    stopped: bool = False


class Try(NamedTuple):
    """Request that was about to be sent, and its fate at the service."""

    attempt: int
    clock: int
    """Ticks since the credential's end, negative before it."""
    request: Request = Request.NOT_SENT
    accepted_for: int = 0
    job: Job = Job.NONE
    job_age: int = 0
    job_rank: int = 0
    """1 for the first job that the service made, 2 for the second; 0 for none."""


class Reconciler(NamedTuple):
    """Process: its next step, and its memory, which a crash erases."""

    step: Step = Step.START
    attempt: int = 0
    seen: Claim = Claim()
    """The claim at the last read or write."""
    settled: bool = False
    """True if, at the time of that read, no earlier request can still lead to a job."""
    credential: int = EXPIRED
    """Remaining ticks of the minted credential."""
    mark: int = NO_TRY
    """The try that it sends, awaits, or binds."""
    cancels: tuple[int, ...] = ()


class World(NamedTuple):
    """State at a moment. Each attempt has a claim, the first attempt's first."""

    claims: tuple[Claim, ...]
    tries: tuple[Try, ...]
    reconcilers: tuple[Reconciler, ...]
    foreign_job: bool = False
    wrong_listings: int = 0
    """The number of further listings that may omit jobs that they must show."""

    def with_try(self, number: int, changed: Try) -> World:
        return self._replace(tries=(*self.tries[:number], changed, *self.tries[number + 1 :]))

    def with_claim(self, attempt: int, changed: Claim) -> World:
        return self._replace(claims=(*self.claims[:attempt], changed, *self.claims[attempt + 1 :]))

    def with_reconciler(self, number: int, changed: Reconciler) -> World:
        others = self.reconcilers
        return self._replace(reconcilers=(*others[:number], changed, *others[number + 1 :]))

    def jobs(self, attempt: int) -> list[int]:
        """Return the tries of an attempt that made a job, the oldest job first."""
        made = [number for number, one in enumerate(self.tries) if one.job_rank and one.attempt == attempt]
        return sorted(made, key=lambda number: self.tries[number].job_rank)


class Move(NamedTuple):
    """Possible next event."""

    what: str
    world: World


@dataclass(frozen=True)
class Setting:
    """Size of the world, and its possible events.

    Attributes:
        lifetime: The credential's lifetime in ticks.
        executes, visible: The bounds that the protocol assumes.
        really_executes, really_visible: The bounds that the service keeps; None for the same.
        tries: The number of requests over all attempts.
        attempts: The submissions that the manifest allows while the job keeps ending FAILED.
        reconcilers: The number of concurrent reconcilers; each runs passes for ever.
        foreign: A foreign job may appear with our key label and another body.
        jobs_fail: A job may end FAILED.
        returns: The returns of a content whose job an apply had cancelled; 0 without cancels.
        set_ups: The consecutive tries of a set-up; 0 if no set-up fails.
        wrong_listings: The number of listings that may omit jobs that they must show.
    """

    lifetime: int = 1
    executes: int = 1
    visible: int = 1
    really_executes: int | None = None
    really_visible: int | None = None
    tries: int = 2
    attempts: int = 1
    reconcilers: int = 2
    foreign: bool = False
    jobs_fail: bool = False
    returns: int = 0
    set_ups: int = 0
    wrong_listings: int = 0

    @property
    def longest_execution(self) -> int:
        return self.executes if self.really_executes is None else self.really_executes

    @property
    def longest_hidden(self) -> int:
        return self.visible if self.really_visible is None else self.really_visible

    @property
    def submissions(self) -> int:
        """The maximum number of submissions plus one, so that a surplus submission shows."""
        if self.returns:
            return self.attempts + self.returns + 1
        return self.attempts * self.set_ups + 1 if self.set_ups else self.attempts

    def start(self) -> World:
        """Return the world before any submission."""
        return World(
            (Claim(),) * self.submissions,
            (),
            (Reconciler(),) * self.reconcilers,
            wrong_listings=self.wrong_listings,
        )


def service_moves(world: World, setting: Setting, *, fenced: bool) -> Iterator[Move]:
    """Yield the moves without a reconciler: time passes, and the service acts."""
    yield Move("time passes", _later(world, setting))
    if setting.foreign and not world.foreign_job:
        yield Move("somebody makes a job with our key label", world._replace(foreign_job=True))
    if setting.returns:
        yield from _cancels(world)
    for number, one in enumerate(world.tries):
        for what, changed in _of_try(one, setting, world, fenced):
            yield Move(f"the service {what} try {number + 1}", world.with_try(number, changed))


def _cancels(world: World) -> Iterator[Move]:
    """Yield cancels by others than these reconcilers: an apply with other content, and people."""
    for attempt, claim in enumerate(world.claims):
        if claim.job < 0 or world.tries[claim.job].job is not Job.LIVE:
            continue
        # No other write changes a bound claim here, so its generation may stay, which limits the states.
        changed = claim._replace(stopped=not claim.stopped)
        does = "clears the reason of" if claim.stopped else "records that it cancels"
        yield Move(f"an apply {does} attempt {attempt + 1}", world.with_claim(attempt, changed))
        ended = world.tries[claim.job]._replace(job=Job.CANCELLED)
        yield Move(f"somebody cancels attempt {attempt + 1}", world.with_try(claim.job, ended))


def _of_try(one: Try, setting: Setting, world: World, fenced: bool) -> Iterator[tuple[str, Try]]:
    if one.request is Request.ON_THE_WAY:
        yield "refuses", one._replace(request=Request.REFUSED)
        if one.clock <= 0 or not fenced:
            yield "accepts", one._replace(request=Request.ACCEPTED)
    elif one.request is Request.ACCEPTED:
        rank = 1 + max(other.job_rank for other in world.tries)
        yield "makes the job of", one._replace(request=Request.CREATED, job=Job.LIVE, job_rank=rank)
    elif one.job is Job.LIVE:
        if setting.jobs_fail:
            yield "ends as FAILED the job of", one._replace(job=Job.FAILED)
        if setting.set_ups:
            yield "can't set up the job of", one._replace(job=Job.UNSTARTED)


def _later(world: World, setting: Setting) -> World:
    """Return the world a tick later."""
    reconcilers = tuple(
        one if one.credential == EXPIRED else one._replace(credential=one.credential - 1)
        for one in world.reconcilers
    )
    return world._replace(
        tries=tuple(_older(one, setting) for one in world.tries),
        reconcilers=reconcilers,
    )


def _older(one: Try, setting: Setting) -> Try:
    long_over = setting.executes + setting.visible
    one = one._replace(clock=min(one.clock + 1, long_over))
    if one.job_rank:
        return one._replace(job_age=min(one.job_age + 1, setting.longest_hidden))
    if one.request is not Request.ACCEPTED:
        return one
    if one.accepted_for == setting.longest_execution:
        return one._replace(request=Request.GONE, accepted_for=0)
    return one._replace(accepted_for=one.accepted_for + 1)
