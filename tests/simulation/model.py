"""Records of jobs and requests in the simulated service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.model.job import ATTEMPT, INSTANCE, KEY, REQUEST_ID, SOURCE, State
from reconciler.model.manifest import TRAINING_PIPELINE, JsonObject
from reconciler.model.ports import Answer
from reconciler.reporting.github.contexts import OVERALL, Contexts

OURS = "acme-models"
"""The source of the repository under test."""
PERSON = "person"
"""Name of the people who cancel jobs outside the tool."""
PARENT = "projects/acme-ml/locations/us-central1"
_TRIALS = ("1", "2", "3")
TIMEOUT = 60.0
"""Seconds that a client allows a request, as the product's transport does."""


@dataclass(frozen=True, slots=True)
class Place:
    """Environment of the repository; all environments share a project and location.

    Attributes:
        environment: Its name.
        instance: As in `Ports`.
        neighbours: As in `Ports`.
        begins: The start of its reconcilers, in seconds of the world.
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
        """The contexts of the environment's statuses."""
        return Contexts(self.environment, self.overall)


@dataclass(slots=True)
class Job:
    """Job of the service, kept even after it is no longer visible.

    Attributes:
        origin: "create" for a job made by a reconciler's request; "person" for a job made by hand; else
            "foreign", "other", "trial", or "backing" for one that trains for a pipeline.
        hidden: Seconds after `made` during which a listing may omit it.
        unseen: Seconds after `made` during which every listing omits it.
        told: The number of whole passes that have seen its end.
        gone: Deleted, or its record dropped.
        strange: True if the service reports its state by an unknown word.
        unstarted: True if its set-up fails, so that its trainer never starts.
        sender: The process whose request made it.
        asked_by: The first to ask for its end: a reconciler, or `PERSON`.
        adopted_as: Key and attempt of the claim that adopted it, or None.
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
        """The labels in the job's body."""
        labels: dict[str, str] = self.body["labels"]
        return labels

    @property
    def slot(self) -> tuple[str, str]:
        """The key and attempt, from the job's labels or from the claim that adopted it."""
        return self.adopted_as or (self.labels.get(KEY, ""), self.labels.get(ATTEMPT, ""))

    @property
    def instance(self) -> str:
        """The instance in the job's labels, or ""."""
        return self.labels.get(INSTANCE, "")

    def counted(self, moment: float) -> bool:
        """Return True if, at a moment, the job hadn't failed or been cancelled."""
        in_vain = self.state in (State.FAILED, State.CANCELLED)
        return not in_vain or self.ended is None or self.ended >= moment

    @property
    def live(self) -> bool:
        """True if the job uses machines and its end wasn't requested."""
        return not (self.gone or self.state.ended or self.asked_to_end)


@dataclass(slots=True)
class Request:
    """Create in flight, with its answers so far.

    Attributes:
        expires: The credential's expiry, by the service's clock.
        accepted: The time at which the service accepted its head; None before that, and after a refusal.
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
        """The key and attempt in the request's labels."""
        return self.body["labels"][KEY], self.body["labels"][ATTEMPT]

    @property
    def instance(self) -> str:
        """The instance in the request's labels, or ""."""
        instance: str = self.body["labels"].get(INSTANCE, "")
        return instance


def by_hand_name(name: str, number: int) -> str:
    """Return the name of a job that a person makes by hand, according to a manifest of this name."""
    return f"{name}__{number}"


def ours(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that this repository's reconcilers created."""
    return [job for job in jobs if job.origin == "create" and job.labels.get(SOURCE) == OURS]


def spec_of(job: Job) -> JsonObject:
    """Return the part of a job that corresponds to a manifest's spec."""
    if job.kind == "CustomJob":
        spec: JsonObject = filled(job)["jobSpec"]
        return spec
    if job.kind == "Job":
        return {"trainingInput": job.body["trainingInput"]}
    return {name: value for name, value in job.body.items() if name not in ("displayName", "labels")}


def folder_of(job: Job) -> str:
    """Return the folder that a job writes its results to; "" for none."""
    return engine_spec(job.api_version).output_directory(job.kind, spec_of(job))


def trials_of(job: Job) -> tuple[str, ...]:
    """Return the ids of the trials of a tuning job or pipeline, the best one first; of another job none."""
    if "trialJobSpec" not in job.body.get("trainingTaskInputs", job.body):
        return ()
    first = crc32(job.name.encode()) % len(_TRIALS)
    return (*_TRIALS[first:], *_TRIALS[:first])


def _trials(job: Job) -> list[JsonObject]:
    if job.state is not State.SUCCEEDED:
        return []
    values = {trial: 1.0 / number for number, trial in enumerate(trials_of(job), 1)}
    return [
        {
            "id": trial,
            "state": "SUCCEEDED",
            "finalMeasurement": {"metrics": [{"metricId": "accuracy", "value": value}]},
        }
        for trial, value in sorted(values.items())
    ]


def backing_of(job: Job) -> JsonObject:
    """Return the resource of a pipeline's backing job, as far as its trials go; {} for another job."""
    return {"trials": _trials(job)} if job.kind == TRAINING_PIPELINE and trials_of(job) else {}


def filled(job: Job) -> JsonObject:
    """Return the resource as the service returns it, with its default values and its trials."""
    if job.kind == TRAINING_PIPELINE:
        model = {"displayName": job.body["modelToUpload"]["displayName"], "name": f"{PARENT}/models/1"}
        task = f"gs://elsewhere/{job.body['trainingTaskDefinition'].rpartition('/')[2]}"
        return {**job.body, "name": job.name, "trainingTaskDefinition": task, "modelToUpload": model}
    if job.kind == "HyperparameterTuningJob":
        return {**job.body, "name": job.name, "trials": _trials(job)}
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
