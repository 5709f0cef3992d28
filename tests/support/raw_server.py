"""A server on plain sockets that counts requests and gives the bad answers that a test wants."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import urllib3

from reconciler.base.http import HttpRequest
from tests.support.waiting import PATIENCE


@dataclass(frozen=True)
class Arrived:
    """A request as it arrived, and the number of its connection, counted from 0."""

    connection: int
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


# A reaction to a request on the connection; returns whether another request may follow on it.
Behaviour = Callable[[socket.socket, Arrived], bool]


@dataclass
class RawServer:
    """A server on loopback; the n-th request gets the n-th behaviour, and all further ones the last."""

    behaviours: list[Behaviour]
    tls: ssl.SSLContext | None = None
    arrived: list[Arrived] = field(default_factory=list)
    connections: int = 0
    ended: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"

    def count(self, method: str) -> int:
        return sum(1 for request in self.arrived if request.method == method)

    @contextmanager
    def running(self) -> Iterator[RawServer]:
        threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads = threads
        threads[0].start()
        try:
            yield self
        finally:
            # shutdown wakes a thread that waits in accept or recv; close alone would not.
            for sock in (self._listener, *self._open):
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
                with suppress(OSError):
                    socket.socket.close(sock)
            for thread in threads:
                thread.join(PATIENCE)
                assert not thread.is_alive()

    def wait_for_end_of(self, *numbers: int) -> None:
        """Wait until these connections have ended."""
        with self.changed:
            assert self.changed.wait_for(lambda: set(numbers) <= set(self.ended), timeout=PATIENCE), (
                self.ended
            )

    def close_idle(self) -> None:
        """Close every open connection from the server's side, as servers do with kept-alive ones."""
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            number = self.connections
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            self._converse(sock, number)
        finally:
            with self.changed:
                self.ended.append(number)
                self.changed.notify_all()

    def _converse(self, sock: socket.socket, number: int) -> None:
        with suppress(OSError):
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            self._open.append(sock)
            with sock, sock.makefile("rb") as stream:
                while request := _request(stream, number):
                    with self.changed:
                        behaviour = self.behaviours[min(len(self.arrived), len(self.behaviours) - 1)]
                        self.arrived.append(request)
                        self.changed.notify_all()
                    if not behaviour(sock, request):
                        return


def _request(stream: object, number: int) -> Arrived | None:
    line = stream.readline(65536)  # type: ignore[attr-defined]
    words = line.decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    headers: dict[str, str] = {}
    while (line := stream.readline(65536)) not in (b"\r\n", b""):  # type: ignore[attr-defined]
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
    return Arrived(number, words[0], words[1], headers, body)


def answer(status: int = 200, body: bytes = b"{}", **headers: str) -> Behaviour:
    """Return a behaviour that sends a whole answer; the connection stays open."""

    def behave(sock: socket.socket, request: Arrived) -> bool:
        named = {"content-length": str(len(body)), **{k.replace("_", "-"): v for k, v in headers.items()}}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        sock.sendall(f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + body)
        return True

    return behave


def send_then_close(data: bytes) -> Behaviour:
    """Return a behaviour that sends some bytes, perhaps none, and closes the connection in order."""

    def behave(sock: socket.socket, request: Arrived) -> bool:
        sock.sendall(data)
        return False

    return behave


def raw(data: bytes) -> Behaviour:
    """Return a behaviour that sends some bytes; the connection stays open."""

    def behave(sock: socket.socket, request: Arrived) -> bool:
        sock.sendall(data)
        return True

    return behave


def send_then_reset(data: bytes) -> Behaviour:
    """Return a behaviour that sends some bytes that arrive, and then RST."""

    def behave(sock: socket.socket, request: Arrived) -> bool:
        sock.sendall(data)
        return reset(sock, request)

    return behave


