"""One look at a target: its claims and its runs, and whether they can be believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import islice

from msgspec import Struct

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState, checked
from reconciler.model.duplicates import marked
from reconciler.model.job import INSTANCE, KEY, SOURCE, ActualJob, attempt_of, is_of_other_instance
from reconciler.model.ports import Ports, Versioned

_ASKED = 3
"""Ended jobs that are read by name where a listing is empty."""


class Observed(Struct, frozen=True, dict=True):
    """What there was, at one look.

    Attributes:
        claims: Every claim of the repository in this target.
        runs: Every run of it, without their specs.
        doubtful: Live runs of the repository's other instances that may be the environment's own, from the
            time when it had another `instance`, or none; as `_doubtful` has them.
    """

    claims: Mapping[ClaimId, Versioned]
    runs: tuple[ActualJob, ...]
    doubtful: tuple[ActualJob, ...] = ()

    @cached_property
    def known(self) -> Mapping[ClaimId, Claim]:
        """The claims without their generations."""
        return {id: found.claim for id, found in self.claims.items()}


def observe(ports: Ports) -> Observed:
    """Return the claims and runs of one look.

    A claim's job that the listing leaves out is asked for by name. Where it is there, with its labels, and
    isn't so young that a listing may still lack it, listings can't be trusted, and a search for jobs that
    finds nothing would mean nothing. The same holds for an empty listing while the service still has one of
    the jobs that ended, of which a few are read.

    Raises:
        ServiceError: A service can't be asked; the claims aren't this repository's; the listing is blind.
    """
    # The claims first: a job that a claim names was there before its claim was listed.
    claims = ports.claims.listed()
    listed = ports.jobs.runs()
    own, others = _by_instance(ports, claims, listed)
    ports.claims.check(len(own))
    missing = _missing(claims, listed) or ([] if own else _ended(ports, claims))
    runs = (*own, *_unlisted(ports, missing))
    return Observed(claims, runs, _doubtful(ports, claims, runs, others))


def _by_instance(
    ports: Ports, claims: Mapping[ClaimId, Versioned], runs: tuple[ActualJob, ...]
) -> tuple[tuple[ActualJob, ...], list[ActualJob]]:
    """Split the runs into the environment's own and those of the repository's other instances.

    A run that a claim names stays the environment's own when its labels have been changed.
    """
    others = [run for run in runs if is_of_other_instance(run, ports.source, ports.instance)]
    if not others:
        return runs, others
    bound = {found.claim.resource for found in claims.values()}
    others = [run for run in others if run.resource not in bound]
    left_out = {run.resource for run in others}
    return tuple(run for run in runs if run.resource not in left_out), others


def _doubtful(
    ports: Ports,
    claims: Mapping[ClaimId, Versioned],
    runs: Iterable[ActualJob],
    others: Iterable[ActualJob],
) -> tuple[ActualJob, ...]:
    """Return the live runs of other instances that may have been submitted for this one.

    Until its first run with its present label, an environment may have submitted under any other: when its
    claims were prepared says nothing, as its settings may have been merged later. What was created after that
    run and carries the label of a neighbour is the neighbour's. This holds for an environment without
    `instance` too: its own runs are those without the label.

    An instance that no environment has now was this environment's, or a removed one's: its runs are doubtful
    at any age, as an environment that gave up its `instance` has older runs from before it had one.
    """
    live = [run for run in others if not run.state.ended]
    if not live:
        return ()
    # Where the time of an own run can't be read, or the service has it no more, the oldest of the rest is
    # younger, and more is doubtful.
    own = (run for run in runs if _is_submitted(ports, claims, run))
    first = min((time for time in map(_created, own) if time), default=None)

    def is_later(run: ActualJob) -> bool:
        time = _created(run)
        return first is not None and time is not None and time > first

    return tuple(
        run for run in live if run.labels.get(INSTANCE, "") not in ports.neighbours or not is_later(run)
    )


def _is_submitted(ports: Ports, claims: Mapping[ClaimId, Versioned], run: ActualJob) -> bool:
    """Return whether a run has the environment's label and the mark of one of its requests.

    A run without the label that a claim binds may be from before the label, and anybody can copy a job.
    """
    if run.labels.get(SOURCE) != ports.source or run.labels.get(INSTANCE, "") != ports.instance:
        return False
    found = claims.get(ClaimId(run.labels.get(KEY, ""), attempt_of(run)))
    return found is not None and marked(found.claim, run)


def _created(run: ActualJob) -> datetime | None:
    """Return when a run was created; None where its time can't be read."""
    try:
        return checked(datetime.fromisoformat(run.create_time))
    except ValueError:
        return None


def _missing(claims: Mapping[ClaimId, Versioned], runs: tuple[ActualJob, ...]) -> list[Claim]:
    """The claims whose job should be among the runs, and isn't."""
    seen = {run.resource for run in runs}
    return [
        claim
        for claim in (found.claim for found in claims.values())
        if claim.state is ClaimState.BOUND and claim.resource not in seen and not (claim.ended or claim.gone)
    ]


def _ended(ports: Ports, claims: Mapping[ClaimId, Versioned]) -> list[Claim]:
    """Return a few claims whose jobs ended, and which only a listing can find without the claim."""
    ended = (
        found.claim
        for found in claims.values()
        if found.claim.state is ClaimState.BOUND and found.claim.ended
    )
    unnamed = (one for one in ended if ports.jobs.named(one.api_version, one.kind, one.job_name) is None)
    return list(islice(unnamed, _ASKED))


def _unlisted(ports: Ports, missing: Iterable[Claim]) -> Iterator[ActualJob]:
    for claim in missing:
        try:
            job = ports.jobs.read(claim.api_version, claim.kind, claim.resource)
        except NotFoundError:
            continue
        labelled = job.labels.get(SOURCE) == ports.source and job.labels.get(KEY) == claim.id.key
        if labelled and is_old(ports, claim.id, job):
            raise _incomplete_listing(job)
        yield job


def check_search(ports: Ports, witnesses: Iterable[ActualJob]) -> None:
    """Raise ServiceError if a search by key leaves out a job that it must find.

    The first witness decides that the service still has and that is older than `Bounds.visible`.

    Args:
        ports: The target.
        witnesses: Jobs of the same kind, with the labels of their submission.
    """
    for witness in witnesses:
        key = witness.labels.get(KEY, "")
        found = ports.jobs.with_key(witness.api_version, witness.kind, key)
        if any(job.resource == witness.resource for job in found):
            return
        try:
            job = ports.jobs.read(witness.api_version, witness.kind, witness.resource)
        except NotFoundError:
            continue
        if job.labels.get(KEY) == key and is_old(ports, ClaimId(key, attempt_of(job)), job):
            raise _incomplete_listing(job)


def _incomplete_listing(job: ActualJob) -> ServiceError:
    return ServiceError(
        f"the service's listing leaves out {job.resource}, which is there: nothing can be decided",
        hint="try again in some minutes; if it stays, the listing's filter no longer works",
    )


def is_old(ports: Ports, id: ClaimId, job: ActualJob) -> bool:
    """Return whether every listing must show the job, by the store's clock at a read of this claim."""
    now = ports.claims.read(id).now
    try:
        return now - datetime.fromisoformat(job.create_time) > ports.bounds.visible
    except (ValueError, TypeError):
        # Without a readable time the job counts as old: a needless stop costs a person's look, and a listing
        # that leaves out jobs may cost a second job.
        return True
