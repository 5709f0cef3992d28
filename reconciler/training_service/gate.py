"""Gate of the service: who may ask what, judged before any byte of a request's body is stored."""

from __future__ import annotations

import re
from dataclasses import replace

from reconciler.base.listener.message import Request, Responder, Response
from reconciler.training_service.apis.credentials import TOKEN_PATH, is_for_metadata, metadata, refreshed
from reconciler.training_service.application import Admin, Application, reply_to
from reconciler.training_service.http import discovery
from reconciler.training_service.http.auth import EVERYTHING, Access, Tokens, expired, job_access, same
from reconciler.training_service.http.message import STORAGE_PATHS, ApiError, not_found
from reconciler.training_service.state.database import CLAIMS, REACHABLE, Store
from reconciler.training_service.state.records import JobRecord

_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
_JOB_URL = re.compile(r"/jobs/([A-Za-z0-9_-]{1,64})(/.*)")
_ADMIN = "/_service/"
_WRITE_LOGS = "/v2/entries:write"


class Gate:
    """Gate that admits requests to the application and, below /_service/, to the administration.

    A credential is checked once, when the request's head arrives, by the clock of that moment: a head with an
    expired token is refused whatever follows, and an admitted request goes on if its token expires during the
    body. Only a create stays bound to the expiry (`Access.until`): it makes no job later, however slow its
    body is, because another reconciler may take over a claim soon after its token's end.

    Args:
        store: The store of tokens and jobs. The server's event loop waits for it, so it needs its own
            database connection, which never waits for a writer.
    """

    def __init__(self, application: Application, admin: Admin, store: Store, token: str) -> None:
        self._application = application
        self._admin = admin
        self._store = store
        self._token = token
        self._tokens = Tokens(store)

    def admit(self, head: Request) -> Response | Responder:
        """Check a request's head; return the function that answers the request, or its refusal."""
        inner, secret = _split_job_url(head)
        return reply_to(inner, lambda: self._of_job(head, secret) if secret else self._with_token(head))

    def _with_token(self, head: Request) -> Responder:
        _check_sender(head)
        token = _bearer_token(head)
        is_owner = same(token, self._token)
        if head.path.startswith(_ADMIN) and is_owner:
            return lambda request: reply_to(request, lambda: self._admin.handle(request))
        access = EVERYTHING if is_owner else self._access_until(head, token)
        return lambda request: self._application.handle(request, access)

    def _of_job(self, head: Request, secret: str) -> Responder:
        _check_sender(head)
        if not same(secret, self._token):
            self._job(secret)
        return self._answer_job

    def _answer_job(self, request: Request) -> Response:
        inner, secret = _split_job_url(request)
        return reply_to(inner, lambda: self._answer_inner(inner, secret))

    def _answer_inner(self, inner: Request, secret: str) -> Response:
        if same(secret, self._token):  # the user's own client of an emulator, which sends no token
            if (inner.method, inner.path) == ("POST", TOKEN_PATH):
                return refreshed(inner, self._token)
            return self._answer_storage(inner, EVERYTHING)
        job = self._job(secret)  # again: the job may have ended while the body arrived
        if is_for_metadata(inner):
            return metadata(inner, job)
        reserved, others = (self._store.setting(name) or () for name in (CLAIMS, REACHABLE))
        access = job_access(job.body, reserved, others, job.project, job.job_id)
        return self._answer_storage(inner, access)

    def _answer_storage(self, inner: Request, access: Access) -> Response:
        is_served = inner.path.startswith((*STORAGE_PATHS, _WRITE_LOGS))
        if not is_served and not discovery.is_object(inner.path):
            raise not_found("Method not found.")
        return self._application.handle(inner, access)

    def _job(self, secret: str) -> JobRecord:
        job = self._store.of_secret(secret)
        # A process that outlives its job must not write any more.
        if job is None or job.state.ended:
            raise ApiError("UNAUTHENTICATED", "No job that hasn't ended has this storage URL.")
        return job

    def _access_until(self, head: Request, token: str) -> Access:
        """Return the permissions of an expiring token.

        Raises:
            ApiError: UNAUTHENTICATED: the token isn't of this home, or it has expired.
                PERMISSION_DENIED: the path is one of the service's own.
        """
        expiry = self._tokens.expiry(token)
        if expiry is None:
            raise ApiError("UNAUTHENTICATED", "The request needs the bearer token of service.json.")
        if self._store.clock() >= expiry:
            raise expired(expiry)
        if head.path.startswith(_ADMIN):
            raise ApiError("PERMISSION_DENIED", "The service's own paths need the token of service.json.")
        return Access(until=expiry)


def _split_job_url(request: Request) -> tuple[Request, str]:
    """Return the request relative to a job's URL, and the URL's secret; "" for any other URL."""
    job_url = _JOB_URL.fullmatch(request.path)
    if job_url is None:
        return request, ""
    secret, path = job_url.groups()
    return replace(request, path=path, base=f"{request.base}/jobs/{secret}"), secret


def _bearer_token(request: Request) -> str:
    """Return the token; "" if it is missing, which never matches."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_sender(request: Request) -> None:
    """Refuse web pages: they send an Origin, or after DNS rebinding a Host other than loopback."""
    if not _LOOPBACK.fullmatch(request.headers.get("host", "")):
        raise ApiError("PERMISSION_DENIED", "The Host header must be loopback's.")
    if "origin" in request.headers:
        raise ApiError("PERMISSION_DENIED", "Requests from web pages are refused.")
