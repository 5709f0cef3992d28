"""Proxy for programs with Google's addresses compiled in: its certificates, its variables and its process.

It leads them to the storage and the log of the run's job: TensorFlow's file system asks
https://www.googleapis.com whatever STORAGE_EMULATOR_HOST says, but it obeys HTTPS_PROXY. The proxy listens on
loopback and demands a secret. Its process, `proxy_server`, starts with a run's first connection, because most
trainers make none.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.jobs.environment_variables import (
    CERTIFICATE,
    GOOGLE_DOMAIN,
    HOST,
    STORAGE_HOSTS,
)
from reconciler.training_service.state.run_folder import RunFolder
from reconciler.training_service.state.run_log import WARNING

# Here and in functions: the proxy's own process starts sooner without these.
if TYPE_CHECKING:
    from reconciler.training_service.environments.prepare import Say
    from reconciler.training_service.processes.programs import Program, Programs

SETTINGS = "RECONCILER_PROXY"
"""The variable with the `Settings`; other users can read a process's arguments, but not its variables."""

USER = "run"

_VALID = timedelta(days=90)  # longer than any run
_SKEW = timedelta(days=1)
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the proxy's process.

    Attributes:
        listener: The descriptor of the listening socket.
        storage: The URL of the job's storage.
        buckets: The folder of the service's buckets.
        password: The secret that the proxy demands, as the password of the user `USER`.
        token: The run's own bearer token; Google must not get it.
        certificates: The PEM file with the key and the certificate of the proxy.
        bundle: The PEM file of the authorities to trust.
        api: The URL of the service, for programs that may use all its APIs, with `token`; "" for a run's.
    """

    listener: int
    storage: str
    buckets: str
    password: str
    token: str
    certificates: str
    bundle: str
    api: str = ""

    def variables(self, port: int, bundle: str, *, grpc: bool) -> dict[str, str]:
        """Return the variables that lead programs to the proxy.

        Args:
            port: The proxy's.
            bundle: The place where the programs see the file of authorities.
            grpc: False to leave gRPC's requests alone.
        """
        url = f"http://{USER}:{self.password}@{HOST}:{port}"
        return {
            **environment_variables.through_proxy(os.environ, url, grpc=grpc),
            **dict.fromkeys(environment_variables.TRUSTED, bundle),
            # With a token TensorFlow asks nobody for credentials.
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": self.token,
            # Makes Google's clients, such as Cloud Logging's, use REST, which the proxy can answer, not gRPC.
            "GOOGLE_CLOUD_DISABLE_GRPC": "true",
        }


def make_certificates(folder: RunFolder) -> None:
    """Make the certificates of a run's proxy, unless it has them.

    A service calls this for its runs, because only the first call loads the large library.
    """
    if folder.certificates.exists():
        return
    part = folder.certificates.with_suffix(".part")
    part.touch(0o600)
    part.write_bytes(sign_certificates())
    part.replace(folder.certificates)


def sign_certificates() -> bytes:
    """Return, as PEM, the key of a proxy's certificate, that certificate, and its authority's.

    The authority's key is dropped here, so nothing else can ever be signed with it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    hosts = [x509.DNSName(f"*.{domain}") for domain in (GOOGLE_DOMAIN, STORAGE_HOSTS[1])]
    now = datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Authority of one run of reconciler")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Storage of one run of reconciler")])

    def signed(
        name: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> bytes:
        number = x509.random_serial_number()
        made = x509.CertificateBuilder(issuer, name, public, number, now - _SKEW, now + _VALID)
        for extension, critical in (
            *extensions,
            (x509.SubjectKeyIdentifier.from_public_key(public), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False),
        ):
            made = made.add_extension(extension, critical)
        return made.sign(authority_key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def usage(*, of_authority: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            not of_authority, False, False, False, False, of_authority, of_authority, False, False
        )

    certificate = signed(
        subject,
        key.public_key(),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (usage(of_authority=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(hosts), False),
    )
    authority = signed(
        issuer,
        authority_key.public_key(),
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage(of_authority=True), True),
        (x509.NameConstraints([x509.DNSName(GOOGLE_DOMAIN)], None), True),
    )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate + authority


_COMMAND = [sys.executable, "-P", "-m", "reconciler.training_service.runner.proxy_server"]


def _write_bundle(path: Path, certificates: bytes) -> None:
    """Write the file of authorities to trust: the user's or the system's, and that of `certificates`."""
    authority = CERTIFICATE + certificates.rpartition(CERTIFICATE)[2]
    path.write_bytes(environment_variables.trusted_certificates(os.environ) + authority)
    path.chmod(0o644)  # for the users of containers; the folder above keeps other users out


@contextmanager
def serving(home: Path, url: str, token: str, folder: Path) -> Iterator[dict[str, str]]:
    """Run a proxy for a program of the user's, which may use all APIs of the service; yield its variables.

    Args:
        home: The service's.
        url: The service's, with `token`.
        folder: A private folder for the proxy's files.
    """
    certificates, bundle = folder / "proxy.pem", folder / "certificates.pem"
    certificates.touch(0o600)
    certificates.write_bytes(sign_certificates())
    _write_bundle(bundle, certificates.read_bytes())
    with socket.create_server((HOST, 0), backlog=_BACKLOG) as listener:
        settings = Settings(
            listener=listener.fileno(),
            storage=f"{url}/jobs/{token}",
            buckets=str(home / "gcs"),
            password=secrets.token_urlsafe(24),
            token=token,
            certificates=str(certificates),
            bundle=str(bundle),
            api=url,
        )
        env = {**os.environ, SETTINGS: json.dumps(asdict(settings))}
        # What the proxy has to say is no part of the program's output.
        process = subprocess.Popen(
            _COMMAND,
            env=env,
            cwd="/",
            stdin=subprocess.PIPE,  # which the proxy ends with
            stdout=sys.stderr,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        try:
            yield settings.variables(listener.getsockname()[1], str(bundle), grpc=True)
        finally:
            process.kill()
            process.wait()


class Proxy:
    """Proxy of a run, which waits for its first connection.

    Attributes:
        bundle: The file of the authorities to trust: the user's or the system's, and the run's own.
    """

    def __init__(self, folder: RunFolder, storage: str, programs: Programs, say: Say) -> None:
        make_certificates(folder)
        self._programs = programs
        self._say = say
        self._listener = socket.create_server((HOST, 0), backlog=_BACKLOG)
        self.bundle = folder.temp() / "certificates.pem"
        _write_bundle(self.bundle, folder.certificates.read_bytes())
        self._settings = Settings(
            listener=self._listener.fileno(),
            storage=storage,
            buckets=str(folder.service_home / "gcs"),
            password=secrets.token_urlsafe(24),
            token=secrets.token_urlsafe(24),
            certificates=str(folder.certificates),
            bundle=str(self.bundle),
        )
        programs.serve(self._listener, self._start)

    def variables(self, env: Mapping[str, str], bundle: str = "") -> dict[str, str]:
        """Return the variables for a trainer.

        Args:
            env: The trainer's other variables.
            bundle: The place where the trainer sees the file of authorities, if it is another one.
        """
        # Only gRPC with the run's own credentials is known to be in vain, and the proxy can't pass it on.
        grpc = "GOOGLE_APPLICATION_CREDENTIALS" not in env
        port = self._listener.getsockname()[1]
        return self._settings.variables(port, bundle or str(self.bundle), grpc=grpc)

    def _start(self) -> Program:
        return self._programs.start(
            _COMMAND,
            env={**os.environ, SETTINGS: json.dumps(asdict(self._settings))},
            cwd=Path("/"),
            out=lambda lines: self._say(WARNING, "\n".join(lines)),
            err=lambda lines: print(*lines, sep="\n", file=sys.stderr, flush=True),  # noqa: T201 the runner's
            keep=[self._listener.fileno()],
        )


def open_proxy(folder: RunFolder, storage: str, programs: Programs, say: Say) -> Proxy | None:
    """Return the run's proxy; None, with a warning, if the user's own settings allow none.

    Args:
        storage: The URL of the job's storage, "" for none.
    """
    obstacle = environment_variables.obstacle_to_proxy(os.environ)
    if storage and obstacle:
        say(WARNING, f"TensorFlow and others can't reach gs:// here: {obstacle}. Name an http proxy instead.")
    return Proxy(folder, storage, programs, say) if storage and not obstacle else None
