"""Credentials for a single create, with a known expiry and without renewal.

If a process is suspended between its claim and its request, its credential expires meanwhile and the service
refuses the request. The expiry thus bounds the time in which a request can still create a job.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from reconciler.base.errors import ServiceError
from reconciler.google.client import ApiError, Connection, execute, text_of
from reconciler.model.claim import checked
from reconciler.model.ports import Credential

if TYPE_CHECKING:
    from reconciler.google.credentials import Token

LOCAL_SUBMITTER = "submitter@local.iam.gserviceaccount.com"
"""Submitter at the embedded service, which has no service accounts and accepts any name."""

_CLOCK_TICK = timedelta(seconds=1)
_LONGEST = timedelta(hours=12)
_CREATOR = "roles/iam.serviceAccountTokenCreator"


class GeneratedTokens:
    """Implementation of the port `Fence` by IAM tokens of a service account; they expire by Google's clock.

    Args:
        connection: The connection to IAM.
        submitter: The service account's e-mail address.
        lifetime: The lifetime of a token, in whole seconds.
    """

    def __init__(self, connection: Connection, submitter: str, lifetime: timedelta) -> None:
        self._connection = connection
        self._submitter = submitter
        self._lifetime = lifetime

    def mint(self) -> Credential:
        """Return a new credential for one create; raise ServiceError."""
        from reconciler.google.credentials import SCOPE

        accounts = self._connection.client("iamcredentials.projects.serviceAccounts")
        body = {"scope": [SCOPE], "lifetime": f"{int(self._lifetime.total_seconds())}s"}
        name = f"projects/-/serviceAccounts/{self._submitter}"
        try:
            answer = execute(accounts.generateAccessToken(name=name, body=body))
        except ApiError as error:
            raise ServiceError(
                f"no token for {self._submitter}: {error.message}", hint=self._hint(error)
            ) from None
        token, expires = text_of(answer, "accessToken"), _time(text_of(answer, "expireTime"))
        if not token or expires is None:
            raise ServiceError(
                f"no token for {self._submitter}: the answer doesn't hold one with its end",
                hint='check "endpoints" in reconciler.yaml, and any proxy between',
            )
        return Credential({"Authorization": f"Bearer {token}"}, expires)

    def _hint(self, error: ApiError) -> str:
        grant = (
            f"gcloud iam service-accounts add-iam-policy-binding {self._submitter} --role={_CREATOR} "
            "--member=MEMBER"
        )
        if error.status == 403:
            return f"run `{grant}`, where MEMBER is who runs this, such as user:YOU or serviceAccount:E-MAIL"
        if error.status == 404:
            return f'correct "submitter" in reconciler.yaml, or make that service account and run `{grant}`'
        return error.hint or "nothing was submitted: try again later"


class TokenSource(Protocol):
    """Source of a token with a known expiry."""

    def token(self) -> Token:
        """Return the present token, renewed if it is about to expire; raise ServiceError."""


class OwnToken:
    """Implementation of the port `Fence` by the token of all requests, which mostly lasts an hour.

    Args:
        source: Returns the token.
        now: Reads the service's time.
    """

    def __init__(self, source: TokenSource, now: Callable[[], datetime]) -> None:
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


def _time(text: str) -> datetime | None:
    try:
        return checked(datetime.fromisoformat(text))
    except ValueError:
        return None