def reset(sock: socket.socket, request: Arrived) -> bool:
    """End the connection by RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def silence(sock: socket.socket, request: Arrived) -> bool:
    """Send no answer until the client disconnects."""
    with suppress(OSError):
        sock.recv(1)
    return False


def drip(head: bytes) -> Behaviour:
    """Return a behaviour that sends `head`, and then single bytes for as long as the client stays."""

    def behave(sock: socket.socket, request: Arrived) -> bool:
        sock.sendall(head)
        sock.settimeout(0.02)
        while True:
            try:
                if sock.recv(1) == b"":
                    return False
            except TimeoutError:
                sock.sendall(b"x")

    return behave


# Bad behaviours of a server, each after it has taken the request.
FAULTS: dict[str, Behaviour] = {
    "closes": send_then_close(b""),
    "resets": reset,
    "half a status line": send_then_close(b"HTTP/1.1 20"),
    "half the headers": send_then_close(b"HTTP/1.1 200 OK\r\nContent-Type: appl"),
    "half a body": send_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
    "half a body, then RST": send_then_reset(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
    "half a chunked body": send_then_close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"),
    "no HTTP": send_then_close(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "only says 103": send_then_close(b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "only says 100": send_then_close(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "silence": silence,
    "a byte now and then": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
    "endless headers": drip(b"HTTP/1.1 200 OK\r\nX-Long: "),
    "a body that lasts until the end": drip(b"HTTP/1.1 200 OK\r\n\r\n"),
    "a body too long": answer(200, b"x" * 10_001),
    "an encoded body": answer(200, b"\x1f\x8b", content_encoding="gzip"),
    "a length that is none": send_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}"),
    "a length below nothing": send_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"),
    "two lengths": send_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "a chunk whose length is none": send_then_close(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{}\r\n0\r\n\r\n"
    ),
    "100 and then nothing more": send_then_close(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2"),
}
SLOW = ("silence", "a byte now and then", "endless headers")
# Answers that some clients would follow, refresh their credentials for, or repeat.
ANSWERS = {
    "503": (503, answer(503, b"busy")),
    "500": (500, answer(500, b"oh")),
    "429 with retry-after": (429, answer(429, b"busy", retry_after="0")),
    "502 of a proxy": (502, answer(502, b"<html>Bad Gateway</html>", content_type="text/html")),
    "401": (401, answer(401, b"{}", www_authenticate="Bearer")),
    "407": (407, answer(407, b"{}", proxy_authenticate="Basic")),
    "408": (408, answer(408, b"", connection="close")),
    "301 to itself": (301, answer(301, b"", location="/again")),
    "302 to itself": (302, answer(302, b"", location="/again")),
    "303 to itself": (303, answer(303, b"", location="/again")),
    "307 to itself": (307, answer(307, b"", location="/again")),
    "308 to itself": (308, answer(308, b"", location="/again")),
    "100 before it": (
        200,
        raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    ),
    "a second answer after it": (
        200,
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 201 OK\r\nContent-Length: 2\r\n\r\n{}"),
    ),
    "more than its length says": (200, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{}{}{}{}{}")),
}


_PASSED_ON = ("content-range", "content-type", "date", "location", "x-goog-generation", "x-goog-hash")


def passing_on(service: str, behave: Behaviour, is_bad: Callable[[Arrived], bool]) -> Behaviour:
    """Return a behaviour that answers the bad requests by `behave`, and all others by the service."""

    def pass_on(sock: socket.socket, request: Arrived) -> bool:
        if is_bad(request):
            return behave(sock, request)
        kept = ("authorization", "content-type", "range", "x-upload-content-type")
        headers = {name: value for name, value in request.headers.items() if name in kept}
        done = urllib3.request(
            request.method,
            service + request.target,
            body=request.body,
            headers=headers,
            retries=False,
            timeout=PATIENCE,
        )
        named = {
            name.lower().replace("-", "_"): value
            for name, value in done.headers.items()
            if name.lower() in _PASSED_ON
        }
        return answer(done.status, done.data, **named)(sock, request)

    return pass_on


SECRET = "ya29.very-secret-token"


AUTHORIZED = {"Authorization": f"Bearer {SECRET}"}


def request_to(server: RawServer, method: str = "POST", **more: object) -> HttpRequest:
    body = b'{"displayName": "x"}' if method == "POST" else None
    return HttpRequest(method, f"{server.url}/v1/jobs?alt=json", AUTHORIZED, body, **more)  # type: ignore[arg-type]
