"""At most one job for each attempt: the protocol between a claim, a credential that expires, and one request.

The services take no id from us that would make a second create harmless, so the order of things does:

1. A claim is written before the request leaves, by compare-and-swap: of two reconcilers one sends.
2. The request carries a credential that expires at a time that the claim names, and that nothing renews: a
   process that slept meanwhile is refused by the service.
3. A request whose outcome isn't known is looked for by its mark. It is sent anew only when its credential has
   expired, what was accepted must have become a job, and every listing must show it: after `fence + executes
   + visible`, by the store's clock.

So there is at most one request that can still make a job at any time, and nothing waits for a dead process.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.base.sanitize import one_line
from reconciler.model.claim import MAX_ERROR, Claim, ClaimId, ClaimState
from reconciler.model.duplicates import elder
from reconciler.model.job import INSTANCE, KEY, SOURCE, TRY, ActualJob, State, attempt_of, labels_digest
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import (
    Answer,
    Created,
    Credential,
    NotSent,
    Ports,
    Refused,
    Taken,
    Unknown,
    Versioned,
)
from reconciler.submission.adoption import differences
from reconciler.submission.listings import check_search
from reconciler.submission.quota import USED_UP, NotBegunError, Quota

MAX_UNANSWERED = 5
"""Requests in a row without a known outcome, after which a person has to say how it goes on."""
MAX_TRIES = 20
"""Marks that a claim keeps, the newest; each refusal brings one, and a claim has to stay small."""

_ROUNDS = 10
_SENDINGS = 3
_MARK_BYTES = 16
_WRITE_PAUSES = (1.0, 2.0)
"""Seconds before a claim is written again: Cloud Storage takes one write a second of one object."""


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt that is to be submitted.

    Attributes:
        claim: What its claim says of it; the state and what follows from it don't count.
        body: The create's body with the mark that it is given, labels and all.
        earlier: The claims that older versions of the hash would have made for the same content.
        witnesses: Other jobs of its kind, which a search by key must find before it is sent again.
        attempts: The most attempts that the manifest allows. A later one is bound where its job is found, and
            never sent; None for no limit.
    """

    claim: Claim
    body: Callable[[str], JsonObject]
    earlier: tuple[ClaimId, ...] = ()
    witnesses: tuple[ActualJob, ...] = ()
    attempts: int | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """How far a submission came.

    Attributes:
        claim: As it is now: BOUND, REJECTED or HELD, or PENDING where the outcome isn't known yet.
        job: The job that it was bound to just now.
        until: PENDING: when the outcome can be settled at the latest, by the service's clock.
        now: The service's time when that was said.
        said: PENDING: what is known of why the outcome isn't.
    """

    claim: Claim
    job: ActualJob | None = None
    until: datetime | None = None
    now: datetime | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class _Odd:
    """A job that has an attempt's name or labels, and why it can't be taken for the attempt's own."""

    job: ActualJob
    why: str

    @property
    def said(self) -> str:
        return f"{self.job.resource} has its name or labels, and {self.why}"


