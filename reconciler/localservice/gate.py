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
from reconciler.localservice.message import ApiError, Request, Response, not_found
from reconciler.localservice.reach import EVERYTHING, Reach, of_job
from reconciler.localservice.store import Store
from reconciler.localservice.tokens import Tokens, expired, same

CLAIMS = "claims_buckets"
"""The setting that holds what no job may touch: a list of "bucket" or "bucket/prefix"."""

_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
_JOB_URL = re.compile(r"/jobs/([A-Za-z0-9_-]{1,64})(/.*)")
_ADMIN = "/_service/"


class _Answering(Protocol):
    def handle(self, request: Request) -> Response: ...


class Gate:
    """Lets requests through to the application and, below /_service/, to the administration."""

    def __init__(self, application: Application, admin: _Answering, store: Store, token: str) -> None:
        self._application = application
        self._admin = admin
        self._store = store
        self._token = token
        self._tokens = Tokens(store)

    def handle(self, request: Request) -> Response:
        """The answer to a request from outside."""
        job_url = _JOB_URL.fullmatch(request.path)
        if job_url is None:
            return answered(request, lambda: self._with_token(request))
        secret, path = job_url.groups()
        inner = replace(request, path=path, base=f"{request.base}/jobs/{secret}")
        return answered(inner, lambda: self._of_job(inner, secret))

    def _with_token(self, request: Request) -> Response:
        _check_sender(request)
        token = _bearer_token(request)
        own = same(token, self._token)
        if request.path.startswith(_ADMIN) and own:
            return self._admin.handle(request)
        return self._application.handle(request, EVERYTHING if own else self._reach_until(request, token))

    def _of_job(self, request: Request, secret: str) -> Response:
        _check_sender(request)
        reach = self._reach(secret)
        if metadata_server.is_asked(request):
            job = self._store.of_secret(secret)
            return metadata_server.answer(request, job.project if job else "")
        if not request.path.startswith(STORAGE_PATHS):
            raise not_found("Method not found.")
        return self._application.handle(request, reach)

    def _reach(self, secret: str) -> Reach:
        job = self._store.of_secret(secret)
        # After its end nothing of a job should write any more.
        if job is None or job.state.ended:
            raise ApiError("UNAUTHENTICATED", "No job that hasn't ended has this storage URL.")
        return of_job(job.body, self._store.setting(CLAIMS) or ())

    def _reach_until(self, request: Request, token: str) -> Reach:
        """What an expiring token is good for, while it is.

        Waitress calls the service only when a request has wholly arrived, body included (its HTTPChannel
        adds a task when the parser is through). So the clock is read here after the last byte, however long
        ago the first one came: what is still under way at the expiry is refused.
        """
        expiry = self._tokens.expiry(token)
        if expiry is None:
            raise ApiError("UNAUTHENTICATED", "The request needs the bearer token of service.json.")
        if self._store.clock() >= expiry:
            raise expired(expiry)
        if request.path.startswith(_ADMIN):
            raise ApiError("PERMISSION_DENIED", "The service's own paths need the token of service.json.")
        return Reach(until=expiry)


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
