"""The outside of one target in memory; a test can choose each answer, and nothing fails by itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.applied_tree import AppliedTree, tree_json, tree_of
from reconciler.model.claim import Claim, ClaimId, claim_json, claim_of
from reconciler.model.commit_record import CommitRecord, record_json, record_of
from reconciler.model.job import KEY, SOURCE, ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, JsonObject
from reconciler.model.ports import (
    LEAST_HISTORY,
    Answer,
    Bounds,
    ClaimRead,
    Created,
    Credential,
    Place,
    Ports,
    StoredSummary,
    StoredTree,
    Unknown,
    Versioned,
    VersionedRecord,
)
from reconciler.submission.announcements import AnnouncedClaims

PLACE = Place("acme", "acme-ml", "here")
PARENT = "projects/acme/locations/here/customJobs"
BOUNDS = Bounds(
    executes=timedelta(seconds=100),
    visible=timedelta(seconds=50),
    look_again=5.0,
    lifetime=timedelta(seconds=30),
)


@dataclass
class Time:
    """The clock of the services, and of this process."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now.timestamp()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)


@dataclass
class Claims:
    """Claims with generations; `faults` holds the results of the next writes: "lost", "denied", "failed"."""

    time: Time
    held: dict[ClaimId, Versioned] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    history: list[Claim] = field(default_factory=list)
    before_write: Callable[[Claim], None] = lambda claim: None
    genesis: bool = True
    stored: tuple[bytes, int] = (b"", 0)
    marked: int = 1
    tree: tuple[bytes, int] = (b"", 0)
    _generations: Any = field(default_factory=lambda: itertools.count(1))

    def check(self, runs: int) -> None:
        if not self.genesis:
            raise ServiceError("no genesis")

    def prepare(self) -> None:
        self.genesis = True

    def listed(self) -> Mapping[ClaimId, Versioned]:
        return dict(self.held)

    def of_key(self, key: str) -> Mapping[ClaimId, Versioned]:
        return {id: found for id, found in self.held.items() if id.key == key}

    def summary(self) -> StoredSummary | None:
        content, generation = self.stored
        return StoredSummary(PLACE, content, generation, self.marked, self.time.now)

    def genesis_generation(self) -> int:
        return self.marked

    def write_summary(self, content: bytes, generation: int) -> bool:
        if self.stored[1] != generation:
            return False
        self.stored = content, generation + 1
        return True

    def applied_tree(self) -> StoredTree:
        content, generation = self.tree
        return StoredTree(tree_of(content) if content else None, generation, self.time.now)

    def write_applied_tree(self, tree: AppliedTree, generation: int) -> bool:
        if self.tree[1] != generation:
            return False
        self.tree = tree_json(tree), next(self._generations)
        return True

    def read(self, id: ClaimId) -> ClaimRead:
        return ClaimRead(self.held.get(id), self.time.now)

    def write(self, claim: Claim, generation: int) -> Versioned | None:
        self.before_write(claim)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "failed":
            raise ServiceError("the store is away")
        there = self.held.get(claim.id)
        if (there.generation if there else 0) != generation:
            return None
        written = Versioned(claim_of(claim_json(claim)), next(self._generations))
        self.held[claim.id] = written
        self.history.append(claim)
        if fault == "lost":
            raise ServiceError("no answer")
        return None if fault == "denied" else written


@dataclass
class Commits:
    """The pending statuses of commits, kept as JSON with generations."""

    time: Time
    held: dict[str, VersionedRecord] = field(default_factory=dict)
    _generations: Any = field(default_factory=lambda: itertools.count(1))

    def all(self) -> Mapping[str, VersionedRecord]:
        return dict(self.held)

    def write(self, record: CommitRecord, generation: int) -> bool:
        there = self.held.get(record.sha)
        if (there.generation if there else 0) != generation:
            return False
        kept = record_of(json.loads(json.dumps(record_json(record))))
        self.held[record.sha] = VersionedRecord(kept, next(self._generations))
        return True

    def remove(self, sha: str, generation: int) -> None:
        there = self.held.get(sha)
        if there and there.generation == generation:
            del self.held[sha]

    def now(self) -> datetime:
        return self.time.now


