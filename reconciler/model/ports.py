"""What the deciding core asks of the outside: claims, jobs, credentials that expire, a clock, chance.

The product plugs in Google's APIs or the embedded service's; the simulator plugs in a world that loses,
delays and forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from reconciler.model.claim import Claim, ClaimId
from reconciler.model.job import ActualJob
from reconciler.model.manifest import JsonObject

if TYPE_CHECKING:
    from reconciler.model.commit_record import CommitRecord  # most passes owe no commit anything


REFUSALS = frozenset({400, 401, 403, 404, 412, 413, 429})
"""The HTTP statuses that can say for certain that nothing was made."""

REASONS = frozenset(
    {
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
    }
)
"""The words of `google.rpc.Status` that say so; another word, or none, may be a proxy's or a gateway's."""


class Created(Struct, frozen=True):
    """The service named the job that it made."""

    job: ActualJob


class Refused(Struct, frozen=True):
    """The service made nothing and said why; `retry_after` is in seconds, None where it doesn't say."""

    status: int
    reason: str
    message: str
    retry_after: float | None = None


class Taken(Struct, frozen=True):
    """A job has the name already; the service makes no second one of that name."""

    message: str


class NotSent(Struct, frozen=True):
    """Not a byte of the request left."""

    message: str


class Unknown(Struct, frozen=True):
    """There may be a job, or there may come one."""

    message: str


Answer = Created | Refused | Taken | NotSent | Unknown


def refusal(status: int, reason: str, message: str, retry_after: float | None = None) -> Answer:
    """What an error answer means: a refusal only where status and word both are known to mean one.

    Args:
        status: The HTTP status.
        reason: `error.status` of the answer's JSON body; "" where it has none.
        message: In one line, for people.
        retry_after: The seconds that the answer asks to wait.
    """
    if status == 409 and reason == "ALREADY_EXISTS":
        return Taken(message)
    if status in REFUSALS and reason in REASONS:
        return Refused(status, reason, message, retry_after)
    return Unknown(message)


class Versioned(Struct, frozen=True, gc=False):
    """A claim as it was read; `generation` changes with every write of it, and is never 0."""

    claim: Claim
    generation: int


class ClaimRead(Struct, frozen=True):
    """One look at a claim: `found` is None where there is none; `now` is the store's own time."""

    found: Versioned | None
    now: datetime


class ClaimStore(Protocol):
    """Durable claims, changed only by whoever knows what is there: linearizable, says Cloud Storage."""

    def check(self, runs: int) -> None:
        """Check that this is the store that this repository began with; write nothing.

        Args:
            runs: How many runs of this repository the service has: with none, an empty store may be new
                where nobody has to prepare it.

        Raises:
            ServiceError: It is another store, or it was emptied.
        """

    def found(self) -> None:
        """Make this the repository's store, where it is new; nothing where it is that already."""

    def listed(self) -> Mapping[ClaimId, Versioned]:
        """Return every claim of this repository in this target; raises ServiceError rather than a part."""

    def read(self, id: ClaimId) -> ClaimRead:
        """One claim as it is now."""

    def write(self, claim: Claim, generation: int) -> Versioned | None:
        """Replace the claim of this generation, 0 for none; None where that isn't what is there.

        Raises:
            ServiceError: Whether it was written may be unknown: read again.
        """


class VersionedRecord(Struct, frozen=True):
    """A commit's record as it was read; `generation` changes with every write of it, and is never 0."""

    record: CommitRecord
    generation: int


class CommitStore(Protocol):
    """What is owed to commits, changed only by whoever knows what is there."""

    def all(self) -> Mapping[str, VersionedRecord]:
        """The records of one environment, by commit; raises ServiceError where it can't have them all."""

    def write(self, record: CommitRecord, generation: int) -> bool:
        """Replace the record of this generation, 0 for none; False where that isn't what is there."""

    def remove(self, sha: str, generation: int) -> None:
        """Remove the record of this generation; nothing where that isn't what is there."""

    def now(self) -> datetime:
        """The store's own time."""


class JobApi(Protocol):
    """The jobs of one target. Every listing is complete, or raises ServiceError."""

    def runs(self) -> tuple[ActualJob, ...]:
        """All runs that carry this repository's source label, without their specs."""

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        """All jobs that carry this key label, whichever source they have, without their specs."""

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        """A job as it is now, with its spec; raises NotFoundError."""

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        """The resource name that a job of that name has; None where the service chooses it."""

    def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
        """Send one create, once, with this credential and no other."""

    def cancel(self, job: ActualJob) -> None:
        """Ask for the job's end."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Proof of identity that ends at a known time and can't be renewed.

    Attributes:
        headers: What the request carries.
        expires: When the service stops to take it, by the service's clock, never too early.
    """

    headers: Mapping[str, str] = field(repr=False)
    expires: datetime


class Fence(Protocol):
    """Makes the credentials that bound when a create can be accepted."""

    def mint(self) -> Credential:
        """A new credential for one create; raises ServiceError."""


class Clock(Protocol):
    """The process's own time: good for its own waiting, and for nothing that others see."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What at-most-once rests on beside the fence.

    Attributes:
        executes: The longest time between the arrival of a create's head and its job's existence. The service
            judges the credential when the head arrives. So this time includes the body's way, of which the
            transport allows 60 s to write (`HttpRequest.timeout`).
        visible: The longest time between a job's existence and its being in every listing.
        look_again: Seconds between two looks, both of which must find nothing, before a create is sent anew.
        lifetime: How long a create's credential lasts, where that can be chosen.
        pace: Seconds from one create to the next, over all that one apply sends: Vertex AI takes 60 a minute.
    """

    executes: timedelta
    visible: timedelta
    look_again: float
    lifetime: timedelta
    pace: float = 0.0


GOOGLE_BOUNDS = Bounds(timedelta(minutes=5), timedelta(minutes=5), 5.0, timedelta(minutes=5), pace=1.0)
EMBEDDED_BOUNDS = Bounds(timedelta(seconds=2), timedelta(0), 0.1, timedelta(seconds=10))
"""The embedded service accepts, makes and lists in one transaction; two seconds for a busy machine."""


@dataclass(frozen=True, slots=True)
class Ports:
    """All that the core knows of the outside of one target.

    Attributes:
        source: The id of the repository whose jobs these are.
        chance: Gives that many random bytes.
        bounds: What the waiting rests on.
        owner: Who this process is, for people who read a claim.
        instance: The environment's `instance`; "" for none.
        neighbours: The instances of the repository's other environments with the same project and location.
    """

    source: str
    claims: ClaimStore
    jobs: JobApi
    fence: Fence
    clock: Clock
    chance: Callable[[int], bytes]
    bounds: Bounds
    owner: str = ""
    instance: str = ""
    neighbours: frozenset[str] = frozenset()
