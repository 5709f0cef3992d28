"""Environment variables of a run beside its job's: an allow-list of the user's, and the service's address.

Also the authorities that the user trusts, which some of these variables name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
STORAGE_HOSTS = ("www.googleapis.com", "storage.googleapis.com")
"""Hosts of Cloud Storage's APIs; a bucket may precede the second."""
LOGGING_HOST = "logging.googleapis.com"
GOOGLE_DOMAIN = "googleapis.com"
"""The domain of Google's APIs, for which a run's proxy answers."""

_LOOPBACK = "localhost,127.0.0.1"


def for_storage_clients(storage_url: str) -> dict[str, str]:
    """Return the variables that point clients of Cloud Storage to the service at http://HOST:PORT/jobs/SECRET."""
    return {
        "STORAGE_EMULATOR_HOST": storage_url,
        # Google's C++ client, which pyarrow uses, reads this variable only.
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": storage_url,
        # Since 2025.10 gcsfs asks Google by gRPC for the kind of each bucket, despite an emulator.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


def for_google_clients(job_url: str) -> dict[str, str]:
    """Return the variables that point Google's clients to a job's storage at http://HOST:PORT/jobs/SECRET."""
    address = job_url.partition("://")[2].rstrip("/")
    return {
        **for_storage_clients(job_url),
        "GCE_METADATA_HOST": address,
        "GCE_METADATA_ROOT": address,
        "GCE_METADATA_IP": f"{address}/",
    }


TRUSTED = (
    "CURL_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
)
"""Variables that name the file of trusted authorities: of curl, gRPC, httplib2, requests and OpenSSL."""

CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
"""Beginning of each certificate in such a file."""

# Of most systems, macOS last: https://go.dev/src/crypto/x509/root_linux.go, root_bsd.go
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TRAINERS = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
        *TRUSTED,
        "SSL_CERT_DIR",
        *_PROXIES,
        *(name.lower() for name in _PROXIES),
    }
)
_INSTALLERS = _TRAINERS | {"HOME", "NETRC", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"}
# Variables that Docker's and Podman's commands need to find their engine, settings and registry logins.
_ENGINES = frozenset(
    {
        *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
        *("CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF"),
        *("REGISTRY_AUTH_FILE", "STORAGE_DRIVER", "STORAGE_OPTS", "CLOUDSDK_CONFIG"),
        *("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
    }
)
_OWN = {
    *("PYTHONPATH", "TMPDIR", "PYENV_ROOT"),
    *("RECONCILER_INSTALL_PYTHON", "RECONCILER_PULL_IMAGES"),
    *("UV_PYTHON_INSTALL_DIR", "UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_DOWNLOADS_JSON_URL"),
}
_RUNNERS = _INSTALLERS | _ENGINES | _OWN


def for_runner(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables for the runner."""
    # An allow-list, as a trainer can read the environment of every process of its user.
    return _chosen(environ, _RUNNERS, ("LC_", "PIP_"))


def for_installer(environ: Mapping[str, str], temp: Path) -> dict[str, str]:
    """Return the variables for uv, and for what it runs to build packages."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")
    return {
        **_chosen(environ, _INSTALLERS, ("LC_", "PIP_")),
        "TMPDIR": str(temp),
        # Not uv's own cache: environments share files with this one, and a trainer might write into them.
        "UV_CACHE_DIR": str(cache / "reconciler" / "uv"),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
    }


def for_trainer(
    environ: Mapping[str, str], programs: tuple[Path, ...], home: Path, temp: Path
) -> dict[str, str]:
    """Return the variables for every trainer; the folders in `programs` come first in its PATH."""
    chosen = _chosen(environ, _TRAINERS, ("LC_",))
    path = os.pathsep.join([*map(str, programs), chosen.get("PATH", os.defpath)])
    return {
        "LANG": "C.UTF-8",
        **chosen,
        **proxies(environ),
        "PATH": path,
        "HOME": str(home),
        "TMPDIR": str(temp),
        "PYTHONUNBUFFERED": "1",
        # Without it, cloudml-hypertune writes to the same file for all jobs and users of this machine.
        "CLOUD_ML_HP_METRIC_FILE": str(temp / "hypertune" / "output.metrics"),
    }


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's proxies, with loopback excluded."""
    # The job's storage is on loopback: a proxy couldn't reach it.
    chosen = _chosen(environ, frozenset({*_PROXIES, *(name.lower() for name in _PROXIES)}), ())
    for name in ("NO_PROXY", "no_proxy"):
        hosts = chosen.get(name)
        chosen[name] = f"{hosts},{_LOOPBACK}" if hosts else _LOOPBACK
    return chosen


def through_proxy(environ: Mapping[str, str], url: str, *, grpc: bool = True) -> dict[str, str]:
    """Return the variables that lead HTTPS and, with `grpc`, gRPC to a proxy before the user's own."""
    chosen = proxies(environ)
    if any("*" in _hosts(chosen[name]) for name in ("NO_PROXY", "no_proxy")):
        # It switches the user's proxies off; ours must stay on.
        chosen = {**dict.fromkeys(chosen, ""), **proxies({})}
    for name in ("NO_PROXY", "no_proxy"):
        chosen[name] = ",".join(host for host in _hosts(chosen[name]) if not _is_served(host))
    # gRPC prefers its own variables to the common ones, of which it reads those in small letters alone.
    chosen["no_grpc_proxy"] = chosen["no_proxy"]
    if grpc:
        chosen["grpc_proxy"] = url
    elif chosen.get("https_proxy"):
        chosen["grpc_proxy"] = chosen["https_proxy"]
    if chosen.get("https_proxy"):
        chosen["https_proxy"] = url
    return {**chosen, "HTTPS_PROXY": url}


def obstacle_to_proxy(environ: Mapping[str, str]) -> str:
    """Return the reason why no proxy can stand before the user's own; "" if one can."""
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        if environ.get(name):
            scheme, mark, _ = environ[name].partition("://")
            if not mark or scheme.lower() == "http":
                return ""
            # What stands there may be a password.
            kind = scheme if re.fullmatch(r"https|socks(?:4a?|5h?)?", scheme.lower()) else "unknown here"
            return f"{name} names a proxy of the kind {kind}"
    return ""


def trusted_certificates(environ: Mapping[str, str]) -> bytes:
    """Return the authorities that the user trusts, or else the system's; empty if there are none."""
    chosen = dict.fromkeys(environ[name] for name in TRUSTED if environ.get(name))
    if certificates := b"".join(_certificates(Path(path)) for path in chosen):
        return certificates
    return next(filter(None, map(_certificates, _bundles())), b"")


def _hosts(exceptions: str) -> list[str]:
    return [host.strip() for host in exceptions.split(",") if host.strip()]


def _is_served(exception: str) -> bool:
    name = exception.lower().lstrip("*.").partition(":")[0]
    return f".{GOOGLE_DOMAIN}".endswith(f".{name}") or f".{name}".endswith(f".{GOOGLE_DOMAIN}")


def _chosen(environ: Mapping[str, str], names: frozenset[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in names or name.startswith(prefixes)}


def _bundles() -> Iterator[Path]:
    yield from map(Path, _SYSTEM_BUNDLES)
    import ssl  # here, as most systems have one of the above

    yield from map(Path, filter(None, [ssl.get_default_verify_paths().cafile]))
    with suppress(ImportError):  # it comes with Google's clients
        import certifi

        yield Path(certifi.where())


def _certificates(path: Path) -> bytes:
    """Return the certificates in a file, or in all files of a folder."""
    certificates = []
    with suppress(OSError):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            content = file.read_bytes() if file.is_file() else b""
            certificates.append(content.rstrip() + b"\n" if CERTIFICATE in content else b"")
    return b"".join(certificates)
