"""pip's settings as uv gets them, and the resulting requests to an index."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.environments import pip_settings
from reconciler.training_service.environments.pip_settings import SettingError, uv_settings
from reconciler.training_service.environments.prepare import pythons
from reconciler.training_service.environments.venvs import InstallError, Python, base_environment
from tests.support.training_service import trainers
from tests.support.training_service.shell import Shell


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return variables that lead to settings files below a folder only."""
    monkeypatch.setattr(pip_settings, "_MACHINE_FILE", tmp_path / "machine.conf")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "shared")}


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("name", "value", "variables"),
    [
        ("INDEX_URL", "https://one.test/simple", {"UV_DEFAULT_INDEX": "https://one.test/simple"}),
        ("PYPI_URL", "https://one.test/simple", {"UV_DEFAULT_INDEX": "https://one.test/simple"}),
        ("EXTRA_INDEX_URL", "https://a.test\n https://b.test", {"UV_INDEX": "https://a.test https://b.test"}),
        ("FIND_LINKS", "/wheels https://c.test/x", {"UV_FIND_LINKS": "/wheels,https://c.test/x"}),
        ("TRUSTED_HOST", "a.test b.test:8080", {"UV_INSECURE_HOST": "a.test b.test:8080"}),
        ("CERT", "/bundle.pem", {"SSL_CERT_FILE": "/bundle.pem", "SSL_CERT_DIR": None}),
        ("CERT", "/", {"SSL_CERT_FILE": None, "SSL_CERT_DIR": "/"}),
        ("CLIENT_CERT", "/own.pem", {"SSL_CLIENT_CERT": "/own.pem"}),
        ("PROXY", "http://proxy.test:1", {"HTTPS_PROXY": "http://proxy.test:1", "no_proxy": None}),
        ("PRE", "1", {"UV_PRERELEASE": "allow"}),
        ("PRE", "no", {}),
        ("UPLOADED_PRIOR_TO", "2026-01-01", {"UV_EXCLUDE_NEWER": "2026-01-01"}),
        ("BUILD_CONSTRAINT", "/b.txt", {"UV_BUILD_CONSTRAINT": "/b.txt"}),
        ("KEYRING_PROVIDER", "subprocess", {"UV_KEYRING_PROVIDER": "subprocess"}),
        ("NO_BUILD_ISOLATION", "off", {"UV_NO_BUILD_ISOLATION": "1"}),
        ("INDEX_URL", "", {}),
        *((name, "1", {}) for name in ("DISABLE_PIP_VERSION_CHECK", "NO_COLOR", "NO_CACHE_DIR", "USER")),
        *((name, "180", {}) for name in ("TIMEOUT", "DEFAULT_TIMEOUT", "RETRIES", "COMPILE")),
    ],
)
def test_variable_is_translated(name: str, value: str, variables: dict[str, str], places: Any) -> None:
    found = uv_settings({**places, f"PIP_{name}": value}).variables
    always = uv_settings(places).variables
    kept = {key: kept for key, kept in found.items() if key in variables or always.get(key, "") != kept}
    assert variables.items() <= kept.items()
    assert {*kept} - {*variables} <= {
        *("HTTP_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY")
    }


def test_without_settings_the_system_s_certificates_and_the_best_version_count(places: Any) -> None:
    assert uv_settings(places).variables == {
        "UV_NO_CONFIG": "1",
        "UV_NO_SOURCES": "1",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_SYSTEM_CERTS": "1",
    }


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_bundle_that_pip_would_read_counts(name: str, places: Any) -> None:
    assert uv_settings({**places, name: "/x.pem"}).variables["SSL_CERT_FILE"] == "/x.pem"


