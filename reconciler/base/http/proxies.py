"""The user's proxy: which requests take it, and the tunnel through it.

Only https takes a proxy, and never to this machine. A plain http request has no token, and goes to the
embedded service or to a metadata server. The proxy gets a request's host and port, and its own credentials.

Sources: RFC 9110, sections 9.3.6 and 11.7; the variables are those of curl, and of Go's and Python's clients.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from msgspec import Struct

from reconciler.base.http.destination import Destination
from reconciler.base.http.wire import Incoming, UnusableAnswerError, read_head
from reconciler.base.sanitize import one_line

_PORTS = {"http": 80, "https": 443}
_NAMES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_SOCKS = re.compile(r"socks(?:4a?|5h?)?")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_WITH_PORT = re.compile(r"(?P<host>[^:]+|\[[^\]]+\]):(?P<port>[0-9]+)")
_REALM = re.compile(r'realm="([^"]*)"', re.IGNORECASE)
_METADATA = ("metadata.google.internal", "metadata", "169.254.169.254", "fd20:ce::254")
_MOST_QUOTED = 100


class ProxyError(Exception):
    """A proxy can't be used, or refuses; `hint` is the remedy."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Proxy(Struct, frozen=True):
    """An http or https proxy.

    Attributes:
        scheme: How to reach it.
        variable: The environment variable that names it.
        credentials: The value of Proxy-Authorization, "" for none; omitted from `repr`.
    """

    scheme: str
    host: str
    port: int
    variable: str
    credentials: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.origin!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("origin", self.origin)]

    @property
    def origin(self) -> str:
        """Return its URL, without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def request(self, to: Destination) -> bytes:
        """Return the bytes of the request for a tunnel."""
        authority = f"[{to.host}]:{to.port}" if ":" in to.host else f"{to.host}:{to.port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        lines += [f"Proxy-Authorization: {self.credentials}"] if self.credentials else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def proxy_for(to: Destination, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a destination; None to connect directly.

    Raises:
        ProxyError: The variable names no http or https proxy.
    """
    host = to.host.rstrip(".")
    if to.scheme != "https" or _is_local(host) or host in _METADATA:
        return None
    variable, value = _named(environ)
    if not value or _is_exempt(to, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    return _parsed(variable, value)


def read_tunnel(incoming: Incoming, to: Destination, proxy: Proxy) -> None:
    """Read the proxy's answer to `Proxy.request`; afterwards the connection leads to the destination.

    Raises:
        ProxyError: The proxy refuses, or doesn't answer as one.
        TimeoutError, OSError: The connection failed.
    """
    named = f"the proxy {proxy.origin} ({proxy.variable})"
    try:
        status, _, headers = read_head(incoming)
    except UnusableAnswerError as error:
        hint = f"check {proxy.variable}: it must name an http or https proxy"
        raise ProxyError(f"{named} doesn't answer as a proxy: {error}", hint) from None
    if status == 407:
        raise _unauthorized(headers.get("proxy-authenticate", ""), named, proxy)
    if status in (401, 403, 405):
        hint = f"have the proxy allow it, or name {to.host} in NO_PROXY if it can be reached directly"
        raise ProxyError(f"{named} refuses a connection to {to.host}:{to.port} ({status})", hint)
    if not 200 <= status < 300:
        hint = "try again later, or ask those who run the proxy"
        raise ProxyError(f"{named} can't connect to {to.host}:{to.port} ({status})", hint)
    if not incoming.is_empty:
        raise ProxyError(f"{named} sent more than an answer", f"check {proxy.variable}")


def unreachable(proxy: Proxy, reason: str) -> ProxyError:
    """Return the error for a proxy with which the connection failed before the tunnel was there."""
    hint = f"check {proxy.variable} and the network"
    if proxy.scheme == "https":
        hint += "; the proxy must speak TLS itself, with a certificate of a trusted authority"
    return ProxyError(f"the proxy {proxy.origin} ({proxy.variable}) can't be reached: {reason}", hint)


def _unauthorized(challenge: str, named: str, proxy: Proxy) -> ProxyError:
    match = _REALM.search(challenge)
    # Some proxies repeat what they were sent.
    quoted = one_line(match[1].replace(proxy.credentials or "\0", "***")[:_MOST_QUOTED]) if match else ""
    realm = f' for "{quoted}"' if quoted else ""
    if challenge and "basic" not in challenge.lower():
        kind = one_line(challenge.partition(" ")[0][:_MOST_QUOTED])
        hint = "run a local proxy that logs in to it, or name hosts that need none in NO_PROXY"
        return ProxyError(f"{named} demands a login of the kind {kind}, which can't be used (407)", hint)
    if proxy.credentials:
        message = f"{named} refuses the user name and the password{realm} (407)"
        return ProxyError(message, f"correct them in {proxy.variable}; write special characters as %XX")
    host = proxy.origin.partition("://")[2]
    hint = f"write them into {proxy.variable}: {proxy.scheme}://USER:PASSWORD@{host}"
    return ProxyError(f"{named} demands a user name and a password{realm} (407)", hint)


def _named(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names a proxy, and its value; "" for none."""
    for variable in _NAMES:
        if value := environ.get(variable, "").strip():
            return variable, value
    return "", ""


def _parsed(variable: str, value: str) -> Proxy:
    scheme = value.partition("://")[0].lower() if "://" in value else "http"
    if _SOCKS.fullmatch(scheme):
        message = f"{variable} names a proxy of the kind {scheme}, which can't be used"
        raise ProxyError(message, "name an http or https proxy, or unset it and add the hosts to NO_PROXY")
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname or "", _PORTS.get(scheme, 0) if parts.port is None else parts.port
        # An "@" there ends a password with a "/", a "?" or a "#" in it.
        is_whole = "@" not in f"{parts.path}{parts.query}{parts.fragment}"
    except ValueError:
        host, port, is_whole = "", 0, False
    if scheme not in _PORTS or not _HOST.fullmatch(host) or not port or not is_whole:
        # Its value may contain a password.
        hint = "write http://HOST:PORT or https://HOST:PORT; special characters of a password as %XX"
        raise ProxyError(f"{variable} isn't the address of a proxy", hint)
    return Proxy(scheme, host, port, variable, _basic(parts))


def _basic(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    pair = b":".join(unquote_to_bytes(os.fsencode(text)) for text in (parts.username, parts.password or ""))
    return f"Basic {b64encode(pair).decode()}"


def _is_local(host: str) -> bool:
    address = _address_of(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    address = getattr(address, "ipv4_mapped", None) or address
    return bool(address.is_loopback or address.is_unspecified)


def _address_of(host: str) -> Any:
    """Return the address that a host is; None for a name."""
    if not (host[-1:].isdigit() or ":" in host):
        return None
    import ipaddress  # here, as few requests go to an address

    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_exempt(to: Destination, exceptions: str) -> bool:
    """Return whether an entry of NO_PROXY names the destination."""
    entries = re.split(r"[,\s]+", exceptions.strip().lower())
    return any(entry and _names(entry, to) for entry in entries)


def _names(entry: str, to: Destination) -> bool:
    if entry == "*":
        return True
    if match := _WITH_PORT.fullmatch(entry):
        if int(match["port"]) != to.port:
            return False
        entry = match["host"]
    host = to.host.rstrip(".")
    name = entry.strip("[]").removeprefix("*").removeprefix(".").rstrip(".")
    address = _address_of(host)
    if address is None:
        return bool(name) and (host == name or host.endswith(f".{name}"))
    import ipaddress

    try:
        return address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
