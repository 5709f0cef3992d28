"""The user's proxy: which requests take it, and the tunnel through it.

Only https takes a proxy, and never to this machine. A plain http request has no token, and goes to the
embedded service or to a metadata server. The proxy gets a request's host and port, and its own credentials.

Sources: RFC 9110, sections 9.3.6 and 11.7; the variables are those of curl, and of Go's and Python's clients.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from reconciler.base.http.wire import Destination, Incoming, UnusableAnswerError, read_head
from reconciler.base.sanitize import one_line

_PORTS = {"http": 80, "https": 443}
_NAMES = (("https_proxy", "HTTPS_PROXY"), ("all_proxy", "ALL_PROXY"))
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
    if to.scheme != "https" or _is_local(to.host) or to.host in _METADATA:
        return None
    variable, value = _named(environ)
    if not value or _is_exempt(to, environ.get("no_proxy", environ.get("NO_PROXY", ""))):
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
        hint += ", and that SSL_CERT_FILE names the authority of its certificate"
    return ProxyError(f"the proxy {proxy.origin} ({proxy.variable}) can't be reached: {reason}", hint)


def _unauthorized(challenge: str, named: str, proxy: Proxy) -> ProxyError:
    found = _REALM.search(challenge)
    realm = f' for "{one_line(found[1][:_MOST_QUOTED])}"' if found else ""
    if proxy.credentials:
        message = f"{named} refuses the user name and the password{realm} (407)"
        return ProxyError(message, f"correct them in {proxy.variable}; write special characters as %XX")
    host = proxy.origin.partition("://")[2]
    hint = f"write them into {proxy.variable}: {proxy.scheme}://USER:PASSWORD@{host}"
    return ProxyError(f"{named} demands a user name and a password{realm} (407)", hint)


def _named(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names a proxy, and its value; "" for none."""
    for small, capital in _NAMES:
        variable = small if small in environ else capital
        if value := environ.get(variable, "").strip():
            return variable, value
    return "", ""


def _parsed(variable: str, value: str) -> Proxy:
    scheme = value.partition("://")[0].lower() if "://" in value else "http"
    if scheme.startswith("socks"):
        message = f"{variable} names a proxy of the kind {scheme}, which can't be used"
        raise ProxyError(message, "name an http or https proxy, or unset it and add the hosts to NO_PROXY")
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname or "", parts.port or _PORTS.get(scheme, 0)
    except ValueError:
        host, port = "", 0
    if scheme not in _PORTS or not _HOST.fullmatch(host) or not port:
        # Its value may contain a password.
        raise ProxyError(
            f"{variable} isn't the address of a proxy", "write http://HOST:PORT, or https://HOST:PORT"
        )
    return Proxy(scheme, host, port, variable, _basic(parts))


def _basic(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def _is_local(host: str) -> bool:
    name = host.rstrip(".")
    return name == "localhost" or name.endswith(".localhost") or name == "::1" or _is_of_loopback(name)


def _is_of_loopback(name: str) -> bool:
    return re.fullmatch(r"127(?:\.[0-9]{1,3}){3}", name) is not None


def _is_exempt(to: Destination, exceptions: str) -> bool:
    """Return whether an entry of NO_PROXY names the destination."""
    entries = re.split(r"[,\s]+", exceptions.strip().lower())
    return any(entry and _names(entry, to) for entry in entries)


def _names(entry: str, to: Destination) -> bool:
    if entry == "*":
        return True
    if found := _WITH_PORT.fullmatch(entry):
        if int(found["port"]) != to.port:
            return False
        entry = found["host"]
    host = to.host.rstrip(".")
    name = entry.strip("[]").removeprefix("*").removeprefix(".").rstrip(".")
    return bool(name) and (host == name or host.endswith(f".{name}") or _is_in_network(host, name))


def _is_in_network(host: str, network: str) -> bool:
    if not (host[-1:].isdigit() or ":" in host):
        return False
    import ipaddress  # here, as few requests go to an address

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
