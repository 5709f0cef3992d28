"""Checks that listings show the jobs that they must show."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import ClaimId
from reconciler.model.job import KEY, ActualJob, attempt_of
from reconciler.model.ports import Ports


def check_search(ports: Ports, witnesses: Iterable[ActualJob]) -> None:
    """Raise ServiceError if a search by key leaves out a job that it must find.

    A search that finds nothing means nothing then. The first witness decides that the service still has and
    that is old enough.

    Args:
        ports: The target.
        witnesses: Jobs of the same kind, with the labels that they were given.
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
            raise blind(job)


def blind(job: ActualJob) -> ServiceError:
    """Return the error for a listing that leaves out a job that is there."""
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
        # It doesn't say that it is young. To stop in vain costs a look by a person; to go on with listings
        # that leave out jobs may cost a second job.
        return True
