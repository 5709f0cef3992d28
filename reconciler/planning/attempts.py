"""An attempt at a content: its claim, and the service's runs of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from reconciler.model.cause import is_failed_set_up
from reconciler.model.claim import Claim, ClaimId, ClaimState, is_by_apply
from reconciler.model.job import ActualJob, State
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob

_JOB_NAME = re.compile(r"(?P<base>.+)_[0-9a-f]{16}(?:_[0-9]+)?")


class Attempt(Struct, frozen=True):
    """One attempt at one content.

    Attributes:
        id: The content's key and the attempt's number.
        claim: Its claim, if any.
        run: The run that counts; None if the service has none.
        others: Further runs of its own requests, oldest first.
        strangers: Runs with the attempt's labels but no recorded request, oldest first.
    """

    id: ClaimId
    claim: Claim | None
    run: ActualJob | None
    others: tuple[ActualJob, ...] = ()
    strangers: tuple[ActualJob, ...] = ()

    @property
    def state(self) -> State | None:
        """State of the run, or the recorded end of a deleted run; None if unknown."""
        if self.run:
            return self.run.state
        return self.claim.ended if self.claim else None

    @property
    def bound(self) -> bool:
        """True if the claim names the attempt's job."""
        return self.claim is not None and self.claim.state is ClaimState.BOUND

    @property
    def failed(self) -> bool:
        """True if it is known to have failed."""
        return self.bound and self.state is State.FAILED

    @property
    def stopped(self) -> bool:
        """True if its run ended because apply cancelled it by a manifest's policy."""
        return self.bound and self.state is State.CANCELLED and is_by_apply(self.cancelled)

    @property
    def stopping(self) -> bool:
        """True if apply has cancelled its run by a manifest's policy, and the run hasn't ended."""
        if self.run is None or self.run.state is not State.CANCELLING or not self.bound:
            return False
        assert self.claim is not None, "a bound attempt has a claim"
        return self.claim.resource == self.run.resource and is_by_apply(self.claim.error)

    @property
    def may_be_followed(self) -> bool:
        """True if the next attempt may be made: it is known to have failed, or was stopped."""
        return self.failed or self.stopped

    @property
    def set_up_failed(self) -> bool:
        """True if no trainer was started: the embedded service says that the set-up failed."""
        # Of two runs of one attempt, the other one may have started its trainer.
        return self.failed and self.run is not None and not self.others and is_failed_set_up(self.run)

    @property
    def cancelled(self) -> str | None:
        """BOUND: the recorded reason of this tool's cancel of the CANCELLED run; "" or None for none."""
        if self.run:
            return self.run.cancelled
        return self.claim.reason if self.claim else None

    @property
    def resource(self) -> str:
        """Resource name of its run, also of one that the service dropped; "" if unknown."""
        if self.run:
            return self.run.resource
        return self.claim.resource if self.claim else ""

    @property
    def name(self) -> str:
        """Name of its run."""
        if self.claim:
            return self.claim.job_name
        return self.run.job_name if self.run else ""


def base_of(name: str) -> str:
    """Return the base name of a job name; the whole name if it has another form."""
    match = _JOB_NAME.fullmatch(name)
    return match["base"] if match else name


def keys_of(job: DesiredJob) -> tuple[str, ...]:
    """Return the keys of a job's claims and runs: its own, then those of older versions of the hash."""
    return job.keys or tuple(label_of(identity) for identity in (job.identity, *job.earlier))


def credible(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts at a content without the runs that only claim to be one.

    Without a claim, an attempt rests on labels alone; a later attempt needs a predecessor that permits it.
    """
    followed = {attempt.id.attempt for attempt in attempts if attempt.may_be_followed}
    return [one for one in attempts if one.claim or one.id.attempt == 1 or one.id.attempt - 1 in followed]
