"""Proxies that alone resolve the names of the servers behind them: a real one from PyPI, and faulty fakes."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, until

# A separate mount namespace: no other process sees these names in /etc/hosts.
ENTER = 'printf "%s\\n" "$1" > "$2"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
NAMES = "127.0.0.1 localhost google.example.test github.example.test tokens.example.test"


@contextmanager
def connect_proxy(folder: Path, *, credentials: str = "", tls: bool = False) -> Iterator[str]:
    """Yield the proxy's URL, without its credentials."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "proxy", "--port", "0", "--port-file", str(folder / "port")]
    command += ["--num-workers", "1", "--num-acceptors", "1", "--log-file", str(folder / "log")]
    command += ["--basic-auth", credentials] if credentials else []
    if tls:
        server = Path(os.environ["SSL_CERT_FILE"]).with_name("server.pem")
        command += ["--cert-file", str(server), "--key-file", str(server)]
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", ENTER, "sh", NAMES]
    if subprocess.run([*alone, folder / "hosts", "true"], capture_output=True).returncode != 0:
        pytest.skip("this system allows no namespaces")
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*alone, folder / "hosts", *command], stdout=quiet, stderr=quiet, cwd=folder)
    try:
        until(lambda: (folder / "port").exists() and (folder / "port").read_text().strip())
        yield f"{'https' if tls else 'http'}://localhost:{(folder / 'port').read_text().strip()}"
    finally:
        process.terminate()
        process.wait()


Behaviour = Callable[[socket.socket, int], None]


class BadProxy:
    """A proxy with a behaviour for each connection; every host behind it is this machine."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://localhost:{self._listener.getsockname()[1]}"
        self.heads: list[bytes] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._open.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), sock:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := sock.recv(4096)):
                    return
                head += more
            self.heads.append(head)
            self.behaviour(sock, int(head.split()[1].rpartition(b":")[2]))

    def calm(self) -> None:
        """Carry every connection from now on to its end."""
        self.behaviour = answering(OK, then_carry=True)

    def close(self) -> None:
        for sock in (self._listener, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def carry(sock: socket.socket, upstream: int, most_down: int = 10**9) -> None:
    """Carry bytes both ways; end after `most_down` bytes from the server."""
    with socket.create_connection(("127.0.0.1", upstream)) as server:

        def down() -> None:
            left = most_down
            with suppress(OSError):
                while left > 0 and (data := server.recv(min(left, 65536))):
                    left -= len(data)
                    sock.sendall(data)
                sock.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=down, daemon=True)
        thread.start()
        with suppress(OSError):
            while data := sock.recv(65536):
                server.sendall(data)
        with suppress(OSError):  # also after a reset
            server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


OK = b"HTTP/1.1 200 Connection established\r\n\r\n"


def answering(content: bytes, *, then_carry: bool = False, wait: float = 0.0) -> Behaviour:
    def behave(sock: socket.socket, upstream: int) -> None:
        time.sleep(wait)  # the proxy's own delay, no synchronization
        sock.sendall(content)
        if then_carry:
            carry(sock, upstream)

    return behave


def unreliable(chance: random.Random) -> Behaviour:
    """Return a behaviour that succeeds nine times of ten, and otherwise fails as proxies do."""
    lock = threading.Lock()

    def behave(sock: socket.socket, upstream: int) -> None:
        with lock:
            luck, most = chance.random(), chance.randrange(500, 6000)
        if luck > 0.1:
            answering(OK, then_carry=True)(sock, upstream)
        elif luck > 0.06:  # in the middle of the server's answer
            sock.sendall(OK)
            carry(sock, upstream, most_down=most)
        else:
            faults = (
                answering(b""),
                answering(OK[:20]),
                answering(OK + OK, then_carry=True),
                answering(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"),
                answering(OK),
                answering(OK, then_carry=True, wait=0.5),
            )
            faults[int(luck * 100) % len(faults)](sock, upstream)

    return behave
