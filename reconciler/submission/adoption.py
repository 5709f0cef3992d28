"""Search for the job of an attempt, and the comparison that permits to bind it.

A job is adopted only if the attempt's create would make the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import Claim, elder
from reconciler.model.diff import diff, is_default, is_filled, is_left_out, is_spelling
from reconciler.model.job import ATTEMPT, CODE, INSTANCE, KEY, REQUEST_ID, SOURCE, ActualJob, attempt_of
from reconciler.model.manifest import JsonObject
from reconciler.model.plan import FieldChange
from reconciler.model.ports import Ports

_LABELS = (SOURCE, INSTANCE, KEY, ATTEMPT, CODE)
"""Labels that identify a job; the other labels describe its request and the user's own purposes."""

REQUESTED = frozenset(
    {
        "displayName",
        "jobId",
        "encryptionSpec",
        "jobSpec",
        "maxFailedTrialCount",
        "maxTrialCount",
        "parallelTrialCount",
        "studySpec",
        "trainingInput",
        "trialJobSpec",
    }
)
"""Fields that a request may set, besides those in its own body; the service writes the others."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A job with the attempt's name or labels that is not the attempt's own.

    Attributes:
        job: The job.
        why: The reason, as a clause about the job.
    """

    job: ActualJob
    why: str


class JobSearch:
    """Search for the job of an attempt in one target."""

    def __init__(self, ports: Ports) -> None:
        self._jobs = ports.jobs
        self._source = ports.source
        self._instance = ports.instance

    def find(
        self,
        claim: Claim,
        body: Callable[[str], JsonObject],
        known: Claim | None,
        *,
        forced: bool = False,
    ) -> ActualJob | Mismatch | None:
        """Return the attempt's job, None if it doesn't exist, or a job that can't be taken for it.

        Args:
            claim: Names the attempt.
            body: Returns the create's body for a request id.
            known: The stored claim; None if the attempt has none.
            forced: Accept a job of a recorded request even if it differs, and ignore all other jobs.

        Raises:
            ServiceError: The service is unavailable, or a listed job can't be read.
        """
        listed = self._candidates(claim)
        # Anybody can copy labels: once a claim exists, only a recorded request id proves a job's origin.
        ours = [job for job in listed if known is None or job.labels.get(REQUEST_ID) in known.request_ids]
        if not ours:
            return None if forced or not listed else Mismatch(listed[0], "no recorded request created it")
        # Of two jobs every reconciler must pick the same: the audit cancels the other.
        job = elder(ours)
        if forced:
            return job
        whole = self._read_body(job, known)
        different = differences(body(job.labels.get(REQUEST_ID, "")), whole) if whole else ()
        if different:
            where = ", ".join(change.pointer for change in different[:3])
            return Mismatch(job, f"it is another job: it differs at {where}")
        return whole or job

    def own_jobs(self, claim: Claim) -> list[ActualJob]:
        """Return the jobs that the claim's recorded requests made."""
        return [job for job in self._candidates(claim) if job.labels.get(REQUEST_ID) in claim.request_ids]

    def _read_body(self, job: ActualJob, known: Claim | None) -> ActualJob | None:
        """Return a listed job with its body; None if it was deleted since."""
        try:
            return self._jobs.read(job.api_version, job.kind, job.resource)
        except NotFoundError:
            if known is not None:
                return None  # its request id proves that it was the attempt's job
            # Without a claim and a body the origin is unknown, and "no job" would permit a second create.
            raise ServiceError(
                f"{job.resource} is listed but can't be read, so its owner is unknown",
                hint="apply again in a moment",
            ) from None

    def _candidates(self, claim: Claim) -> list[ActualJob]:
        """Return the job with the attempt's name if the caller chooses names, else those with its labels."""
        name = self._jobs.named(claim.api_version, claim.kind, claim.job_name)
        if name is not None:
            try:
                return [self._jobs.read(claim.api_version, claim.kind, name)]
            except NotFoundError:
                return []
        # The search is by key alone: other repositories and instances may have jobs of the same content.
        return [
            job
            for job in self._jobs.with_key(claim.api_version, claim.kind, claim.id.key)
            if job.labels.get(SOURCE) == self._source
            and job.labels.get(INSTANCE, "") == self._instance
            and job.labels.get(KEY) == claim.id.key
            and attempt_of(job) == claim.id.attempt
        ]


def differences(body: JsonObject, job: ActualJob) -> tuple[FieldChange, ...]:
    """Return the differences between a job (`before`) and the one that a create would make (`after`).

    The whole request counts, staged packages included, but of the labels only the identifying ones. Values
    that a service fills in or leaves out by itself are no difference.

    Args:
        body: The create's body.
        job: As read from the service, with its `body`.
    """
    names = REQUESTED | (body.keys() - {"labels"})
    found = diff(_compared(job.body, names), _compared(body, names))
    return tuple(field for field in found if not _is_alike(field))


def _compared(resource: JsonObject, names: Set[str]) -> dict[str, Any]:
    fields = {name: value for name, value in resource.items() if name in names}
    labels = resource.get("labels")
    known = labels if isinstance(labels, Mapping) else {}
    return {**fields, "labels": {name: known[name] for name in _LABELS if name in known}}


def _is_alike(field: FieldChange) -> bool:
    return is_spelling(field) or is_filled(field) or is_left_out(field) or is_default(field)
