"""Destinations of requests, and the hosts that may get a token.

Google's and GitHub's tokens go to their owners' hosts and to hosts that the user allowed, by https alone. The
transport checks the rule before it connects, so that no caller can forget the check."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct, structs

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
    match = _NETLOC.fullmatch(parts.netloc.lower())
    port = int(match["port"] or _PORTS[parts.scheme]) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError("is not an http or https URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(parts.scheme, match["host"].strip("[]"), port, parts.netloc, target)


Place = tuple[str, int]
"""A host in lower case, and a port."""


class TokenRule(Protocol):
    """The rule for a token."""

    def permits(self, to: Destination) -> bool:
        """Return True if the token may be sent to a destination."""


class OwnerHosts(Struct, frozen=True):
    """The rule for the token of Google or of GitHub.

    Attributes:
        owner: `Google` or `GitHub`.
        hosts: A regular expression of the owner's own hosts, which get the token on port 443 alone: no
            service of theirs listens on another one.
        described: The owner's own hosts in words.
        allowed: Other places that the user, not the repository, allowed.
    """

    owner: str
    hosts: str
    described: str
    allowed: frozenset[Place] = frozenset()

    def permits(self, to: Destination) -> bool:
        """Return True if the token may be sent to a destination; never by plain http, even to loopback."""
        if to.scheme != "https":
            return False
        is_own = to.port == HTTPS_PORT and re.fullmatch(self.hosts, to.host) is not None
        return is_own or (to.host, to.port) in self.allowed

    def also(self, host_ports: Iterable[Place]) -> OwnerHosts:
        """Return the rule that permits these places too."""
        return structs.replace(self, allowed=self.allowed.union(host_ports))


class ThisMachine(Struct, frozen=True):
    """The rule for a token of the embedded training service, which listens on loopback by plain http."""

    def permits(self, to: Destination) -> bool:
        """Return True for an address of loopback."""
        return to.scheme == "http" and to.host in ("127.0.0.1", "::1", "localhost")


GOOGLE = OwnerHosts("Google", r"(?:[a-z0-9-]+\.)*googleapis\.com", "googleapis.com and its subdomains")
GITHUB = OwnerHosts("GitHub", r"api\.(?:github|[a-z0-9-]+\.ghe)\.com", "api.github.com and api.*.ghe.com")


def place_of(text: str) -> Place:
    """Return the place that `HOST` or `HOST:PORT` names; without a port it is 443.

    Raises:
        ValueError: The text is anything else, such as a URL or a pattern.
    """
    to = destination_of(f"https://{text}")
    if to.netloc != text or to.host.endswith("."):
        raise ValueError("is not HOST or HOST:PORT")
    return to.host, to.port
