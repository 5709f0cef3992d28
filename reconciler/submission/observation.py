"""One look at a target: its claims and its runs, and whether they can be believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import islice

from msgspec import Struct

from reconciler.claim import Claim, ClaimId, ClaimState
from reconciler.errors import NotFoundError
from reconciler.job import ActualJob
from reconciler.labels import INSTANCE, KEY, SOURCE, is_of_other_instance
from reconciler.ports import Ports, Versioned
from reconciler.submission.listings import blind, is_old

_ASKED = 3
"""Ended jobs that are read by name where a listing is empty."""


class Observed(Struct, frozen=True, dict=True):
    """What there was, at one look.

    Attributes:
        claims: Every claim of the repository in this target.
        runs: Every run of it, without their specs.
        doubtful: Live runs of the repository's other instances that may be the environment's own, from the
            time when it had another `instance`, or none.
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
    prepared = ports.claims.check(len(own))
    missing = _missing(claims, listed) or ([] if own else _ended(ports, claims))
    doubtful = tuple(run for run in others if _is_doubtful(ports, run, prepared))
    return Observed(claims, (*own, *_unlisted(ports, missing)), doubtful)


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


def _is_doubtful(ports: Ports, run: ActualJob, prepared: datetime | None) -> bool:
    """Return whether a run of another instance is live and may have been submitted for this one.

    An instance that no environment has now was this environment's, or a removed one's. And until this
    instance was prepared, its environment may have submitted under a neighbour's.
    """
    if run.state.ended:
        return False
    if run.labels.get(INSTANCE, "") not in ports.neighbours:
        return True
    try:
        return prepared is None or datetime.fromisoformat(run.create_time) <= prepared
    except (ValueError, TypeError):
        return True


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
            raise blind(job)
        yield job
