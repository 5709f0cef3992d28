"""A proxy on plain sockets between the reconciler and a service that applies random faults to requests.

It says `connection: close` both ways, so that each connection carries one request. The fault of a request
depends on the seed and on the number of earlier requests with its method and path, so that threads and
processes that overtake each other change little.
"""

from __future__ import annotations

import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE


class Fault(StrEnum):
    """The handling of a request."""

    PASS = "passed on"
    DROPPED = "closed without passing it on"
    UNANSWERED = "passed on, closed without its answer"
    RESET = "passed on, reset instead of its answer"
    HALVED = "passed on, its answer cut in half"
    LATE = "closed, and passed on later"
    PAGE = "answered by a page of the proxy, not passed on"
    PAGE_AFTER = "passed on, answered by a page of the proxy"
    BUSY = "answered 503, not passed on"
    QUOTA = "answered 429, not passed on"
    DENIED = "answered 403, not passed on"
    DRIPPED = "passed on, its answer in tiny pieces"


_UNSENT = frozenset({Fault.DROPPED, Fault.PAGE, Fault.BUSY, Fault.QUOTA, Fault.DENIED})
_LATEST = 1.0  # seconds
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Request:
    """A request as it arrived; `head` is forwarded before the body."""

    method: str
    target: str
    head: bytes
    body: bytes


@dataclass(frozen=True)
class Rule:
    """The faults of the matching requests; the rest of the probability is for forwarding.

    Attributes:
        method: The method, or "" for any.
        path: A regular expression, somewhere in the path and query.
        chances: The probability of each fault.
    """

    method: str
    path: str
    chances: Mapping[Fault, float]

    def fits(self, request: Request) -> bool:
        return self.method in ("", request.method) and re.search(self.path, request.target) is not None


@dataclass(frozen=True)
class Post:
    target: str
    body: bytes
    fault: Fault

    @property
    def forwarded(self) -> bool:
        return self.fault not in _UNSENT


@dataclass
class FaultProxy:
    """A proxy before the service at `upstream`; the first rule that matches a request applies.

    Attributes:
        counts: The number of requests with each fault.
        posts: Every POST, in the order of arrival.
        moments: The number of moments so far: each request has a moment on arrival, and another when its
            answer is available but not yet delivered.
    """

    upstream: str
    seed: int = 0
    rules: Sequence[Rule] = ()
    counts: Counter[Fault] = field(default_factory=Counter)
    posts: list[Post] = field(default_factory=list)
    moments: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._seen: Counter[tuple[str, str]] = Counter()
        self._acts: dict[int, list[Callable[[], None]]] = {}
        self._under_way = 0
        self._watcher: Callable[[Request, bool], None] | None = None

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self.settle()

    def calm(self) -> None:
        """Forward everything from now on, and cancel the pending calls of `after`."""
        with self._changed:
            self.rules = ()
            self._acts.clear()

    def settle(self) -> None:
        """Wait until every request that arrived has been forwarded or dropped, late ones included."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._under_way == 0, timeout=PATIENCE)

    def after(self, moments: int, act: Callable[[], None]) -> None:
        """Call `act` after this number of further moments, before the exchange continues."""
        with self._changed:
            self._acts.setdefault(self.moments + moments, []).append(act)

    def watch(self, watcher: Callable[[Request, bool], None]) -> None:
        """Call `watcher` at every moment, with the request and whether its answer is available.

        The exchange continues when it returns.
        """
        self._watcher = watcher

    def report(self) -> str:
        """Return the number of faults by kind, as text."""
        told = "\n".join(f"{count:6} {fault}" for fault, count in sorted(self.counts.items()))
        return f"seed {self.seed}: {sum(self.counts.values())} requests\n{told}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                self._under_way += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock, suppress(OSError):
                sock.settimeout(PATIENCE)
                request = _read_request(sock)
                if request is not None:
                    self._treat(sock, request)
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def _treat(self, sock: socket.socket, request: Request) -> None:
        fault, chance = self._fate(request)
        self._pass_moment(request, answered=False)
        if fault is Fault.LATE:
            sock.shutdown(socket.SHUT_RDWR)
            time.sleep(chance.random() * _LATEST)
        answer = _UNFORWARDED.get(fault) or self._forwarded(request)
        self._pass_moment(request, answered=True)
        _deliver(sock, answer, fault, chance)

    def _fate(self, request: Request) -> tuple[Fault, random.Random]:
        with self._changed:
            kind = (request.method, request.target.partition("?")[0])
            self._seen[kind] += 1
            chance = random.Random(f"{self.seed} {kind} {self._seen[kind]}")
            fault = self._drawn(request, chance)
            self.counts[fault] += 1
            if request.method == "POST":
                self.posts.append(Post(request.target, request.body, fault))
        return fault, chance

    def _drawn(self, request: Request, chance: random.Random) -> Fault:
        rule = next((rule for rule in self.rules if rule.fits(request)), None)
        drawn = chance.random()
        for fault, likely in rule.chances.items() if rule else ():
            drawn -= likely
            if drawn < 0:
                return fault
        return Fault.PASS

    def _pass_moment(self, request: Request, *, answered: bool) -> None:
        with self._changed:
            self.moments += 1
            acts = self._acts.pop(self.moments, [])
        for act in acts:
            act()
        if self._watcher is not None:
            self._watcher(request, answered)

    def _forwarded(self, request: Request) -> bytes:
        """Return the bytes of the service's answer, possibly truncated; empty if the service is down."""
        address = urlsplit(self.upstream)
        answer = bytearray()
        with (
            suppress(OSError),
            socket.create_connection(
                (str(address.hostname), int(address.port or 80)), timeout=PATIENCE
            ) as sock,
        ):
            sock.sendall(request.head + request.body)
            while chunk := sock.recv(_CHUNK):
                answer += chunk
        return bytes(answer)


