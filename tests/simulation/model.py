"""What the simulated service keeps of jobs and requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reconciler.model.job import ATTEMPT, INSTANCE, KEY, REQUEST_ID, SOURCE, State
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import Answer
from reconciler.reporting.github.contexts import OVERALL, Contexts

OURS = "acme-models"
"""The source of the repository under test."""
PERSON = "person"
"""Who cancels jobs outside the tool."""
PARENT = "projects/acme-ml/locations/us-central1"
TIMEOUT = 60.0
"""Seconds that a client gives one request, as the product's transport does."""


@dataclass(frozen=True, slots=True)
class Place:
    """One environment of the repository; all of them share one project and location.

    Attributes:
        environment: Its name.
        instance: As in `Ports`.
        neighbours: As in `Ports`.
        begins: When its reconcilers begin, in seconds of the world.
        engine: The environment's engine.
        overall: The context of its verdicts.
    """

    environment: str = "prod"
    instance: str = ""
    neighbours: frozenset[str] = frozenset()
    begins: float = 0.0
    overall: str = OVERALL
    engine: str = "local"

    @property
    def contexts(self) -> Contexts:
        """The contexts of its statuses."""
        return Contexts(self.environment, self.overall)


@dataclass(slots=True)
class Job:
    """One job of the service, also after nobody can see it any more.

    Attributes:
        origin: "create" for what a request of a reconciler made; "person" for what one made by hand; else
            "foreign", "other" or "trial".
        hidden: Seconds after `made` in which a listing may leave it out.
        unseen: Seconds after `made` in which every listing does.
        told: How many whole passes have seen that it ended.
        gone: Deleted, or its record dropped.
        strange: Whether the service calls its state by a word that nobody knows.
        unstarted: Whether its set-up fails, so that its trainer is never started.
        sender: Which process's request made it.
        asked_by: Who asked for its end first: a reconciler, or `PERSON`.
        adopted_as: Key and attempt of the claim that adopted it; None for none.
    """

    name: str
    job_name: str
    api_version: str
    kind: str
    body: JsonObject
    made: float
    origin: str
    hidden: float = 0.0
    unseen: float = 0.0
    told: int = 0
    sender: str = ""
    state: State = State.QUEUED
    started: float | None = None
    ended: float | None = None
    gone: bool = False
    strange: bool = False
    unstarted: bool = False
    asked_to_end: bool = False
    asked_by: str = ""
    adopted_as: tuple[str, str] | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        labels: dict[str, str] = self.body["labels"]
        return labels

    @property
    def slot(self) -> tuple[str, str]:
        """Its key and attempt, by its labels or the claim that adopted it."""
        return self.adopted_as or (self.labels.get(KEY, ""), self.labels.get(ATTEMPT, ""))

    @property
    def instance(self) -> str:
        """The instance that it belongs to, by its labels; "" for none."""
        return self.labels.get(INSTANCE, "")

    def counted(self, moment: float) -> bool:
        """Return whether it hadn't ended in vain at a moment."""
        in_vain = self.state in (State.FAILED, State.CANCELLED)
        return not in_vain or self.ended is None or self.ended >= moment

    @property
    def live(self) -> bool:
        """Whether it uses machines and nobody has asked it to end."""
        return not (self.gone or self.state.ended or self.asked_to_end)


@dataclass(slots=True)
class Request:
    """One create on its way, and what came back so far.

    Attributes:
        expires: When its credential ends, by the service's clock.
        accepted: When the service accepted its head; None before that, and where it refused.
    """

    api_version: str
    kind: str
    body: JsonObject
    expires: float
    sender: str
    accepted: float | None = None
    answer: Answer | None = None

    @property
    def slot(self) -> tuple[str, str]:
        """Return the key and attempt that its labels name."""
        return self.body["labels"][KEY], self.body["labels"][ATTEMPT]

    @property
    def instance(self) -> str:
        """The instance that its labels name; "" for none."""
        instance: str = self.body["labels"].get(INSTANCE, "")
        return instance


def by_hand_name(name: str, number: int) -> str:
    """Return the name of a job that a person makes by hand, as a manifest of this name says."""
    return f"{name}__{number}"


def ours(jobs: Iterable[Job]) -> list[Job]:
    """The jobs that requests of this repository's reconcilers made."""
    return [job for job in jobs if job.origin == "create" and job.labels.get(SOURCE) == OURS]


def spec_of(job: Job) -> JsonObject:
    """The part of a job that a manifest's spec stands for."""
    if job.kind == "CustomJob":
        spec: JsonObject = filled(job)["jobSpec"]
        return spec
    if job.kind == "Job":
        return {"trainingInput": job.body["trainingInput"]}
    return {name: value for name, value in job.body.items() if name not in ("displayName", "labels")}


def filled(job: Job) -> JsonObject:
    """The resource as the service gives it back: with what it fills in by itself."""
    if job.kind != "CustomJob":
        return {**job.body, "name": job.name}
    disk = {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100}
    spec = job.body["jobSpec"]
    pools = [{**pool, "diskSpec": disk} for pool in spec["workerPoolSpecs"]]
    return {**job.body, "name": job.name, "jobSpec": {**spec, "workerPoolSpecs": pools}}


def short(job: Job) -> str:
    return f"{short_slot(job.slot)} try {job.labels.get(REQUEST_ID, '')[:6]}"


def short_id(key: str, attempt: object) -> str:
    """Return a claim's name in traces."""
    return f"{key[:6]}/{attempt}"


def short_slot(slot: tuple[str, str]) -> str:
    key, attempt = slot
    return f"key {key[:6]} attempt {attempt}"
