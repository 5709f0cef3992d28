"""Process of a run's proxy, started as `python -m reconciler.training_service.runner.proxy_server`.

It answers CONNECT. A connection to Google's APIs is decrypted, with the run's own certificate: requests for
buckets of the training service go there, by the job's own storage URL and so with the job's own rights.
Requests to other APIs with the run's own credentials, which Google doesn't know, end at once with a status
that clients don't repeat. All others go on to Google, without the run's token. Connections to other hosts
pass through unread. All that leaves this machine goes through the user's own proxy, if there is one.

A proxy for a program of the user's (`reconciler run`) leads all APIs that the service has to the service.

What it prints becomes warnings in the run's log.
"""

from __future__ import annotations

import base64
import hmac
import http.client
import json
import os
import re
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from reconciler.training_service.jobs.environment_variables import (
    GOOGLE_DOMAIN,
    HOST,
    LOGGING_HOST,
    STORAGE_HOSTS,
)
from reconciler.training_service.runner import grpc_refusal
from reconciler.training_service.runner.proxy import SETTINGS, USER, Settings
from reconciler.training_service.storage.files import is_bucket_name

_PIECE = 256 * 1024
_LINE = 64 * 1024
_CONNECTIONS = 400
_HEAD_SECONDS = 10.0
_CONNECT_SECONDS = 30.0
_NOTED_BUCKETS = 20
_API_HOST, _XML_HOST = STORAGE_HOSTS
_API = re.compile(r"/(?:(?:resumable/)?upload/|download/)?storage/v1/b(?:/(?P<bucket>[^/]*)(?:/.*)?)?")
_BATCH = "/batch/storage/v1"
# Headers of one connection, and those that a request or an answer gets anew here.
_OF_CONNECTION = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade", "expect", "host"),
}
_OWN_TOKENS = ("worth-nothing",)  # of the run's metadata server
# Hosts at which programs sign in with credentials of the user's own.
_SIGN_IN = (f"oauth2.{GOOGLE_DOMAIN}", f"sts.{GOOGLE_DOMAIN}")
# Hosts of the other APIs that the service has.
_APIS = re.compile(rf"(?:(?:[a-z0-9-]+-)?aiplatform|ml|logging|iamcredentials)\.{re.escape(GOOGLE_DOMAIN)}")
_AI_PLATFORM = re.compile(rf"(?:[a-z0-9-]+-)?aiplatform\.{re.escape(GOOGLE_DOMAIN)}")


def refusal_of(host: str, *, grpc: bool, program: bool) -> str:
    """Return the sentence that tells why a request with the run's own credentials ends here.

    Args:
        program: Whether it is a program of the user's, which may use all APIs of the service.
    """
    is_served = host in (*STORAGE_HOSTS, LOGGING_HOST) or (program and _APIS.fullmatch(host))
    if grpc and is_served:
        advice = 'choose REST, as api_transport="rest" of aiplatform.init does'
        return f"The embedded training service doesn't speak gRPC, by which {host} was asked: {advice}."
    if program:
        return f"The embedded training service doesn't serve {host}, and its credentials aren't Google's."
    advice = "give the job GOOGLE_APPLICATION_CREDENTIALS of your own, or leave the call out here"
    if _AI_PLATFORM.fullmatch(host):
        advice = "write metrics to AIP_TENSORBOARD_LOG_DIR, which `reconciler tensorboard` shows"
    return (
        f"{host} isn't served in a run, which reaches Cloud Storage and Cloud Logging alone and has no"
        f" credentials for Google: {advice}."
    )


def bucket_of(host: str, path: str) -> str | None:
    """Return the bucket that a request to a host of Cloud Storage is for.

    Returns:
        "" for a request for no bucket in particular, None for a request of another API.
    """
    if host.endswith(f".{_XML_HOST}"):
        return host.removesuffix(f".{_XML_HOST}")
    if path == _BATCH:
        return ""
    match = _API.fullmatch(path)
    if match:
        return unquote(match["bucket"] or "")
    return unquote(path.split("/")[1]) or None if host == _XML_HOST else None