def test_choices_are_options_of_installing(places: Any) -> None:
    variables = {
        "PIP_CONSTRAINT": "/a b.txt",
        "PIP_NO_BINARY": "one,two",
        "PIP_ONLY_BINARY": ":all:",
        "PIP_NO_INDEX": "1",
        "PIP_EXTRA_INDEX_URL": "https://a.test",
    }
    found = uv_settings({**places, **variables})
    assert found.options == ("--no-index",)
    assert found.install_options == (
        *("--constraint=/a", "--constraint=b.txt"),
        *("--no-binary=one", "--no-binary=two", "--only-binary=:all:"),
    )
    assert "UV_INDEX" not in found.variables


@pytest.mark.parametrize(
    ("name", "value"),
    [("prefer-binary", "1"), ("requirement", "x.txt"), ("no-deps", "true"), ("platform", "x")],
)
def test_setting_without_translation_is_named(name: str, value: str, places: Any, tmp_path: Path) -> None:
    write(tmp_path / ".config/pip/pip.conf", "[install]", f"{name} = {value}")
    with pytest.raises(SettingError, match=f"pip's setting {name} changes which packages"):
        uv_settings(places)
    assert uv_settings({**places, f"PIP_{name.upper().replace('-', '_')}": "0"})


def test_unreadable_file_is_named(places: Any, tmp_path: Path) -> None:
    write(tmp_path / ".pip/pip.conf", "no section = here")
    with pytest.raises(SettingError, match=r"pip's settings in .*/\.pip/pip\.conf can't be read"):
        uv_settings(places)


PIP_S_INDEX = """
from pip._internal.commands import create_command
from pip._internal.models.index import PyPI
found = create_command("install").parser.get_default_values().index_url
print("" if found == PyPI.simple_url else found)
"""


@pytest.mark.slow
def test_files_sections_and_variables_override_each_other_as_in_pip(tmp_path: Path) -> None:
    places = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "shared"), "PATH": os.environ["PATH"]}

    def index(**variables: str) -> str:
        env = {**places, **variables}
        done = subprocess.run(
            [sys.executable, "-c", PIP_S_INDEX], env=env, capture_output=True, text=True, check=True
        )
        found = uv_settings(env).variables.get("UV_DEFAULT_INDEX") or ""
        assert found == done.stdout.strip()
        return found

    files = ["shared/pip/pip.conf", ".pip/pip.conf", ".config/pip/pip.conf"]
    for number, name in enumerate(files):
        write(tmp_path / name, "[global]", f"Index_URL = https://{number}.test/simple")
        assert index() == f"https://{number}.test/simple"
    write(tmp_path / "named.conf", "[global]", "index-url = https://named.test/simple")
    named = {"PIP_CONFIG_FILE": str(tmp_path / "named.conf")}
    assert index(**named) == "https://named.test/simple"
    write(tmp_path / "shared/pip/pip.conf", "[install]", "index-url = https://install.test/simple")
    assert index() == "https://install.test/simple"
    assert index(PIP_INDEX_URL="https://variable.test/simple") == "https://variable.test/simple"
    assert index(PIP_INDEX_URL="") == "https://install.test/simple"
    assert index(PIP_CONFIG_FILE="/no/such.conf") == "https://install.test/simple"
    assert index(PIP_CONFIG_FILE=os.devnull) == ""
    write(tmp_path / "named.conf", "[list]", "index-url = https://list.test/simple")
    assert index(**named) == "https://install.test/simple"


