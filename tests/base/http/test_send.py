"""The transport against servers that misbehave: the bytes sent, the number of sends, and the error."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from reconciler.base.concurrency import call_all
from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse, NoAnswerError, NotSentError
from reconciler.base.http import send as sending
from reconciler.base.http.connections import HttpConnection, time_since_boot, write_request
from reconciler.google.client import ClientHttp
from reconciler.google.credentials import Token
from reconciler.google.responses import ApiError
from reconciler.model.ports import Credential
from tests.support.noted_locks import Meeting
from tests.support.raw_server import (
    ANSWERS,
    AUTHORIZED,
    SECRET,
    SLOW,
    Arrived,
    Behaviour,
    RawServer,
    answer,
    drip,
    raw,
    request_to,
    reset,
    send_then_close,
)
from tests.support.raw_server import FAULTS as ALL_FAULTS
from tests.support.tls import Loopback
from tests.support.waiting import PATIENCE, patience

# The transport doesn't wait for a body whose announced length exceeds the limit.
FAULTS = ALL_FAULTS | {
    "a byte now and then": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"),
    "too long by its own account": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10001\r\n\r\n{}"),
    "a chunk too long by its own account": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n270f\r\n{}"
    ),
    "a chunk longer than it says": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n0\r\n\r\n"
    ),
    "a chunked body without an end": send_then_close(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    ),
    "chunks in another encoding": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    ),
    "a header without a colon": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nhello\r\n\r\n{}"),
    "a header that goes on": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n 0\r\n\r\n" + b"{}" * 20),
    "a header of no name": raw(b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}"),
    "headers too long": raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n"),
    "too many headers": raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"Content-Length: 0\r\n\r\n"),
    "another version": raw(b"HTTP/2 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "a status that is none": raw(b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\n{}"),
}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a self-signed certificate of localhost with its key in a single file, and return the file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, encryption_algorithm=serialization.NoEncryption()
    )
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    file.write_bytes(private + signed.public_bytes(pem))
    return file


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


def all_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


@pytest.mark.slow
@pytest.mark.fault(1, 3)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_without_a_good_answer_arrives_once(
    fault: str,
    method: str,
    warm: bool,
    transport: DirectTransport,
    serve: Callable[..., RawServer],
) -> None:
    server = serve(*([answer()] if warm else []), FAULTS[fault])
    if warm:
        transport.send(HttpRequest("GET", f"{server.url}/warm"))
    with pytest.raises(NoAnswerError) as caught:
        transport.send(request_to(server, method, timeout=patience(0.3) if fault in SLOW else PATIENCE))
    assert [request.target for request in server.arrived[warm:]] == ["/v1/jobs?alt=json"]
    assert SECRET not in all_text(caught.value)
    assert str(caught.value).startswith(f"no complete answer from {server.url}: ")
    assert str(caught.value).endswith(": it took too long") == (fault in SLOW)


@pytest.mark.slow
@pytest.mark.fault(1, 3)
@pytest.mark.parametrize("fault", FAULTS)
def test_over_tls_too(
    fault: str, trusted: None, server_tls: ssl.SSLContext, serve: Callable[..., RawServer]
) -> None:
    server = serve(FAULTS[fault], tls=server_tls)
    with pytest.raises(NoAnswerError) as caught:
        DirectTransport(Loopback(), max_body=10_000).send(
            request_to(server, timeout=patience(0.3) if fault in SLOW else PATIENCE)
        )
    assert server.count("POST") == len(server.arrived) == 1
    assert SECRET not in all_text(caught.value)


@pytest.mark.fault(3, 4, 5)
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_an_answer_of_any_status_is_returned_as_it_is(
    name: str, method: str, transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    status, behaviour = ANSWERS[name]
    server = serve(behaviour, answer())
    assert transport.send(request_to(server, method)).status == status
    assert len(server.arrived) == 1


@pytest.mark.fault(1)
def test_the_google_clients_own_transport_sends_a_post_twice(serve: Callable[..., RawServer]) -> None:
    """Reason for a separate transport: the first POST was taken, and success reported for the second."""
    import httplib2
    from googleapiclient.http import HttpRequest as ClientRequest

    server = serve(send_then_close(b""), answer(200, b'{"name": "second"}'))
    request = ClientRequest(
        httplib2.Http(), lambda _, content: json.loads(content), f"{server.url}/v1/jobs", "POST", b"{}"
    )
    assert request.execute(num_retries=0) == {"name": "second"}
    assert server.count("POST") == 2


def test_what_comes_after_an_answer_is_never_the_answer_to_the_next_request(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
    server = serve(raw(first + stray), answer(200, b"right"))
    for method in ("GET", "POST"):
        transport.send(request_to(server, "GET"))
        with suppress(NoAnswerError):
            assert transport.send(request_to(server, method)).body == b"right"


@dataclass(frozen=True)
class Writes:
    """The bytes that a thread gave its sockets to send: to plain sockets, and record by record over TLS."""

    plain: list[bytes]
    records: list[bytes]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    """Record this thread's writes, and send them; the servers are other threads."""
    written = Writes([], [])
    watched = threading.get_ident()

    def watch(kind: type[socket.socket], name: str, into: list[bytes]) -> None:
        send = getattr(kind, name)

        def watching(sock: socket.socket, data: bytes, *flags: int) -> object:
            if threading.get_ident() == watched:
                into.append(bytes(data))
            return send(sock, data, *flags)

        monkeypatch.setattr(kind, name, watching, raising=False)

    watch(socket.socket, "send", written.plain)
    watch(ssl.SSLSocket, "send", written.records)
    return written


