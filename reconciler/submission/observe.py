"""Claims and runs of a target, and the checks that its listings are complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState, time_of
from reconciler.model.claimed_run import has_recorded_request
from reconciler.model.expectation import RunMetrics
from reconciler.model.job import INSTANCE, KEY, SOURCE, ActualJob, State, attempt_of, is_of_other_instance
from reconciler.model.ports import Ports, Versioned
from reconciler.model.publication import InPlace

_ASKED = 3
"""Ended jobs that are read by name if a listing is empty."""


class Observed(Struct, frozen=True, dict=True, eq=False):
    """Claims and runs of a target at the time of the read.

    Two are equal if these are: what a summary adds to them is known, or can be read, at any time.

    Attributes:
        versions: Every claim of the repository in this target, with its generation.
        runs: Every run of it, without their specs.
        doubtful: Live runs of the repository's other instances that may be the environment's own, from the
            time before its `instance` changed.
        folders: The output folders of ended runs by resource name, as far as the summary has them.
        metrics: Their recorded metrics, likewise.
        in_place: Their models that are in their places, likewise.
        is_full: True if every claim and run was read.
    """

    versions: Mapping[ClaimId, Versioned]
    runs: tuple[ActualJob, ...]
    doubtful: tuple[ActualJob, ...] = ()
    folders: Mapping[str, str] = {}
    metrics: Mapping[str, RunMetrics] = {}
    in_place: Mapping[str, InPlace] = {}
    is_full: bool = True

    def __eq__(self, other: object) -> bool:
        """Return True if both have the same claims and runs."""
        if not isinstance(other, Observed):
            return NotImplemented
        return (self.versions, self.runs, self.doubtful) == (other.versions, other.runs, other.doubtful)

    # Equal observations may differ in what a summary adds, and nobody keeps them in a set.
    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def claims(self) -> Mapping[ClaimId, Claim]:
        """Claims without their generations."""
        return {id: versioned.claim for id, versioned in self.versions.items()}


def observe(ports: Ports) -> Observed:
    """Read the claims and runs of a target.

    Read by name each adopted or bound job that the listing leaves out, and a few ended jobs if it is empty.

    Raises:
        ServiceError: A service is unavailable, the claims belong to another repository, or the listing leaves
            out a job that it must show.
    """
    # The claims first: a job that a claim names existed before its claim was listed.
    claims = ports.claims.listed()
    listed = ports.jobs.runs()
    own_runs, others = split_by_instance(ports, claims, listed)
    ports.claims.check(len(own_runs))
    # A listing that leaves out an old job proves that no search can be trusted: the protocol would take
    # "not found" for "never made", and submit again.
    missing = missing_claims(claims, listed)
    # No listing by label shows an adopted job.
    if not own_runs and all(claim.is_adopted for claim in missing):
        missing += ended_claims(ports, claims)
    runs = with_reasons(claims, (*own_runs, *unlisted(ports, missing)))
    return Observed(claims, runs, doubtful_runs(ports, claims, runs, others))


def with_reasons(claims: Mapping[ClaimId, Versioned], runs: tuple[ActualJob, ...]) -> tuple[ActualJob, ...]:
    """Return the runs; the cancelled ones with the reason that their claim records."""
    reasons = {versioned.claim.resource: versioned.claim.error for versioned in claims.values()}
    return tuple(
        replace(run, cancelled=reasons.get(run.resource)) if run.state is State.CANCELLED else run
        for run in runs
    )


def split_by_instance(
    ports: Ports, claims: Mapping[ClaimId, Versioned], runs: tuple[ActualJob, ...]
) -> tuple[tuple[ActualJob, ...], list[ActualJob]]:
    """Split the runs into the environment's own and those of the repository's other instances.

    A run that a claim names stays the environment's own when its labels have been changed.
    """
    bound = {versioned.claim.resource for versioned in claims.values()}
    others = [run for run in runs if is_of_other_instance(run, ports.source, ports.instance)]
    others = [run for run in others if run.resource not in bound]
    left_out = {run.resource for run in others}
    return tuple(run for run in runs if run.resource not in left_out), others


def doubtful_runs(
    ports: Ports,
    claims: Mapping[ClaimId, Versioned],
    runs: Iterable[ActualJob],
    others: Iterable[ActualJob],
    oldest: datetime | None = None,
) -> tuple[ActualJob, ...]:
    """Return the live runs of other instances that may have been submitted for this one.

    Before its first run with its present label, an environment may have submitted under any other label. A
    later run with a neighbour's label is the neighbour's. The same holds for an environment without
    `instance`: its own runs have no such label.

    Runs of an instance that no environment has now are doubtful at any age: it may have been this
    environment's earlier `instance`.

    `oldest` is the creation time of the oldest own run, if the runs may lack it.
    """
    live = [run for run in others if not run.state.ended]
    if not live:
        return ()
    # Without the oldest own run (deleted, or its time unreadable), `first` is later and more runs are
    # doubtful: the safe side.
    first = min(filter(None, (oldest, oldest_own(ports, claims, runs))), default=None)
    created = ((run, time_of(run.create_time)) for run in live)
    return tuple(
        run
        for run, time in created
        if run.labels.get(INSTANCE, "") not in ports.neighbours or not (first and time and time > first)
    )


def oldest_own(
    ports: Ports, claims: Mapping[ClaimId, Versioned], runs: Iterable[ActualJob]
) -> datetime | None:
    """Return the creation time of the oldest run that this environment submitted; None if unknown."""
    times = (time_of(run.create_time) for run in runs if _is_submitted(ports, claims, run))
    return min(filter(None, times), default=None)


def _is_submitted(ports: Ports, claims: Mapping[ClaimId, Versioned], run: ActualJob) -> bool:
    """Return True if a run has the environment's label and the id of a recorded request.

    The claim alone is no proof: a bound run without the label may be older than the label.
    """
    if run.labels.get(SOURCE) != ports.source or run.labels.get(INSTANCE, "") != ports.instance:
        return False
    versioned = claims.get(ClaimId(run.labels.get(KEY, ""), attempt_of(run)))
    return versioned is not None and has_recorded_request(versioned.claim, run)


def missing_claims(claims: Mapping[ClaimId, Versioned], runs: tuple[ActualJob, ...]) -> list[Claim]:
    """Return the bound claims with a job that is missing from the runs; of ended jobs the adopted ones."""
    seen = {run.resource for run in runs}
    bound = (versioned.claim for versioned in claims.values() if versioned.claim.state is ClaimState.BOUND)
    unlisted = (claim for claim in bound if claim.resource not in seen and not claim.gone)
    return [claim for claim in unlisted if not claim.ended or claim.is_adopted]


def ended_claims(ports: Ports, claims: Mapping[ClaimId, Versioned]) -> list[Claim]:
    """Return a few claims of ended jobs that have names chosen by the service."""
    bound = (versioned.claim for versioned in claims.values() if versioned.claim.state is ClaimState.BOUND)
    ended = (claim for claim in bound if claim.ended and not claim.is_adopted)
    unnamed = (one for one in ended if ports.jobs.named(one.api_version, one.kind, one.job_name) is None)
    return list(islice(unnamed, _ASKED))


def unlisted(ports: Ports, missing: Iterable[Claim]) -> Iterator[ActualJob]:
    """Yield the jobs of these claims; raise ServiceError for one that a listing must show."""
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

    The witnesses are jobs of the same kind, with the labels of their submission. The first one decides that
    the service still has and that is older than `Bounds.visible`.
    """
    for witness in witnesses:
        key = witness.labels.get(KEY, "")
        jobs = ports.jobs.with_key(witness.api_version, witness.kind, key)
        if any(job.resource == witness.resource for job in jobs):
            return
        try:
            job = ports.jobs.read(witness.api_version, witness.kind, witness.resource)
        except NotFoundError:
            continue
        if job.labels.get(KEY) == key and is_old(ports, ClaimId(key, attempt_of(job)), job):
            raise _incomplete_listing(job)


def _incomplete_listing(job: ActualJob) -> ServiceError:
    return ServiceError(
        f"the service's listing leaves out {job.resource}, which exists: nothing can be planned",
        hint="try again in a few minutes; if this persists, the listing's filter no longer works",
    )


def is_old(ports: Ports, id: ClaimId, job: ActualJob) -> bool:
    """Return True if every listing must show the job, by the store's clock at a read of this claim."""
    now, created = ports.claims.read(id).now, time_of(job.create_time)
    # Without a readable time the job counts as old: a needless stop costs a person's look, and a listing that
    # leaves out jobs may cost a second job.
    return created is None or now - created > ports.bounds.visible
