"""The service's jobs as one reconciler reaches them, and the credentials that its creates carry."""

from __future__ import annotations

from collections.abc import Callable

from reconciler.answers import Answer, NotSent, Unknown
from reconciler.errors import NotFoundError, ServiceError
from reconciler.job import ActualJob
from reconciler.labels import KEY, SOURCE
from reconciler.manifest import ML_V1, JsonObject
from reconciler.ports import Credential
from reconciler.unread import Unread, already_read

from .model import OURS, PARENT, Job, Request
from .process import Process
from .world import World

TIMEOUT = 60.0
"""Seconds that a client waits for an answer."""
_DELAYS = (5.0, 50.0, 200.0, 290.0, 297.0, 400.0, 1500.0, 7200.0)
"""Seconds on the way: some arrive when their credential has just expired, or is just about to."""


class JobsPort:
    """The jobs of one target."""

    def __init__(self, process: Process, world: World) -> None:
        self._process = process
        self._world = world

    def runs(self) -> tuple[ActualJob, ...]:
        """All that carry this repository's source label."""
        return self._listed("runs", lambda job: job.labels.get(SOURCE) == OURS)

    def listed(self) -> Unread[tuple[ActualJob, ...]]:
        """The same, not read yet."""
        return already_read(self.runs())

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        """All of one kind that carry a key."""
        return self._listed(
            f"jobs with key {key[:6]}", lambda job: job.kind == kind and job.labels.get(KEY) == key
        )

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        """One job with its spec."""
        self._process.turn(f"read {resource}")
        job = self._world.found(resource)
        shown = self._world.shown(job, spec=True) if job else None
        self._process.turn(f"read {resource}: {shown.state if shown else 'not there'}")
        if shown is None:
            raise NotFoundError(f"there is no {resource}")
        return shown

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        """Only ml's names are the caller's."""
        return f"{PARENT}/jobs/{job_name}" if api_version == ML_V1 else None

    def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
        """One request: it may be lost, late, or done without anybody hearing of it."""
        world, faults = self._world, self._world.faults
        name = body.get("jobId") or body["displayName"]
        self._process.turn(f"send create of {name}")
        if faults.happens("request never sent"):
            self._process.turn("the create never left")
            return NotSent("connection refused")
        request = Request(api_version, kind, body, float(credential.headers["expires"]), self._process.name)
        world.checker.sent(request)
        self._dispatch(request)
        self._process.await_(lambda: request.answer is not None, TIMEOUT, f"sent create of {name}")
        answer = request.answer
        self._process.turn(f"answer to create of {name}: {type(answer).__name__ if answer else 'none'}")
        if answer is None or faults.happens("answer lost"):
            return Unknown("no answer came")
        return answer

    def _dispatch(self, request: Request) -> None:
        world, faults = self._world, self._world.faults
        if faults.happens("request dropped"):
            return
        if faults.happens("request delayed"):
            delay = world.rng.choice(_DELAYS) * world.rng.uniform(0.9, 1.02)
            world.at(world.now + delay, lambda: world.arrives(request))
            return
        world.arrives(request)

    def cancel(self, job: ActualJob) -> None:
        """Ask for an end; best effort."""
        world, faults = self._world, self._world.faults
        self._process.turn(f"cancel {job.resource}")
        if faults.happens("cancel failed"):
            raise ServiceError("the cancel got no answer")
        found = world.found(job.resource)
        if found is not None:
            world.checker.cancelled(found, self._process.name)
        ended = found is None or found.state.ended
        if found is not None:
            world.ask_end(found)
        self._process.turn(f"asked for the end of {job.resource}")
        if ended:
            raise ServiceError("the job has ended")
        if faults.happens("cancel's answer lost"):
            raise ServiceError("the cancel got no answer")

    def _listed(self, what: str, pick: Callable[[Job], bool]) -> tuple[ActualJob, ...]:
        """Pages at different times: a listing is no snapshot, and it can break off between them."""
        world = self._world
        self._process.turn(f"list {what}")
        cut = world.rng.randrange(len(world.jobs) + 1)
        found = world.listed(world.jobs[:cut], pick)
        if 0 < cut < len(world.jobs):
            self._process.turn(f"got the first page of {what}")
        if world.faults.happens("listing broke off"):
            self._process.turn(f"the listing of {what} broke off")
            raise ServiceError("a page of the listing couldn't be had")
        found += world.listed(world.jobs[cut:], pick)
        self._process.turn(f"listed {len(found)} {what}")
        return tuple(found)


class FencePort:
    """Credentials that the service takes until they expire."""

    def __init__(self, process: Process, world: World) -> None:
        self._process = process
        self._world = world

    def mint(self) -> Credential:
        """A new one."""
        world = self._world
        self._process.turn("mint a credential")
        if world.faults.happens("no credential"):
            self._process.turn("got no credential")
            raise ServiceError("the token service doesn't answer")
        expires = world.now + world.bounds.lifetime.total_seconds()
        self._process.turn("minted a credential")
        return Credential({"expires": repr(expires)}, world.time(expires))
