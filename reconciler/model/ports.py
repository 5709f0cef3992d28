"""Ports of the core to the outside: claims, jobs, expiring credentials, a clock, random bytes.

The product implements them with Google's APIs or the embedded service's; the simulator with a world that
loses, delays and forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from msgspec import Meta, Struct

from reconciler.base.concurrency import RunTasks, run_in_order
from reconciler.model.applied_tree import AppliedTree
from reconciler.model.claim import Claim, ClaimId
from reconciler.model.expectation import RunMetrics
from reconciler.model.job import ActualJob
from reconciler.model.manifest import JsonObject

if TYPE_CHECKING:
    from reconciler.model.commit_record import CommitRecord  # most passes read no commit record
    from reconciler.model.publication import CurrentModel, PublishedModel  # nor a publication


REFUSALS = frozenset({400, 401, 403, 404, 412, 413, 429})
"""HTTP statuses that can prove that no job was made."""

# Not ABORTED, CANCELLED, DEADLINE_EXCEEDED, INTERNAL or UNAVAILABLE: the request may have had its effect.
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
"""Codes of `google.rpc.Status` that prove it; any other answer may come from a proxy or a gateway."""


class Created(Struct, frozen=True):
    """Answer of a service that made a job."""

    job: ActualJob


class Refused(Struct, frozen=True):
    """Answer of a service that made no job; `retry_after` is in seconds, None if not given."""

    status: int
    reason: str
    message: str
    retry_after: float | None = None


class Taken(Struct, frozen=True):
    """Answer of a service that already has a job of that name."""

    message: str


class NotSent(Struct, frozen=True):
    """Failure before any byte of the request left."""

    message: str


class Unknown(Struct, frozen=True):
    """Unknown outcome: a job may exist or still appear."""

    message: str


Answer = Created | Refused | Taken | NotSent | Unknown


def refusal(status: int, reason: str, message: str, retry_after: float | None = None) -> Answer:
    """Classify an error answer: a refusal only if both status and reason prove it.

    Args:
        status: The HTTP status.
        reason: `error.status` of the answer's JSON body; "" if missing.
        message: In one line, for people.
        retry_after: The seconds that the answer asks to wait.
    """
    if status == 409 and reason == "ALREADY_EXISTS":
        return Taken(message)
    # A wrong "refused" would permit a second create, a wrong "unknown" only costs time.
    if status in REFUSALS and reason in REASONS:
        return Refused(status, reason, message, retry_after)
    return Unknown(message)


class Versioned(Struct, frozen=True, gc=False):
    """A claim as read; `generation` changes with every write and is never 0."""

    claim: Claim
    generation: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class ClaimRead(Struct, frozen=True):
    """Result of a claim's read: `versioned` is None if it is missing; `now` is the store's own time."""

    versioned: Versioned | None
    now: datetime


LEAST_HISTORY = 500
"""Number of claims and runs from which ended ones are summarized, unless a test chooses another."""
MOST_ANNOUNCED = 200_000
"""Most claims in an announcement."""


class Place(Struct, frozen=True):
    """What a set of claims is of: the repository's id, and the environment's settings of these names."""

    source: str
    project: str
    location: str
    instance: str = ""


class HostedRepository(Struct, frozen=True):
    """Repository on a server of GitHub, which keeps its number when it is renamed or transferred.

    Attributes:
        server: Its address, in small letters and without a slash at its end.
        number: Its decimal number there.
        name: `owner/name` at the time, for readers.
    """

    server: str
    number: str
    name: str = ""

    def is_same(self, other: HostedRepository) -> bool:
        """Return True if both are one repository, whatever its names."""
        return (self.server, self.number) == (other.server, other.number)


class StoredSummary(Struct, frozen=True):
    """The summary of ended runs as read.

    Attributes:
        place: The claims beside it.
        content: As it was written; empty for none.
        generation: Changes with every write; 0 for none.
        genesis: The generation of the store's genesis; 0 if unknown, without a summary.
        now: The store's own time before the read.
        rewritten: The generations that the genesis had before it was rewritten.
    """

    place: Place
    content: bytes
    generation: int
    genesis: int
    now: datetime
    rewritten: tuple[int, ...] = ()


class Announcement(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """New claims that a process may write, and publications that it may put in their places.

    Attributes:
        by: The random id of the process.
        at: The time of the newest of them, by the store's clock.
        ids: The claims.
        publications: The addresses of the publications; earlier versions can't read an object with any.
    """

    by: Annotated[str, Meta(max_length=100)]
    at: datetime
    ids: Annotated[tuple[ClaimId, ...], Meta(max_length=MOST_ANNOUNCED)]
    publications: Annotated[
        tuple[Annotated[str, Meta(max_length=1024)], ...], Meta(max_length=MOST_ANNOUNCED)
    ] = ()


class StoredTree(Struct, frozen=True):
    """The record of the tree that was applied last, as read.

    Attributes:
        tree: The record; None for none.
        generation: Changes with every write; 0 for none.
        now: The store's own time before the read; None if the store doesn't exist yet.
    """

    tree: AppliedTree | None
    generation: int
    now: datetime | None


class ClaimStore(Protocol):
    """Durable claims with compare-and-swap; linearizable, as Cloud Storage documents."""

    def check(self, runs: int) -> None:
        """Check that this is the repository's original store; never write.

        Args:
            runs: Number of the repository's runs in the service: only without runs, an empty store may be
                new, if the engine needs no preparation.

        Raises:
            ServiceError: The store is another one, or was emptied.
        """

    def prepare(self) -> None:
        """Write the genesis of a new store, which makes it the repository's own; keep an existing one."""

    def listed(self) -> Mapping[ClaimId, Versioned]:
        """Return every claim of this repository in this target; raise ServiceError if any is unavailable."""

    def of_key(self, key: str) -> Mapping[ClaimId, Versioned]:
        """Return the claims of all attempts at a content; raise ServiceError if any is unavailable."""

    def read(self, id: ClaimId) -> ClaimRead:
        """Return the current claim."""

    def summary(self) -> StoredSummary | None:
        """Return the summary of ended runs; None if the store doesn't exist yet.

        Raises:
            ServiceError: It is unavailable, or the store is another one, or was emptied.
        """

    def genesis_generation(self) -> int:
        """Return the generation of the genesis; 0 if it is missing."""

    def write_summary(self, content: bytes, generation: int) -> bool:
        """Replace the summary of this generation, 0 for none; return False if the generation differs."""

    def applied_tree(self) -> StoredTree:
        """Return the record of the tree that was applied last; raise ServiceError if it can't be read."""

    def write_applied_tree(self, tree: AppliedTree, generation: int) -> bool:
        """Replace the record of this generation, 0 for none; return False if the generation differs."""

    def write(self, claim: Claim, generation: int) -> Versioned | None:
        """Replace the claim of this generation, 0 for none; return None if the generation differs.

        Raises:
            ServiceError: The write failed or its result is unknown: read again.
        """


