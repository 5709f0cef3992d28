"""Destination of a request, parsed once for the check of its token and for the connection."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec import Struct

HTTPS_PORT = 443
_PORTS = {"http": 80, "https": HTTPS_PORT}
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
# Only names and addresses: in a host such as "evil.example\.googleapis.com" or
# "evil.example%2f.googleapis.com", two programs may see two hosts.
_NETLOC = re.compile(
    rf"(?P<host>{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9a-f.]*:[0-9a-f:.]*\])(?::(?P<port>[0-9]{{0,5}}))?", re.ASCII
)


class Destination(Struct, frozen=True):
    """Parsed absolute URL.

    Attributes:
        scheme: `http` or `https`.
        host: In lower case; an IPv6 address without its brackets. A trailing dot is kept.
        port: The URL's port, by default the scheme's.
        netloc: Host and port as the URL writes them.
        target: Path and query, for a request line.
    """

    scheme: str
    host: str
    port: int
    netloc: str
    target: str

    @property
    def origin(self) -> str:
        """Return the URL up to its path."""
        return f"{self.scheme}://{self.netloc}"


def destination_of(url: str) -> Destination:
    """Return the destination of an absolute http or https URL.

    Raises:
        ValueError: The URL has another scheme, contains a user name, or isn't in printable ASCII. The message
            ends a sentence that begins with "the address", and quotes nothing.
    """
    parts = None
    if url.isascii() and url.isprintable() and " " not in url:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = None
    if parts is None or parts.scheme not in _PORTS:
        raise ValueError("is not an http or https URL")
    if "@" in parts.netloc:
        raise ValueError("contains a user name")
    found = _NETLOC.fullmatch(parts.netloc.lower())
    port = int(found["port"] or _PORTS[parts.scheme]) if found else 0
    if found is None or not 0 < port < 65536:
        raise ValueError("is not an http or https URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(parts.scheme, found["host"].strip("[]"), port, parts.netloc, target)