@pytest.mark.slow
def test_shell_reads_what_the_program_prints(places: Any) -> None:
    environ = {
        **places,
        "PIP_FIND_LINKS": "/a'b",
        "PIP_CERT": "/x",
        "PIP_CONSTRAINT": "/c",
        "PIP_NO_INDEX": "1",
    }
    command = (
        f'eval "$({shlex.join([sys.executable, str(pip_settings.__file__)])})" && env && echo "<$UV_OPTIONS>"'
    )
    env = {**environ, "PATH": os.environ["PATH"], "SSL_CERT_DIR": "/gone"}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert {"UV_FIND_LINKS=/a'b", "SSL_CERT_FILE=/x", "<--no-index --constraint=/c>"} <= {*lines}
    assert "SSL_CERT_DIR=/gone" not in lines
    failed = subprocess.run(
        [sys.executable, pip_settings.__file__],
        env={**env, "PIP_NO_DEPS": "1"},
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert "pip's setting no-deps" in failed.stderr


@dataclass
class Index:
    """A package index on loopback that serves the wheels of a folder and records its requests."""

    folder: Path
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def serve(self) -> Iterator[Index]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                _, place, name, *_ = [*self.path.split("/"), ""]
                body = b""
                if place == "simple":
                    held = sorted(index.folder.glob(f"{name.replace('-', '_')}-*.whl"))
                    body = "".join(f'<a href="/files/{file.name}">{file.name}</a>' for file in held).encode()
                elif place == "files":
                    body = (index.folder / name).read_bytes()
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html" if place == "simple" else "application/zip")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_CONNECT(self) -> None:
                index.asked.append(self.path)
                self.send_error(502)

            def do_HEAD(self) -> None:
                self.send_error(405)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}/simple"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield self
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    folder = tmp_path / "indexed"
    folder.mkdir()
    yield from Index(folder).serve()


@pytest.fixture
def other_index(tmp_path: Path) -> Iterator[Index]:
    folder = tmp_path / "indexed-too"
    folder.mkdir()
    yield from Index(folder).serve()


@pytest.fixture(scope="session")
def python() -> Python:
    return next(found for found in pythons({"HOME": "/nowhere"}) if found.minor == sys.version_info[:2])


def build(tmp_path: Path, python: Python, *requirements: str) -> str:
    """Make a base environment with the current variables; return its pins."""
    (tmp_path / "temp").mkdir(exist_ok=True)
    made = base_environment(tmp_path / "made", python, [*requirements], [], Shell(tmp_path / "temp"))
    return (made.path / "pins.txt").read_text()


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch, index: Index) -> Index:
    """Return an index in the public index's role: all requests to other machines reach it, as a proxy."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, index.url.removesuffix("/simple"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return index


def test_no_index_asks_nobody(
    tmp_path: Path, python: Python, public: Index, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", public.url)
    assert "idna==" in build(tmp_path, python, "idna")
    with pytest.raises(InstallError, match="no-such-thing"):
        build(tmp_path, python, "no-such-thing")
    assert public.asked == []


@pytest.mark.slow
def test_index_url_alone_is_asked(
    tmp_path: Path,
    python: Python,
    public: Index,
    other_index: Index,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", other_index.url)
    trainers.library(other_index.folder, "ours", "1.0")
    assert "ours==1.0" in build(tmp_path, python, "ours")
    with pytest.raises(InstallError, match="no-such-thing"):
        build(tmp_path, python, "no-such-thing")
    assert {"/simple/ours/", "/simple/no-such-thing/"} <= {*other_index.asked}
    assert public.asked == []


@pytest.mark.slow
def test_best_version_of_all_indexes_is_taken(
    tmp_path: Path,
    python: Python,
    index: Index,
    other_index: Index,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", other_index.url)
    trainers.library(index.folder, "ours", "2.0")
    trainers.library(other_index.folder, "ours", "1.0")
    trainers.library(index.folder, "theirs", "1.0")
    trainers.library(other_index.folder, "theirs", "2.0")
    pins = build(tmp_path, python, "ours", "theirs")
    assert {"ours==2.0", "theirs==2.0"} <= {*pins.split()}


@pytest.mark.slow
def test_constraints_of_the_user_and_of_the_image_hold(
    tmp_path: Path, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1.0", "2.0"):
        trainers.library(tmp_path / "links", "ours", version)
    write(tmp_path / "constraints.txt", "ours<2")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ['PIP_FIND_LINKS']} {tmp_path / 'links'}")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    assert "ours==1.0" in build(tmp_path, python, "ours")
