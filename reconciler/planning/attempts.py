"""Attempts at each content: the claim, and the service's runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from reconciler.model.cause import is_set_up
from reconciler.model.claim import Claim, ClaimId, ClaimState, is_by_apply
from reconciler.model.claimed_run import age, kept, made
from reconciler.model.job import KEY, ActualJob, State, attempt_of
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob

_PROGRESS = {state: place for place, state in enumerate(sorted(State, key=lambda state: state.ended))}
"""The states in the order in which a job can take them: it ends once, cancelled or not."""

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
        return self.failed and self.run is not None and not self.others and is_set_up(self.run)

    @property
    def cancelled(self) -> str | None:
        """BOUND: the recorded reason of this tool's cancel of the CANCELLED run; "" or None for none."""
        if self.run:
            return self.run.cancelled
        return self.claim.reason if self.claim else None

    @property
    def name(self) -> str:
        """Name of its run."""
        if self.claim:
            return self.claim.job_name
        return self.run.job_name if self.run else ""


def base_of(name: str) -> str:
    """Return the base name of a job name; the whole name if it has another form."""
    found = _JOB_NAME.fullmatch(name)
    return found["base"] if found else name


def keys_of(job: DesiredJob) -> tuple[str, ...]:
    """Return the keys of a job's claims and runs: its own, then those of older versions of the hash."""
    return job.keys or tuple(label_of(identity) for identity in (job.identity, *job.earlier))


def attempts_by_base(
    desired: Iterable[DesiredJob], actual: Iterable[ActualJob], claims: Mapping[ClaimId, Claim]
) -> dict[str, list[Attempt]]:
    """Return every attempt with a claim or a run, by base name with '-' as '_', in a fixed order.

    Leave out runs of another kind than their content's: a tuning job's trials are custom jobs, and may have
    its labels.
    """
    kinds = {id.key: (claim.api_version, claim.kind) for id, claim in claims.items()}
    bases = {id.key: claim.base_name.replace("-", "_") for id, claim in claims.items()}
    for job in desired:
        for key in keys_of(job):
            kinds[key] = job.manifest.api_version, job.manifest.kind
            bases[key] = job.manifest.base_name
    by_base = defaultdict(list)
    for attempt in _attempts(actual, claims, kinds):
        base = bases.get(attempt.id.key) or base_of(attempt.name)
        by_base[base].append(attempt)
    return dict(by_base)


def _attempts(
    actual: Iterable[ActualJob], claims: Mapping[ClaimId, Claim], kinds: Mapping[str, tuple[str, str]]
) -> list[Attempt]:
    bound = {claim.resource: id for id, claim in claims.items() if claim.resource}
    runs = defaultdict(list)
    for run in _once(actual):
        # The claim's name for a run counts more than labels, which can be edited outside.
        id = bound.get(run.resource) or _id_of(run)
        if kinds.get(id.key) in (None, (run.api_version, run.kind)):
            runs[id].append(run)
    return [_attempt(id, claims.get(id), runs[id]) for id in sorted({*runs, *claims})]


def _once(runs: Iterable[ActualJob]) -> Iterable[ActualJob]:
    # Overlapping pages may list a job twice: the later state counts.
    once: dict[str, ActualJob] = {}
    for run in runs:
        other = once.setdefault(run.resource, run)
        if _PROGRESS[run.state] >= _PROGRESS[other.state]:
            once[run.resource] = run
    return once.values()


def _id_of(run: ActualJob) -> ClaimId:
    # A run without the label of a content is a content of its own.
    return ClaimId(run.labels.get(KEY) or run.resource, attempt_of(run))


def _attempt(id: ClaimId, claim: Claim | None, runs: Sequence[ActualJob]) -> Attempt:
    runs = sorted(runs, key=age) if len(runs) > 1 else runs
    run = kept(claim, runs)
    # Without a claim, no request is recorded that could tell a stranger from an own run.
    strangers = tuple(other for other in runs if claim and not made(claim, other))
    others = tuple(other for other in runs if other is not run and other not in strangers)
    return Attempt(id, claim, run, others, strangers)
