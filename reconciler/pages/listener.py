"""Listener on this machine for programs and browsers: health, metrics and live pages.

All paths but those of health, metrics and the pages get the same answer, so nobody learns the pages' folder
by trying.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address

from reconciler.base.diagnostics import quote
from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.listener.message import TEXT, Request, Responder, Response
from reconciler.base.listener.server import Listener
from reconciler.pages.template import live_policy

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+)):(\d{1,5})", re.ASCII)
# The Host header must be a loopback name: a web page whose name resolves to 127.0.0.1 (DNS rebinding) could
# read the metrics otherwise.
_LOOPBACK = re.compile(r"(?:127\.\d+\.\d+\.\d+|localhost|\[::1\])(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_LAST_PORT = 65535
_ENDS_WITHIN = 1.0
"""Seconds for which the end of the listener waits for answers under way."""
READING = ("GET", "HEAD")

Answer = Callable[[Request], Response | Responder | None]
"""Function that judges the head of a request for another path; None for what it has no answer to."""

Endpoints = Mapping[str, Callable[[], Response]]
"""Functions that make the response, by path; each takes a moment only."""


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; raise UsageError if it is malformed or not a loopback address."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _LAST_PORT:
        raise UsageError(
            f"{quote(text)} is not of the form HOST:PORT", hint=f"write 127.0.0.1:PORT, at most {_LAST_PORT}"
        )
    host = match[1] or match[2]
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
    return host, int(match[3])


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
            return Response(403, TEXT, b"only for programs of this machine\n")
        return pages[head.path]() if head.method in READING else NOT_ALLOWED
    return (others(head) if others and is_of_here else None) or NOT_FOUND


NOT_ALLOWED = Response(405, (("Allow", "GET, HEAD"), *TEXT), b"only GET and HEAD\n")
NOT_FOUND = Response(
    404,
    TEXT,
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