@pytest.mark.slow
@pytest.mark.fault(8)
@pytest.mark.parametrize("size", [0, 1, 1000, 12_000, 1 << 20])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_headers_and_body_leave_in_one_write(
    scheme: str,
    size: int,
    trusted: None,
    server_tls: ssl.SSLContext,
    serve: Callable[..., RawServer],
    writes: Writes,
) -> None:
    """A process that is stopped between two writes sends the body at any later time."""
    server = serve(answer(), tls=server_tls if scheme == "https" else None)
    body = b"x" * size
    DirectTransport(Loopback()).send(HttpRequest("POST", f"{server.url}/v1/jobs", AUTHORIZED, body))
    first, *more = writes.records if scheme == "https" else writes.plain
    assert first.startswith(b"POST /v1/jobs HTTP/1.1\r\n")
    # A TLS record holds 16 KiB: the transport checks the clock between two records.
    assert b"".join([first, *more]).endswith(b"\r\n\r\n" + body)
    assert scheme == "http" or max(map(len, writes.records)) <= 16_384
    assert server.arrived[0].body == body
    assert server.arrived[0].headers["authorization"] == f"Bearer {SECRET}"
    assert not more or (scheme == "https" and size > 16_000)


@pytest.mark.fault(8)
def test_rest_of_request_is_not_sent_after_pause() -> None:
    """The server judged the credential when the head arrived: a late body could create a job."""
    ours, theirs = socket.socketpair()
    moments = iter((0.0, 1.0, 61.0))
    request = b"POST / HTTP/1.1\r\n\r\n" + b"x" * (1 << 24)
    with ours, theirs:
        theirs.settimeout(PATIENCE)
        with pytest.raises(TimeoutError):
            write_request(ours, request, 60.0, lambda: next(moments))
        ours.close()
        received = 0
        while data := theirs.recv(1 << 20):
            received += len(data)
    assert 0 < received < len(request)


