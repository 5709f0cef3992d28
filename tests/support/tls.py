"""TLS on loopback: a certificate authority of the test run, and TLS fronts for plain servers.

The product sends tokens by https only. `conftest.py` makes it trust the authority as a user would: by
SSL_CERT_FILE.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import POLLIN, poll
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reconciler.base.http.destination import Destination
from tests.support.waiting import PATIENCE

FAR = "*.example.test"
"""The names of servers behind a proxy, which this machine doesn't resolve."""

_SERVER = "server.pem"


def make_authority(folder: Path, name: str = "an authority of tests") -> Path:
    """Make an authority, and beside it a server's key and certificate for loopback; return its file."""
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    server = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        number = x509.random_serial_number()
        made = x509.CertificateBuilder(authority, subject, key.public_key(), number)
        return made.not_valid_before(now - day).not_valid_after(now + day)

    constraints = x509.BasicConstraints(ca=True, path_length=0)
    of_authority = builder(authority, authority_key).add_extension(constraints, critical=True)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(FAR), address])
    of_server = builder(server, server_key).add_extension(names, critical=False)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = server_key.private_bytes(pem, pkcs8, serialization.NoEncryption())
    signed = of_server.sign(authority_key, hashes.SHA256()).public_bytes(pem)
    (folder / _SERVER).write_bytes(private + signed)
    file = folder / "authority.pem"
    file.write_bytes(of_authority.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    return file


def server_tls() -> ssl.SSLContext:
    """Return the TLS context of a server on loopback, for clients that trust the run's authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(os.environ["SSL_CERT_FILE"]).with_name(_SERVER))
    return context


class Loopback:
    """The token rule for the tests' own servers, in tests that aren't about the rule."""

    def permits(self, to: Destination) -> bool:
        return to.host in ("127.0.0.1", "localhost")


@contextmanager
def behind_tls(url: str, host: str = "localhost") -> Iterator[str]:
    """Yield the https URL that leads to a plain server on loopback; the server sees each connection's end."""
    address = urlsplit(url)
    front = _Front(str(address.hostname), int(address.port or 0))
    try:
        yield f"https://{host}:{front.port}{address.path}"
    finally:
        front.close()


class _Front:
    """A server that carries bytes between TLS connections and a plain server."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._tls = server_tls()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)
        with self._lock:
            still = [*self._open]
        for sock in still:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), self._held(sock):
            sock.settimeout(PATIENCE)
            with self._tls.wrap_socket(sock, server_side=True) as client:
                client.settimeout(None)
                with socket.create_connection(self._upstream) as server, self._held(client, server):
                    _carry(client, server)

    @contextmanager
    def _held(self, *socks: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.update(socks)
        try:
            yield
        finally:
            with self._lock:
                self._open.difference_update(socks)


def _carry(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Carry bytes both ways, in one thread since a TLS connection takes no two, until either side ends."""
    ready = poll()
    ready.register(client, POLLIN)
    ready.register(server, POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            source, sink = (client, server) if descriptor == client.fileno() else (server, client)
            data = source.recv(65536)
            while isinstance(source, ssl.SSLSocket) and source.pending():
                data += source.recv(65536)
            if not data:
                return
            sink.sendall(data)
