"""Who may talk to the service: whoever has its token, from this machine, and no web page.

A job reaches storage without the token, by an unguessable URL of its own: /jobs/SECRET/storage/v1/…
"""

from __future__ import annotations

import hmac
import re
from dataclasses import replace
from typing import Protocol

from reconciler.localservice.application import STORAGE_PATHS, Application, answered
from reconciler.localservice.message import ApiError, Request, Response, not_found
from reconciler.localservice.reach import Reach, of_job
from reconciler.localservice.store import Store

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
        self._check_token(request)
        return (self._admin if request.path.startswith(_ADMIN) else self._application).handle(request)

    def _of_job(self, request: Request, secret: str) -> Response:
        _check_sender(request)
        reach = self._reach(secret)
        if not request.path.startswith(STORAGE_PATHS):
            raise not_found("Method not found.")
        return self._application.handle(request, reach)

    def _reach(self, secret: str) -> Reach:
        job = self._store.of_secret(secret)
        # After its end nothing of a job should write any more.
        if job is None or job.state.ended:
            raise ApiError("UNAUTHENTICATED", "No job that hasn't ended has this storage URL.")
        return of_job(job.body, self._store.setting(CLAIMS) or ())

    def _check_token(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(token.strip().encode(), self._token.encode())
        if scheme.lower() != "bearer" or not right:
            raise ApiError("UNAUTHENTICATED", "The request needs the bearer token of service.json.")


def _check_sender(request: Request) -> None:
    """Refuse web pages: their requests carry an Origin, or by DNS rebinding another Host than loopback's."""
    if not _LOOPBACK.fullmatch(request.headers.get("host", "")):
        raise ApiError("PERMISSION_DENIED", "The Host header must be loopback's.")
    if "origin" in request.headers:
        raise ApiError("PERMISSION_DENIED", "Requests from web pages are refused.")
