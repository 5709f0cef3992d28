"""`python -m tests.bench.history`: calls and seconds of looks beside ended runs, at 50 ms a call.

The service's own handlers answer in this process, after a delay for each request. The manifests' jobs have
ended; beside them are many ended runs of other contents, each with its claim. No plan has changes.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from msgspec.structs import replace

from reconciler.base.http import HttpRequest, HttpResponse, Transport
from reconciler.google.client import Connection, Endpoint
from reconciler.manifests.settings import load_config
from reconciler.model.claim import ClaimId
from reconciler.model.job import REQUEST_ID
from reconciler.model.naming import label_of
from reconciler.operations.apply import ApplyListener, apply
from reconciler.operations.execute import labels_of
from reconciler.operations.follow_up import follow_up
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.observed_state import state_of
from reconciler.operations.origin import NO_ORIGIN
from reconciler.operations.plan import plan_of, request_body, wanted_of
from reconciler.operations.report import record_keys
from reconciler.operations.session import Session
from reconciler.operations.watch.loop import FULL_AFTER as HOURLY
from reconciler.pages.snapshot import snapshot
from reconciler.pages.template import PageContent
from reconciler.submission.look import FULL_AFTER, look
from reconciler.submission.observe import Observed
from reconciler.submission.protocol import bound
from reconciler.training_service.application import Application
from reconciler.training_service.state.database import Database, Store
from reconciler.training_service.state.records import JobState

from .actual import Handlers, claim_before, connected
from .place import Place

DELAY = 0.05
"""Seconds of delay for each call."""
_ROOT = "http://embedded.invalid/"
_APIS = ("aiplatform", "ml", "storage", "logging", "iamcredentials")


class Delayed:
    """Transport that counts its requests and delays each."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.calls = 0

    def send(self, request: HttpRequest) -> HttpResponse:
        """Wait, and forward the request."""
        with self._lock:
            self.calls += 1
        time.sleep(DELAY)
        return self._inner.send(request)


class History:
    """Target in this process."""

    def __init__(self, place: Place) -> None:
        self._config = load_config(place.root)
        self._environment = self._config.environment(None)
        self.desired = load_desired(self._config, self._environment, [])
        self._database = Database(lambda: connected(place.home / "state.db"))
        self._store = Store(self._database)
        self._handlers = Handlers(Application(self._store, place.home))
        self._made = 0

    def session(self, transport: Transport, *, distant: bool) -> Session:
        """Return a new session through a transport."""
        environment = self._environment
        roots = dict.fromkeys(_APIS, _ROOT)
        endpoint = Endpoint(transport, dict, environment.project, environment.location, roots)
        connection = Connection(replace(endpoint, distant=distant))
        return Session(self._config, environment, connection)

    def grow(self, count: int) -> None:
        """Add ended runs up to a number."""
        session = self.session(self._handlers, distant=False)
        while self._made < count:
            job = self.desired.jobs[self._made % len(self.desired.jobs)]
            self._made += 1
            identity = hashlib.sha256(f"{self._made}".encode()).hexdigest()
            id, mark = ClaimId(label_of(identity)), f"h{self._made:025}"
            name = f"{job.manifest.base_name}_{identity[:16]}"
            labels = {**labels_of(job, self._config.source, "", id, ""), REQUEST_ID: mark}
            body = request_body(job, self.desired, self._environment.staging_bucket, name, labels)
            made = session.engine(job.manifest.api_version).create(job.manifest.kind, body, {})
            for record in self._store.unfinished():
                self._store.move(
                    record.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=self._store.now()
                )
                self._store.move(
                    record.id, JobState.SUCCEEDED, only_from={JobState.RUNNING}, at=self._store.now()
                )
            run = session.read(made)
            session.claims.write(replace(bound(claim_before(job, id, mark), run), job_name=name), 0)

    @contextmanager
    def measured(self, what: str) -> Iterator[Session]:
        """Yield a session; print the calls and seconds of a step."""
        # A command starts without the objects of the service and of the previous command.
        gc.collect()
        gc.freeze()
        transport = Delayed(self._handlers)
        session = self.session(transport, distant=True)
        began = time.monotonic()
        yield session
        figures = {"ended": self._made, "step": what, "calls": transport.calls}
        print(json.dumps({**figures, "seconds": round(time.monotonic() - began, 2)}), flush=True)


def _plan(session: Session, desired: Desired, *, full: bool) -> None:
    seen = look(session.ports, wanted_of(desired.jobs), full=full)
    plan_of(session, desired, state_of(session, desired, seen.observed))


def _apply(session: Session, desired: Desired, *, full: bool) -> None:
    seen = look(session.ports, wanted_of(desired.jobs), full=full, full_after=FULL_AFTER)
    applied = apply(session, desired, seen.observed, ApplyListener(), origin=NO_ORIGIN)
    assert not applied.outcomes, "there is nothing to do"
    assert not follow_up(session, desired, applied, full=full).problems


def _watch(session: Session, desired: Desired, *, full: bool) -> None:
    look(session.ports, wanted_of(desired.jobs), record_keys(session), full=full, full_after=HOURLY)


class _Page:
    """Overview of the live pages: a complete read at first, then only possible changes."""

    def __init__(self) -> None:
        self._observed: Observed | None = None

    def __call__(self, session: Session, desired: Desired, *, full: bool) -> None:
        content = PageContent(logs=True, env_values=True)
        self._observed = snapshot(session, desired, content, {}, None if full else self._observed).observed
        assert self._observed, "claims and runs can be read"


def main() -> None:
    """Measure all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifests", type=int, default=100)
    parser.add_argument("--ended", type=int, nargs="+", default=[0, 10_000, 100_000])
    arguments = parser.parse_args()
    page = _Page()
    steps: tuple[tuple[str, Callable[..., None], bool], ...] = (
        ("plan --full", _plan, True),
        ("apply --full", _apply, True),
        ("plan, status", _plan, False),
        ("apply", _apply, False),
        ("watch", _watch, False),
        ("first page", page, True),
        ("next page", page, False),
    )
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        place = Place(Path(folder) / "place", arguments.manifests)
        place.module("actual", str(place.root), str(place.home))
        history = History(place)
        for count in arguments.ended:
            history.grow(count)
            for what, step, full in steps:
                with history.measured(what) as session:
                    step(session, history.desired, full=full)


if __name__ == "__main__":
    sys.exit(main())
