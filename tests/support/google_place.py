"""An environment with `engine: google` whose endpoints are a service of the tests, and its credentials.

Tokens are minted as Google mints them: each expires by the service's clock, and none is renewed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.held_service import HeldService
from tests.support.repository import Repository
from tests.support.tls import behind_tls
from tests.support.token_server import private_key, token_server

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

# The product without its pauses: it waits for the service's clock, which the tests put forward.
HURRIED = """
import sys
from msgspec.structs import replace
from reconciler.operations import session
from reconciler.__main__ import main

session.GOOGLE_BOUNDS = replace(session.GOOGLE_BOUNDS, look_again=0.05, pace=0.0)
session._GOOGLE_PAUSE = 0.2
sys.exit(main())
"""


@contextmanager
def google_place(
    repository: Repository,
    service: HeldService,
    url: str,
    folder: Path,
    *,
    submitter: bool,
    proxy: str = "",
) -> Iterator[dict[str, str]]:
    """Yield the variables under which `reconciler` reaches the service at `url` as if it were Google's.

    Args:
        submitter: True if creates carry a token of their own; False if they carry the token of all requests.
        proxy: The URL of the proxy that alone resolves the addresses; "" for addresses of loopback.
    """
    host = "google.example.test" if proxy else "localhost"
    for bucket in ("acme-staging", "acme-claims"):
        (service.home / "gcs" / bucket).mkdir(parents=True)

    def token() -> str:
        """Return a token valid for an hour, or the service's own, that may mint tokens for the submitter."""
        return service.token if submitter else service.token_for(timedelta(hours=1))

    with token_server(token, host) as token_uri, behind_tls(url, host) as secure:
        endpoints = ", ".join(
            f'{api}: "{secure}"' for api in ("aiplatform", "ml", "storage", "logging", "iamcredentials")
        )
        named = f"submitter: {SUBMITTER}" if submitter else ""
        config = repository.root / "reconciler.yaml"
        config.write_text(CONFIG.format(submitter=named, endpoints=endpoints) + config.read_text())
        told = {
            "type": "service_account",
            "client_email": "ci@acme-ml.iam.gserviceaccount.com",
            "private_key": private_key(),
            "private_key_id": "1",
            "project_id": PROJECT,
            "token_uri": token_uri,
        }
        (folder / "key.json").write_text(json.dumps(told))
        yield {
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "key.json"),
            "RECONCILER_ENV": ENVIRONMENT,
            "RECONCILER_TOKEN_HOSTS": urlsplit(secure).netloc,
            **({"HTTPS_PROXY": proxy} if proxy else {}),
        }
