"""Google Cloud's endpoints and the credentials that requests to them carry."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from reconciler.config import Environment
from reconciler.engines.base import Endpoint
from reconciler.errors import ServiceError
from reconciler.inert import one_line
from reconciler.transport import RetryingReads, UrllibTransport

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def google_endpoint(environment: Environment) -> Endpoint:
    """How Google's services are reached with Application Default Credentials."""
    roots = {
        "aiplatform": f"https://{environment.location}-aiplatform.googleapis.com/",
        "ml": "https://ml.googleapis.com/",
        "storage": "https://storage.googleapis.com/",
        "logging": "https://logging.googleapis.com/",
    }
    given = {name: url.rstrip("/") + "/" for name, url in environment.endpoints.items()}
    return Endpoint(
        transport=RetryingReads(UrllibTransport(), sleep=time.sleep, random=random.random),
        authorize=DefaultCredentials().headers,
        project=environment.project,
        location=environment.location,
        roots={**roots, **given},
        console=not environment.endpoints,
    )


class DefaultCredentials:
    """Application Default Credentials, found when first needed and refreshed when expired."""

    def __init__(self) -> None:
        self._found: Any = None

    def headers(self) -> Mapping[str, str]:
        """`Authorization`, and the quota project if one is set; raises ServiceError without credentials."""
        from google.auth.exceptions import GoogleAuthError

        headers: dict[str, str] = {}
        try:
            self._credentials().apply(headers)
        except (GoogleAuthError, OSError) as error:
            raise ServiceError(
                f"no usable Google credentials: {one_line(str(error))}",
                hint="run `gcloud auth application-default login`, or set up Workload Identity Federation",
            ) from None
        return headers

    def _credentials(self) -> Any:
        import google.auth
        import urllib3
        from google.auth.transport.urllib3 import Request

        if self._found is None:
            self._found, _ = google.auth.default(scopes=[SCOPE])
        if not self._found.valid:
            request: Any = Request
            self._found.refresh(request(urllib3.PoolManager()))
        return self._found
