"""Live pages: read-only, for the browsers of this machine that came by a link.

A link is made when the listener starts, works once and within two minutes, and gives the browser a cookie.
The cookie opens pages, here alone: the services know nothing of it, and no page changes anything.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from reconciler.base.errors import InvalidError, ReconcilerError, ServiceError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.google.listing import TargetMemory
from reconciler.google.session import Session, open_session
from reconciler.manifests.cache import KnownFiles
from reconciler.manifests.settings import Config, Environment, load_config
from reconciler.model.details import JobDetails
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.pages import Key, Snapshot, details_of, snapshot
from reconciler.operations.show import prepare_time
from reconciler.operations.watch.http import Page, Request
from reconciler.output.pages.site import Pages
from reconciler.output.pages.template import live_policy, script_text
from reconciler.output.pages.values import Content, row_key
from reconciler.planning.outcome import JobStatus

LINK_LASTS = 120.0
COOKIE_LASTS = 12 * 3600.0
_MOST_BROWSERS = 100
_FRESH = 2.0
"""Seconds for which a snapshot is shown, or more if it took long to read."""
_SHARE = 5.0
"""A snapshot is shown this many times as long as it took: a large repository isn't read all the time."""
_SCRIPT = "live.js"
_HTML = "text/html; charset=utf-8"
_OPEN = "/open"
_NO_ACCESS = b"These pages open by a link: run `reconciler open`. A link works once, within two minutes.\n"
# Not a redirect: a browser that came from another site's page would leave the cookie out of it.
_WELCOME = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>reconciler</title>'
    '<meta http-equiv="refresh" content="0; url=/index.html">'
    '<a href="/index.html">Open the pages</a></html>'
)


class Access:
    """Links that work once, and the cookies that they give.

    Args:
        monotonic: Returns the time in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._links: dict[bytes, float] = {}
        self._cookies: dict[bytes, float] = {}

    def link(self) -> str:
        """Return the word of a new link."""
        word = secrets.token_urlsafe(32)
        with self._lock:
            self._links[word.encode()] = self._monotonic() + LINK_LASTS
        return word

    def redeemed(self, word: str) -> str | None:
        """Return a new cookie for a link's word; None if the link was used or is too old."""
        given = word.encode("utf-8", "surrogateescape")
        with self._lock:
            found = next((each for each in self._links if hmac.compare_digest(each, given)), None)
            if found is None or self._links.pop(found) < self._monotonic():
                return None
            cookie = secrets.token_urlsafe(32)
            self._cookies[cookie.encode()] = self._monotonic() + COOKIE_LASTS
            while len(self._cookies) > _MOST_BROWSERS:
                del self._cookies[next(iter(self._cookies))]
            return cookie

    def is_open(self, cookie: str) -> bool:
        """Return True for a cookie that was given and still lasts."""
        given = cookie.encode("utf-8", "surrogateescape")
        with self._lock:
            found = next((each for each in self._cookies if hmac.compare_digest(each, given)), None)
            return found is not None and self._cookies[found] >= self._monotonic()


class LivePages:
    """Answers to requests for pages; each shows a state that is a few seconds old at most.

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
        self._lock = threading.Lock()
        self._memory = TargetMemory()
        self._known: tuple[Path, Environment, KnownFiles] | None = None
        self._begun: dict[str, str] = {}
        self._shown: tuple[float, Pages] | None = None

    def link(self, url: str) -> str:
        """Return a new link to the listener at a URL."""
        return f"{url}{_OPEN}?link={self.access.link()}"

    def answer(self, request: Request) -> Page:
        """Return the page of a request, or the reason why there is none."""
        name = f"reconciler-{request.port}"
        # A program that looks at links for their title must not use one up.
        if request.path == _OPEN and request.method == "GET":
            cookie = self.access.redeemed(request.query.get("link", ""))
            if cookie is None:
                return Page(401, _NO_ACCESS)
            given = f"{name}={cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age={COOKIE_LASTS:.0f}"
            return Page(200, _WELCOME.encode(), _HTML, (("Set-Cookie", given), *_headers()))
        if not self.access.is_open(request.cookies.get(name, "")):
            return Page(401, _NO_ACCESS)
        path = request.path.removeprefix("/") or "index.html"
        if path == _SCRIPT:
            return Page(200, script_text(_SCRIPT).encode(), "text/javascript; charset=utf-8")
        try:
            with self._lock:
                text = self._pages().page(path, _SCRIPT, request.query.get("q", ""))
        except (ReconcilerError, OSError) as error:
            reason = error.message if isinstance(error, ReconcilerError) else str(error.strerror or error)
            return Page(503, f"The jobs can't be read now: {one_line(reason)}\n".encode())
        if text is None:
            return Page(404, b"There is no such page, or no longer such a job.\n")
        return Page(200, text.encode("utf-8", "backslashreplace"), _HTML, _headers())

    def _pages(self) -> Pages:
        """Return the pages of the present state, or of that of a moment ago."""
        if self._shown is not None and time.monotonic() < self._shown[0]:
            return self._shown[1]
        began = time.monotonic()
        config = load_config(self._root())
        environment = config.environment(self._environment)
        desired = self._desired(config, environment)
        opened = partial(open_session, config, environment, self._environ, start=False)
        with opened(memory=self._memory) as session:
            taken = snapshot(session, desired, Content(logs=True, env_values=True), self._environ)

        def details(key: Key) -> JobDetails | None:
            with opened() as session:
                return details_of(session, taken, key, self._environ)

        def prepared(rows: Sequence[JobStatus]) -> list[str]:
            with opened() as session:
                return [self._prepare_time(session, taken, row) for row in rows]

        linked = [row for row in taken.site.rows if row_key(row) in taken.found]
        pages = Pages(taken.site, details, linked, prepared)
        ended = time.monotonic()
        self._shown = ended + max(_FRESH, _SHARE * (ended - began)), pages
        return pages

    def _desired(self, config: Config, environment: Environment) -> Desired | None:
        """Return the desired jobs; None if manifests are invalid."""
        if self._known is None or self._known[:2] != (config.root, environment):
            self._known = config.root, environment, KnownFiles(frozenset(environment.defaults))
        try:
            return load_desired(config, environment, [], self._known[2])
        except (InvalidError, UsageError):
            return None

    def _prepare_time(self, session: Session, taken: Snapshot, row: JobStatus) -> str:
        """Return the beginning of a run's set-up; "" if unknown."""
        job = taken.found.get(row_key(row))
        if job is None or job.run is None:
            return ""
        known = self._begun.get(job.run.resource)
        if known is None:
            try:
                known = prepare_time(session, job.run)
            except ServiceError:
                return ""
            # It stays as it is from the start of the trainer on.
            if row.start_time:
                self._begun[job.run.resource] = known
        return known


def _headers() -> tuple[tuple[str, str], ...]:
    return (
        ("Content-Security-Policy", f"{live_policy()}; frame-ancestors 'none'"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
