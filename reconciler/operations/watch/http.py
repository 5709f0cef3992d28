"""HTTP for programs and browsers on this machine: health, metrics, and live pages.

The pages are read-only, for browsers that came by a link. A link is made when the listener starts, works once
and within two minutes, and gives the browser a cookie. The cookie opens pages, here alone: the services know
nothing of it, and no page changes anything.

A browser sends a cookie of 127.0.0.1 to every port of it. So the pages are in a folder with a random name,
new in each process, and the browser sends their cookie to that folder alone. The name alone opens nothing.
All other paths but those of health and metrics get the same answer, so nobody learns the name by trying.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import threading
import time
from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from reconciler.base.diagnostics import quote
from reconciler.base.errors import InvalidError, ReconcilerError, ServiceError, UsageError
from reconciler.base.http.connections import time_since_boot
from reconciler.base.listener.message import Request, Responder, Response
from reconciler.base.listener.server import Listener
from reconciler.base.sanitize import one_line
from reconciler.google.session import Session, open_session
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.settings import Config, Environment, load_config
from reconciler.model.claim import ClaimState
from reconciler.model.details import JobDetails
from reconciler.model.job import State
from reconciler.model.plan import Drift, DriftKind
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.pages import Key, Snapshot, details_of, snapshot
from reconciler.operations.show import prepare_time
from reconciler.operations.watch.state import Result
from reconciler.output.pages.site import Pages, row_key
from reconciler.output.pages.template import Content, live_policy, script_text
from reconciler.planning.outcome import JobStatus
from reconciler.submission.observe import Observed

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+)):(\d{1,5})", re.ASCII)
# The Host header must be a loopback name: a web page whose name resolves to 127.0.0.1 (DNS rebinding) could
# read the metrics otherwise.
_LOOPBACK = re.compile(r"(?:127\.\d+\.\d+\.\d+|localhost|\[::1\])(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_LAST_PORT = 65535
_ENDS_WITHIN = 1.0
"""Seconds for which the end of the listener waits for answers under way."""
_TEXT = (("Content-Type", "text/plain; charset=utf-8"),)
_READING = ("GET", "HEAD")

Answer = Callable[[Request], Response | Responder | None]
"""Function that judges the head of a request for another path; None for what it has no answer to."""

Endpoints = Mapping[str, Callable[[], Response]]
"""Functions that make the response, by path; each takes a moment only."""


class Health:
    """Health check: passes must keep ending in time.

    Args:
        longest: Maximum number of seconds between the ends of two passes, or from the start to the first end.
        monotonic: Returns the time in seconds.
    """

    def __init__(self, longest: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._monotonic = monotonic
        self._last = monotonic()

    def passed(self) -> None:
        """Record the end of a pass."""
        self._last = self._monotonic()

    def page(self) -> Response:
        """Return status 200, or 503 if no pass has ended for too long."""
        ago = self._monotonic() - self._last
        well = ago <= self._longest
        text = f"{'ok' if well else 'stuck'}: the last pass ended {ago:.0f} s ago\n"
        return Response(200 if well else 503, _TEXT, text.encode())


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; raise UsageError if it is malformed or not a loopback address."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > _LAST_PORT:
        raise UsageError(
            f"{quote(text)} is not of the form HOST:PORT", hint=f"write 127.0.0.1:PORT, at most {_LAST_PORT}"
        )
    host = found[1] or found[2]
    host = "127.0.0.1" if host.lower() == "localhost" else host
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise UsageError(
            f"{quote(text)} is not an address that only this machine can reach",
            hint="write 127.0.0.1:PORT; to serve other machines, put an authenticating proxy in front",
        )
    return host, int(found[3])


@contextmanager
def listening(address: tuple[str, int], pages: Endpoints, others: Answer | None = None) -> Iterator[str]:
    """Serve `pages` in a thread; yield the URL without a path.

    Args:
        address: Host and port; port 0 for any free one.
        pages: The responses by path.
        others: Judges the requests for other paths; None to refuse them.

    Raises:
        ServiceError: The server can't listen at the address.
    """
    host, port = address
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        listener = Listener(bound, partial(_judged, pages, others), max_body=1, headers=_headers())
    except OSError as error:
        bound.close()
        raise ServiceError(f"can't listen at {host}:{port}: {error.strerror}") from None
    listener.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.port}"
    finally:
        listener.close(_ENDS_WITHIN)


def _judged(pages: Endpoints, others: Answer | None, head: Request) -> Response | Responder:
    # Browsers send Origin if a page of another origin could read the answer (CORS); programs do not.
    is_of_here = _LOOPBACK.fullmatch(head.headers.get("host", "")) and "origin" not in head.headers
    if head.path in pages:
        if not is_of_here:
            return Response(403, _TEXT, b"only for programs of this machine\n")
        return pages[head.path]() if head.method in _READING else _NOT_ALLOWED
    return (others(head) if others and is_of_here else None) or _NOT_FOUND


_NOT_ALLOWED = Response(405, (("Allow", "GET, HEAD"), *_TEXT), b"only GET and HEAD\n")
_NOT_FOUND = Response(
    404,
    _TEXT,
    b"There is no such page, or no access to it. Live pages open by a link: run `reconciler open`. "
    b"A link works once, within two minutes, and gives access for 12 hours at most.\n",
)


def _headers() -> tuple[tuple[str, str], ...]:
    """Return the headers of every response, the listener's own refusals included."""
    return (
        ("Cache-Control", "no-store"),
        ("Content-Security-Policy", f"{live_policy()}; frame-ancestors 'none'"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
    )


# Without this, each counter gets a second time series with the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it

_UNRESOLVED = (ClaimState.PENDING, ClaimState.HELD)


class Metrics:
    """Metrics of the loop; every label value is exported from the start.

    Attributes:
        submissions, fetch_failures: Counters of submitted jobs, and of failed fetches of the remote branch.
        invalid, unposted: Gauges of files with problems, and of statuses that could not be posted.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._registry = CollectorRegistry()
        self._passes = self._counter("passes", "Passes, by how they ended.", "result", Result)
        self.submissions = self._counter("submissions", "Jobs that were submitted.")
        self.fetch_failures = self._counter("fetch_failures", "Fetches of the remote branch that failed.")
        self._last = self._gauge("last_pass_timestamp_seconds", "When the last pass ended.")
        self._success = self._gauge(
            "last_success_timestamp_seconds", "When a pass last completed without a failure."
        )
        self._duration = self._gauge("last_pass_duration_seconds", "How long the last pass took.")
        self._refused = self._gauge("refused", "1 while a limit stops the passes, else 0.")
        self.invalid = self._gauge("manifests_invalid", "Files with problems, at the last pass.")
        self.unposted = self._gauge("statuses_unposted", "Statuses that the last pass couldn't post.")
        self._jobs = self._gauge("jobs", "Runs of this repository, by state.", "state", State)
        self._claims = self._gauge("claims", "Unresolved submissions, by state.", "state", _UNRESOLVED)
        self._drift = self._gauge("drift_findings", "Drift findings, by kind.", "kind", DriftKind)

    def passed(self, result: Result, seconds: float) -> None:
        """Record the end of a pass."""
        self._passes.labels(str(result)).inc()
        now = self._now()
        self._last.set(now)
        self._duration.set(seconds)
        self._refused.set(result is Result.REFUSED)
        if result is Result.SUCCEEDED:
            self._success.set(now)

    def seen(self, observed: Observed) -> None:
        """Set the numbers of runs and open claims."""
        _set(self._jobs, State, (run.state for run in observed.runs))
        _set(self._claims, _UNRESOLVED, (claim.state for claim in observed.claims.values()))

    def drifted(self, findings: Iterable[Drift]) -> None:
        """Set the numbers of the plan's drift findings."""
        _set(self._drift, DriftKind, (finding.kind for finding in findings))

    def page(self) -> Response:
        """Return all metrics in Prometheus' text format."""
        return Response(200, (("Content-Type", CONTENT_TYPE_PLAIN_0_0_4),), generate_latest(self._registry))

    def _counter(self, name: str, help_text: str, label: str = "", values: Iterable[str] = ()) -> Counter:
        made = Counter(f"reconciler_{name}", help_text, [label] if label else [], registry=self._registry)
        for value in values:
            made.labels(str(value))
        return made

    def _gauge(self, name: str, help_text: str, label: str = "", values: Iterable[str] = ()) -> Gauge:
        made = Gauge(f"reconciler_{name}", help_text, [label] if label else [], registry=self._registry)
        for value in values:
            made.labels(str(value))
        return made


def _set(gauge: Gauge, values: Iterable[str], found: Iterable[str]) -> None:
    count = Count(str(value) for value in found)
    # Values that are not found are set to 0, or their last figure would stay.
    for value in values:
        gauge.labels(str(value)).set(count[str(value)])


LINK_LASTS = 120.0
COOKIE_LASTS = 12 * 3600.0
_MOST_BROWSERS = 100
_FRESH = 2.0
"""Seconds for which a snapshot is shown, or more if it took long to read."""
_SHARE = 5.0
"""A snapshot is shown this many times as long as it took: a large repository isn't read all the time."""
_LISTED = 3600.0
"""Seconds after which all runs are listed again, also those that had ended."""
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
            found = next((each for each in self._links if hmac.compare_digest(each, given)), None)
            if found is None or self._links.pop(found) < self._now():
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
            found = next((each for each in self._cookies if hmac.compare_digest(each, given)), None)
            return found is not None and self._cookies[found] >= self._now()


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
        self._folder = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._observed: tuple[tuple[Config, Environment], float, Observed] | None = None
        self._manifests = CheckedFiles()
        self._begun: dict[str, str] = {}
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
        if head.method not in _READING:
            return _NOT_ALLOWED
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
            return Response(503, _TEXT, f"The jobs can't be read now: {one_line(reason)}\n".encode())
        if text is None:
            return _NOT_FOUND
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
        with opened() as session:
            taken = snapshot(session, desired, Content(logs=True, env_values=True), self._environ, before)
        self._observed = (target, listed, taken.observed) if taken.observed else None

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
        try:
            return load_desired(config, environment, [], self._manifests)
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