class Claims(ClaimStore, Protocol):
    """Claims whose new ones are announced in the summary before they are written."""

    def announce(self, ids: Iterable[ClaimId]) -> None:
        """Announce new claims in one write; `write` announces each new claim that wasn't.

        Raises:
            ServiceError: The announcement failed: none of the claims may be written.
        """

    def announce_publications(self, addresses: Iterable[str]) -> None:
        """Announce that other models may be put in their places at addresses than the summary says.

        Raises:
            ServiceError: The announcement failed: nothing may be published there.
        """

    def still_announced(
        self, announced: Iterable[Announcement], seen: Collection[ClaimId], outdated: datetime | None
    ) -> tuple[Announcement, ...]:
        """Return the announcements that a summary made of a look still needs.

        Args:
            announced: The announcements before the look.
            seen: The claims that the look found. Of the others, this process keeps only those of which the
                store may still take a write.
            outdated: Time before which other processes' announcements are dropped; None for none.
        """


class VersionedRecord(Struct, frozen=True):
    """A commit's record as read; `generation` changes with every write and is never 0."""

    record: CommitRecord
    generation: int


class CommitStore(Protocol):
    """Records of commits with compare-and-swap."""

    def all(self) -> Mapping[str, VersionedRecord]:
        """Return an environment's records, by commit; raise ServiceError if any is unavailable."""

    def write(self, record: CommitRecord, generation: int) -> bool:
        """Replace the record of this generation, 0 for none; return False if the generation differs."""

    def remove(self, sha: str, generation: int) -> None:
        """Remove the record if it has this generation."""

    def now(self) -> datetime:
        """Return the store's own time."""


class VersionedMetrics(Struct, frozen=True):
    """Judged metrics of a content's run as read.

    Attributes:
        run: None if nothing was judged yet.
        generation: Changes with every write; 0 without an object.
    """

    run: RunMetrics | None
    generation: int


NO_METRICS = VersionedMetrics(None, 0)


class MetricsStore(Protocol):
    """Judged metrics of runs with compare-and-swap."""

    def read(self, key: str) -> VersionedMetrics:
        """Return those of a content's run, by its key; raise ServiceError if they are unavailable."""

    def write(self, key: str, run: RunMetrics, generation: int) -> bool:
        """Replace those of this generation, 0 for none; return False if the generation differs."""


