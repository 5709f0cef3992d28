"""Live pages, read-only, for browsers of this machine that came by a link.

A link is made when the listener starts, works once and within two minutes, and gives the browser a cookie.
The cookie opens pages, here alone: the services know nothing of it, and no page changes anything.

A browser sends a cookie of 127.0.0.1 to every port of it. So the pages are in a folder with a random name,
new in each process, and the browser sends their cookie to that folder alone. The name alone opens nothing.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from reconciler.base.concurrency import run_concurrently, run_in_order
from reconciler.base.errors import InvalidError, ReconcilerError, ServiceError, UsageError
from reconciler.base.http.connections import time_since_boot
from reconciler.base.listener.message import TEXT, Request, Responder, Response
from reconciler.base.sanitize import one_line
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.settings import Config, Environment, load_config
from reconciler.model.details import JobDetails
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.session import Session, open_session
from reconciler.operations.show import prepare_time
from reconciler.pages.listener import NOT_ALLOWED, NOT_FOUND, READING
from reconciler.pages.rendering import Pages
from reconciler.pages.site import row_key
from reconciler.pages.snapshot import Snapshot, completed, details_of, snapshot
from reconciler.pages.template import PageContent, script_text
from reconciler.planning.outcome import JobStatus
from reconciler.submission.observe import Observed

LINK_LASTS = 120.0
COOKIE_LASTS = 12 * 3600.0
_MOST_BROWSERS = 100
_FRESH = 2.0
"""Seconds for which a snapshot is shown, or more if it took long to read."""
_SHARE = 5.0
"""A snapshot is shown this many times as long as it took: a large repository isn't read all the time."""
_LISTED = 3600.0
"""Seconds after which all runs are listed again, also those that had ended, and their results read again."""
_COOKIE = "reconciler"
_SCRIPT = "live.js"
_HTML = (("Content-Type", "text/html; charset=utf-8"),)
_LINK = "open"
# Not a redirect: a browser that came from another site's page would leave the cookie out of it.
_WELCOME = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>reconciler</title>'
    b'<meta http-equiv="refresh" content="0; url=index.html">'
    b'<a href="index.html">Open the pages</a></html>'
)


class Access:
    """Links that work once, and the cookies that they give.

    Args:
        now: Returns the time in seconds; it goes on while the machine sleeps.
    """

    def __init__(self, now: Callable[[], float] = time_since_boot) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._links: dict[bytes, float] = {}
        self._cookies: dict[bytes, float] = {}

    def link(self) -> str:
        """Return the word of a new link."""
        word = secrets.token_urlsafe(32)
        with self._lock:
            self._links[word.encode()] = self._now() + LINK_LASTS
        return word

    def redeemed(self, word: str) -> str | None:
        """Return a new cookie for a link's word; None if the link was used or is too old."""
        given = word.encode("utf-8", "surrogateescape")
        with self._lock:
            link = next((link for link in self._links if hmac.compare_digest(link, given)), None)
            if link is None or self._links.pop(link) < self._now():
                return None
            cookie = secrets.token_urlsafe(32)
            self._cookies[cookie.encode()] = self._now() + COOKIE_LASTS
            while len(self._cookies) > _MOST_BROWSERS:
                del self._cookies[next(iter(self._cookies))]
            return cookie

    def is_open(self, cookie: str) -> bool:
        """Return True for a cookie that was given and still lasts."""
        given = cookie.encode("utf-8", "surrogateescape")
        with self._lock:
            stored = next((stored for stored in self._cookies if hmac.compare_digest(stored, given)), None)
            return stored is not None and self._cookies[stored] >= self._now()


