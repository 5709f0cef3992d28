"""Endpoints of Google Cloud, the credentials for them, and credentials for a single create.

A create's credential has a known expiry and is never renewed. If a process is suspended between its claim and
its request, the credential expires meanwhile and the service refuses the request. The expiry thus bounds the
time in which a request can still create a job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

from reconciler.base.errors import ServiceError
from reconciler.base.http import (
    DirectTransport,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    RetryingReads,
)
from reconciler.base.http.destination import Destination
from reconciler.base.sanitize import one_line, without_credentials
from reconciler.google.client import API_VERSIONS, Connection, Endpoint, execute
from reconciler.google.responses import ApiError
from reconciler.manifests.settings import Environment
from reconciler.manifests.token_hosts import token_hosts
from reconciler.model.claim import time_of
from reconciler.model.fields import text_of
from reconciler.model.ports import Credential

SCOPE = "https://www.googleapis.com/auth/cloud-platform"

LOCAL_SUBMITTER = "submitter@local.iam.gserviceaccount.com"
"""Submitter at the embedded service, which has no service accounts and accepts any name."""

_MAX_QUOTED = 500
_MAX_ANSWER = 1024 * 1024
_ANSWERS_WITHIN = 120.0  # seconds, google-auth's own default
_CLOCK_TICK = timedelta(seconds=1)
_LONGEST = timedelta(hours=12)
_CREATOR = "roles/iam.serviceAccountTokenCreator"
_IMPERSONATION = "service_account_impersonation"
"""Beginning of the fields of credentials that name the account to act as."""


def google_endpoint(
    root: Path, environment: Environment, credentials: DefaultCredentials, environ: Mapping[str, str]
) -> Endpoint:
    """Return the endpoint of Google's services; each host in it may get Google's token.

    Args:
        environ: The environment variables, which may allow more hosts.

    Raises:
        InvalidError: `endpoints` or `location` names a host that may not get Google's token.
    """
    import random

    roots = {api: f"https://{api}.googleapis.com/" for api in API_VERSIONS}
    roots["aiplatform"] = f"https://{environment.location}-aiplatform.googleapis.com/"
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
        distant=True,
    )


class Token(Struct, frozen=True):
    """Token with its expiry.

    Attributes:
        headers: Omitted from `repr`, as they contain the token.
        left: The remaining lifetime, never too short.
        expiry: The expiry by the clock of its issuer or of this machine.
    """

    headers: Mapping[str, str]
    left: timedelta
    expiry: datetime

    def __repr__(self) -> str:
        return f"Token(expiry={self.expiry})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("expiry", self.expiry)]


class DefaultCredentials:
    """Application Default Credentials, loaded at first use and refreshed after expiry.

    Thread-safe. google-auth sets a new token and its expiry one after the other, so that a lock must keep
    other threads from a new token with the old expiry.

    Args:
        wall: This machine's time in UTC, which google-auth uses too.
        monotonic: Seconds of a monotonic clock.
    """

    def __init__(
        self,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._google_credentials: Any = None
        self._federated: Any = None
        self._measured: tuple[object, timedelta, float] | None = None

    def headers(self) -> Mapping[str, str]:
        """Return `Authorization` and any quota project; raise ServiceError without credentials."""
        with self._lock, _explained():
            return self._headers()

    def headers_for(self, account: str) -> Mapping[str, str]:
        """Return the headers of the identity that makes tokens for a service account.

        A federated identity that acts as that account makes them by itself. The account would need a role on
        itself, by which a leaked token could be renewed for ever. Any other identity is that of all requests.

        Raises:
            ServiceError: The credentials are missing.
        """
        with self._lock, _explained():
            if self._federated is None:
                self._federated = _federated(self._credentials(), account)
            if not self._federated:
                return self._headers()
            if not self._federated.valid:
                self._federated.refresh(_refresh_request())
            headers: dict[str, str] = {}
            self._federated.apply(headers)
            return headers

    def token(self) -> Token:
        """Return the present token; google-auth refreshes a token that expires within some minutes.

        Raises:
            ServiceError: The credentials are missing, or have no expiry.
        """
        with self._lock, _explained():
            headers = self._headers()
            return Token(headers, self._left(), self._expiry())

    def _headers(self) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        self._credentials().apply(headers)
        if self._google_credentials.expiry is not None:
            # Measure the lifetime of a new token at once, before the clock may be set.
            self._left()
        return headers

    def _expiry(self) -> datetime:
        expiry: datetime | None = self._google_credentials.expiry
        if expiry is None:
            raise ServiceError(
                "the Google credentials don't say when their token expires, so nothing can be submitted",
                hint='name a service account under "submitter" in reconciler.yaml: tokens are made for it',
            )
        return expiry.replace(tzinfo=UTC)

    def _left(self) -> timedelta:
        # The expiry that google-auth noted and the present time are times of the same clock, so that a wrong
        # clock cancels out. A clock that is set later does no harm either: the result is at least the
        # lifetime at the first measurement less the monotonic time since.
        left, now = self._expiry() - self._wall(), self._monotonic()
        if self._measured is None or self._measured[0] != self._google_credentials.token:
            self._measured = (self._google_credentials.token, left, now)
        _, first, at = self._measured
        return max(left, first - timedelta(seconds=now - at))

    def _credentials(self) -> Any:
        import google.auth

        if self._google_credentials is None:
            self._google_credentials, _ = google.auth.default(scopes=[SCOPE], request=_refresh_request())
        if not self._google_credentials.valid:
            self._google_credentials.refresh(_refresh_request())
        return self._google_credentials


def _federated(credentials: Any, account: str) -> Any:
    """Return the credentials of a federated identity that acts as an account, False for any others."""
    from google.auth import external_account

    is_federated = isinstance(credentials, external_account.Credentials)
    if not is_federated or credentials.service_account_email != account:
        return False
    info = {name: value for name, value in credentials.info.items() if not name.startswith(_IMPERSONATION)}
    made_by: Any = type(credentials)
    return made_by.from_info(info, scopes=[SCOPE])


class OwnToken:
    """Implementation of the port `CredentialSource` by the token of all requests, which mostly lasts an hour.

    `now` reads the service's time.
    """

    def __init__(self, source: DefaultCredentials, now: Callable[[], datetime]) -> None:
        self._source = source
        self._now = now

    def mint(self) -> Credential:
        """Return the present token as a credential for one create; raise ServiceError."""
        # The expiry must never be too early. By the service's clock it is the service's time, read after the
        # token's remaining lifetime was computed, plus that lifetime, plus a second, because the service
        # reports whole seconds. This machine's clock cancels out if it also noted the token's expiry.
        # Some credentials note the expiry by their issuer's clock instead, which is right: take the later of
        # the two. A fast clock may make it much too late, but no token lasts longer than twelve hours.
        token = self._source.token()
        now = self._now() + _CLOCK_TICK
        expires = min(max(now + token.left, token.expiry), now + _LONGEST)
        return Credential(dict(token.headers), expires)


class GeneratedTokens:
    """Implementation of the port `CredentialSource` by a service account's tokens from IAM.

    They expire by Google's clock.

    Args:
        submitter: The service account's e-mail address.
        lifetime: Whole seconds.
    """

    def __init__(self, connection: Connection, submitter: str, lifetime: timedelta) -> None:
        self._connection = connection
        self._submitter = submitter
        self._lifetime = lifetime

    def mint(self) -> Credential:
        """Return a new credential for one create; raise ServiceError."""
        accounts = self._connection.client("iamcredentials.projects.serviceAccounts")
        body = {"scope": [SCOPE], "lifetime": f"{int(self._lifetime.total_seconds())}s"}
        name = f"projects/-/serviceAccounts/{self._submitter}"
        try:
            answer = execute(accounts.generateAccessToken(name=name, body=body))
        except ApiError as error:
            raise ServiceError(
                f"no token for {self._submitter}: {error.message}", hint=self._hint(error)
            ) from None
        token, expires = text_of(answer, "accessToken"), time_of(text_of(answer, "expireTime"))
        if not token or expires is None:
            raise ServiceError(
                f"no token for {self._submitter}: the answer has no token with an expiry time",
                hint='check "endpoints" in reconciler.yaml, and any proxy between',
            )
        return Credential({"Authorization": f"Bearer {token}"}, expires)

    def _hint(self, error: ApiError) -> str:
        grant = (
            f"gcloud iam service-accounts add-iam-policy-binding {self._submitter} --role={_CREATOR} "
            "--member=MEMBER"
        )
        if error.status == 403 and not error.remedy:
            return (
                f"run `{grant}`, where MEMBER is the account that runs this, "
                "such as user:YOU or serviceAccount:E-MAIL"
            )
        if error.status == 404:
            return f'correct "submitter" in reconciler.yaml, or create that service account and run `{grant}`'
        return error.hint or "nothing was submitted: try again later"


def _refresh_request() -> Any:
    """Return the sender of google-auth's requests to the addresses in the user's credentials.

    It follows no redirect, which would forward a signed assertion or a refresh token. By plain http it sends
    only requests without a secret, such as a request to the metadata server.
    """
    from google.auth.exceptions import TransportError

    refusal: Any = TransportError
    transport = DirectTransport(_ByHttps(), max_body=_MAX_ANSWER)

    def sent(
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Any:
        if more.get("cert"):
            raise refusal("credentials with a client certificate can't be used")
        is_secret = bool(body) or any(name.lower() == "authorization" for name in headers or {})
        if is_secret and not url.lower().startswith("https://"):
            raise refusal("an address in the credentials, such as token_uri, is not https")
        request = HttpRequest(method, url, dict(headers or {}), body, timeout or _ANSWERS_WITHIN)
        try:
            return _Answer(transport.send(request))
        except (NotSentError, NoAnswerError) as error:
            raise refusal(error) from error

    return sent


class _ByHttps(Struct, frozen=True):
    """The rule for credentials of the user's own, whose file names the addresses."""

    def permits(self, to: Destination) -> bool:
        """Return True for https."""
        return to.scheme == "https"