@dataclass
class Jobs:
    """A service; `answers` holds the results of the next creates: an answer, or "lost" for a made job."""

    time: Time
    jobs: list[ActualJob] = field(default_factory=list)
    bodies: dict[str, JsonObject] = field(default_factory=dict)
    answers: list[Answer | str] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    sent: list[tuple[JsonObject, Credential]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    late: list[ActualJob] = field(default_factory=list)

    def runs(self) -> tuple[ActualJob, ...]:
        return tuple(replace(job, spec={}, body={}) for job in self.jobs if job.resource not in self.hidden)

    def live(self) -> tuple[ActualJob, ...]:
        return tuple(run for run in self.runs() if not run.state.ended)

    def lists(self, api_version: str) -> bool:
        return True

    def of_base(self, base: str) -> tuple[ActualJob, ...]:
        named = (run for run in self.runs() if run.job_name.startswith(f"{base}_"))
        return tuple(run for run in named if SOURCE in run.labels)

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        return tuple(run for run in self.runs() if run.labels.get(KEY) == key and run.kind == kind)

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        for job in self.jobs:
            if job.resource == resource:
                return job
        raise NotFoundError(f"no {resource}")

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        return f"projects/acme/jobs/{job_name}" if api_version == ML_V1 else None

    def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
        self.sent.append((body, credential))
        answer = self.answers.pop(0) if self.answers else ""
        if isinstance(answer, str):
            job = self.add(body, api_version, kind)
            return Unknown("no answer came") if answer == "lost" else Created(job)
        return answer

    def add(self, body: JsonObject, api_version: str = AIPLATFORM_V1, kind: str = "CustomJob") -> ActualJob:
        """Add a job with this body."""
        name = body.get("jobId")
        job = ActualJob(
            resource=f"projects/acme/jobs/{name}" if name else f"{PARENT}/{len(self.jobs) + 1}",
            job_name=name or body["displayName"],
            api_version=api_version,
            kind=kind,
            state=State.QUEUED,
            service_state="JOB_STATE_QUEUED",
            labels=body["labels"],
            body=body,
            create_time=self.time.now.isoformat().replace("+00:00", "Z"),
        )
        self.jobs.append(job)
        return job

    def becomes(self, job: ActualJob, state: State) -> None:
        """Change a job's state."""
        self.jobs = [replace(j, state=state) if j.resource == job.resource else j for j in self.jobs]

    def cancel(self, job: ActualJob) -> None:
        self.cancelled.append(job.resource)
        self.becomes(job, State.CANCELLED)


@dataclass
class CredentialSource:
    """Credentials that last for the bounds' lifetime."""

    time: Time
    minted: int = 0

    def mint(self) -> Credential:
        self.minted += 1
        expires = self.time.now + BOUNDS.lifetime
        return Credential({"Authorization": f"Bearer token-{self.minted}"}, expires)


@dataclass
class Outside:
    """All services of a target, and the ports to them."""

    source: str = "acme"
    time: Time = field(default_factory=Time)
    least_history: int = LEAST_HISTORY

    def __post_init__(self) -> None:
        self.claims = Claims(self.time)
        self.commits = Commits(self.time)
        self.jobs = Jobs(self.time)
        self.credentials = CredentialSource(self.time)
        self._drawn = 0
        self._processes = itertools.count(1)

    @property
    def ports(self) -> Ports:
        return Ports(
            source=self.source,
            claims=AnnouncedClaims(self.claims, self.time, self._process, self.least_history),
            jobs=self.jobs,
            credentials=self.credentials,
            clock=self.time,
            chance=self._chance,
            bounds=BOUNDS,
            owner="a test",
            instance="",
            neighbours=frozenset(),
            least_history=self.least_history,
        )

    def _process(self, count: int) -> bytes:
        return next(self._processes).to_bytes(count, "big")

    def _chance(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")

    @property
    def claim(self) -> Claim:
        """Return the only claim."""
        (found,) = self.claims.held.values()
        return found.claim


def labels(key: str, *, source: str = "acme", attempt: int = 1, **more: str) -> dict[str, str]:
    """Return the labels of a run made by the reconciler."""
    return {SOURCE: source, KEY: key, "reconciler-attempt": str(attempt), **more}