@pytest.mark.fault(8)
def test_rest_of_request_is_not_sent_after_pause_by_tls(trusted: None, server_tls: ssl.SSLContext) -> None:
    """A single `send` of a TLS socket writes all its records, without a look at the clock between them."""
    ours, theirs = socket.socketpair()
    received: list[int] = []

    def read() -> None:
        with suppress(OSError), server_tls.wrap_socket(theirs, server_side=True) as secured:
            while data := secured.recv(1 << 20):
                received.append(len(data))

    reader = threading.Thread(target=read)
    reader.start()
    moments = iter((0.0, 1.0, 2.0, 61.0))
    sock = ssl.create_default_context().wrap_socket(ours, server_hostname="localhost")
    with sock, pytest.raises(TimeoutError):
        write_request(sock, b"x" * (1 << 20), 60.0, lambda: next(moments))
    reader.join(PATIENCE)
    assert sum(received) == 2 * 16_384


def test_time_for_writing_counts_while_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(time, "clock_gettime", lambda clock: asked.append(clock) or 1.0)
    assert time_since_boot() == 1.0
    assert asked == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]


def test_a_read_and_each_after_it_leave_in_one_write(
    transport: DirectTransport, serve: Callable[..., RawServer], writes: Writes
) -> None:
    server = serve(answer())
    for _ in range(3):
        transport.send(request_to(server, "GET"))
    assert [write.partition(b" ")[0] for write in writes.plain] == [b"GET"] * 3
    assert server.connections == 1


