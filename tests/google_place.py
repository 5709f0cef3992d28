"""An environment with `engine: google` whose endpoints are a service of the tests, and its credentials.

Tokens are minted as Google mints them: each ends, by the service's clock, and none is renewed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from held_service import HeldService
from repository import Repository

PROJECT, LOCATION, ENVIRONMENT = "acme-ml", "us-central1", "prod"
SUBMITTER = "submitter@acme-ml.iam.gserviceaccount.com"

CONFIG = """
source: acme-jobs
environments:
  prod:
    engine: google
    project: acme-ml
    location: us-central1
    stagingBucket: acme-staging
    claimsBucket: acme-claims
    {submitter}
    endpoints: {{{endpoints}}}
"""

# The product but for its pauses: what it waits for is the service's clock, which the tests put forward.
HURRIED = """
import sys
from dataclasses import replace
from reconciler import session
from reconciler.__main__ import main

session.GOOGLE_BOUNDS = replace(session.GOOGLE_BOUNDS, look_again=0.05, pace=0.0)
session._GOOGLE_PAUSE = 0.2
sys.exit(main())
"""


@contextmanager
def google_place(
    repository: Repository, service: HeldService, url: str, folder: Path, *, submitter: bool
) -> Iterator[dict[str, str]]:
    """The variables under which `reconciler` reaches the service at `url` as if it were Google's.

    Args:
        submitter: Whether creates carry a token of their own; else they carry what all requests carry.
    """
    endpoints = ", ".join(
        f'{api}: "{url}"' for api in ("aiplatform", "ml", "storage", "logging", "iamcredentials")
    )
    named = f"submitter: {SUBMITTER}" if submitter else ""
    config = repository.root / "reconciler.yaml"
    config.write_text(CONFIG.format(submitter=named, endpoints=endpoints) + config.read_text())
    for bucket in ("acme-staging", "acme-claims"):
        (service.home / "gcs" / bucket).mkdir(parents=True)
    with _token_server(service, ends=not submitter) as token_uri:
        told = {
            "type": "service_account",
            "client_email": "ci@acme-ml.iam.gserviceaccount.com",
            "private_key": _private_key(),
            "private_key_id": "1",
            "project_id": PROJECT,
            "token_uri": token_uri,
        }
        (folder / "key.json").write_text(json.dumps(told))
        yield {
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "key.json"),
            "RECONCILER_ENV": ENVIRONMENT,
        }


@contextmanager
def _token_server(service: HeldService, *, ends: bool) -> Iterator[str]:
    """The address of a server that gives a token for whatever is asked.

    Args:
        ends: Whether it is a new one that lasts an hour; else the service's own, which may mint others.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            token = service.token_for(timedelta(hours=1)) if ends else service.token
            body = json.dumps({"access_token": token, "expires_in": 3600, "token_type": "Bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
