"""Search for the job of an attempt, the comparison that permits to bind it, and the adoption of other jobs.

A job is adopted only if the attempt's create would make the same one. `JobSearch` finds jobs by the labels
and names that this tool gives. A person names any other job, and `adopt` binds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.manifests.secrets import value_at, without_secrets
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.claimed_run import elder
from reconciler.model.diff import REQUESTED, FieldChange, diff, is_default, is_filled, is_spelling
from reconciler.model.job import (
    ATTEMPT,
    CODE,
    INSTANCE,
    KEY,
    PREFIX,
    REQUEST_ID,
    SOURCE,
    ActualJob,
    attempt_of,
    labels_digest,
)
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import Ports
from reconciler.submission.observe import Observed

_LABELS = (SOURCE, INSTANCE, KEY, ATTEMPT, CODE)
"""Labels that identify a job; the other labels describe its request and the user's own purposes."""


class Mismatch(Struct, frozen=True):
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
        stored: Claim | None,
        *,
        forced: bool = False,
    ) -> ActualJob | Mismatch | None:
        """Return the attempt's job, None if it doesn't exist, or a job that can't be taken for it.

        Args:
            claim: Names the attempt.
            body: Returns the create's body for a request id.
            stored: The stored claim; None if the attempt has none.
            forced: Accept a job of a recorded request even if it differs, and ignore all other jobs.

        Raises:
            ServiceError: The service is unavailable, or a listed job can't be read.
        """
        listed = self._candidates(claim)
        # Anybody can copy labels: once a claim exists, only a recorded request id proves a job's origin.
        ours = [job for job in listed if stored is None or job.labels.get(REQUEST_ID) in stored.request_ids]
        if not ours:
            return None if forced or not listed else Mismatch(listed[0], "no recorded request created it")
        # Of two jobs every reconciler must pick the same: the audit cancels the other.
        job = elder(ours)
        if forced:
            return job
        whole = self._read_body(job, stored)
        different = differences(body(job.labels.get(REQUEST_ID, "")), whole) if whole else ()
        if different:
            where = ", ".join(change.pointer for change in different[:3])
            return Mismatch(job, f"it is another job: it differs at {where}")
        return whole or job

    def own_jobs(self, claim: Claim) -> list[ActualJob]:
        """Return the jobs that the claim's recorded requests made."""
        return [job for job in self._candidates(claim) if job.labels.get(REQUEST_ID) in claim.request_ids]

    def _read_body(self, job: ActualJob, stored: Claim | None) -> ActualJob | None:
        """Return a listed job with its body; None if it was deleted since."""
        try:
            return self._jobs.read(job.api_version, job.kind, job.resource)
        except NotFoundError:
            if stored is not None:
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
        jobs = self._jobs.with_key(claim.api_version, claim.kind, claim.id.key)
        return [job for job in jobs if self._has_labels_of(claim, job)]

    def _has_labels_of(self, claim: Claim, job: ActualJob) -> bool:
        """Return True if a job has the labels of the attempt in this repository and instance."""
        return (
            job.labels.get(SOURCE) == self._source
            and job.labels.get(INSTANCE, "") == self._instance
            and job.labels.get(KEY) == claim.id.key
            and attempt_of(job) == claim.id.attempt
        )


def differences(body: JsonObject, job: ActualJob) -> tuple[FieldChange, ...]:
    """Return the differences between a job (`before`) and the one that a create would make (`after`).

    The whole request counts, staged packages included, but of the labels only the identifying ones. Values
    that a service fills in or leaves out by itself are no difference, nor are fields of a pipeline's
    `modelToUpload` that one side lacks.

    Args:
        body: The create's body.
        job: As read from the service, with its `body`.
    """
    names = REQUESTED | body.keys()
    changes = diff(_compared(job.body, names), _compared(body, names))
    return tuple(field for field in changes if not _is_alike(field))


def _compared(resource: JsonObject, names: Set[str]) -> dict[str, Any]:
    fields = {name: value for name, value in resource.items() if name in names}
    labels = resource.get("labels")
    valid_labels = labels if isinstance(labels, Mapping) else {}
    return {**fields, "labels": {name: valid_labels[name] for name in _LABELS if name in valid_labels}}


def _is_alike(field: FieldChange) -> bool:
    return is_spelling(field) or is_filled(field) or is_default(field) or _is_of_one_model(field)


def _is_of_one_model(field: FieldChange) -> bool:
    """Return True if only one side has a field of the model that a pipeline registers.

    The service adds fields to `modelToUpload`, and returns none that is input only, such as `containerSpec`.
    """
    return field.pointer.startswith("/modelToUpload/") and None in (field.before, field.after)


class Adopted(Struct, frozen=True):
    """Result of an adoption.

    Attributes:
        claim: The claim that names the job; None if the job was not adopted.
        why: The reason against the adoption, as a clause about the job.
        fields: The fields in which the job (`before`) differs from the manifest's (`after`).
        uncompared: The fields of the manifest's model that the service's answer lacks, such as
            `modelToUpload.containerSpec`; empty for a job that was bound already.
    """

    claim: Claim | None
    why: str = ""
    fields: tuple[FieldChange, ...] = ()
    uncompared: tuple[str, ...] = ()


