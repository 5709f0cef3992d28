"""Who may talk to the service: whoever has its token, from this machine, and no web page.

With a token that expires everything is served but what is the service's own, and the making of tokens.

A job reaches storage without the token, by an unguessable URL of its own: /jobs/SECRET/storage/v1/…
There it also finds what Compute Engine would tell it, /jobs/SECRET/computeMetadata/v1/….
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Protocol

from reconciler.localservice import metadata_server
from reconciler.localservice.application import STORAGE_PATHS, Application, answered
from reconciler.localservice.message import Answering, ApiError, Request, Response, not_found
from reconciler.localservice.reach import EVERYTHING, Reach, of_job
from reconciler.localservice.records import JobRecord
from reconciler.localservice.store import Store
from reconciler.localservice.tokens import Tokens, expired, same

CLAIMS = "claims_buckets"
"""The setting that holds what no job may touch: a list of "bucket" or "bucket/prefix"."""

_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
_JOB_URL = re.compile(r"/jobs/([A-Za-z0-9_-]{1,64})(/.*)")
_ADMIN = "/_service/"


class _Administration(Protocol):
    def handle(self, request: Request) -> Response: ...


class Gate:
    """Lets requests through to the application and, below /_service/, to the administration.

    A credential is judged once, when the request's head arrives, by the clock of that moment: a head with an
    expired token is refused whatever follows, and a request that was let in goes on when its token expires
    during the body. Only a create stays bound to the expiry (`Reach.until`): it makes no job after it,
    however slowly its body came, because a claim may be taken over soon after its token's end.

    Args:
        store: Where tokens and jobs are looked up. The server's event loop waits for it, so it needs a
            database connection of its own, which never waits for a writer.
    """

    def __init__(self, application: Application, admin: _Administration, store: Store, token: str) -> None:
        self._application = application
        self._admin = admin
        self._store = store
        self._token = token
        self._tokens = Tokens(store)

    def admit(self, head: Request) -> Response | Answering:
        """Judge a request by its head: return the function that answers it, or its refusal."""
        inner, secret = _addressed(head)
        return answered(inner, lambda: self._of_job(head, secret) if secret else self._with_token(head))

    def _with_token(self, head: Request) -> Answering:
        _check_sender(head)
        token = _bearer_token(head)
        own = same(token, self._token)
        if head.path.startswith(_ADMIN) and own:
            return lambda request: answered(request, lambda: self._admin.handle(request))
        reach = EVERYTHING if own else self._reach_until(head, token)
        return lambda request: self._application.handle(request, reach)

    def _of_job(self, head: Request, secret: str) -> Answering:
        _check_sender(head)
        self._job(secret)
        return self._answer_job

    def _answer_job(self, request: Request) -> Response:
        inner, secret = _addressed(request)
        return answered(inner, lambda: self._answer_inner(inner, secret))

    def _answer_inner(self, inner: Request, secret: str) -> Response:
        job = self._job(secret)  # again: it may have ended while the body arrived
        if metadata_server.is_asked(inner):
            return metadata_server.answer(inner, job.project)
        if not inner.path.startswith(STORAGE_PATHS):
            raise not_found("Method not found.")
        return self._application.handle(inner, of_job(job.body, self._store.setting(CLAIMS) or ()))

    def _job(self, secret: str) -> JobRecord:
        job = self._store.of_secret(secret)
        # After its end nothing of a job should write any more.
        if job is None or job.state.ended:
            raise ApiError("UNAUTHENTICATED", "No job that hasn't ended has this storage URL.")
        return job

    def _reach_until(self, head: Request, token: str) -> Reach:
        """Return what an expiring token permits.

        Raises:
            ApiError: UNAUTHENTICATED: it isn't a token of this home, or it has expired.
                PERMISSION_DENIED: the path is one of the service's own.
        """
        expiry = self._tokens.expiry(token)
        if expiry is None:
            raise ApiError("UNAUTHENTICATED", "The request needs the bearer token of service.json.")
        if self._store.clock() >= expiry:
            raise expired(expiry)
        if head.path.startswith(_ADMIN):
            raise ApiError("PERMISSION_DENIED", "The service's own paths need the token of service.json.")
        return Reach(until=expiry)


def _addressed(request: Request) -> tuple[Request, str]:
    """Return the request as it is below a job's URL, and the URL's secret; "" for any other URL."""
    job_url = _JOB_URL.fullmatch(request.path)
    if job_url is None:
        return request, ""
    secret, path = job_url.groups()
    return replace(request, path=path, base=f"{request.base}/jobs/{secret}"), secret


def _bearer_token(request: Request) -> str:
    """The token, "" where there is none, which is nobody's."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_sender(request: Request) -> None:
    """Refuse web pages: their requests carry an Origin, or by DNS rebinding another Host than loopback's."""
    if not _LOOPBACK.fullmatch(request.headers.get("host", "")):
        raise ApiError("PERMISSION_DENIED", "The Host header must be loopback's.")
    if "origin" in request.headers:
        raise ApiError("PERMISSION_DENIED", "Requests from web pages are refused.")
