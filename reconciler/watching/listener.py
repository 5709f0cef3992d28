"""Health and metrics over HTTP, for programs of this machine."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import Thread
from typing import Any

from reconciler.diagnostics import quote
from reconciler.errors import ServiceError, UsageError

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+)):(\d{1,5})", re.ASCII)
# By the name of a host of its own, a web page could read what is here (DNS rebinding).
_LOOPBACK = re.compile(r"(?:127\.\d+\.\d+\.\d+|localhost|\[::1\])(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_LAST_PORT = 65535
_REQUEST_TAKES = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered."""

    status: int
    text: bytes
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Page]]
"""What makes the answer, by path."""


class Health:
    """Whether the loop still goes round.

    Args:
        longest: Seconds after a pass, or after the beginning, in which the next one must have ended.
        monotonic: Gives seconds.
    """

    def __init__(self, longest: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._monotonic = monotonic
        self._last = monotonic()

    def passed(self) -> None:
        """A pass ended."""
        self._last = self._monotonic()

    def page(self) -> Page:
        """200, or 503 where no pass has ended for too long."""
        ago = self._monotonic() - self._last
        well = ago <= self._longest
        said = f"{'ok' if well else 'stuck'}: the last pass ended {ago:.0f} s ago\n"
        return Page(200 if well else 503, said.encode())


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; raises UsageError where it isn't, or isn't this machine's own."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > _LAST_PORT:
        raise UsageError(
            f"{quote(text)} is not of the form HOST:PORT", hint=f"write 127.0.0.1:PORT, at most {_LAST_PORT}"
        )
    host = found[1] or found[2]
    host = "127.0.0.1" if host.lower() == "localhost" else host
    if not _is_loopback(host):
        raise UsageError(
            f"{quote(text)} is no address that only this machine reaches",
            hint="write 127.0.0.1:PORT; for other machines put a proxy that knows who asks before it",
        )
    return host, int(found[3])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def listening(address: tuple[str, int], pages: Pages) -> Iterator[str]:
    """Answer with `pages` in a thread; the URL without a path.

    Raises:
        ServiceError: The address can't be listened at.
    """
    host, port = address
    try:
        server = _server(host)((host, port), _handler(pages))
    except OSError as error:
        raise ServiceError(f"can't listen at {host}:{port}: {error.strerror}") from None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="listener")
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _server(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Who asks and goes away is nothing to tell of."""

    return Server


def _handler(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TAKES
        server_version = "reconciler"
        sys_version = ""

        def do_GET(self) -> None:
            self.wfile.write(self._answered())

        def do_HEAD(self) -> None:
            self._answered()

        def _answered(self) -> bytes:
            """Answer with all but the text, which it gives."""
            page = self._page()
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.text)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            return page.text

        def _page(self) -> Page:
            if not _LOOPBACK.fullmatch(self.headers.get("Host", "")) or "Origin" in self.headers:
                return Page(403, b"only for programs of this machine\n")
            made = pages.get(self.path.partition("?")[0])
            return made() if made else Page(404, b"there are /healthz and /metrics\n")

        def log_message(self, *_: object) -> None:
            """Who asks is nothing to tell of."""

    return Handler