class _Server(ThreadingHTTPServer):
    """The proxy on its inherited listener."""

    daemon_threads = True

    def __init__(self, settings: Settings) -> None:
        super().__init__((HOST, 0), _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=settings.listener)
        self.settings = settings
        self.storage = urlsplit(settings.storage)
        secret = base64.b64encode(f"{USER}:{settings.password}".encode()).decode()
        self.credential = secret
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(settings.certificates)
        self.tls.set_alpn_protocols(["http/1.1", "h2"])  # h2 alone is gRPC's offer
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._noted: set[str] = set()

    @cached_property
    def trusted(self) -> ssl.SSLContext:
        """Authorities to check Google by; most runs need none."""
        return ssl.create_default_context(cafile=self.settings.bundle)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, if there are not too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke, as clients may end at any moment."""

    def has_bucket(self, name: str) -> bool:
        """Return whether the training service has a bucket of this name."""
        return is_bucket_name(name) and Path(self.settings.buckets, name).is_dir()

    def note(self, key: str, text: str) -> None:
        """Print a text once for each `key`, for a limited number of keys."""
        if key not in self._noted and len(self._noted) < _NOTED_BUCKETS:
            self._noted.add(key)
            print(text, flush=True)  # noqa: T201 the run's log

    def connected(
        self, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> http.client.HTTPConnection:
        """Return a connection to a host, by the user's proxy if it has one for that host.

        Raises:
            OSError: The host or the proxy can't be reached.
        """
        proxies = getproxies_environment()
        url = proxies.get("https") or proxies.get("all") or ""
        proxy = None if not url or proxy_bypass(f"{host}:{port}") else _parsed(url)
        address = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(*address, timeout=_CONNECT_SECONDS, context=tls)
            if tls
            else http.client.HTTPConnection(*address, timeout=_CONNECT_SECONDS)
        )
        if proxy:
            connection.set_tunnel(host, port, _credentials(proxy.username, proxy.password))
        connection.connect()
        connection.sock.settimeout(None)
        return connection


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection, without a log."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the run's log is the trainer's."""


