"""The service behind a real HTTP server; every answer in every test is checked against the APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import urllib3

from reconciler.base.listener.message import Admit, Request, Responder, Response
from reconciler.training_service.application import Admin, Application
from reconciler.training_service.gate import Gate
from reconciler.training_service.http.server import Activity, Server
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import JobRecord
from tests.support.training_service import contract
from tests.support.training_service.bodies import VERTEX, custom_job
from tests.support.waiting import PATIENCE

TOKEN = "the-token"


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        """Return the error's status and message, for short assertions."""
        error = self.json["error"]
        return f"{error['status']}: {error['message']}"


@dataclass
class Service:
    """A served home, and a client of it."""

    home: Path
    store: Store
    clock: Clock
    url: str
    woken: list[None] = field(default_factory=list)
    stopped: list[None] = field(default_factory=list)
    methods: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        token: str = TOKEN,
    ) -> Answer:
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        own = {"Authorization": f"Bearer {token}"} if token else {}
        answer = urllib3.request(
            method,
            self.url + path,
            body=sent,
            headers={**own, **(headers or {})},
            retries=False,
            redirect=False,
            timeout=PATIENCE,
        )
        return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.data)

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.call("POST", path, {} if body is None else body)


def checked(admit: Admit, service: Service) -> Admit:
    """Return `admit` with a check: deviations from the APIs' documents go into the service's `failures`."""

    def noted(request: Request, response: Response) -> Response:
        try:
            service.methods.add(contract.check(request, response))
        except Exception as error:
            service.failures.append(f"{request.method} {request.path}: {response.status}: {error}")
        return response

    def admitted(head: Request) -> Response | Responder:
        found = admit(head)
        if isinstance(found, Response):
            return noted(head, found)
        return lambda request: noted(request, found(request))

    return admitted


@contextmanager
def serving(home: Path) -> Iterator[Service]:
    """Yield a service for a home, without a supervisor."""
    home.mkdir(exist_ok=True)
    clock = Clock()
    store = Store(database.open_file(home / "state.db"), clock)
    service = Service(home, store, clock, "")
    application = Application(store, home, wake=lambda: service.woken.append(None))
    admin = Admin(store, home, lambda: service.stopped.append(None))
    gate = Gate(application, admin, store, TOKEN)
    server = Server(checked(gate.admit, service), Activity())
    service.url = server.url
    server.start()
    yield service
    server.close(5.0)
    store.database.close()
    assert not service.failures, "\n\n".join(service.failures)


def job_with(service: Service, **more: Any) -> tuple[JobRecord, str]:
    service.post(f"{VERTEX}/customJobs", custom_job(**more))
    job = service.store.unfinished()[-1]
    return job, f"/jobs/{job.gcs_secret}"
