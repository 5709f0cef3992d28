"""Simulated service: a clock, a queue of future events, and every job that ever existed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from reconciler.model.job import REQUEST_ID, ActualJob, ErrorInfo, State
from reconciler.model.manifest import ML_V1, TRAINING_PIPELINE, JsonObject
from reconciler.model.ports import Answer, Bounds, Created, refusal

from .faults import SET_UP, Faults
from .model import PARENT, Job, Request, backing_of, filled, folder_of, short, spec_of

if TYPE_CHECKING:
    from .checker import Checkers

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_COLLECTIONS = {
    "CustomJob": "customJobs",
    "HyperparameterTuningJob": "hyperparameterTuningJobs",
    TRAINING_PIPELINE: "trainingPipelines",
    "Job": "jobs",
}
_FOR_OTHERS = ("trial", "backing")
"""Origins of jobs that train for another one."""
_UNSTARTED = ErrorInfo("INDEX_UNREACHABLE", {"class": "set-up", "image": "gcr.io/acme/train:1"})
_LONG = (5.0, 120.0, 1800.0, 7200.0, 20000.0)
_SHORT = (5.0, 5.0, 60.0, 600.0, 20000.0)
"""Seconds that a job takes."""
_STRANGE = "JOB_STATE_HIBERNATING"


@dataclass(slots=True)
class World:
    """Everything outside the reconcilers.

    Attributes:
        now: Seconds since the beginning, by the services' common clock.
        bounds: The bounds that the services keep in the absence of faults.
        expires: True if the service checks a credential's expiry.
        blind_until: The time until which listings omit jobs that they must show.
        blind_age: The age in seconds from which jobs are omitted until then; 0 for all.
        every_try: True if all jobs show a mark of their claim: a world in which marks carry no information.
        set_ups: The chance of failed set-ups, of its own, so that runs without any stay unchanged.
        log: The events: time, actor, action.
        shortens: True if most jobs take little time, and succeed.
        saved: Callback for each job whose trainer has saved its model.
        folders: By output folder: the jobs that wrote to it, in the order of their starts.
    """

    rng: random.Random
    faults: Faults
    bounds: Bounds
    expires: bool = True
    every_try: bool = False
    now: float = 0.0
    store_away_until: float = 0.0
    blind_until: float = 0.0
    blind_age: float = 0.0
    storm_until: float = 0.0
    storm: int = 429
    a_minute: float = 60.0
    set_ups: tuple[random.Random, float] = (random.Random(0), 0.0)
    jobs: list[Job] = field(default_factory=list)
    log: list[tuple[float, str, str]] = field(default_factory=list)
    folders: dict[str, list[Job]] = field(default_factory=dict)
    requests: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _tokens: float = 5.0
    _counted: float = 0.0
    shortens: bool = False
    saved: Callable[[Job], None] = lambda job: None
    checker: Checkers = field(init=False)

    def trace(self, who: str, what: str) -> None:
        """Record an event in the log."""
        self.log.append((self.now, who, what))

    @staticmethod
    def time(seconds: float) -> datetime:
        """Return a moment in the service's form."""
        return _EPOCH + timedelta(seconds=seconds)

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Schedule an event."""
        self._number += 1
        heapq.heappush(self._events, (max(moment, self.now), self._number, event))

    def next_event(self) -> float | None:
        """Return the time of the next event."""
        return self._events[0][0] if self._events else None

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run the events up to then."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end

    # Creates.

    def head_arrives(self, request: Request) -> None:
        """Judge a request by its head, credential included: refuse it, or accept it and await its body."""
        self.requests += 1
        request.answer = self._refused(request)
        if request.answer is None:
            request.accepted = self.now
            self.checker.accepted(request)

    def body_arrives(self, request: Request) -> None:
        """Execute an accepted request: now or late, counted from the arrival of its head."""
        if request.accepted is None:
            return
        delay, executes = 0.0, self.bounds.executes.total_seconds()
        if self.faults.happens("executed late"):
            left = max(0.0, request.accepted + executes - self.now)
            delay = left * self.rng.choice((self.rng.random(), 0.99))
        if self.faults.happens("executed after the bound"):
            delay = executes * self.rng.uniform(2.0, 8.0)
        self.trace("service", f"has the whole create of {request.sender}, done in {delay:.0f} s")
        if self.faults.happens("HTML instead of an answer"):
            request.answer = refusal(502, "", "a proxy said: Bad Gateway")
        self.at(self.now + delay, lambda: self._made_of(request))
        if not delay:
            self.advance(0.0)

    def _refused(self, request: Request) -> Answer | None:
        if self.expires and self.now > request.expires:
            self.faults.tells("credential expired on arrival")
            return refusal(401, "UNAUTHENTICATED", "the credential has expired")
        if self.now < self.storm_until:
            after = self.rng.choice((None, 1.0, 30.0, 600.0))
            reason = "RESOURCE_EXHAUSTED" if self.storm == 429 else "UNAVAILABLE"
            return refusal(self.storm, reason, "the service is overloaded", after)
        if self.faults.happens("refused"):
            status, reason = self.rng.choice(((400, "INVALID_ARGUMENT"), (403, "PERMISSION_DENIED")))
            return refusal(status, reason, "the service doesn't want it")
        if not self._token():
            self.faults.tells("submission quota used up")
            return refusal(429, "RESOURCE_EXHAUSTED", "too many submissions a minute")
        return None

    def _token(self) -> bool:
        rate = self.a_minute
        self._tokens = min(max(1.0, rate / 12), self._tokens + (self.now - self._counted) * rate / 60)
        self._counted = self.now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _made_of(self, request: Request) -> None:
        name = request.body.get("jobId")
        if name and any(job.job_name == name for job in self.jobs if job.api_version == ML_V1):
            request.answer = request.answer or refusal(409, "ALREADY_EXISTS", f"{name} exists")
            return
        job = self.make(request.api_version, request.kind, request.body, "create", request.sender)
        if not name and self.faults.happens("made twice of one request"):
            self.make(request.api_version, request.kind, request.body, "create", request.sender)
        if request.answer is None:
            request.answer = Created(self.shown(job))

    def make(self, api_version: str, kind: str, body: JsonObject, origin: str, sender: str = "") -> Job:
        """Make a new job, and decide its life."""
        number = len(self.jobs) + 1
        job_name = str(body.get("jobId") or body["displayName"])
        tail = job_name if api_version == ML_V1 else str(1_000_000 + number)
        job = Job(
            name=f"{PARENT}/{_COLLECTIONS[kind]}/{tail}",
            job_name=job_name,
            api_version=api_version,
            kind=kind,
            body=body,
            made=self.now,
            origin=origin,
            sender=sender,
            hidden=self.bounds.visible.total_seconds(),
        )
        if self.faults.happens("hidden beyond the bound"):
            job.hidden *= self.rng.uniform(2.0, 8.0)
        # Either no listing shows the job for a while, or a listing shows it and the next doesn't.
        if self.faults.happens("job not listed yet"):
            job.unseen = job.hidden * self.rng.choice((self.rng.random(), 0.99))
        job.strange = self.faults.happens("unknown state")
        chance, rate = self.set_ups
        job.unstarted = origin == "create" and chance.random() < rate
        self.jobs.append(job)
        self.trace("service", f"made {job.name} ({origin}) {short(job)}")
        self._live(job)
        if kind == "HyperparameterTuningJob" and self.faults.happens("trials listed as jobs"):
            trial = {**body, "jobSpec": body["trialJobSpec"]}
            self.make(api_version, "CustomJob", trial, "trial")
        if kind == TRAINING_PIPELINE and self.faults.happens("backing job has labels"):
            inputs, head = (
                body["trainingTaskInputs"],
                {name: body[name] for name in ("displayName", "labels")},
            )
            if "trialJobSpec" in inputs:
                self.make(api_version, "HyperparameterTuningJob", {**head, **inputs}, "backing")
            else:
                self.make(api_version, "CustomJob", {**head, "jobSpec": inputs}, "backing")
        self.checker.made(job)
        return job

    def _live(self, job: Job) -> None:
        rng = self.rng
        start = self.now + rng.choice((1.0, 30.0, 300.0)) * rng.random()
        lengths = _SHORT if self.shortens else _LONG
        end = start + rng.choice(lengths) * (0.2 + rng.random())
        result = State.SUCCEEDED if rng.random() < (0.9 if self.shortens else 0.6) else State.FAILED
        if job.unstarted:
            self.faults.tells(SET_UP)
            self.at(start, lambda: self.ends(job, State.FAILED))
            return
        self.at(start, lambda: self._starts(job))
        self.at(end, lambda: self.ends(job, result))

    def _starts(self, job: Job) -> None:
        if job.state is State.QUEUED:
            job.state = State.RUNNING
            self._runs_trainer(job)

    def _runs_trainer(self, job: Job) -> None:
        """Start a job's trainer, which writes to the job's folder at once."""
        job.started = self.now
        # The trials of a tuning job write to the folder of that job, a backing job to that of its pipeline.
        folder = folder_of(job) if job.origin not in _FOR_OTHERS else ""
        if folder:
            self.trace("service", f"{job.name} writes to {folder}")
            self.folders.setdefault(folder, []).append(job)
            self.checker.wrote(job, folder)

    def ends(self, job: Job, state: State) -> None:
        """End the job, if it hasn't ended."""
        if job.gone or job.state.ended:
            return
        if state is State.SUCCEEDED and job.started is None:
            self._runs_trainer(job)
        job.state, job.ended, job.strange = state, self.now, False
        self.trace("service", f"{job.name} ended {state}")
        if state is State.SUCCEEDED and job.origin not in _FOR_OTHERS:
            self.saved(job)

    def ask_end(self, job: Job, who: str) -> None:
        """Accept a cancel: the job ends soon, as CANCELLED or, if the cancel is late, with its own result."""
        if job.state.ended or job.state is State.CANCELLING:
            return
        job.state, job.asked_to_end, job.strange = State.CANCELLING, True, False
        job.asked_by = who
        end = State.CANCELLED
        if self.faults.happens("cancel came too late"):
            end = self.rng.choice((State.SUCCEEDED, State.FAILED))
        self.at(self.now + self.rng.uniform(0.0, 240.0), lambda: self.ends(job, end))

    # Reads.

    def listed(self, jobs: Iterable[Job], pick: Callable[[Job], bool]) -> list[ActualJob]:
        """Return a page of a listing: every job that must be shown, and some younger jobs."""
        return [self.shown(job) for job in jobs if not job.gone and pick(job) and self._visible(job)]

    def _visible(self, job: Job) -> bool:
        age = self.now - job.made
        if age < job.unseen or self.is_blind_to(job):
            return False
        return not (age < job.hidden and self.faults.happens("job not listed yet"))

    def is_blind_to(self, job: Job) -> bool:
        """Return True if listings omit a job although they must show it."""
        return self.now < self.blind_until and self.now - job.made >= self.blind_age

    def found(self, name: str) -> Job | None:
        """Return the stored job of a resource name."""
        return next((job for job in self.jobs if job.name == name and not job.gone), None)

    def shown(self, job: Job, *, spec: bool = False) -> ActualJob:
        """Return a job as the API shows it now."""
        labels = dict(job.labels)
        if self.every_try and REQUEST_ID in labels:
            labels[REQUEST_ID] = self.checker.known_try(job) or labels[REQUEST_ID]
        return ActualJob(
            resource=job.name,
            job_name=job.job_name,
            api_version=job.api_version,
            kind=job.kind,
            state=State.RUNNING if job.strange else job.state,
            service_state=_STRANGE if job.strange else f"JOB_STATE_{job.state}",
            labels=labels,
            spec=spec_of(job) if spec else {},
            body=filled(job) if spec else {},
            backing_body=backing_of(job) if spec else {},
            create_time=self._text(job.made),
            start_time=self._text(job.started),
            end_time=self._text(job.ended),
            info=_UNSTARTED if job.unstarted and job.state is State.FAILED else None,
        )

    def _text(self, moment: float | None) -> str:
        return "" if moment is None else self.time(moment).isoformat().replace("+00:00", "Z")