class Submitter:
    """Settles submissions; holds nothing between two calls, as its process may die at any moment.

    Several may be settled at once, from several threads, with submitters of their own and one quota.

    Args:
        ports: The target.
        quota: Lets creates go; None where nothing has to be waited for.
    """

    def __init__(self, ports: Ports, quota: Quota | None = None) -> None:
        self._ports = ports
        self._source = ports.source
        self._instance = ports.instance
        self._claims = ports.claims
        self._jobs = ports.jobs
        self._fence = ports.fence
        self._clock = ports.clock
        self._chance = ports.chance
        self._bounds = ports.bounds
        self._owner = ports.owner
        self._quota = quota or Quota(ports.clock, ports.chance)

    def settle(self, order: Order) -> Settlement:
        """Bring a submission as far as it can come now; of its requests one at a time can make a job.

        Raises:
            NotBegunError: The service takes no more creates for now; nothing was begun.
            ServiceError: A service can't be asked; what was begun is in the claim, and the next call goes on.
        """
        return self._rounds(order, lambda found, now: self._step(order, found, now))

    def adopt(self, order: Order) -> None:
        """Bind a submission to its job where that is there, or hold it; sends nothing."""
        found = self._claims.read(order.claim.id).found
        if found is None or found.claim.state is ClaimState.BOUND:
            return
        seen = self._look(order, found.claim)
        if isinstance(seen, ActualJob) or (seen and seen.job.resource != found.claim.odd):
            self._settled(found, seen)

    def resubmit(self, order: Order) -> Settlement:
        """Go on with a submission that is held or refused, because a person says so.

        A job that one of its requests made is bound, whatever it differs in. Else it is sent again, after the
        same waiting as for everything that may still be under way.
        """
        return self._rounds(order, lambda found, now: self._forced(order, found, now))

    def give_up(self, id: ClaimId) -> Claim | None:
        """Hold a submission for ever; the claim as it is then, None where there is none.

        It is BOUND where its job is there: that isn't given up by saying so.
        """
        for _ in range(_ROUNDS):
            found = self._claims.read(id).found
            if found is None or found.claim.state is ClaimState.BOUND:
                return found.claim if found else None
            mine = self._made(found.claim)
            held = replace(found.claim, state=ClaimState.HELD, given_up=True)
            settled = bound(found.claim, elder(mine)) if mine else held
            written = self._put(replace(settled, owner=self._owner), found.generation)
            if written:
                return written.claim
        raise _contended(id)

    def conclude(self, id: ClaimId) -> None:
        """Write down that nothing came of a submission that nobody goes on with, once nothing can."""
        read = self._claims.read(id)
        ripe = self._ripe(read.found.claim) if read.found else None
        if read.found is None or ripe is None or read.now <= ripe:
            return
        claim = read.found.claim
        if claim.state is ClaimState.PENDING and not self._made(claim):
            self._clock.sleep(self._bounds.look_again)
            if not self._made(claim):
                said = "no job came of it, and nothing asked for it any more"
                self._put(replace(claim, state=ClaimState.REJECTED, error=said), read.found.generation)

    def _made(self, claim: Claim) -> list[ActualJob]:
        """The jobs that the claim's recorded requests made."""
        return [job for job in self._listed(claim) if job.labels.get(TRY) in claim.tries]

    def _rounds(
        self, order: Order, step: Callable[[Versioned | None, datetime], Settlement | None]
    ) -> Settlement:
        """Take steps until one settles something: each begins with what the claim is now."""
        for _ in range(_ROUNDS):
            read = self._claims.read(order.claim.id)
            settled = step(read.found, read.now)
            if settled is not None:
                return settled
        raise _contended(order.claim.id)

    def _step(self, order: Order, found: Versioned | None, now: datetime) -> Settlement | None:
        if found is None:
            # Nothing was begun: thousands of looks for nothing are spared where nothing can be sent anyway.
            self._quota.check()
            return self._first(order, now)
        match found.claim.state:
            case ClaimState.BOUND:
                return Settlement(found.claim)
            case ClaimState.PENDING:
                return self._recover(order, found, now)
            case ClaimState.REJECTED:
                early = found.claim.not_before is not None and now < found.claim.not_before
                return Settlement(found.claim, now=now) if early else self._again(order, found, now)
            case ClaimState.HELD:
                seen = self._look(order, found.claim)
                return self._settled(found, seen) if isinstance(seen, ActualJob) else Settlement(found.claim)

    def _forced(self, order: Order, found: Versioned | None, now: datetime) -> Settlement | None:
        if found is None or found.claim.state is ClaimState.BOUND:
            return self._step(order, found, now)
        if found.claim.state is ClaimState.REJECTED:
            return self._again(order, found, now)
        return self._recover(order, found, now, forced=True)

    def _first(self, order: Order, now: datetime) -> Settlement | None:
        """There is no claim: a job may be there all the same, if claims got lost."""
        self._check_failed_before(order.claim.id)
        for id in order.earlier:
            older = self._claims.read(id).found
            if older is not None:
                return Settlement(older.claim)
        seen = self._look(order, None)
        return (
            self._send(order, None, now) if seen is None else self._settled(Versioned(order.claim, 0), seen)
        )

    def _check_failed_before(self, id: ClaimId) -> None:
        """Raise ServiceError for a further attempt unless the one before it is known to have failed.

        That it failed is written down first: the service may drop its record, and then nobody would know.
        """
        if id.attempt == 1:
            return
        before = self._claims.read(ClaimId(id.key, id.attempt - 1)).found
        claim = before.claim if before else None
        if before and claim and claim.state is ClaimState.BOUND:
            if not claim.ended:
                job = self._jobs.read(claim.api_version, claim.kind, claim.resource)
                claim = replace(claim, ended=job.state if job.state.ended else None)
            if claim.ended is State.FAILED and (claim == before.claim or self._put(claim, before.generation)):
                return
        raise ServiceError(
            f"attempt {id.attempt} is not made: attempt {id.attempt - 1} isn't known to have failed",
            hint="run `reconciler plan` again: jobs changed since the last plan",
        )

    def _again(self, order: Order, found: Versioned, now: datetime) -> Settlement | None:
        """It made no job, as far as its answer can be believed: one look, then it is sent anew."""
        seen = self._look(order, found.claim)
        return self._send(order, found, now) if seen is None else self._settled(found, seen)

    def _recover(
        self, order: Order, found: Versioned, now: datetime, *, forced: bool = False
    ) -> Settlement | None:
        """A request may have left: find its job, or make sure that there can be none."""
        seen = self._look(order, found.claim, forced=forced)
        if seen is not None:
            return self._settled(found, seen)
        ripe = self._ripe(found.claim)
        if not self._named(order):
            if ripe is not None and now <= ripe:
                return Settlement(found.claim, until=ripe, now=now)
            self._clock.sleep(self._bounds.look_again)
            seen = self._look(order, found.claim, forced=forced)
            if seen is not None:
                return self._settled(found, seen)
            # The plan's listing may be an hour old by now, with a quota to wait for.
            check_search(self._ports, order.witnesses)
        unanswered = found.claim.unanswered + 1
        if unanswered >= MAX_UNANSWERED and not forced:
            said = f"{unanswered} requests for it were sent, and none was answered"
            return self._hold(found.claim, found.generation, said)
        try:
            return self._send(order, found, now, unanswered)
        except NotBegunError as error:
            if forced or not error.message or (ripe is not None and now <= ripe):
                raise
            # Nothing came of it, and nothing can any more: that is known, and is said.
            return self._reject(found, error.message, None)

    def _ripe(self, claim: Claim) -> datetime | None:
        """After this moment, what no listing shows will never be there; None where no request was sent."""
        return claim.fence and claim.fence + self._bounds.executes + self._bounds.visible

    def _send(
        self, order: Order, found: Versioned | None, now: datetime, unanswered: int = 0
    ) -> Settlement | None:
        """Claim the sending of one request, and send it."""
        number = order.claim.id.attempt
        if order.attempts is not None and number > order.attempts:
            raise ServiceError(
                f'attempt {number} is not sent: its job is gone, and "attempts" is {order.attempts}',
                hint="run `reconciler plan` again: jobs changed since the last plan",
            )
        self._quota.begin()
        started = self._clock.monotonic()
        credential = self._fence.mint()
        if credential.expires <= now:
            raise ServiceError(
                f"the credential for the create ended at {credential.expires:%Y-%m-%d %H:%M:%S} UTC already, "
                "by the service's own clock",
                hint='nothing was sent: check "endpoints" in reconciler.yaml, and any proxy between',
            )
        mark = base64.b32encode(self._chance(_MARK_BYTES)).decode("ascii").rstrip("=").lower()
        before = found.claim if found else order.claim
        pending = replace(
            order.claim,
            state=ClaimState.PENDING,
            commit=before.commit,
            tries=(*before.tries, mark)[-MAX_TRIES:],
            fence=credential.expires,
            refusals=before.refusals,
            unanswered=unanswered,
            owner=self._owner,
        )
        mine = self._put(pending, found.generation if found else 0)
        if mine is None:
            return None
        # As late as can be: in a bucket that was emptied a moment ago, no claim says what others have sent.
        self._claims.check(runs=1)
        answer = self._sent(order, order.body(mark), credential, started)
        return self._answered(order, mine, answer)

    def _sent(self, order: Order, body: JsonObject, credential: Credential, started: float) -> Answer:
        """The answer to one request; what never left may be sent again while the credential is young."""
        answer: Answer = NotSent("this process stood still for longer than its credential lasts")
        until = started + self._bounds.lifetime.total_seconds() / 2
        for _ in range(_SENDINGS):
            left = self._quota.take(until)
            if left:
                # As good as refused: the service would have answered this one as it did those before it.
                said = "the service took no more submissions a moment before this one was sent"
                return Refused(USED_UP, "RESOURCE_EXHAUSTED", said, left)
            if self._clock.monotonic() > until:
                break
            answer = self._jobs.create(order.claim.api_version, order.claim.kind, body, credential)
            self._quota.answered(answer)
            if not isinstance(answer, NotSent):
                break
        return answer

    def _answered(self, order: Order, mine: Versioned, answer: Answer) -> Settlement | None:
        match answer:
            case Created(job):
                return self._bind(mine.claim, mine.generation, job)
            case Refused(message=message):
                return self._reject(mine, message, answer)
            case NotSent(message):
                return self._reject(mine, message, None)
            case Taken(message) if self._named(order):
                seen = self._look(order, mine.claim)
                return self._reject(mine, message, None) if seen is None else self._settled(mine, seen)
            case Taken(message) | Unknown(message):
                return Settlement(mine.claim, until=self._ripe(mine.claim), said=message)

    def _look(self, order: Order, known: Claim | None, *, forced: bool = False) -> ActualJob | _Odd | None:
        """The attempt's job if it is there, None if it isn't, or a job that can't be taken for it.

        `forced`: a person decides that what a recorded request made is the job, whatever it differs in, and
        that what none made is not.
        """
        listed = self._listed(order.claim)
        ours = [job for job in listed if known is None or job.labels.get(TRY) in known.tries]
        if not ours:
            return None if forced or not listed else _Odd(listed[0], "no recorded request made it")
        job = elder(ours)
        if forced:
            return job
        whole = self._whole(job, known)
        different = differences(order.body(job.labels.get(TRY, "")), whole) if whole else ()
        if different:
            where = ", ".join(change.pointer for change in different[:3])
            return _Odd(job, f"it is another job: it differs at {where}")
        return whole or job

    def _whole(self, job: ActualJob, known: Claim | None) -> ActualJob | None:
        """A listed job with its body; None where it was deleted a moment ago."""
        try:
            return self._jobs.read(job.api_version, job.kind, job.resource)
        except NotFoundError:
            if known is not None:
                return None  # its mark says that it was the attempt's job all the same
            raise ServiceError(
                f"{job.resource} is listed and can't be read, so that nobody knows whose job it was",
                hint="apply again: listings will agree soon",
            ) from None

    def _listed(self, claim: Claim) -> list[ActualJob]:
        """What may be the attempt's job: what has its name, else what has its labels."""
        name = self._jobs.named(claim.api_version, claim.kind, claim.job_name)
        if name is not None:
            try:
                return [self._jobs.read(claim.api_version, claim.kind, name)]
            except NotFoundError:
                return []
        return [
            job
            for job in self._jobs.with_key(claim.api_version, claim.kind, claim.id.key)
            if job.labels.get(SOURCE) == self._source
            and job.labels.get(INSTANCE, "") == self._instance
            and job.labels.get(KEY) == claim.id.key
            and attempt_of(job) == claim.id.attempt
        ]

    def _named(self, order: Order) -> bool:
        """Whether the service makes only one job of a name: then nothing has to be waited for."""
        claim = order.claim
        return self._jobs.named(claim.api_version, claim.kind, claim.job_name) is not None

    def _settled(self, found: Versioned, seen: ActualJob | _Odd) -> Settlement | None:
        if isinstance(seen, ActualJob):
            return self._bind(found.claim, found.generation, seen)
        return self._hold(found.claim, found.generation, seen.said, seen.job.resource)

    def _bind(self, claim: Claim, generation: int, job: ActualJob) -> Settlement | None:
        written = self._put(replace(bound(claim, job), owner=self._owner), generation)
        return Settlement(written.claim, job) if written else None

    def _hold(self, claim: Claim, generation: int, why: str, odd: str = "") -> Settlement | None:
        held = replace(
            claim, state=ClaimState.HELD, error=_short(why), odd=odd, unanswered=0, owner=self._owner
        )
        written = self._put(held, generation)
        return Settlement(written.claim) if written else None

    def _reject(self, mine: Versioned, message: str, answer: Refused | None) -> Settlement | None:
        now = self._claims.read(mine.claim.id).now
        refusals = mine.claim.refusals + 1
        quota = answer if answer is not None and answer.status == USED_UP else None
        rejected = replace(
            mine.claim,
            state=ClaimState.REJECTED,
            error=_short(message),
            not_before=now + self._quota.backoff(refusals, quota.retry_after) if quota else None,
            refusals=refusals,
            unanswered=0,
        )
        written = self._put(rejected, mine.generation)
        return Settlement(written.claim, now=now) if written else None

    def _put(self, claim: Claim, generation: int) -> Versioned | None:
        """Write a claim; None if another was quicker. What wasn't written is written again, a few times."""
        for pause in _WRITE_PAUSES:
            try:
                return self._put_once(claim, generation)
            except ServiceError:
                self._clock.sleep(pause)
        return self._put_once(claim, generation)

    def _put_once(self, claim: Claim, generation: int) -> Versioned | None:
        """Write a claim, by what is there afterwards.

        That a write failed says little: the store may have taken it and lost the answer, or have taken it and
        refused its own repetition.
        """
        failed: ServiceError | None = None
        try:
            written = self._claims.write(claim, generation)
        except ServiceError as error:
            written, failed = None, error
        if written is not None:
            return written
        found = self._claims.read(claim.id).found
        if found is not None and found.claim == claim:
            return found
        if failed is not None and (found.generation if found else 0) == generation:
            raise failed
        return None


def bound(claim: Claim, job: ActualJob) -> Claim:
    """The claim, bound to a job."""
    mark = job.labels.get(TRY, "")
    return replace(
        claim,
        state=ClaimState.BOUND,
        tries=claim.tries if mark in claim.tries or not mark else (*claim.tries, mark),
        fence=None,
        resource=job.resource,
        ended=job.state if job.state.ended else None,
        gone=False,
        labels=labels_digest(job.labels),
        odd="",
        error="",
        not_before=None,
        refusals=0,
        unanswered=0,
        given_up=False,
    )


def _short(text: str) -> str:
    return one_line(text)[:MAX_ERROR]


def _contended(id: ClaimId) -> ServiceError:
    return ServiceError(
        f"the claim {id.key}/{id.attempt} keeps changing", hint="another run is busy with it: try again"
    )