class _Connection(_Handler):
    """Connection of a client to the proxy."""

    rbufsize = 0  # the bytes after the head belong to the tunnel
    disable_nagle_algorithm = True  # heads and bodies leave in several writes
    timeout = _HEAD_SECONDS

    def do_CONNECT(self) -> None:
        """Answer CONNECT; the connection is a tunnel from then on."""
        # PySocks writes the scheme in small letters.
        scheme, _, given = self.headers.get("Proxy-Authorization", "").partition(" ")
        is_credential = hmac.compare_digest(given.encode(), self.server.credential.encode())
        if not (is_credential and scheme.lower() == "basic"):
            self.send_response_only(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="a run of reconciler"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.close_connection = True
        host, _, port = self.path.rpartition(":")
        host = host.strip("[]").lower().rstrip(".")
        if not host or not port.isdecimal():
            self.send_error(400)
        elif port == "443" and host.endswith(f".{GOOGLE_DOMAIN}") and host not in _SIGN_IN:
            self._established()
            self._decrypt(host)
        else:
            self._tunnel(host, int(port))

    def _established(self) -> None:
        self.send_response_only(200, "Connection established")
        self.end_headers()
        self.connection.settimeout(None)

    def _decrypt(self, host: str) -> None:
        try:
            secured = self.server.tls.wrap_socket(self.connection, server_side=True)
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                self.server.note(
                    "",
                    f"A program doesn't trust the certificate of {host} on this machine ({error.reason}):"
                    " it obeys none of SSL_CERT_FILE, REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE.",
                )
            return
        with secured:
            if secured.selected_alpn_protocol() == "h2":
                reason = refusal_of(host, grpc=True, program=bool(self.server.settings.api))
                self.server.note(host, reason)
                grpc_refusal.refuse(secured, reason)
            else:
                _Requests(secured, self.client_address, self.server, host)

    def _tunnel(self, host: str, port: int) -> None:
        try:
            connection = self.server.connected(host, port)
        except OSError as error:
            self.send_error(502, explain=f"{host} can't be reached: {error}")
            return
        with closing(connection):
            self._established()
            back = threading.Thread(target=_pump, args=(connection.sock, self.connection), daemon=True)
            back.start()
            _pump(self.connection, connection.sock)
            back.join()


class _Requests(_Handler):
    """Decrypted connection to a host of Google's APIs."""

    def __init__(self, request: ssl.SSLSocket, client_address: Any, server: _Server, host: str) -> None:
        self._host = host
        self._own_tokens = {server.settings.token, *_OWN_TOKENS}
        super().__init__(request, client_address, server)

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if not path.startswith("/"):
            self._fail(400, "The request's target must be a path.")
            return
        is_storage = self._host in STORAGE_HOSTS or self._host.endswith(f".{_XML_HOST}")
        bucket = bucket_of(self._host, path) if is_storage else None
        authorization = self.headers.get("Authorization", "")
        is_program = bool(self.server.settings.api)
        if bucket is not None and (is_program or not bucket or self.server.has_bucket(bucket)):
            self._ask_service(f"/{bucket}" if self._host.endswith(f".{_XML_HOST}") else "")
        elif is_program and _APIS.fullmatch(self._host):
            # Whatever its credentials: a job that was meant for here must not be created at Google.
            self._ask_service()
        elif self._host == LOGGING_HOST and (not authorization or self._is_own(authorization)):
            self._ask_service()
        elif is_storage or not self._is_own(authorization):
            self._ask_google(bucket)
        else:
            reason = refusal_of(self._host, grpc=False, program=bool(self.server.settings.api))
            self.server.note(self._host, reason)
            self._fail(501, reason)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer

    def _is_own(self, authorization: str) -> bool:
        """Return whether the credentials are the run's own, which are worth nothing at Google."""
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and token.strip() in self._own_tokens

    def _ask_service(self, prefix: str = "") -> None:
        storage, api = self.server.storage, self.server.settings.api
        connection = http.client.HTTPConnection(storage.hostname or "", storage.port)
        headers = [(name, value) for name, value in self._headers() if name.lower() != "authorization"]
        # The storage address is a credential itself.
        base = storage.path.rstrip("/")
        if api and _APIS.fullmatch(self._host):
            base = ""
            headers.append(("Authorization", f"Bearer {self.server.settings.token}"))
        try:
            self._pass_on(connection, f"{base}{prefix}{self.path}", headers)
        except ConnectionRefusedError:
            self._fail(503, "The training service isn't running.")

    def _ask_google(self, bucket: str | None) -> None:
        if bucket and is_bucket_name(bucket):
            self.server.note(
                bucket,
                f"The training service has no bucket {bucket}: requests for it go to Google, and without"
                " credentials of this machine.",
            )
        headers = [
            (name, value)
            for name, value in self._headers()
            if name.lower() != "authorization" or not self._is_own(value)
        ]
        try:
            connection = self.server.connected(self._host, 443, self.server.trusted)
        except OSError as error:
            message = f"{self._host} can't be reached: {error}"
            if bucket:
                message = f"The training service has no bucket {bucket}, and {message}"
            self._fail(403, message)  # clients repeat a request for minutes after another error
            return
        self._pass_on(connection, self.path, headers)

    def _headers(self) -> list[tuple[str, str]]:
        named = {name.strip().lower() for name in self.headers.get("Connection", "").split(",")}
        dropped = named | _OF_CONNECTION
        return [(name, value) for name, value in self.headers.items() if name.lower() not in dropped]

    def _pass_on(
        self, connection: http.client.HTTPConnection, target: str, headers: list[tuple[str, str]]
    ) -> None:
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        with closing(connection):
            connection.putrequest(self.command, target, skip_accept_encoding=True)
            for name, value in headers:
                if not (chunked and name.lower() == "content-length"):
                    connection.putheader(name, value)
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            body = self._chunks() if chunked else self._content(int(self.headers.get("Content-Length", 0)))
            connection.endheaders()
            try:
                for piece in body:
                    connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                if chunked:
                    connection.send(b"0\r\n\r\n")
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # refused before its end: the answer says why
            self._send_back(connection.getresponse())

    def _content(self, length: int) -> Iterator[bytes]:
        while length > 0 and (piece := self.rfile.read1(min(length, _PIECE))):
            length -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(_LINE).partition(b";")[0], 16):
            yield from self._content(size)
            self.rfile.readline(_LINE)
        while self.rfile.readline(_LINE).strip():
            pass  # trailers

    def _send_back(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        bodiless = self.command == "HEAD" or answer.status in (204, 304)
        chunked = not bodiless and answer.length is None
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(_PIECE):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if answer.length:  # cut short: the client must notice
            self.close_connection = True
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _fail(self, status: int, message: str) -> None:
        # The request's body wasn't read.
        self.close_connection = True
        content = json.dumps({"error": {"code": status, "message": message}}).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes until the source's end; shut both sockets if the sink breaks."""
    try:
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _parsed(url: str) -> Any:
    return urlsplit(url if "://" in url else f"http://{url}")


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    secret = base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {secret}"}


def main() -> None:
    """Serve until the runner ends this process."""
    # Trainers may still write when a signal asks the whole run to end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    settings = Settings(**json.loads(os.environ[SETTINGS]))
    if settings.api:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    _Server(settings).serve_forever()


def _end_with_parent() -> None:
    """End this process when the other end of its standard input is gone."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