def test_a_request_carries_what_it_was_given(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    twice = {"x_goog_hash": "crc32c=AAAAAA==", "X_Goog_Hash": "md5=1B2M2Y8AsgTpgAmY7PhCfg=="}
    server = serve(answer(201, b'{"a": 1}', **twice))
    body = json.dumps({"x": "é" * 5000}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": "3", "Accept-Encoding": "gzip"}
    response = transport.send(HttpRequest("POST", f"{server.url}/a%2Fb?c=d%26", headers, body))
    assert (response.status, response.body) == (201, b'{"a": 1}')
    assert response.headers["x-goog-hash"] == "crc32c=AAAAAA==, md5=1B2M2Y8AsgTpgAmY7PhCfg=="
    arrived = server.arrived[0]
    assert (arrived.method, arrived.target, arrived.body) == ("POST", "/a%2Fb?c=d%26", body)
    assert arrived.headers["content-type"] == "application/json"
    assert arrived.headers["content-length"] == str(len(body))
    assert arrived.headers["accept-encoding"] == "identity"
    assert arrived.headers["host"] == f"localhost:{server.port}"
    assert arrived.headers["user-agent"].startswith("reconciler/")


def test_reads_share_a_connection_and_writes_never_do(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer())
    for method in ("GET", "GET", "POST", "POST", "GET"):
        transport.send(request_to(server, method))
    assert [(request.method, request.connection) for request in server.arrived] == [
        ("GET", 0),
        ("GET", 0),
        ("POST", 1),
        ("POST", 2),
        ("GET", 0),
    ]


def test_reads_share_a_connection_of_tls_too(
    trusted: None, server_tls: ssl.SSLContext, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(200, b"x" * 50_000), tls=server_tls)
    transport = DirectTransport(Loopback())
    for _ in range(3):
        assert len(transport.send(request_to(server, "GET")).body) == 50_000
    assert server.connections == 1
    transport.close()


def test_an_address_may_be_of_ipv6(transport: DirectTransport) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    asked: list[bytes] = []

    def serve_once() -> None:
        sock, _ = listener.accept()
        with sock:
            asked.append(sock.recv(1 << 16))
            sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    thread = threading.Thread(target=serve_once, daemon=True)
    with listener:
        thread.start()
        port = listener.getsockname()[1]
        assert transport.send(HttpRequest("GET", f"http://[::1]:{port}/")).status == 204
        thread.join(10)
    assert f"\r\nhost: [::1]:{port}\r\n".encode() in asked[0]


def test_every_connection_ends(transport: DirectTransport, serve: Callable[..., RawServer]) -> None:
    server = serve(answer(), answer(), answer(), answer(200, b"x" * 20_000), answer())
    transport.send(request_to(server, "POST"))
    server.wait_for_end_of(0)
    transport.send(request_to(server, "GET"))
    transport.send(request_to(server, "POST"))
    server.wait_for_end_of(2)
    with pytest.raises(NoAnswerError):
        transport.send(request_to(server, "GET"))
    server.wait_for_end_of(1)
    transport.send(request_to(server, "GET"))
    assert server.ended == [0, 2, 1], "the last one is kept"
    transport.close()
    server.wait_for_end_of(3)
    told = [request.headers.get("connection") for request in server.arrived]
    assert told == ["close", None, "close", None, None]
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_an_answer_of_just_the_allowed_length_is_read(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(200, b"x" * 10_000))
    assert len(transport.send(request_to(server)).body) == 10_000


def test_a_request_without_time_isnt_sent(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer())
    transport.send(request_to(server, "GET"))
    with pytest.raises(NotSentError, match="took too long"):
        transport.send(request_to(server, "GET", timeout=0))
    assert len(server.arrived) == 1


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_kept_connection_that_the_server_closed_does_no_harm(
    method: str, transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer())
    transport.send(request_to(server, "GET"))
    server.close_idle()
    assert transport.send(request_to(server, method)).status == 200
    assert len(server.arrived) == 2


@pytest.mark.parametrize("drained", [True, False])
def test_a_refusal_before_the_end_of_the_body_counts_as_the_answer(
    drained: bool, transport: DirectTransport
) -> None:
    """The server answers from the headers alone; its system resets the connection for the unread rest."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(100)
                sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
                while drained and sock.recv(1 << 16):
                    pass

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert transport.send(HttpRequest("POST", url, body=b"x" * (1 << 24))).status == 413
        thread.join(10)


def test_many_threads_share_one_transport(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    def echo(sock: socket.socket, request: Arrived) -> bool:
        return answer(200, request.target.encode())(sock, request)

    server = serve(echo)
    wrong: list[str] = []

    def ask(name: str) -> None:
        for number in range(20):
            target = f"/{name}/{number}"
            if transport.send(HttpRequest("GET", server.url + target)).body != target.encode():
                wrong.append(target)

    threads = [threading.Thread(target=ask, args=(f"thread-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert len({request.target for request in server.arrived}) == len(server.arrived) == 160


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_reads_side_by_side_use_the_connections_of_those_before(
    scheme: str,
    trusted: None,
    server_tls: ssl.SSLContext,
    transport: DirectTransport,
    serve: Callable[..., RawServer],
) -> None:
    """Up to eight connections are kept; further connections end with their reads."""
    meet = threading.Barrier(1)

    def met(sock: socket.socket, request: Arrived) -> bool:
        meet.wait(30)
        return answer()(sock, request)

    server = serve(met, tls=server_tls if scheme == "https" else None)
    for count, connections in ((8, 8), (8, 8), (1, 8), (10, 10), (9, 11)):
        meet = threading.Barrier(count)
        statuses = call_all([lambda: transport.send(request_to(server, "GET")).status] * count)
        assert statuses == [200] * count
        assert server.connections == connections
    transport.close()
    server.wait_for_end_of(*range(11))


def test_the_connection_that_was_used_last_is_used_next(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    """The other connections become idle, and end when fewer are needed."""
    begun, ended = threading.Barrier(2), threading.Event()

    def behave(sock: socket.socket, request: Arrived) -> bool:
        if request.target == "/both":
            begun.wait(30)
            if request.connection == 1:
                ended.wait(30)
        return answer()(sock, request)

    def read(target: str) -> None:
        transport.send(HttpRequest("GET", server.url + target))

    server = serve(behave)

    def both() -> None:
        read("/both")
        # The read on connection 0 finishes first.
        ended.set()

    call_all([both, both])
    for _ in range(3):
        read("/one")
    assert [request.connection for request in server.arrived[2:]] == [1, 1, 1]


def test_all_kept_connections_that_the_server_closed_are_let_go_of(
    transport: DirectTransport, serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    meet = threading.Barrier(3)
    closed: list[HttpConnection] = []
    close = HttpConnection.close

    def closing(connection: HttpConnection) -> None:
        closed.append(connection)
        close(connection)

    monkeypatch.setattr(HttpConnection, "close", closing)

    def met(sock: socket.socket, request: Arrived) -> bool:
        if request.target != "/one":
            meet.wait(30)
        return answer()(sock, request)

    server = serve(met)
    call_all([lambda: transport.send(request_to(server, "GET"))] * 3)
    server.close_idle()
    server.wait_for_end_of(0, 1, 2)
    for _ in range(2):
        assert transport.send(HttpRequest("GET", f"{server.url}/one")).status == 200
        assert len(closed) == 3
    assert [request.connection for request in server.arrived[3:]] == [3, 3]


def test_what_tls_trusts_is_read_once_for_all_threads(
    trusted: None,
    server_tls: ssl.SSLContext,
    serve: Callable[..., RawServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meeting, make, made = Meeting(), ssl.create_default_context, list[ssl.SSLContext]()

    def noted() -> ssl.SSLContext:
        meeting.pause()
        made.append(make())
        return made[-1]

    monkeypatch.setattr("ssl.create_default_context", noted)
    meeting.notes_locks_of(sending, monkeypatch)
    transport, server = DirectTransport(Loopback()), serve(answer(), tls=server_tls)

    def read() -> int:
        return transport.send(request_to(server, "GET")).status

    assert meeting.hold(read, read) == [200, 200]
    assert len(made) == 1
    transport.close()


def test_nobody_there_is_not_sent(transport: DirectTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NotSentError, match="connection refused") as caught:
        transport.send(HttpRequest("POST", f"http://127.0.0.1:{port}/", AUTHORIZED, b"{}"))
    assert SECRET not in all_text(caught.value)


def test_a_name_that_no_one_has_is_not_sent(transport: DirectTransport) -> None:
    with pytest.raises(NotSentError, match="its name doesn't resolve"):
        transport.send(HttpRequest("POST", "http://nobody.invalid/", {}, b"{}"))


def test_a_host_that_takes_no_connection_is_not_sent(transport: DirectTransport) -> None:
    """A listener with a full queue leaves a connection hanging."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        address = listener.getsockname()
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(address)
        with pytest.raises(NotSentError, match="took too long"):
            transport.send(HttpRequest("POST", f"http://127.0.0.1:{address[1]}/", body=b"", timeout=0.3))


@pytest.mark.parametrize(
    "end", [send_then_close(b""), send_then_close(b"\x15\x03\x03\x00\x02\x02\x28"), reset]
)
def test_a_handshake_that_breaks_off_is_not_sent_anything(end: Behaviour, transport: DirectTransport) -> None:
    taken: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def break_off() -> None:
            sock, _ = listener.accept()
            with sock:
                taken.append(sock.recv(1 << 16))
                end(sock, Arrived(0, "", "", {}, b""))

        thread = threading.Thread(target=break_off, daemon=True)
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}/"
        with pytest.raises(NotSentError, match="can't be reached") as caught:
            transport.send(HttpRequest("POST", url, AUTHORIZED, b"{}"))
        thread.join(10)
    assert len(taken) == 1
    assert SECRET not in all_text(caught.value)
    assert SECRET.encode() not in taken[0]


def test_a_server_without_tls_is_not_sent_anything(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer())
    with pytest.raises(NotSentError, match="TLS failed"):
        transport.send(HttpRequest("POST", f"https://localhost:{server.port}/", AUTHORIZED, b"{}"))
    assert server.arrived == []


def test_a_certificate_that_nobody_vouches_for_is_not_sent_anything(
    transport: DirectTransport, server_tls: ssl.SSLContext, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(), tls=server_tls)
    with pytest.raises(NotSentError, match="self-signed certificate"):
        transport.send(request_to(server))
    assert server.arrived == []


def test_a_certificate_of_another_host_is_not_sent_anything(
    trusted: None, server_tls: ssl.SSLContext, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer(), tls=server_tls)
    with pytest.raises(NotSentError, match="certificate is not valid"):
        DirectTransport(Loopback()).send(
            HttpRequest("POST", f"https://127.0.0.1:{server.port}/", AUTHORIZED, b"{}")
        )
    assert server.arrived == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "jobs",
        "ftp://localhost/",
        "http://",
        "http://localhost:99999/",
        "http://localhost:0/",
        "http://localhost:x/",
        "http://[::1/",
        "http://localhost/a b",
        "http://localhost/\r\nX-Injected: 1",
        "http://localhost/é",
        "http://user:password@localhost/",
        "http://" + "a" * 70 + ".x/",
    ],
)
def test_an_address_that_is_none_is_not_sent(url: str, transport: DirectTransport) -> None:
    with pytest.raises(NotSentError) as caught:
        transport.send(HttpRequest("POST", url, AUTHORIZED, b"{}"))
    assert SECRET not in all_text(caught.value)
    assert "password" not in all_text(caught.value)


