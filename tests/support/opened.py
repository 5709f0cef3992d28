"""Sessions and connections for tests: of a held service, or of any address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse, Transport
from reconciler.google.client import Connection, Endpoint
from reconciler.manifests.settings import from_document
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.operations.session import Session, open_session
from tests.support.held_service import HeldService
from tests.support.tls import Loopback
from tests.support.waiting import PATIENCE

APIS = ("aiplatform", "ml", "storage", "logging", "iamcredentials")
PROJECT, LOCATION = "acme-ml", "us-central1"


@dataclass(frozen=True)
class Impatient:
    """A transport with a shorter limit for exchanges."""

    timeout: float
    transport: Transport = field(default_factory=lambda: DirectTransport(Loopback()))

    def send(self, request: HttpRequest) -> HttpResponse:
        return self.transport.send(replace(request, timeout=self.timeout))


def connected(url: str, timeout: float = PATIENCE) -> Connection:
    """Return a connection to the server at `url`, for single requests without credentials."""
    roots = dict.fromkeys(APIS, url.rstrip("/") + "/")
    return Connection(Endpoint(Impatient(timeout), dict, PROJECT, LOCATION, roots))


@contextmanager
def opened(service: HeldService, *, start: bool = True, **environment: Any) -> Iterator[Session]:
    """Yield a session with the environment `local` of a repository, whose service is held."""
    document = {"source": "acme-jobs", "environments": {"local": {"engine": "local", **environment}}}
    root: Path = service.home.parent
    config = from_document(root, document)
    home = {"RECONCILER_HOME": str(service.home)}
    with open_session(config, config.environment(None), home, start=start) as session:
        yield session


BUCKET = "reconciler-staging"


KEY = "k" * 52


CLAIM = Claim(
    id=ClaimId(KEY),
    state=ClaimState.PENDING,
    job_name="census_0011",
    base_name="census",
    api_version="aiplatform.googleapis.com/v1",
    kind="CustomJob",
    request_ids=("t" * 26,),
    credential_expiry=datetime(2026, 11, 21, 13, 6, 11, tzinfo=UTC),
)
