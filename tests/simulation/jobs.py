"""The service's jobs as seen by a single reconciler, and the credentials that its creates carry."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.base.http.connections import write_request
from reconciler.base.http.wire import request_bytes
from reconciler.model.job import KEY, SOURCE, ActualJob
from reconciler.model.manifest import ML_V1, JsonObject
from reconciler.model.ports import Answer, Credential, NotSent, Unknown

from .model import OURS, PARENT, TIMEOUT, Job, Request
from .process import Process
from .world import World

_DELAYS = (5.0, 50.0, 200.0, 290.0, 297.0, 400.0, 1500.0, 7200.0)
"""Seconds in transit: some requests arrive shortly before or after their credential's expiry."""


class JobsPort:
    """Port to a target's jobs for a reconciler of a single repository.

    Args:
        source: The repository's id.
    """

    def __init__(self, process: Process, world: World, source: str = OURS) -> None:
        self._process = process
        self._world = world
        self._source = source

    def runs(self) -> tuple[ActualJob, ...]:
        """List the jobs with this repository's source label."""
        return self._listed("runs", lambda job: job.labels.get(SOURCE) == self._source)

    def live(self) -> tuple[ActualJob, ...]:
        """List this repository's live jobs."""
        return self._listed(
            "live runs", lambda job: job.labels.get(SOURCE) == self._source and not job.state.ended, live=True
        )

    def lists(self, api_version: str) -> bool:
        """Return True if listings include the jobs of an apiVersion."""
        return True

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        """List the jobs of a kind that carry a key."""
        return self._listed(
            f"jobs with key {key[:6]}", lambda job: job.kind == kind and job.labels.get(KEY) == key, kind, key
        )

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        """Return a job with its spec."""
        self._process.turn(f"read {resource}")
        job = self._world.found(resource)
        shown = self._world.shown(job, spec=True) if job else None
        self._process.turn(f"read {resource}: {shown.state if shown else 'not there'}")
        if shown is None:
            raise NotFoundError(f"there is no {resource}")
        return shown

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        """Return the job of a name: only ml lets the caller choose names."""
        return f"{PARENT}/jobs/{job_name}" if api_version == ML_V1 else None

    def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
        """Send a create: it may be lost, delayed, or executed without an answer."""
        faults = self._world.faults
        name = body.get("jobId") or body["displayName"]
        asked, expires = (float(credential.headers[said]) for said in ("asked", "expires"))
        self._world.checker.handed_over(name, self._process.monotonic() - asked, self._process.name)
        self._process.turn(f"send create of {name}")
        if faults.happens("request never sent"):
            self._process.turn("the create never left")
            return NotSent("connection refused")
        request = Request(api_version, kind, body, expires, self._process.name)
        written = request_bytes("POST", "/", credential.headers, json.dumps(body).encode())
        wire: Any = Wire(self._process, self._world, request, written, name)
        try:
            write_request(wire, written, TIMEOUT, self._process.time_since_boot)
        except TimeoutError:
            self._process.turn(f"gave up the create of {name} in the middle")
            return Unknown("it took too long")
        self._process.await_(lambda: request.answer is not None, TIMEOUT, f"sent create of {name}")
        answer = request.answer
        self._process.turn(f"answer to create of {name}: {type(answer).__name__ if answer else 'none'}")
        if answer is None or faults.happens("answer lost"):
            return Unknown("no answer came")
        return answer

    def cancel(self, job: ActualJob) -> None:
        """Ask for a job's end, as best effort."""
        world, faults = self._world, self._world.faults
        self._process.turn(f"cancel {job.resource}")
        if faults.happens("cancel failed"):
            raise ServiceError("the cancel got no answer")
        found = world.found(job.resource)
        if found is not None:
            world.checker.cancelled(found, self._process.name)
        ended = found is None or found.state.ended
        if found is not None:
            world.ask_end(found, self._process.name)
        self._process.turn(f"asked for the end of {job.resource}")
        if ended:
            raise ServiceError("the job has ended")
        if faults.happens("cancel's answer lost"):
            raise ServiceError("the cancel got no answer")

    def _listed(
        self,
        what: str,
        pick: Callable[[Job], bool],
        kind: str = "",
        key: str = "",
        *,
        live: bool = False,
    ) -> tuple[ActualJob, ...]:
        """Return pages read at different times: a listing isn't a snapshot, and can fail between pages."""
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
        if live:
            world.checker.listed_live(found, self._process.name)
        else:
            world.checker.listed(found, kind, key, self._process.name)
        self._process.turn(f"listed {len(found)} {what}")
        return tuple(found)


class Wire:
    """Socket to which a create is written, and the network behind it.

    The network loses the whole request, or delays it. The body may come later than the head: the process
    writes the rest late, or the network takes longer for it.
    """

    def __init__(self, process: Process, world: World, request: Request, written: bytes, name: str) -> None:
        self._process = process
        self._world = world
        self._request = request
        self._name = name
        self._head = written.index(b"\r\n\r\n") + 4
        self._whole = len(written)
        self._sent = 0
        self._left_at = self._head_at = world.now
        self._delay = 0.0
        self._dropped = False

    def settimeout(self, seconds: float) -> None:
        """Do nothing: writes take no time here."""

    def send(self, data: memoryview) -> int:
        """Accept all or a part of the bytes, and return their number."""
        world, count = self._world, len(data)
        if not self._sent:
            self._begin()
        if self._sent < self._head and world.faults.happens("request in pieces"):
            count = world.rng.choice((self._head, world.rng.randrange(1, self._whole)))
        before, self._sent = self._sent, self._sent + count
        if before < self._head <= self._sent:
            self._head_leaves()
        if self._sent == self._whole:
            self._body_leaves()
        else:
            self._process.turn(f"sent create of {self._name} in part")
        return count

    def _begin(self) -> None:
        world = self._world
        world.checker.sent(self._request)
        self._dropped = world.faults.happens("request dropped")
        if not self._dropped and world.faults.happens("request delayed"):
            self._delay = world.rng.choice(_DELAYS) * world.rng.uniform(0.9, 1.02)

    def _head_leaves(self) -> None:
        self._left_at = self._world.now
        self._head_at = self._left_at + self._delay
        self._arrives(self._head_at, self._world.head_arrives)

    def _body_leaves(self) -> None:
        world = self._world
        world.checker.whole(self._request, world.now - self._left_at)
        moment = max(self._head_at, world.now)
        if world.faults.happens("body delayed"):
            latest = self._head_at + world.bounds.executes.total_seconds()
            moment += max(0.0, latest - moment) * world.rng.random()
        self._arrives(moment, world.body_arrives)

    def _arrives(self, moment: float, what: Callable[[Request], None]) -> None:
        if self._dropped:
            return
        if moment <= self._world.now:
            what(self._request)
        else:
            self._world.at(moment, lambda: what(self._request))


class CredentialsPort:
    """Credentials that the service accepts until they expire."""

    def __init__(self, process: Process, world: World) -> None:
        self._process = process
        self._world = world

    def mint(self) -> Credential:
        """Return a new credential."""
        world, asked = self._world, self._process.monotonic()
        self._process.turn("mint a credential")
        if world.faults.happens("no credential"):
            self._process.turn("got no credential")
            raise ServiceError("the token service doesn't answer")
        expires = world.now + world.bounds.lifetime.total_seconds()
        self._process.turn("minted a credential")
        return Credential({"asked": repr(asked), "expires": repr(expires)}, world.time(expires))