@pytest.mark.parametrize("bad", ["\n", "\r\nX-Injected: 1", "\0", "\u2028", "\u2013"])
@pytest.mark.parametrize("where", ["name", "value"])
def test_a_header_that_http_cant_carry_is_not_sent_and_not_quoted(
    bad: str, where: str, transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer())
    headers = {f"X{bad}": SECRET} if where == "name" else {"Authorization": f"Bearer {SECRET}{bad}"}
    with pytest.raises(NotSentError) as caught:
        transport.send(HttpRequest("POST", server.url, headers, b"{}"))
    assert SECRET not in all_text(caught.value)
    assert server.arrived == []


def test_the_text_forms_hold_no_secret() -> None:
    request = HttpRequest("POST", "https://localhost/", AUTHORIZED, SECRET.encode())
    response = HttpResponse(200, {"set-cookie": SECRET}, SECRET.encode())
    credential = Credential(AUTHORIZED, datetime.datetime.now(datetime.UTC))
    token = Token(AUTHORIZED, datetime.timedelta(hours=1), datetime.datetime.now(datetime.UTC))
    for shown in (repr, pretty_repr):
        assert not [each for each in (request, response, credential, token) if SECRET in shown(each)]


def test_the_environments_proxy_is_not_used(
    transport: DirectTransport, serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, server = serve(answer(502)), serve(answer())
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    assert transport.send(request_to(server)).status == 200
    assert proxy.arrived == []


# The Google client on top.


@pytest.fixture
def storage(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> Callable[..., tuple[object, RawServer]]:
    """Return a function that makes a raw server and a Cloud Storage client for it."""
    from googleapiclient.discovery import build_from_document
    from googleapiclient.discovery_cache import get_static_doc

    def build(*behaviours: Behaviour) -> tuple[object, RawServer]:
        server = serve(*behaviours)
        document = json.loads(get_static_doc("storage", "v1"))
        document["rootUrl"] = server.url + "/"
        http = ClientHttp(transport, lambda: AUTHORIZED)
        return build_from_document(document, http=http), server

    return build


def test_the_google_client_builds_and_parses(storage: Callable[..., tuple]) -> None:
    client, server = storage(
        answer(200, b'{"items": [{"name": "a"}]}', content_type="application/json; charset=UTF-8"),
        answer(200, b'{"name": "b"}', content_type="application/json; charset=UTF-8"),
        answer(204, b""),
    )
    assert client.buckets().list(project="p").execute() == {"items": [{"name": "a"}]}
    assert client.buckets().insert(project="p", body={"name": "b"}).execute() == {"name": "b"}
    client.objects().delete(bucket="b", object="a/b ü").execute()
    listed, inserted, deleted = server.arrived
    assert listed.target == "/storage/v1/b?project=p&alt=json"
    assert listed.headers["authorization"] == f"Bearer {SECRET}"
    assert json.loads(inserted.body) == {"name": "b"}
    assert inserted.headers["content-type"] == "application/json"
    assert deleted.target == "/storage/v1/b/b/o/a%2Fb%20%C3%BC"


def test_what_the_client_gives_and_gets_is_httplib2s(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    import httplib2

    server = serve(answer(203, b"short", x_y="z"))
    response, body = ClientHttp(transport, dict).request(server.url, "PUT", "text é")
    assert isinstance(response, httplib2.Response)
    assert (response.status, response["status"], response["x-y"], body) == (203, "203", "z", b"short")
    assert response.reason == "Non-Authoritative Information"
    assert server.arrived[0].body == "text é".encode()


def test_the_google_clients_errors_come_through(storage: Callable[..., tuple]) -> None:
    client, _ = storage(
        answer(409, b'{"error": {"code": 409, "message": "taken"}}', content_type="application/json"),
        answer(503, b"<html>", content_type="text/html"),
    )
    with pytest.raises(ApiError, match="taken") as caught:
        client.buckets().insert(project="p", body={"name": "b"}).execute()
    assert caught.value.status == 409
    with pytest.raises(ApiError, match="HTTP 503"):
        client.buckets().insert(project="p", body={"name": "b"}).execute()


@pytest.mark.parametrize("fault", ["closes", "resets", "half a body"])
def test_the_google_client_sends_a_post_once_through_us(fault: str, storage: Callable[..., tuple]) -> None:
    client, server = storage(FAULTS[fault], answer())
    with pytest.raises(NoAnswerError):
        client.buckets().insert(project="p", body={"name": "b"}).execute(num_retries=0)
    assert server.count("POST") == 1


@pytest.mark.parametrize("resumable", [False, True])
def test_uploads_of_the_google_client(resumable: bool, storage: Callable[..., tuple]) -> None:
    import io

    from googleapiclient.http import MediaIoBaseUpload

    def start(sock: socket.socket, request: Arrived) -> bool:
        session = f"http://{request.headers['host']}/session"
        return answer(200, b"", location=session)(sock, request)

    data = bytes(range(256)) * 1024
    done = answer(200, b'{"size": "262144"}')
    client, server = storage(*([start, done] if resumable else [done]))
    media = MediaIoBaseUpload(io.BytesIO(data), "application/gzip", resumable=resumable)
    assert client.objects().insert(bucket="b", name="n", media_body=media).execute() == {"size": "262144"}
    assert data in server.arrived[-1].body
    assert [request.method for request in server.arrived] == (["POST", "PUT"] if resumable else ["POST"])


def test_loading_the_package_loads_no_http_library() -> None:
    import subprocess
    import sys

    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, reconciler.base.http; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"urllib3", "socket", "ssl", "http.client", "httplib2", "googleapiclient"} & set(loaded)


# Answers as the transport reads them, beyond the library's own reading.


def test_a_method_that_is_none_is_not_sent(
    transport: DirectTransport, serve: Callable[..., RawServer]
) -> None:
    server = serve(answer())
    with pytest.raises(NotSentError, match="method"):
        transport.send(HttpRequest("GET / HTTP/1.1\r\nX: y\r\n\r\nGET", server.url))
    assert server.arrived == []


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("GET", None, None),
        ("DELETE", None, None),
        ("POST", None, "0"),
        ("PATCH", None, "0"),
        ("DELETE", b"", "0"),
        ("PUT", b"{}", "2"),
    ],
)
def test_a_request_says_how_long_its_body_is(
    method: str,
    body: bytes | None,
    length: str | None,
    transport: DirectTransport,
    serve: Callable[..., RawServer],
) -> None:
    server = serve(answer())
    transport.send(HttpRequest(method, server.url, {"Host": "elsewhere"}, body))
    (arrived,) = server.arrived
    assert arrived.headers.get("content-length") == length
    assert arrived.headers["host"] == f"localhost:{server.port}"