def _read_request(sock: socket.socket) -> Request | None:
    """Return a whole request with `connection: close`; None if the client disconnected before its end."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        if not (chunk := sock.recv(_CHUNK)):
            return None
        data += chunk
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    body = bytearray(rest)
    while length and len(body) < int(length[1]):
        if not (chunk := sock.recv(_CHUNK)):
            return None
        body += chunk
    method, target, _ = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    kept = re.sub(rb"\r\nconnection:[^\r]*", b"", head, flags=re.IGNORECASE)
    # The service accepts only its loopback name, whatever name the client used.
    kept = re.sub(rb"\r\nhost:[^\r]*", b"\r\nHost: localhost", kept, flags=re.IGNORECASE)
    return Request(method, target, kept + b"\r\nConnection: close\r\n\r\n", bytes(body))


def _deliver(sock: socket.socket, answer: bytes, fault: Fault, chance: random.Random) -> None:
    match fault:
        case Fault.DROPPED | Fault.UNANSWERED | Fault.LATE:
            pass
        case Fault.RESET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        case Fault.HALVED:
            sock.sendall(answer[: chance.randrange(1, max(2, len(answer)))])
        case Fault.PAGE_AFTER:
            sock.sendall(_PAGE)
        case Fault.DRIPPED:
            for start in range(0, len(answer), 40):
                sock.sendall(answer[start : start + 40])
        case _:
            sock.sendall(answer)


def _answer(status: str, kind: str, body: str, *headers: str) -> bytes:
    own = (f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join((f"HTTP/1.1 {status}", *own, *headers, "", body)).encode()


def _error(status: str, word: str, *headers: str, message: str = "try again") -> bytes:
    body = f'{{"error": {{"code": {status[:3]}, "message": "{message}", "status": "{word}"}}}}'
    return _answer(status, "application/json; charset=UTF-8", body, *headers)


_PAGE = _answer("502 Bad Gateway", "text/html", "<html><h1>502 Bad Gateway</h1></html>")
_UNFORWARDED = {
    Fault.DROPPED: b"-",
    Fault.PAGE: _PAGE,
    Fault.BUSY: _error("503 Service Unavailable", "UNAVAILABLE", "Retry-After: 0"),
    Fault.QUOTA: _error("429 Too Many Requests", "RESOURCE_EXHAUSTED"),
    Fault.DENIED: _error("403 Forbidden", "PERMISSION_DENIED", message="The permission is denied."),
}
