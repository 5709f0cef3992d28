"""The user's proxy: the requests that take it, and the result of a request for any behaviour of the proxy."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from reconciler.base.http import DirectTransport, HttpRequest, NoAnswerError, NotSentError, unreachable
from reconciler.base.http.destination import destination_of
from reconciler.base.http.proxies import ProxyError, proxy_for
from tests.support.connect_proxy import OK, BadProxy, Behaviour, answering, carry, connect_proxy
from tests.support.raw_server import RawServer, answer
from tests.support.tls import make_authority, server_tls
from tests.support.waiting import PATIENCE

HOST = "google.example.test"
PROXY = {"HTTPS_PROXY": "http://proxy.example.test:3128"}
AUTHORIZED = {"Authorization": "Bearer ya29.far-away"}


class Anyone:
    def permits(self, to: object) -> bool:
        return True


def takes(url: str, **environ: str) -> bool:
    return proxy_for(destination_of(url), environ) is not None


@pytest.mark.parametrize(
    ("exceptions", "exempt"),
    [
        ("", False),
        ("*", True),
        ("google.example.test", True),
        ("GOOGLE.example.TEST", True),
        ("example.test", True),
        (".example.test", True),
        ("*.example.test", True),
        ("other.test, example.test", True),
        ("other.test example.test", True),
        ("example.test:443", True),
        ("example.test:8443", False),
        ("le.example.test", False),
        ("xample.test", False),
        ("google.example.test.", True),
        ("10.0.0.0/8", False),
        (".", False),
        (",", False),
    ],
)
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_no_proxy_exempts_hosts_suffixes_and_ports(name: str, exceptions: str, exempt: bool) -> None:
    assert takes(f"https://{HOST}/x", **PROXY, **{name: exceptions}) is not exempt


@pytest.mark.parametrize(
    ("host", "exceptions", "exempt"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "3", False),
        ("10.1.2.3", "2.3", False),
        ("10.1.2.3:8443", "10.1.2.3:443", False),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("[fd00::1]", "fd00::/8", True),
        ("[fd00::1]", "[fd00::1]", True),
        ("[fd00::1]:8443", "[fd00::1]:8443", True),
        ("[fe00::1]", "fd00::/8", False),
    ],
)
def test_no_proxy_exempts_addresses_and_networks(host: str, exceptions: str, exempt: bool) -> None:
    assert takes(f"https://{host}/x", **PROXY, NO_PROXY=exceptions) is not exempt


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost:1/",
        "https://a.localhost/",
        "https://127.0.0.1/",
        "https://127.9.9.9:8080/",
        "https://[::1]/",
        "https://[0:0:0:0:0:0:0:1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://0.0.0.0/",
        "https://metadata.google.internal./",
        "https://localhost./",
        "https://metadata.google.internal/",
        "http://metadata.google.internal/",
        "https://169.254.169.254/",
        f"http://{HOST}/",
    ],
)
def test_loopback_the_metadata_server_and_plain_http_take_no_proxy(url: str) -> None:
    assert not takes(url, **PROXY)


@pytest.mark.parametrize(
    ("environ", "origin", "variable"),
    [
        ({"HTTPS_PROXY": "http://p:1"}, "http://p:1", "HTTPS_PROXY"),
        ({"HTTPS_PROXY": "http://p:1", "https_proxy": "http://q:2"}, "http://q:2", "https_proxy"),
        ({"ALL_PROXY": "p:1"}, "http://p:1", "ALL_PROXY"),
        ({"all_proxy": "https://p"}, "https://p:443", "all_proxy"),
        ({"HTTPS_PROXY": "", "ALL_PROXY": "http://p"}, "http://p:80", "ALL_PROXY"),
        ({"HTTPS_PROXY": "http://[fd00::1]:3128"}, "http://[fd00::1]:3128", "HTTPS_PROXY"),
        ({"HTTP_PROXY": "http://p:1"}, None, ""),
        ({"https_proxy": "", "HTTPS_PROXY": "http://p:1"}, "http://p:1", "HTTPS_PROXY"),
        ({}, None, ""),
    ],
)
def test_variables_name_the_proxy_in_their_order(
    environ: dict[str, str], origin: str | None, variable: str
) -> None:
    found = proxy_for(destination_of(f"https://{HOST}/"), environ)
    assert (found.origin, found.variable) == (origin, variable) if found else origin is None


@pytest.mark.parametrize(
    "value",
    [
        *(
            "socks5://p:1",
            "socks5h://me:secret@p:1",
            "SOCKS4://p",
            "ftp://p:1",
            "http://",
            "http://p:x",
            "://",
        ),
        *("http://p:0", "http://me:4711#secret@p:1", "http://me:47/secret@p:1", "http://me:47?secret@p:1"),
        "socks5:secret@h://x",
    ],
)
def test_a_proxy_of_another_kind_is_refused_without_its_password(value: str) -> None:
    with pytest.raises(ProxyError) as refused:
        takes(f"https://{HOST}/", HTTPS_PROXY=value)
    assert "HTTPS_PROXY" in str(refused.value)
    assert "secret" not in f"{refused.value}{refused.value.hint}"
    is_socks = value.lower().startswith("socks") and "@h" not in value
    assert ("which can't be used" in str(refused.value)) == is_socks


@pytest.mark.slow
@given(st.text(min_size=1), st.text())
def test_credentials_reach_the_proxy_as_they_are(user: str, password: str) -> None:
    from urllib.parse import quote

    url = f"http://{quote(user, safe='')}:{quote(password, safe='')}@p:1"
    found = proxy_for(destination_of(f"https://{HOST}/"), {"HTTPS_PROXY": url})
    assert found is not None
    scheme, _, encoded = found.credentials.partition(" ")
    assert (scheme, base64.b64decode(encoded).decode()) == ("Basic", f"{user}:{password}")
    assert encoded not in repr(found)
    assert encoded not in pretty_repr(found)


# The proxy's faults before the tunnel is established.
SETUP_FAULTS: dict[str, Behaviour] = {
    "ends at once": answering(b""),
    "half an answer": answering(OK[:20]),
    "no HTTP": answering(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "an answer twice": answering(OK + OK, then_carry=True),
    "an answer with content": answering(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", then_carry=True
    ),
    "403": answering(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"),
    "407": answering(b'HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic realm="Corp"\r\n\r\n'),
    "502": answering(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"),
    "302": answering(b"HTTP/1.1 302 Found\r\nLocation: https://login.corp.test/\r\n\r\n"),
    "ends after its answer": answering(OK),
    "a page in place of the server": answering(OK + b"<html>Blocked</html>"),
    "ends in the handshake": lambda sock, upstream: (sock.sendall(OK), carry(sock, upstream, most_down=100))[
        -1
    ],
}


@contextmanager
def through(
    behaviour: Behaviour, tmp_path: Path
) -> Iterator[tuple[DirectTransport, RawServer, str, BadProxy]]:
    with RawServer([answer(200, b"{}")], server_tls()).running() as server:
        proxy = BadProxy(behaviour)
        environ = {"HTTPS_PROXY": proxy.url.replace("://", "://me:pass%20word@")}
        transport = DirectTransport(Anyone(), environ=environ)
        try:
            yield transport, server, f"https://{HOST}:{server.port}/v1/jobs", proxy
        finally:
            transport.close()
            proxy.close()


@pytest.mark.parametrize("fault", SETUP_FAULTS)
def test_a_create_is_not_sent_if_the_tunnel_fails(fault: str, tmp_path: Path) -> None:
    with through(SETUP_FAULTS[fault], tmp_path) as (transport, server, url, proxy):
        with pytest.raises(NotSentError) as failed:
            transport.send(HttpRequest("POST", url, AUTHORIZED, b"{}"))
        assert server.arrived == []
        assert all(b"ya29" not in head for head in proxy.heads)
    told = f"{failed.value.message} {failed.value.hint}"
    assert "login" not in told
    assert "pass word" not in told
    assert "cGFzcyB3b3Jk" not in told


def test_a_tunnel_that_comes_late_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    with through(answering(OK, then_carry=True, wait=3.0), tmp_path) as (transport, server, url, _):
        began = time.monotonic()
        with pytest.raises(NotSentError, match="it took too long"):
            transport.send(HttpRequest("POST", url, AUTHORIZED, b"{}", timeout=0.5))
        assert time.monotonic() - began < 2.5
        assert server.arrived == []


@pytest.mark.slow
@pytest.mark.parametrize("bytes_back", range(1000, 3200, 100))
def test_a_create_is_sent_once_wherever_the_tunnel_breaks(tmp_path: Path, bytes_back: int) -> None:
    def behave(sock: socket.socket, upstream: int) -> None:
        sock.sendall(OK)
        carry(sock, upstream, most_down=bytes_back)

    with through(behave, tmp_path) as (transport, server, url, proxy):
        outcome: Any = None
        try:
            outcome = transport.send(HttpRequest("POST", url, AUTHORIZED, b"{}")).status
        except (NotSentError, NoAnswerError) as error:
            outcome = error
        server_got = len(server.arrived)
        assert server_got <= 1
        assert len(proxy.heads) == 1 or isinstance(outcome, NotSentError)
        if isinstance(outcome, NotSentError):
            assert server_got == 0


def test_the_tunnel_carries_reads_and_writes_and_the_proxy_sees_neither(tmp_path: Path) -> None:
    with through(answering(OK, then_carry=True), tmp_path) as (transport, server, url, proxy):
        for method in ("GET", "GET", "POST", "POST"):
            assert transport.send(HttpRequest(method, url, AUTHORIZED, b"{}")).status == 200
        assert [request.headers["authorization"] for request in server.arrived] == [
            "Bearer ya29.far-away"
        ] * 4
        secret = base64.b64encode(b"me:pass word").decode()
        head = f"CONNECT {HOST}:{server.port} HTTP/1.1\r\nHost: {HOST}:{server.port}\r\n"
        # Reads keep their tunnel.
        assert proxy.heads == [f"{head}Proxy-Authorization: Basic {secret}\r\n\r\n".encode()] * 3


def test_a_proxy_that_refuses_is_told_with_what_to_do(tmp_path: Path) -> None:
    messages = {}
    for name in ("403", "407", "502"):
        with through(SETUP_FAULTS[name], tmp_path) as (transport, _, url, proxy):
            with pytest.raises(NotSentError) as failed:
                transport.send(HttpRequest("GET", url))
            messages[name] = (
                failed.value.message.partition(": ")[2].replace(proxy.url, "P"),
                failed.value.hint,
            )
            port = url.split(":")[2].partition("/")[0]
    assert messages["407"] == (
        'the proxy P (HTTPS_PROXY) refuses the user name and the password for "Corp" (407)',
        "correct them in HTTPS_PROXY; write special characters as %XX",
    )
    assert messages["403"][0].startswith(f"the proxy P (HTTPS_PROXY) refuses a connection to {HOST}:")
    assert "NO_PROXY" in messages["403"][1]
    assert f"can't connect to {HOST}:{port} (502)" in messages["502"][0]


def test_a_login_of_another_kind_is_named() -> None:
    refusal = b"HTTP/1.1 407 Auth\r\nProxy-Authenticate: Negotiate\r\n\r\n"
    proxy = BadProxy(answering(refusal))
    environ = {"HTTPS_PROXY": proxy.url.replace("://", "://me:secret@")}
    with pytest.raises(NotSentError, match="demands a login of the kind Negotiate, which can't be used"):
        DirectTransport(Anyone(), environ=environ).send(HttpRequest("GET", f"https://{HOST}/"))
    proxy.close()


def test_a_proxy_that_repeats_the_credentials_has_none_of_them_printed() -> None:
    secret = base64.b64encode(b"me:secret").decode()
    refusal = f'HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic realm="Basic {secret}"\r\n\r\n'
    proxy = BadProxy(answering(refusal.encode()))
    environ = {"HTTPS_PROXY": proxy.url.replace("://", "://me:secret@")}
    with pytest.raises(NotSentError) as failed:
        DirectTransport(Anyone(), environ=environ).send(HttpRequest("GET", f"https://{HOST}/"))
    assert secret not in f"{failed.value.message}{failed.value.hint}"
    proxy.close()


def test_authorities_that_have_no_certificates_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "garbage.pem").write_text("no certificate")
    for value, words in (
        (str(tmp_path / "garbage.pem"), "which has no certificates"),
        ("", "SSL_CERT_FILE is empty"),
    ):
        monkeypatch.setenv("SSL_CERT_FILE", value)
        for other in ("REQUESTS_CA_BUNDLE", "SSL_CERT_DIR"):
            monkeypatch.delenv(other, raising=False)
        with pytest.raises(NotSentError, match=words):
            DirectTransport(Anyone()).send(HttpRequest("GET", f"https://{HOST}/"))


def test_a_certificate_that_is_not_trusted_is_told_with_its_issuer(tmp_path: Path) -> None:
    """As behind a proxy that decrypts its traffic with a company's authority."""
    (tmp_path / "corp").mkdir()
    make_authority(tmp_path / "corp", "Corp Root")
    corp = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    corp.load_cert_chain(tmp_path / "corp" / "server.pem")
    with RawServer([answer(200, b"{}")], corp).running() as server:
        proxy = BadProxy(answering(OK, then_carry=True))
        url = f"https://{HOST}:{server.port}/"
        untrusting = DirectTransport(Anyone(), environ={"HTTPS_PROXY": proxy.url})
        with pytest.raises(NotSentError) as failed:
            untrusting.send(HttpRequest("POST", url, AUTHORIZED, b"{}"))
        assert "its certificate isn't trusted" in failed.value.message
        assert "issued by CN=Corp Root" in failed.value.message
        assert "SSL_CERT_FILE" in (failed.value.hint or "")
        assert server.arrived == []
        environ = {"HTTPS_PROXY": proxy.url, "REQUESTS_CA_BUNDLE": str(tmp_path / "corp" / "authority.pem")}
        assert (
            DirectTransport(Anyone(), environ=environ)
            .send(HttpRequest("POST", url, AUTHORIZED, b"{}"))
            .status
            == 200
        )
        missing = {"HTTPS_PROXY": proxy.url, "REQUESTS_CA_BUNDLE": "/none.pem"}
        with pytest.raises(NotSentError, match=r"REQUESTS_CA_BUNDLE names '/none\.pem', which doesn't exist"):
            DirectTransport(Anyone(), environ=missing).send(HttpRequest("GET", url))
        proxy.close()


