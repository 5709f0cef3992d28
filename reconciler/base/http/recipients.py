"""Rules for tokens: the destinations that the token of an owner may be sent to.

Google's and GitHub's tokens go to their owners' hosts and to hosts that the user allowed, by https alone. The
transport checks the rule before it connects, so that no caller can forget the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct, structs

from reconciler.base.http.destination import HTTPS_PORT, Destination, destination_of

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
        own: A regular expression of the owner's own hosts, which get the token on port 443 alone: no service
            of theirs listens on another one.
        described: The owner's own hosts in words.
        allowed: Other places that the user, not the repository, allowed.
    """

    owner: str
    own: str
    described: str
    allowed: frozenset[Place] = frozenset()

    def permits(self, to: Destination) -> bool:
        """Return True if the token may be sent to a destination; never by plain http, even to loopback."""
        if to.scheme != "https":
            return False
        is_own = to.port == HTTPS_PORT and re.fullmatch(self.own, to.host) is not None
        return is_own or (to.host, to.port) in self.allowed

    def also(self, places: Iterable[Place]) -> OwnerHosts:
        """Return the rule that permits these places too."""
        return structs.replace(self, allowed=self.allowed.union(places))


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
