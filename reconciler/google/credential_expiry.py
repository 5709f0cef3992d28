"""Credentials for one create that end at a known time, and that nothing renews.

A process that stood still between its claim and its request is refused by the service when it goes on, as its
credential has ended: that is what bounds the time in which a request can still make a job.
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
"""Who submits to the embedded service, which has no service accounts and takes any name."""

_CLOCK_TICK = timedelta(seconds=1)
_LONGEST = timedelta(hours=12)
_CREATOR = "roles/iam.serviceAccountTokenCreator"


class GeneratedTokens:
    """The port `Fence` by tokens that IAM makes for a service account, with an end by Google's own clock.

    Args:
        connection: How IAM is reached.
        submitter: The service account's e-mail address.
        lifetime: How long a token lasts, in whole seconds.
    """

    def __init__(self, connection: Connection, submitter: str, lifetime: timedelta) -> None:
        self._connection = connection
        self._submitter = submitter
        self._lifetime = lifetime

    def mint(self) -> Credential:
        """A new credential for one create; raises ServiceError."""
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
    """Whoever has a token and knows how long it is good for."""

    def token(self) -> Token:
        """The present token, a new one where it is about to end; raises ServiceError."""


class OwnToken:
    """The port `Fence` by the token that all requests carry: an hour, mostly, where no other can be made.

    Its end by the service's clock is the service's time, read after the token was looked at, plus what was
    left of it then; and a second, as that time is told in whole ones. This machine's clock doesn't matter
    where it also made the token's end. Some credentials note an end by their issuer's clock instead; that one
    is right as it is, so that the later of the two is never too early. By a clock that is fast it may be much
    too late, but no token lasts longer than twelve hours from the service's time on.

    Args:
        source: Has the token.
        now: Asks the service for its time.
    """

    def __init__(self, source: TokenSource, now: Callable[[], datetime]) -> None:
        self._source = source
        self._now = now

    def mint(self) -> Credential:
        """The present token as a credential for one create; raises ServiceError."""
        token = self._source.token()
        now = self._now() + _CLOCK_TICK
        expires = min(max(now + token.left, token.expiry), now + _LONGEST)
        return Credential(dict(token.headers), expires)


def _time(text: str) -> datetime | None:
    try:
        return checked(datetime.fromisoformat(text))
    except ValueError:
        return None