class Adoption(Struct, frozen=True):
    """Adoption of a live job that none of this tool's requests made, on a person's request.

    Attributes:
        claim: The claim to write; its state and outcome fields are ignored.
        keys: The keys of the content under all versions of the hash.
        resource: The job's resource name.
        body: Returns the body of the create for a name.
        package: The URI of the staged package in that body; "" for none.
        holds: Returns True if the object of a URI has exactly the package's bytes.
    """

    claim: Claim
    keys: tuple[str, ...]
    resource: str
    body: Callable[[str], JsonObject]
    package: str
    holds: Callable[[str], bool]


def adopt(ports: Ports, adoption: Adoption, observed: Observed) -> Adopted:
    """Bind a job to its content by one conditional write; write nothing unless all of these hold:

    1. No claim of the content exists, and no claim names the job. One that binds the two is the result.
    2. No run has the content's labels: an apply would bind that one.
    3. The job hasn't ended, has no label of this tool, and equals the manifest's job apart from name and
       labels.

    The write succeeds only without a claim. So of several adoptions and applies of one content, one writes
    the claim, and only an apply that has written it sends a create.

    Raises:
        ServiceError: A service is unavailable. After a failed write, the claim may have been written.
    """
    if settled := _settled(adoption, observed):
        return settled
    job = _current(ports, adoption)
    if isinstance(job, str):
        return Adopted(None, job)
    if fields := _fields(adoption, job):
        return Adopted(None, "differs from the manifest's job", fields)
    adopted = _bind(ports, adoption, job)
    # After the write, as before a create: an emptied bucket shows no claim of others.
    ports.claims.check(runs=1)
    return replace(adopted, uncompared=_uncompared(adoption, job)) if adopted.claim else adopted


def _settled(adoption: Adoption, observed: Observed) -> Adopted | None:
    """Return the result if claims or runs settle it."""
    resource = adoption.resource
    for id, claim in observed.claims.items():
        if claim.resource == resource and id.key in adoption.keys:
            return Adopted(claim)
        if claim.resource == resource:
            return Adopted(None, f"is the job of the manifest {claim.base_name} already")
        if id.key in adoption.keys:
            return Adopted(
                None, f"is too late: the manifest was submitted already ({claim.job_name}, {claim.state})"
            )
    for run in observed.runs:
        if run.labels.get(KEY) in adoption.keys:
            return Adopted(None, f"is not the manifest's only job: {run.resource} has its labels")
    return None


def _current(ports: Ports, adoption: Adoption) -> ActualJob | str:
    """Return the job with its body, or the reason against its adoption."""
    try:
        job = ports.jobs.read(adoption.claim.api_version, adoption.claim.kind, adoption.resource)
    except NotFoundError:
        return "no longer exists"
    if job.state.ended:
        return f"has ended ({job.state})"
    label = next((name for name in job.labels if name.startswith(PREFIX)), "")
    return f"has the label {label}, which this tool gives to its own jobs" if label else job


def _fields(adoption: Adoption, job: ActualJob) -> tuple[FieldChange, ...]:
    """Return the differences between the job and the manifest's, other bytes of the code among them."""
    changes, package = differences(adoption.body(job.job_name), job), adoption.package
    staged = [field for field in changes if field.after == package]
    alike = [field for field in staged if isinstance(field.before, str) and adoption.holds(field.before)]
    fields = _without_secrets([field for field in changes if field not in alike], job.body)
    # Without such a difference, the job names the very object that the create would name.
    if package and not staged and not adoption.holds(package):
        return (*fields, FieldChange("/package", package, "other bytes"))
    return fields


def _uncompared(adoption: Adoption, job: ActualJob) -> tuple[str, ...]:
    changes = diff(job.body, adoption.body(job.job_name))
    missing = (field for field in changes if field.before is None and _is_of_one_model(field))
    return tuple(field.pointer[1:].replace("/", ".") for field in missing if not is_default(field))


def _without_secrets(fields: Sequence[FieldChange], body: JsonObject) -> tuple[FieldChange, ...]:
    """Return the fields without the secrets of the job; a manifest with any is refused."""
    if not fields:
        return ()
    hidden = without_secrets(body)
    return tuple(FieldChange(field.pointer, value_at(hidden, field.pointer), field.after) for field in fields)


def _bind(ports: Ports, adoption: Adoption, job: ActualJob) -> Adopted:
    claim = replace(
        adoption.claim,
        state=ClaimState.BOUND,
        # Its own name, by which people know it.
        job_name=job.job_name,
        # The manifest may not be merged yet: no apply may cancel the job for its absence.
        on_delete="keep",
        resource=job.resource,
        labels=labels_digest(job.labels),
        owner=ports.owner,
    )
    failed: ServiceError | None = None
    try:
        written = ports.claims.write(claim, 0)
    except ServiceError as error:
        written, failed = None, error
    # The store may have accepted the write and lost the answer: the claim that it holds now decides.
    versioned = written or ports.claims.read(claim.id).versioned
    if versioned is None and failed:
        raise failed
    if versioned is not None and versioned.claim.resource == job.resource:
        return Adopted(versioned.claim)
    return Adopted(None, "is too late: another process has just claimed the manifest's content")
