"""Google Cloud's endpoints and the credentials that requests to them carry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from reconciler.base.errors import ServiceError
from reconciler.base.http import DirectTransport, RetryingReads
from reconciler.base.sanitize import one_line, without_credentials
from reconciler.google.client import Endpoint
from reconciler.manifests.settings import Environment
from reconciler.manifests.token_hosts import token_hosts

SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_MAX_SAID = 500


def google_endpoint(
    root: Path, environment: Environment, credentials: DefaultCredentials, environ: Mapping[str, str]
) -> Endpoint:
    """Return the way to Google's services, each on a host that may get Google's token.

    Args:
        root: The repository's root.
        environment: Where the jobs run.
        credentials: What requests carry.
        environ: The environment variables, which may allow further hosts.

    Raises:
        InvalidError: `endpoints` or `location` leads to a host that may not get Google's token.
    """
    import random

    roots = {
        "aiplatform": f"https://{environment.location}-aiplatform.googleapis.com/",
        "ml": "https://ml.googleapis.com/",
        "storage": "https://storage.googleapis.com/",
        "logging": "https://logging.googleapis.com/",
        "iamcredentials": "https://iamcredentials.googleapis.com/",
    }
    given = {name: url.rstrip("/") + "/" for name, url in environment.endpoints.items()}
    hosts = token_hosts(root, environ)
    for api, url in {**roots, **given}.items():
        setting = ("endpoints", api) if api in given else ("location",)
        hosts.check(hosts.google, root, url, ("environments", environment.name, *setting))
    return Endpoint(
        transport=RetryingReads(DirectTransport(hosts.google), sleep=time.sleep, random=random.random),
        authorize=credentials.headers,
        project=environment.project,
        location=environment.location,
        roots={**roots, **given},
        console=not environment.endpoints,
    )


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is, and what is known of its end.

    Attributes:
        headers: What a request carries.
        left: How long it is good for from now on, never too short.
        expiry: When it ends, as its issuer or this machine's clock has it.
    """

    headers: Mapping[str, str] = field(repr=False)
    left: timedelta
    expiry: datetime


class DefaultCredentials:
    """Application Default Credentials, found when first needed and refreshed when expired.

    Safe to use from several threads: google-auth sets a new token and its end one after the other, so that
    one thread at a time has to do with them.

    Args:
        wall: This machine's time in UTC, as google-auth takes it.
        monotonic: Seconds since some moment.
    """

    def __init__(
        self,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._found: Any = None
        self._measured: tuple[object, timedelta, float] | None = None

    def headers(self) -> Mapping[str, str]:
        """`Authorization`, and the quota project if one is set; raises ServiceError without credentials."""
        with self._lock, _told():
            return self._headers()

    def token(self) -> Token:
        """The present token; google-auth has one that ends within some minutes refreshed first.

        How long it is good for is the difference of two times of the same clock, the end that google-auth
        noted and now, so that a clock that is wrong does no harm; and not less than what was left of it when
        it was first seen, less what has gone by since, so that neither does a clock that is set.

        Raises:
            ServiceError: There are no credentials, or they don't say when they end.
        """
        with self._lock, _told():
            headers = self._headers()
            return Token(headers, self._left(), self._expiry())

    def _headers(self) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        self._credentials().apply(headers)
        if self._found.expiry is not None:
            self._left()  # measured as soon as it is there
        return headers

    def _expiry(self) -> datetime:
        expiry: datetime | None = self._found.expiry
        if expiry is None:
            raise ServiceError(
                "the Google credentials don't say when their token ends, so that nothing can be submitted",
                hint='name a service account under "submitter" in reconciler.yaml: tokens are made for it',
            )
        return expiry.replace(tzinfo=UTC)

    def _left(self) -> timedelta:
        left, now = self._expiry() - self._wall(), self._monotonic()
        if self._measured is None or self._measured[0] != self._found.token:
            self._measured = (self._found.token, left, now)
        _, first, at = self._measured
        return max(left, first - timedelta(seconds=now - at))

    def _credentials(self) -> Any:
        import google.auth

        if self._found is None:
            self._found, _ = google.auth.default(scopes=[SCOPE], request=_refreshing())
        if not self._found.valid:
            self._found.refresh(_refreshing())
        return self._found


def _refreshing() -> Any:
    """Return the sender of google-auth's own requests: to the addresses that the user's credentials name.

    It follows no redirect, which would take a signed assertion or a refresh token along. By plain http it
    sends only what carries no secret, such as a question to the metadata server.
    """
    import urllib3
    from google.auth.exceptions import TransportError
    from google.auth.transport.urllib3 import Request

    request: Any = Request
    refusal: Any = TransportError
    send = request(urllib3.PoolManager())

    def sent(
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Any:
        is_secret = bool(body) or any(name.lower() == "authorization" for name in headers or {})
        if is_secret and not url.lower().startswith("https://"):
            raise refusal("an address in the credentials, such as token_uri, is not https")
        return send(url, method, body, headers, timeout, **{**more, "redirect": False})

    return sent


@contextmanager
def _told() -> Iterator[None]:
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAuthError, OSError) as error:
        said = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
        raise ServiceError(
            f"no usable Google credentials: {one_line(without_credentials(said)[:_MAX_SAID])}",
            hint="run `gcloud auth application-default login`, or set up Workload Identity Federation",
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError):
        # google-auth takes a proxy's page with status 200 for a token.
        raise ServiceError(
            "no usable Google credentials: the answer of the server that gives tokens can't be read",
            hint="check any proxy between, and the token_uri of the credentials",
        ) from None