def test_without_a_proxy_the_reasons_differ_and_none_is_a_login() -> None:
    transport = DirectTransport(Anyone(), environ={})
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for url, words, hint in (
        (f"https://{HOST}/", "its name doesn't resolve", "name it in HTTPS_PROXY"),
        (f"https://localhost:{port}/", "connection refused", "check the network and any firewall"),
    ):
        with pytest.raises(NotSentError, match=words) as failed:
            transport.send(HttpRequest("GET", url))
        assert hint in (failed.value.hint or "")


def test_a_proxy_out_of_reach_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    environ = {"https_proxy": f"http://me:secret@localhost:{port}"}
    with pytest.raises(NotSentError) as failed:
        DirectTransport(Anyone(), environ=environ).send(HttpRequest("GET", f"https://{HOST}/"))
    assert (
        f"the proxy http://localhost:{port} (https_proxy) can't be reached: connection refused"
        in failed.value.message
    )
    assert "secret" not in f"{failed.value.message}{failed.value.hint}"


def test_the_look_at_an_issuer_trusts_the_proxy_no_more_than_the_request_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second connection may reach another proxy, and that proxy must not get the credentials."""
    (tmp_path / "corp").mkdir()
    make_authority(tmp_path / "corp", "Corp Root")
    corp = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    corp.load_cert_chain(tmp_path / "corp" / "server.pem")
    heads: list[bytes] = []

    def impostor() -> None:
        with suppress(OSError):
            sock, _ = listener.accept()
            with corp.wrap_socket(sock, server_side=True) as secured:
                heads.append(secured.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor)
        thread.start()
        url = f"https://me:secret@localhost:{listener.getsockname()[1]}"
        to = destination_of(f"https://{HOST}/")
        found = proxy_for(to, {"HTTPS_PROXY": url})
        untrusted = ssl.SSLCertVerificationError("no")
        untrusted.verify_code, untrusted.verify_message = 20, "no issuer"
        trusted = ssl.create_default_context()
        told = unreachable.explained(to, untrusted, found, time.monotonic() + PATIENCE, trusted)
        thread.join(PATIENCE)
    assert heads == []
    assert "issued by" not in told.message


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("credentials", ["", "me:secret"], ids=["open", "with credentials"])
def test_requests_go_through_a_real_proxy(tmp_path: Path, tls: bool, credentials: str) -> None:
    with (
        RawServer([answer(200, b"x" * 300_000)], server_tls()).running() as server,
        connect_proxy(tmp_path / "proxy", credentials=credentials, tls=tls) as url,
    ):
        target = f"https://{HOST}:{server.port}/"
        named = url.replace("://", f"://{credentials}@" if credentials else "://")
        transport = DirectTransport(Anyone(), environ={"HTTPS_PROXY": named})
        body = b"y" * 300_000
        for method in ("GET", "POST", "GET"):
            request = HttpRequest(method, target, AUTHORIZED, None if method == "GET" else body)
            assert transport.send(request).body == b"x" * 300_000
        assert [(each.method, len(each.body)) for each in server.arrived] == [
            ("GET", 0),
            ("POST", 300_000),
            ("GET", 0),
        ]
        transport.close()
        if credentials:
            with pytest.raises(NotSentError, match="407") as failed:
                DirectTransport(Anyone(), environ={"HTTPS_PROXY": url}).send(HttpRequest("GET", target))
            assert "USER:PASSWORD@localhost" in (failed.value.hint or "")
        with pytest.raises(NotSentError, match="its name doesn't resolve"):
            DirectTransport(Anyone(), environ={"HTTPS_PROXY": named, "NO_PROXY": "example.test"}).send(
                HttpRequest("GET", target)
            )
