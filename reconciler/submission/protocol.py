"""Protocol that submits at most one job per attempt: a claim, an expiring credential, one create request.

The services accept no request id that would make a second create harmless, so safety comes from the order
of steps. `Submitter` runs them in this order; docs/at-most-once.md has the same numbers:

1. Read the claim (`_run`, `_step`). BOUND: finished. HELD: only bind an existing job. PENDING, REJECTED, or
   no claim: go on.
2. Look for the attempt's job (`adoption.JobSearch`; `_begin`, `_send_if_absent`). If it exists, bind it and
   send no create. Without a claim, two guards come first: the previous attempt must be known to have failed
   (`_check_predecessor`), and a claim under an older version of the hash ends the call (`Order.earlier`).
3. If a request may have left and no job is visible (`_recover`): before its credential expiry plus `executes`
   plus `visible`, by the store's clock, return, and leave the claim PENDING; a later call continues. After
   that time the credential has expired, an accepted request has become a job, and every listing shows that
   job. Look a second time.
4. Mint a credential for one create (`_send`), but not for an attempt beyond the manifest's limit
   (`Order.attempts`) or after too many failed set-ups (`Order.binds_only`). It expires at a known time and is
   never renewed, so the service refuses a process that was suspended in between.
5. Write the claim as PENDING by compare-and-swap, with a new request id and the credential's expiry: of
   several reconcilers, only the one that wrote the claim goes on to send.
6. Check that the claims still have their genesis (`ClaimStore.check`): a bucket that was emptied or replaced
   shows no claim of another reconciler's request.
7. Send the create (`_create`). The request id is a label of the job.
8. Write the result to the claim (`_record`): BOUND, REJECTED or HELD. After an unknown outcome it stays
   PENDING.

At any time, at most one request can still make a job. A crash between two steps leaves a claim from which
the next call continues. The steps are one idea: none of them is safe without the others.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.base.sanitize import one_line
from reconciler.model.claim import MAX_ERROR, Claim, ClaimId, ClaimState
from reconciler.model.claimed_run import elder
from reconciler.model.job import REQUEST_ID, ActualJob, labels_digest
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
from reconciler.submission.adoption import JobSearch, Mismatch
from reconciler.submission.observe import check_search
from reconciler.submission.quota import USED_UP, NotBegunError, Quota

MAX_UNANSWERED = 5
"""Consecutive requests without a known outcome before the claim is HELD for a person."""
MAX_REQUEST_IDS = 20
"""Newest request ids that a claim keeps: each refusal adds an id, and a claim has a size limit."""

_ROUNDS = 10
_SENDINGS = 3
_REQUEST_ID_BYTES = 16
_WRITE_PAUSES = (1.0, 2.0)
"""Seconds before a claim is written again: Cloud Storage accepts 1 write per second and object."""


class Order(Struct, frozen=True):
    """Submission of one attempt.

    Attributes:
        claim: The claim to write; its state and outcome fields are ignored.
        body: Returns the create's body, labels included, for a request id.
        earlier: Claim ids of the same content under older versions of the hash.
        witnesses: Other jobs of the same kind that a search by key must find before a request is sent again.
        attempts: The manifest's limit on attempts, plus the earlier submissions that used up none; None for
            no limit. A later attempt is bound to an existing job, but never sent.
        not_before: Time before which a new attempt isn't begun, by the service's clock; None for none.
        binds_only: True if its set-up failed too often: it is bound to an existing job, but never sent.
    """

    claim: Claim
    body: Callable[[str], JsonObject]
    earlier: tuple[ClaimId, ...] = ()
    witnesses: tuple[ActualJob, ...] = ()
    attempts: int | None = None
    not_before: datetime | None = None
    binds_only: bool = False


class SubmissionResult(Struct, frozen=True):
    """Result of a submission so far.

    Attributes:
        claim: The current claim: BOUND, REJECTED or HELD, or PENDING for an unknown outcome.
        job: The job that this call bound.
        until: PENDING, or HELD by a person's order while the outcome was unknown: the latest time at which it
            can be settled, by the service's clock.
        now: The service's time at that answer.
        cause: PENDING: the known cause of the unknown outcome.
    """

    claim: Claim
    job: ActualJob | None = None
    until: datetime | None = None
    now: datetime | None = None
    cause: str = ""


class Submitter:
    """Protocol runner without state between calls: its process may die at any moment.

    Several threads may submit at once, each with its own submitter, sharing one quota.

    Args:
        ports: The target.
        quota: The shared rate limiter for creates; None for no limit.
    """

    def __init__(self, ports: Ports, quota: Quota | None = None) -> None:
        self._ports = ports
        self._claims = ports.claims
        self._jobs = ports.jobs
        self._search = JobSearch(ports)
        self._clock = ports.clock
        self._bounds = ports.bounds
        self._owner = ports.owner
        self._quota = quota or Quota(ports.clock, ports.chance)

    def submit(self, order: Order) -> SubmissionResult:
        """Advance a submission as far as possible now, with at most one request that can still make a job.

        Raises:
            NotBegunError: The service accepts no more creates for now; no claim was written.
            ServiceError: A service is unavailable; the claim holds the progress, and the next call continues.
        """
        return self._run(order, lambda versioned, now: self._step(order, versioned, now))

    def adopt(self, order: Order) -> None:
        """Bind a submission to its existing job, or hold it for a job that differs; never send a request."""
        versioned = self._claims.read(order.claim.id).versioned
        if versioned is None or versioned.claim.state is ClaimState.BOUND:
            return
        job = self._search.find(order.claim, order.body, versioned.claim)
        # A mismatch that the claim already names is no news: writing it again would only contend with others.
        if isinstance(job, ActualJob) or (job and job.job.resource != versioned.claim.odd):
            self._bind_or_hold(versioned, job)

    def resubmit(self, order: Order) -> SubmissionResult:
        """Continue a held or refused submission on a person's request.

        Bind a job that one of its requests made, even if it differs. Otherwise send again, after the same
        wait for earlier requests as in `submit`.
        """
        return self._run(order, lambda versioned, now: self._forced_step(order, versioned, now))

    def give_up(self, id: ClaimId) -> Claim | None:
        """Hold a submission for ever and return its claim; None if no claim exists.

        If its job exists, the claim is BOUND instead: giving up does not undo a submission.
        """
        for _ in range(_ROUNDS):
            versioned = self._claims.read(id).versioned
            if versioned is None or versioned.claim.state is ClaimState.BOUND:
                return versioned.claim if versioned else None
            jobs = self._search.own_jobs(versioned.claim)
            held = replace(versioned.claim, state=ClaimState.HELD, given_up=True)
            settled = bound(versioned.claim, elder(jobs)) if jobs else held
            written = self._put(replace(settled, owner=self._owner), versioned.generation)
            if written:
                return written.claim
        raise _contended(id)

    def conclude(self, id: ClaimId) -> None:
        """Reject an abandoned PENDING submission once none of its requests can make a job any more."""
        read = self._claims.read(id)
        if read.versioned is None:
            return
        claim = read.versioned.claim
        ripe = self._settles_at(claim)
        # Before that time, a request may still make a job: REJECTED would then permit a second create.
        if ripe is None or read.now <= ripe:
            return
        if claim.state is ClaimState.PENDING and not self._search.own_jobs(claim):
            self._clock.sleep(self._bounds.look_again)
            # Look twice: a single incomplete listing must not pass for the job's absence.
            if not self._search.own_jobs(claim):
                said = "it created no job, and it is no longer needed"
                self._put(replace(claim, state=ClaimState.REJECTED, error=said), read.versioned.generation)

    # Step 1: read the claim, and choose the next step by its state.

    def _run(
        self, order: Order, step: Callable[[Versioned | None, datetime], SubmissionResult | None]
    ) -> SubmissionResult:
        for _ in range(_ROUNDS):
            # Read again in every round: a step returns None if another reconciler changed the claim first.
            read = self._claims.read(order.claim.id)
            result = step(read.versioned, read.now)
            if result is not None:
                return result
        raise _contended(order.claim.id)

    def _step(self, order: Order, versioned: Versioned | None, now: datetime) -> SubmissionResult | None:
        if versioned is None:
            # Before any search: an exhausted quota would make thousands of searches useless.
            self._quota.check()
            return self._begin(order, now)
        match versioned.claim.state:
            case ClaimState.BOUND:
                # For ever, even if the service no longer has the job: a new request would run it twice.
                return SubmissionResult(versioned.claim)
            case ClaimState.PENDING:
                return self._recover(order, versioned, now)
            case ClaimState.REJECTED:
                early = versioned.claim.not_before is not None and now < versioned.claim.not_before
                return (
                    SubmissionResult(versioned.claim, now=now)
                    if early
                    else self._send_if_absent(order, versioned, now)
                )
            case ClaimState.HELD:
                job = self._search.find(order.claim, order.body, versioned.claim)
                if isinstance(job, ActualJob):
                    return self._bind(versioned, job)
                return SubmissionResult(versioned.claim)

    def _forced_step(
        self, order: Order, versioned: Versioned | None, now: datetime
    ) -> SubmissionResult | None:
        if versioned is None or versioned.claim.state is ClaimState.BOUND:
            return self._step(order, versioned, now)
        if versioned.claim.state is ClaimState.REJECTED:
            return self._send_if_absent(order, versioned, now)
        return self._recover(order, versioned, now, forced=True)

    # Step 2: look for the attempt's job; without a claim, after two guards.

    def _begin(self, order: Order, now: datetime) -> SubmissionResult | None:
        if order.not_before is not None and now < order.not_before:
            raise NotBegunError(
                f"its set-up failed a moment ago; it is tried again after {order.not_before:%H:%M:%S} UTC"
            )
        self._check_predecessor(order.claim.id)
        # A claim under an older version of the hash is for the same content: a second would submit it twice.
        for id in order.earlier:
            older = self._claims.read(id).versioned
            if older is not None:
                return SubmissionResult(older.claim)
        # Claims may have been lost: a job of this content may exist without a claim.
        job = self._search.find(order.claim, order.body, None)
        if job is None:
            return self._send(order, None, now)
        return self._bind_or_hold(Versioned(order.claim, 0), job)

    def _check_predecessor(self, id: ClaimId) -> None:
        """Raise ServiceError unless the previous attempt, if any, is known to have failed or been stopped."""
        if id.attempt == 1:
            return
        before = self._claims.read(ClaimId(id.key, id.attempt - 1)).versioned
        if before and before.claim.state is ClaimState.BOUND:
            claim = before.claim
            if not claim.ended:
                job = self._jobs.read(claim.api_version, claim.kind, claim.resource)
                claim = replace(claim, ended=job.state if job.state.ended else None)
            # Record the end before the next attempt: the service may drop the job, and with it the proof.
            if claim.may_be_followed and (claim == before.claim or self._put(claim, before.generation)):
                return
        raise ServiceError(
            f"attempt {id.attempt} is not submitted: attempt {id.attempt - 1} isn't known to have failed, "
            "or to have been cancelled by apply",
            hint="run `reconciler plan` again: jobs changed since the last plan",
        )

    def _has_unique_name(self, order: Order) -> bool:
        """Return whether the service makes only one job of a name: then no wait is needed."""
        claim = order.claim
        return self._jobs.named(claim.api_version, claim.kind, claim.job_name) is not None

    def _send_if_absent(self, order: Order, versioned: Versioned, now: datetime) -> SubmissionResult | None:
        # A refusal should mean that no job exists; the search guards against an answer that was wrong.
        job = self._search.find(order.claim, order.body, versioned.claim)
        return self._send(order, versioned, now) if job is None else self._bind_or_hold(versioned, job)

    # Step 3: make sure that no earlier request can still make a job.

    def _recover(
        self, order: Order, versioned: Versioned, now: datetime, *, forced: bool = False
    ) -> SubmissionResult | None:
        job = self._search.find(order.claim, order.body, versioned.claim, forced=forced)
        if job is not None:
            return self._bind_or_hold(versioned, job)
        ripe = self._settles_at(versioned.claim)
        if not self._has_unique_name(order):
            # Until `ripe`, an earlier request may still be accepted, or its job may be missing from listings.
            if ripe is not None and now <= ripe:
                return SubmissionResult(versioned.claim, until=ripe, now=now)
            # Look twice: a single incomplete listing must not pass for the job's absence.
            self._clock.sleep(self._bounds.look_again)
            job = self._search.find(order.claim, order.body, versioned.claim, forced=forced)
            if job is not None:
                return self._bind_or_hold(versioned, job)
            # A broken filter finds no job at all, and the plan's check may be an hour old after a quota wait.
            check_search(self._ports, order.witnesses)
        unanswered = versioned.claim.unanswered + 1
        if unanswered >= MAX_UNANSWERED and not forced:
            said = f"{unanswered} requests for it were sent, and none was answered"
            return self._hold(versioned, said)
        try:
            return self._send(order, versioned, now, unanswered)
        except NotBegunError as error:
            if forced or not error.message or (ripe is not None and now <= ripe):
                raise
            # No earlier request can make a job now, and no new request left: REJECTED is certain.
            return self._reject(versioned, error.message, None)

    def _settles_at(self, claim: Claim) -> datetime | None:
        """Return the time after which an unlisted job can never appear; None if no request was sent."""
        expiry = claim.credential_expiry
        return expiry and expiry + self._bounds.executes + self._bounds.visible

    # Steps 4 to 7: mint a credential, write the claim, check the store, send one create. `_send` also runs
    # step 8.

    def _send(
        self, order: Order, versioned: Versioned | None, now: datetime, unanswered: int = 0
    ) -> SubmissionResult | None:
        """Run steps 4 to 8; return None if another reconciler wrote the claim first."""
        number = order.claim.id.attempt
        if order.binds_only:
            raise ServiceError(
                f"attempt {number} is not sent: its job is gone, and its set-up has failed too often before",
                hint="run `reconciler plan` again: jobs changed since the last plan",
            )
        # The plan had this attempt because its job existed: without the job, sending would pass the limit.
        if order.attempts is not None and number > order.attempts:
            raise ServiceError(
                f'attempt {number} is not sent: its job is gone, and "attempts" is {order.attempts}',
                hint="run `reconciler plan` again: jobs changed since the last plan",
            )
        # Wait for the quota before the credential is minted: a long wait would outlast it.
        self._quota.begin()
        started = self._clock.monotonic()
        credential = self._ports.credentials.mint()
        # An expiry in the past would permit a second create while this request can still make a job.
        if credential.expires <= now:
            raise ServiceError(
                f"the credential for the request expired at {credential.expires:%Y-%m-%d %H:%M:%S} UTC, "
                f"by the service's clock",
                hint='nothing was sent: check "endpoints" in reconciler.yaml, and any proxy between',
            )
        chance = self._ports.chance(_REQUEST_ID_BYTES)
        request_id = base64.b32encode(chance).decode("ascii").rstrip("=").lower()
        before = versioned.claim if versioned else order.claim
        # No request of a rejected claim made a job: this is the job's first submission.
        commit = (before.state is ClaimState.REJECTED and order.claim.commit) or before.commit
        pending = replace(
            order.claim,
            state=ClaimState.PENDING,
            commit=commit,
            request_ids=(*before.request_ids, request_id)[-MAX_REQUEST_IDS:],
            credential_expiry=credential.expires,
            refusals=before.refusals,
            unanswered=unanswered,
            owner=self._owner,
        )
        # Before the request leaves: after a crash, the next run knows that a job may exist. The generation
        # makes the write fail if another reconciler claimed the attempt since the read.
        mine = self._put(pending, versioned.generation if versioned else 0)
        if mine is None:
            return None
        # Just before the request: in a bucket that was just emptied, no claim shows the requests of others.
        self._claims.check(runs=1)
        answer = self._create(order, order.body(request_id), credential, started)
        return self._record(order, mine, answer)

    def _create(self, order: Order, body: JsonObject, credential: Credential, started: float) -> Answer:
        """Send one create and return the answer; repeat only a request of which no byte left."""
        answer: Answer = NotSent("this process was paused for longer than its credential lasts")
        # Half of the lifetime: the request needs the rest to arrive before the credential expires.
        until = started + self._bounds.lifetime.total_seconds() / 2
        for _ in range(_SENDINGS):
            left = self._quota.take(until)
            if left:
                # Counts as refused: the service would have refused this create like those before it.
                said = "the service stopped accepting submissions just before this one was sent"
                return Refused(USED_UP, "RESOURCE_EXHAUSTED", said, left)
            if self._is_too_late(until):
                break
            # Always the credential that the claim names: a newer one would outlive the recorded expiry.
            answer = self._jobs.create(order.claim.api_version, order.claim.kind, body, credential)
            self._quota.answered(answer)
            # After any byte left, a repetition could make a second job.
            if not isinstance(answer, NotSent):
                break
        return answer

    def _is_too_late(self, until: float) -> bool:
        """Return True if a create could arrive after the expiry: the process may have been suspended."""
        return self._clock.monotonic() > until

    # Step 8: write the result to the claim.

    def _record(self, order: Order, mine: Versioned, answer: Answer) -> SubmissionResult | None:
        match answer:
            case Created(created):
                return self._bind(mine, created)
            case Refused(message=message):
                return self._reject(mine, message, answer)
            case NotSent(message):
                return self._reject(mine, message, None)
            case Taken(message) if self._has_unique_name(order):
                job = self._search.find(order.claim, order.body, mine.claim)
                return self._reject(mine, message, None) if job is None else self._bind_or_hold(mine, job)
            case Taken(message) | Unknown(message):
                # A job may exist or still appear: the claim stays PENDING, and no other request is sent.
                return SubmissionResult(mine.claim, until=self._settles_at(mine.claim), cause=message)

    def _bind_or_hold(self, versioned: Versioned, job: ActualJob | Mismatch) -> SubmissionResult | None:
        if isinstance(job, ActualJob):
            return self._bind(versioned, job)
        resource = job.job.resource
        why = f"{resource} has its name or labels, and {job.why}"
        return self._hold(versioned, why, resource)

    def _bind(self, versioned: Versioned, job: ActualJob) -> SubmissionResult | None:
        written = self._put(replace(bound(versioned.claim, job), owner=self._owner), versioned.generation)
        return SubmissionResult(written.claim, job) if written else None

    def _hold(self, versioned: Versioned, why: str, odd: str = "") -> SubmissionResult | None:
        held = replace(
            versioned.claim,
            state=ClaimState.HELD,
            error=_short(why),
            odd=odd,
            unanswered=0,
            owner=self._owner,
        )
        written = self._put(held, versioned.generation)
        return SubmissionResult(written.claim) if written else None

    def _reject(self, mine: Versioned, message: str, answer: Refused | None) -> SubmissionResult | None:
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
        return SubmissionResult(written.claim, now=now) if written else None

    def _put(self, claim: Claim, generation: int) -> Versioned | None:
        """Write a claim, with retries; return None if another reconciler wrote it first."""
        for pause in _WRITE_PAUSES:
            try:
                return self._put_once(claim, generation)
            except ServiceError:
                self._clock.sleep(pause)
        return self._put_once(claim, generation)

    def _put_once(self, claim: Claim, generation: int) -> Versioned | None:
        failed: ServiceError | None = None
        try:
            written = self._claims.write(claim, generation)
        except ServiceError as error:
            written, failed = None, error
        if written is not None:
            return written
        # The write may have succeeded although its answer was lost, or although its repetition was refused:
        # the stored claim decides. If it equals ours, nothing is lost: the id of a new request is ours alone,
        # and an equal claim without a new request says the same.
        versioned = self._claims.read(claim.id).versioned
        if versioned is not None and versioned.claim == claim:
            return versioned
        if failed is not None and (versioned.generation if versioned else 0) == generation:
            raise failed
        return None


def bound(claim: Claim, job: ActualJob) -> Claim:
    """Return the claim, bound to a job."""
    request_id = job.labels.get(REQUEST_ID, "")
    is_known = not request_id or request_id in claim.request_ids
    return replace(
        claim,
        state=ClaimState.BOUND,
        request_ids=claim.request_ids if is_known else (*claim.request_ids, request_id),
        credential_expiry=None,
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
        f"the claim {id.key}/{id.attempt} keeps changing", hint="another process is updating it: try again"
    )
