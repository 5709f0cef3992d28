"""The service's own environment variables that the programs of a run get: by list, to let no secret pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TRAINERS = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *_PROXIES,
        *(name.lower() for name in _PROXIES),
    }
)
_INSTALLERS = _TRAINERS | {"HOME", "NETRC", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"}
# What leads Docker's and Podman's commands to their engine, its settings and the logins of registries.
_ENGINES = frozenset(
    {
        *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
        *("CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF"),
        *("REGISTRY_AUTH_FILE", "STORAGE_DRIVER", "STORAGE_OPTS", "CLOUDSDK_CONFIG"),
        *("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
    }
)
# XDG_STATE_HOME leads to the key that proves the home's mark.
_OWN = {"PYTHONPATH", "TMPDIR", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_STATE_HOME"}
_RUNNERS = _INSTALLERS | _ENGINES | _OWN

_LOOPBACK = "localhost,127.0.0.1"


def for_runner(environ: Mapping[str, str]) -> dict[str, str]:
    """What the runner gets: a trainer can read it, as it can read every process of its user."""
    return _chosen(environ, _RUNNERS, ("LC_", "PIP_"))


def for_installer(environ: Mapping[str, str], temp: Path) -> dict[str, str]:
    """What pip gets: the user's settings of it, which name the index, and nothing that leads it elsewhere."""
    return {
        **_chosen(environ, _INSTALLERS, ("LC_", "PIP_")),
        "TMPDIR": str(temp),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COLOR": "1",
        "PIP_PROGRESS_BAR": "off",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_USER": "0",
    }


def for_trainer(
    environ: Mapping[str, str], programs: tuple[Path, ...], home: Path, temp: Path
) -> dict[str, str]:
    """What every trainer gets; `programs` are folders that come first in its PATH."""
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
        # Else cloudml-hypertune writes to one place for all jobs and users of this machine.
        "CLOUD_ML_HP_METRIC_FILE": str(temp / "hypertune" / "output.metrics"),
    }


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's proxies; none of them leads to the job's storage, which is on loopback."""
    chosen = _chosen(environ, frozenset({*_PROXIES, *(name.lower() for name in _PROXIES)}), ())
    direct = {name: _with_loopback(chosen.get(name, "")) for name in ("NO_PROXY", "no_proxy")}
    return {**chosen, **direct}


def _chosen(environ: Mapping[str, str], names: frozenset[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in names or name.startswith(prefixes)}


def _with_loopback(hosts: str) -> str:
    return f"{hosts},{_LOOPBACK}" if hosts else _LOOPBACK