class _Answer:
    """A response in the form of google.auth.transport.Response."""

    def __init__(self, response: HttpResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.data = response.body


def _failed_request(error: BaseException) -> ServiceError | None:
    """Return the error of the transport that an error of google-auth comes from."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NotSentError | NoAnswerError):
        cause = cause.__cause__ or cause.__context__
    return cause


@contextmanager
def _explained() -> Iterator[None]:
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAuthError, OSError) as error:
        if failed := _failed_request(error):
            # A login wouldn't help.
            raise ServiceError(f"no Google credentials: {failed.message}", hint=failed.hint) from None
        text = _text_of(error)
        if not text or text.startswith("<"):
            raise ServiceError(_UNREADABLE, hint=_BETWEEN) from None
        raise ServiceError(
            f"no usable Google credentials: {one_line(without_credentials(text)[:_MAX_QUOTED])}",
            hint=_NOT_ADMITTED if _CONDITION in text else _NO_LOGIN,
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError):
        # google-auth parses any response with status 200 as a token, even a proxy's page.
        raise ServiceError(_UNREADABLE, hint=_BETWEEN) from None


_CONDITION = "rejected by the attribute condition"
"""Words of Google's refusal of a workflow's identity."""
_NOT_ADMITTED = (
    "Google admits a workflow by the numbers of the repository and its owner, by its branch and its file, "
    "and refuses it after a rename, a transfer or a new default branch, as it should: run `reconciler init "
    "--steps google` in a clone of the repository as it is now, and the commands that it prints, "
    "`update-oidc` among them"
)
_NO_LOGIN = "run `gcloud auth application-default login`, or set up Workload Identity Federation"
_UNREADABLE = "no usable Google credentials: the answer of the server that gives tokens can't be read"
_BETWEEN = "check any proxy between, and the token_uri of the credentials"


def _text_of(error: BaseException) -> str:
    """Return the sentence of an error of google-auth, which may hold another error."""
    first = error.args[0] if error.args else None
    if isinstance(first, BaseException):
        return _text_of(first)
    return first if isinstance(first, str) else str(error)