class LivePages:
    """Answers to requests for pages.

    Each page shows a state a few seconds old, or up to six times as old as its reading took.

    Args:
        root: Returns the repository's root; raises ReconcilerError while there is none.
        environ: The environment variables.
        environment: The environment's name; None for the default.
    """

    def __init__(self, root: Callable[[], Path], environ: Mapping[str, str], environment: str | None) -> None:
        self.access = Access()
        self._root = root
        self._environ = environ
        self._environment = environment
        self._folder = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._observed: tuple[tuple[Config, Environment], float, Observed] | None = None
        self._manifests = CheckedFiles()
        self._ended: dict[str, JobDetails] = {}
        self._shown: tuple[float, Pages] | None = None

    def link(self, url: str) -> str:
        """Return a new link to the listener at a URL."""
        return f"{url}/{self._folder}/{_LINK}?link={self.access.link()}"

    def answer(self, head: Request) -> Response | Responder | None:
        """Judge a request: return the answer to a link, or the maker of a page; None for all others."""
        folder, _, path = head.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(folder.encode("latin-1"), self._folder.encode()):
            return None
        # A program that looks at links for their title must not use one up.
        if path == _LINK and head.method == "GET":
            return self._entered(head)
        # A link of another page leads nowhere, also if that page is on another port of this machine: to a
        # browser it is the same site.
        from_elsewhere = head.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if from_elsewhere or not any(map(self.access.is_open, self._cookies(head))):
            return None
        if head.method not in READING:
            return NOT_ALLOWED
        return partial(self._page, path or "index.html")

    def _entered(self, head: Request) -> Response | None:
        cookie = self.access.redeemed(head.parameter("link"))
        if cookie is None:
            return None
        bound = f"Path=/{self._folder}/; HttpOnly; SameSite=Strict; Max-Age={COOKIE_LASTS:.0f}"
        return Response(200, (("Set-Cookie", f"{_COOKIE}={cookie}; {bound}"), *_HTML), _WELCOME)

    @staticmethod
    def _cookies(head: Request) -> Iterator[str]:
        """Yield the values that may be our cookie's: other ports can set one of the same name beside it."""
        for pair in head.headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == _COOKIE:
                yield value

    def _page(self, path: str, request: Request) -> Response:
        if path == _SCRIPT:
            script = script_text(_SCRIPT).encode()
            return Response(200, (("Content-Type", "text/javascript; charset=utf-8"),), script)
        try:
            with self._lock:
                text = self._pages().page(path, _SCRIPT, request.parameter("q"))
        except (ReconcilerError, OSError) as error:
            reason = error.message if isinstance(error, ReconcilerError) else str(error.strerror or error)
            return Response(503, TEXT, f"The jobs can't be read now: {one_line(reason)}\n".encode())
        if text is None:
            return NOT_FOUND
        return Response(200, _HTML, text.encode("utf-8", "backslashreplace"))

    def _pages(self) -> Pages:
        """Return the pages of the present state, or of that of a moment ago."""
        if self._shown is not None and time.monotonic() < self._shown[0]:
            return self._shown[1]
        began = time.monotonic()
        config = load_config(self._root())
        environment = config.environment(self._environment)
        desired = self._desired(config, environment)
        opened = partial(open_session, config, environment, self._environ, start=False)
        target, before, listed = (config, environment), None, began
        if self._observed and self._observed[0] == target and began < self._observed[1] + _LISTED:
            _, listed, before = self._observed
        if before is None:
            self._ended.clear()
        with opened() as session:
            taken = snapshot(session, desired, PageContent(logs=True, env_values=True), self._environ, before)
        self._observed = (target, listed, taken.observed) if taken.observed else None

        pages = Pages(taken.site, LiveJobs(opened, taken, self._environ, self._ended))
        ended = time.monotonic()
        self._shown = ended + max(_FRESH, _SHARE * (ended - began)), pages
        return pages

    def _desired(self, config: Config, environment: Environment) -> Desired | None:
        """Return the desired jobs; None if manifests are invalid."""
        try:
            return load_desired(config, environment, [], self._manifests)
        except (InvalidError, UsageError):
            return None


class LiveJobs:
    """Details that are read when a page shows them; those of ended runs once.

    Args:
        opened: Opens the environment.
        taken: The snapshot.
        environ: The environment variables.
        ended: The details of ended runs that were read before, by resource name; more are added.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Session]],
        taken: Snapshot,
        environ: Mapping[str, str],
        ended: dict[str, JobDetails],
    ) -> None:
        self._opened = opened
        self._taken = taken
        self._environ = environ
        self._ended = ended

    def has_page(self, row: JobStatus) -> bool:
        """Return True for a row whose details can be read."""
        return row_key(row) in self._taken.jobs

    def details(self, row: JobStatus) -> JobDetails | None:
        """Return the details of a row, read now; None if the job was deleted since."""
        with self._opened() as session:
            return details_of(session, self._taken, row_key(row), self._environ)

    def completed(self, rows: Sequence[JobStatus]) -> list[JobStatus]:
        """Return the rows with their causes and results; read those of ended runs once."""
        unread = [row for row in rows if row.state and row.state.ended and row.resource not in self._ended]
        read: dict[str, JobDetails] = {}
        if unread:
            with self._opened() as session:
                run_all = run_concurrently if session.connection.endpoint.distant else run_in_order
                tasks = [partial(self._brief, session, row) for row in unread]
                read = {name: details for name, details in run_all(tasks) if details}
        # A page that is opened later tries again to read a missing part, and whether a model is published.
        self._ended |= {name: details for name, details in read.items() if _stays(details)}
        return [completed(row, read.get(row.resource) or self._ended.get(row.resource)) for row in rows]

    def prepare_times(self, rows: Sequence[JobStatus]) -> list[str]:
        """Return the beginning of the set-up of each row; "" for an unknown one."""
        with self._opened() as session:
            return [self._prepare_time(session, row) for row in rows]

    def _prepare_time(self, session: Session, row: JobStatus) -> str:
        if details := self._ended.get(row.resource):
            return details.prepare_time
        job = self._taken.jobs.get(row_key(row))
        try:
            return prepare_time(session, job.run) if job and job.run else ""
        except ServiceError:
            return ""

    def _brief(self, session: Session, row: JobStatus) -> tuple[str, JobDetails | None]:
        """Return a run's resource name, and its details without the log; None if they can't be read now."""
        try:
            details = details_of(session, self._taken, row_key(row), self._environ, entries=0)
        except ReconcilerError:
            details = None
        return row.resource, details


def _stays(details: JobDetails) -> bool:
    """Return True if the details of an ended run are complete, and its model doesn't wait for its place."""
    return not details.unread and (details.place is None or details.place.is_own)