class VersionedCurrent(Struct, frozen=True):
    """The publication in place at an address as read.

    Attributes:
        current: None if there is none.
        generation: Changes with every write; 0 without an object.
    """

    current: CurrentModel | None
    generation: int


NO_CURRENT = VersionedCurrent(None, 0)


class Publications(Protocol):
    """Publications at an address. All methods raise ServiceError for what is unavailable or unusable."""

    def current(self) -> VersionedCurrent:
        """Return the publication in place."""

    def model(self, job_name: str) -> PublishedModel | None:
        """Return the record of a job's published model; None for none."""

    def write_model(self, model: PublishedModel) -> bool:
        """Write the record of a model; return False if there is one."""

    def write_current(self, current: CurrentModel, generation: int) -> bool:
        """Replace the publication in place of this generation, 0 for none; return False if it differs."""


class JobApi(Protocol):
    """Jobs of a target. Every listing is complete, or raises ServiceError."""

    def runs(self) -> tuple[ActualJob, ...]:
        """Return all runs with this repository's source label, without their specs."""

    def live(self) -> tuple[ActualJob, ...]:
        """Return all runs with this repository's source label that haven't ended, without their specs."""

    def lists(self, api_version: str) -> bool:
        """Return True if listings contain the jobs of this apiVersion."""

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        """Return all jobs with this key label, from any source, without their specs."""

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        """Return the current job, with its spec; raise NotFoundError if missing."""

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        """Return the resource name for a job name; None if the service chooses resource names."""

    def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
        """Send a create exactly once, with this credential and no other."""

    def cancel(self, job: ActualJob) -> None:
        """Request the job's cancel."""


class Credential(Struct, frozen=True):
    """Credential that expires at a known time and can't be renewed.

    Attributes:
        headers: Headers of the request; omitted from `repr`, as they contain the token.
        expires: Time from which the service refuses it, by the service's clock; never too early.
    """

    headers: Mapping[str, str]
    expires: datetime

    def __repr__(self) -> str:
        return f"Credential(expires={self.expires})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("expires", self.expires)]


class CredentialSource(Protocol):
    """Source of credentials for creates: their expiry bounds the time at which a create can be accepted."""

    def mint(self) -> Credential:
        """Return a new credential for a single create, or raise ServiceError."""


class Clock(Protocol):
    """The process's own clock, only for its own waits: other processes never see its times."""

    def monotonic(self) -> float:
        """Return seconds since a fixed moment."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Bounds(Struct, frozen=True):
    """Time bounds that at-most-once needs besides the credential's expiry.

    Attributes:
        executes: The longest time between the arrival of a create's head and its job's existence. The service
            judges the credential when the head arrives. So this time includes the body's way, of which the
            transport allows 60 s to write (`HttpRequest.timeout`).
        visible: The longest time between a job's existence and its being in every listing.
        look_again: Seconds between the two searches that must find no job before a create is sent again.
        lifetime: Lifetime of a create's credential, if it can be chosen.
        pace: Seconds between the creates of an apply: Vertex AI accepts 60 a minute.
    """

    executes: timedelta
    visible: timedelta
    look_again: float
    lifetime: timedelta
    pace: float = 0.0


# Google documents neither of the first two; docs/at-most-once.md says what happens if they are too short.
GOOGLE_BOUNDS = Bounds(
    executes=timedelta(minutes=5),
    visible=timedelta(minutes=5),
    look_again=5.0,
    lifetime=timedelta(minutes=5),
    pace=1.0,
)
EMBEDDED_BOUNDS = Bounds(timedelta(seconds=2), timedelta(0), 0.1, timedelta(seconds=10))
"""The embedded service accepts, makes and lists in one transaction; two seconds for a busy machine."""


class Ports(Struct, frozen=True):
    """All ports of a target.

    Attributes:
        source: The repository's id.
        chance: Returns the given number of random bytes.
        bounds: Time bounds of the service.
        owner: Description of this process, for people who read a claim.
        instance: The environment's `instance`; "" for none.
        neighbours: The instances of the repository's other environments with the same project and location.
        together: Runs several reads.
        least_history: Number of claims and runs from which ended ones are summarized.
    """

    source: str
    claims: Claims
    jobs: JobApi
    credentials: CredentialSource
    clock: Clock
    chance: Callable[[int], bytes]
    bounds: Bounds
    owner: str
    instance: str
    neighbours: frozenset[str]
    together: RunTasks = run_in_order
    least_history: int = LEAST_HISTORY
