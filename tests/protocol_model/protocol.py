"""Submission protocol as an executable specification: the actions of a reconciler in each step.

Each step is a single call to the outside (a read, a listing, a write, a request) with the decision on its
answer. Between steps the reconciler's state is only in memory, and it may die after any step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

from tests.protocol_model.world import (
    EXPIRED,
    FOREIGN,
    NO_TRY,
    Claim,
    ClaimState,
    Job,
    Move,
    Reconciler,
    Request,
    Setting,
    Step,
    Try,
    World,
    service_moves,
)

Outcomes = Iterator[tuple[str, World, Reconciler]]
"""Possible results of a step: the event, the world after it, and the reconciler after it."""


@dataclass(frozen=True)
class Rules:
    """Guards of the protocol, all active by default; a test removes a guard to show its purpose.

    The model omits a claim's write that arrives long after its sender gave it up: it has the same effect as
    a reconciler that writes, and dies before it sends.

    Attributes:
        claims: Written claims decide who may send; without this guard, only the listing does.
        claim_first: The claim is written before the request leaves.
        insert_once: The first claim is written only if no claim exists.
        swap_takeover: A pending claim is taken over only if it is unchanged since the read.
        swap_answer: An answer is written only to the claim that its request was sent for.
        read_back: After a write whose acknowledgement was lost, the claim is read again.
        fence: The service refuses an expired credential, and no process renews it.
        wait_executes, wait_visible: The delays of a takeover after the credential's expiry.
        time_before_look: The time is read before the look that must find no job.
        look_twice: A takeover looks twice.
        look_after_refusal: A refused submission is sent again after a look.
        take_over: A pending claim doesn't stay with its owner for ever.
        own_tries: Only a job of the claim's own tries is bound.
        resolve_waits: `resolve --resubmit` waits as a takeover does.
        retry_failed_only: The next attempt requires a FAILED previous attempt.
        return_stopped_only: Or a CANCELLED attempt whose claim records an apply as the reason.
        returns_end: A content returns a bounded number of times.
        retry_claim: The next attempt has a claim of its own.
        free_set_ups: A set-up that failed uses up no attempt.
        set_ups_end: A set-up is tried a bounded number of times.
        attempts_end: With failing set-ups, started jobs are counted as well.
        audit: Each pass looks for duplicates and repairs them.
        keep_oldest: The repair keeps the oldest job that hasn't failed, not the claim's job.
    """

    claims: bool = True
    claim_first: bool = True
    insert_once: bool = True
    swap_takeover: bool = True
    swap_answer: bool = True
    read_back: bool = True
    fence: bool = True
    wait_executes: bool = True
    wait_visible: bool = True
    time_before_look: bool = True
    look_twice: bool = True
    look_after_refusal: bool = True
    take_over: bool = True
    own_tries: bool = True
    resolve_waits: bool = True
    retry_failed_only: bool = True
    return_stopped_only: bool = True
    returns_end: bool = True
    retry_claim: bool = True
    free_set_ups: bool = True
    set_ups_end: bool = True
    attempts_end: bool = True
    audit: bool = False
    keep_oldest: bool = True


class Protocol:
    """Moves of a world whose reconcilers follow the rules."""

    def __init__(self, setting: Setting, rules: Rules) -> None:
        self.setting = setting
        self.rules = rules
        self._steps: dict[Step, Callable[[World, Reconciler], Outcomes]] = {
            Step.START: self._start,
            Step.LOOK: self._look,
            Step.CHECK_TIME: self._check_time,
            Step.LOOK_AGAIN: self._look_again,
            Step.MINT: self._mint,
            Step.WRITE_PENDING: self._write_pending,
            Step.READ_BACK: self._read_back,
            Step.SEND: self._send,
            Step.AWAIT: self._await,
            Step.WRITE_BOUND: self._write_bound,
            Step.WRITE_REJECTED: self._write_rejected,
            Step.WRITE_HELD: self._write_held,
            Step.AUDIT: self._audit,
            Step.CANCEL: self._cancel,
            Step.REBIND: self._write_bound,
        }

    def moves(self, world: World) -> Iterator[Move]:
        """Yield every possible move."""
        yield from service_moves(world, self.setting, fenced=self.rules.fence)
        for number in range(len(world.reconcilers)):
            yield from self.moves_of(world, number)

    def moves_of(self, world: World, number: int) -> Iterator[Move]:
        """Yield a reconciler's possible moves: its step, or its death and a new start."""
        me = world.reconcilers[number]
        name = f"reconciler {'ABC'[number]}"
        for what, changed, after in self._steps[me.step](world, me):
            yield Move(f"{name} {what}", changed.with_reconciler(number, after))
        if me.step is not Step.START:
            # A lost answer has the same effect: no new knowledge, and the next pass reads.
            yield Move(f"{name} dies before it {me.step}", world.with_reconciler(number, Reconciler()))

    # Start of a pass.

    def _start(self, world: World, me: Reconciler) -> Outcomes:
        attempt = self._attempt(world)
        claim = world.claims[attempt] if self._has_claim(attempt) else Claim()
        read = Reconciler(Step.LOOK, attempt, claim, settled=self._settled(world, claim))
        said = f"finds attempt {attempt + 1} {claim.state}"
        if claim.state in (ClaimState.ABSENT, ClaimState.PENDING):
            yield said, world, read
        elif claim.state is ClaimState.REJECTED:
            yield said, world, read if self.rules.look_after_refusal else read._replace(step=Step.MINT)
        elif claim.state is ClaimState.HELD:
            yield f"is told to resubmit attempt {attempt + 1}", world, read
        if self.rules.audit and len(claim.tries) > 1:
            yield "audits", world, read._replace(step=Step.AUDIT, settled=False)

    def _attempt(self, world: World) -> int:
        """Return the due attempt: the first that its predecessor permits and that doesn't permit the next."""
        spent = set_ups = returns = 0
        for attempt in range(self.setting.submissions - 1):
            claim = world.claims[attempt]
            ended = world.tries[claim.job].job if claim.state is ClaimState.BOUND else Job.NONE
            failed = ended in (Job.FAILED, Job.UNSTARTED)
            stopped = ended is Job.CANCELLED and (claim.stopped or not self.rules.return_stopped_only)
            returns += stopped
            if returns > self.setting.returns and self.rules.returns_end:
                return attempt
            if failed and (self.setting.set_ups or self.setting.returns):
                is_free = ended is Job.UNSTARTED
                spent += not is_free or not self.rules.free_set_ups
                set_ups = set_ups + 1 if is_free else 0
                is_last = is_free and set_ups == self.setting.set_ups and self.rules.set_ups_end
                if is_last or (spent == self.setting.attempts and self.rules.attempts_end):
                    return attempt
            # Without the rule, an attempt without a known job counts as a failed attempt.
            unknown = claim.state is ClaimState.PENDING and not self.rules.retry_failed_only
            if not (failed or stopped) and not (unknown and self._settled(world, claim)):
                return attempt
        return self.setting.submissions - 1

    def _has_claim(self, attempt: int) -> bool:
        return self.rules.claims and (attempt == 0 or self.rules.retry_claim)

    def _settled(self, world: World, claim: Claim) -> bool:
        """Return True if no request of this claim can still lead to an unlisted job."""
        if not claim.tries:
            return True
        waits = (
            self.setting.executes * self.rules.wait_executes + self.setting.visible * self.rules.wait_visible
        )
        return world.tries[claim.tries[-1]].clock >= waits

    # Looks, and the decisions on their results.

    def _look(self, world: World, me: Reconciler) -> Outcomes:
        for listed, after in self._listings(world, me):
            yield f"lists {_told(listed)}", after, self._decided(after, me, listed)

    def _look_again(self, world: World, me: Reconciler) -> Outcomes:
        for listed, after in self._listings(world, me):
            next_step = self._decided(after, me, listed) if listed else me._replace(step=Step.MINT)
            yield f"lists again {_told(listed)}", after, next_step

    def _check_time(self, world: World, me: Reconciler) -> Outcomes:
        yield "reads the time", world, self._nothing_found(me, self._settled(world, me.seen))

    def _decided(self, world: World, me: Reconciler, listed: tuple[int, ...]) -> Reconciler:
        own = [number for number in listed if self._is_own(me.seen, number)]
        if own:
            return me._replace(step=Step.WRITE_BOUND, mark=own[0])
        if listed and me.seen.state is not ClaimState.HELD:
            return me._replace(step=Step.WRITE_HELD)
        if not self.rules.time_before_look and me.seen.state is ClaimState.PENDING:
            return me._replace(step=Step.CHECK_TIME)
        return self._nothing_found(me, me.settled)

    def _is_own(self, claim: Claim, number: int) -> bool:
        """Return True for an own job; without a claim, the body decides, and only a foreign job's differs."""
        if not claim.tries:
            return number != FOREIGN
        return number in claim.tries or not self.rules.own_tries

    def _nothing_found(self, me: Reconciler, settled: bool) -> Reconciler:
        if me.seen.state is ClaimState.PENDING:
            if not settled or not self.rules.take_over:
                return Reconciler()
            return me._replace(step=Step.LOOK_AGAIN if self.rules.look_twice else Step.MINT)
        if me.seen.state is ClaimState.HELD and not settled and self.rules.resolve_waits:
            return Reconciler()
        return me._replace(step=Step.MINT)

    def _listings(self, world: World, me: Reconciler) -> Iterator[tuple[tuple[int, ...], World]]:
        """Yield every possible listing, the oldest job first: each young job may be present or absent."""
        jobs = world.jobs(me.attempt)
        young = [number for number in jobs if world.tries[number].job_age < self.setting.longest_hidden]
        foreign = [FOREIGN] if world.foreign_job else []
        for hidden in _subsets(young):
            yield tuple(number for number in [*jobs, *foreign] if number not in hidden), world
        if jobs and world.wrong_listings:
            yield (), world._replace(wrong_listings=world.wrong_listings - 1)

    # Submission: credential, claim, request, answer.

    def _mint(self, world: World, me: Reconciler) -> Outcomes:
        minted = me._replace(credential=self.setting.lifetime)
        step = Step.WRITE_PENDING if self.rules.claim_first else Step.SEND
        yield "mints a credential", world, minted._replace(step=step)

    def _write_pending(self, world: World, me: Reconciler) -> Outcomes:
        if not self.rules.claim_first:
            yield self._write_what_was_sent(world, me)
        elif len(world.tries) < self.setting.tries:
            yield from self._write_before_sending(world, me)

    def _write_before_sending(self, world: World, me: Reconciler) -> Outcomes:
        number = len(world.tries)
        claim = Claim(ClaimState.PENDING, me.seen.generation + 1, (*me.seen.tries, number))
        sending = Reconciler(Step.SEND, me.attempt, claim, mark=number)
        unsure = sending._replace(step=Step.READ_BACK if self.rules.read_back else Step.SEND)
        guarded = self.rules.insert_once if me.seen.state is ClaimState.ABSENT else self.rules.swap_takeover
        minted = world._replace(tries=(*world.tries, Try(me.attempt, -me.credential)))
        written = self._written(minted, me, claim, guarded)
        said = f"writes PENDING for try {number + 1}"
        if written is not None:
            yield said, written, sending
            yield f"{said}; the answer is lost", written, unsure
        elif self.rules.read_back:
            yield f"{said}, in vain", world, Reconciler()
        else:
            yield f"{said}, in vain; the answer is lost", minted, unsure

    def _read_back(self, world: World, me: Reconciler) -> Outcomes:
        mine = world.claims[me.attempt] == me.seen
        yield "reads the claim back", world, me._replace(step=Step.SEND) if mine else Reconciler()

    def _write_what_was_sent(self, world: World, me: Reconciler) -> tuple[str, World, Reconciler]:
        claim = Claim(ClaimState.PENDING, me.seen.generation + 1, (*me.seen.tries, me.mark))
        written = self._written(world, me, claim, guarded=True)
        if written is None:
            return "writes PENDING, in vain", world, Reconciler()
        return "writes PENDING", written, me._replace(step=Step.AWAIT, seen=claim)

    def _send(self, world: World, me: Reconciler) -> Outcomes:
        if not self.rules.claim_first:
            yield from self._send_unclaimed(world, me)
            return
        sent = world.tries[me.mark]._replace(request=Request.ON_THE_WAY)
        yield f"sends try {me.mark + 1}", world.with_try(me.mark, sent), me._replace(step=Step.AWAIT)
        yield f"can't send try {me.mark + 1}", world, me._replace(step=Step.WRITE_REJECTED)

    def _send_unclaimed(self, world: World, me: Reconciler) -> Outcomes:
        if len(world.tries) < self.setting.tries:
            number = len(world.tries)
            sent = Try(me.attempt, -me.credential, Request.ON_THE_WAY)
            after = me._replace(step=Step.WRITE_PENDING, mark=number, credential=EXPIRED)
            yield f"sends try {number + 1}", world._replace(tries=(*world.tries, sent)), after

    def _await(self, world: World, me: Reconciler) -> Outcomes:
        request = world.tries[me.mark].request
        if request is Request.CREATED:
            yield "reads the job's name", world, me._replace(step=Step.WRITE_BOUND)
        elif request is Request.REFUSED:
            yield "reads the refusal", world, me._replace(step=Step.WRITE_REJECTED)

    # Writes of a known outcome. A lost answer needs no care here: the next pass reads.

    def _write_bound(self, world: World, me: Reconciler) -> Outcomes:
        yield from self._settle(world, me, ClaimState.BOUND, me.mark)

    def _write_rejected(self, world: World, me: Reconciler) -> Outcomes:
        yield from self._settle(world, me, ClaimState.REJECTED, NO_TRY)

    def _write_held(self, world: World, me: Reconciler) -> Outcomes:
        yield from self._settle(world, me, ClaimState.HELD, NO_TRY)

    def _settle(self, world: World, me: Reconciler, state: ClaimState, job: int) -> Outcomes:
        claim = Claim(state, me.seen.generation + 1, me.seen.tries, job)
        written = self._written(world, me, claim, self.rules.swap_answer)
        what = f"writes {state.upper()}" + ("" if job == NO_TRY else f" to {_told((job,))}")
        yield (what, written, Reconciler()) if written else (f"{what}, in vain", world, Reconciler())

    def _written(self, world: World, me: Reconciler, claim: Claim, guarded: bool) -> World | None:
        """Return the world with that claim; None if the stored claim differs from the claim that was read."""
        if not self._has_claim(me.attempt):
            return world
        there = world.claims[me.attempt]
        if guarded and there.generation != me.seen.generation:
            return None
        return world.with_claim(me.attempt, claim._replace(generation=there.generation + 1))

    # Audit, for duplicates from a service that breaks its bounds.

    def _audit(self, world: World, me: Reconciler) -> Outcomes:
        for listed, after in self._listings(world, me):
            own = [number for number in listed if number in me.seen.tries]
            yield f"lists {_told(listed)}", after, self._repair(world, me, own)

    def _repair(self, world: World, me: Reconciler, own: list[int]) -> Reconciler:
        if len(own) < 2:
            return Reconciler()
        keep = self._kept(world, me.seen, own)
        live = tuple(number for number in own if number != keep and world.tries[number].job is Job.LIVE)
        return _cancelling(me._replace(mark=keep, cancels=live))

    def _kept(self, world: World, claim: Claim, own: list[int]) -> int:
        if claim.job in own and not self.rules.keep_oldest:
            return claim.job
        well = [number for number in own if world.tries[number].job is Job.LIVE]
        return (well or own)[0]

    def _cancel(self, world: World, me: Reconciler) -> Outcomes:
        number, *rest = me.cancels
        job = world.tries[number]
        ended = job._replace(job=Job.CANCELLED) if job.job is Job.LIVE else job
        after = _cancelling(me._replace(cancels=tuple(rest)))
        yield f"cancels the job of try {number + 1}", world.with_try(number, ended), after


def _cancelling(me: Reconciler) -> Reconciler:
    """Return the next step of a repair."""
    if me.cancels:
        return me._replace(step=Step.CANCEL)
    bound = me.seen.state is ClaimState.BOUND and me.seen.job == me.mark
    return Reconciler() if bound else me._replace(step=Step.REBIND)


def _subsets(numbers: list[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(numbers) + 1):
        yield from combinations(numbers, size)


def _told(listed: tuple[int, ...]) -> str:
    named = ["the foreign job" if number == FOREIGN else f"the job of try {number + 1}" for number in listed]
    return " and ".join(named) or "no job"
