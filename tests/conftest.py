"""Fixtures of all tests: a wheelhouse instead of a registry, and no variable of the developer's machine."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import preloaded
from tests.support.repository import Repository
from tests.support.tls import make_authority

ROOT = Path(__file__).resolve().parent.parent
WHEELHOUSE = ROOT / ".venv" / "wheelhouse"
# Fixtures that start commands or installers, or serve a home or a GitHub over HTTP.
SLOW_FIXTURES = {"cloud", "github", "repository", "service", "team", "wheelhouse"}

# A user's `make test` must not fail by chance: the examples are the same in every run. `make explore` uses
# other examples, and each failure becomes a fixed example. An example's duration depends on the machine.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, database=None, **UNTIMED)
settings.register_profile("quick", parent=settings.get_profile("fixed"), max_examples=10)
settings.register_profile("explore", print_blob=True, **UNTIMED)
settings.load_profile("fixed")

# Threads of a process that spin while they wait for each other take the processors from all others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell starts a background command with interrupts ignored, and its children inherit that: the programs
# that a test interrupts would continue.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without this, garbage collection takes a third of the time in which tests are collected.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail if a test was skipped, as CI does")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as slow that use a slow fixture, also through another one."""
    for item in items:
        if SLOW_FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for skipped tests with `--no-skips`: a test skipped in CI must not count as passed."""
    preloaded.end()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", ())) if reporter else 0
    if skipped and session.config.getoption("no_skips"):
        reporter.write_line(f"\n--no-skips: {skipped} skipped", red=True)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the user's caches."""
    return tmp_path_factory.mktemp("user-cache")


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the certificate of the authority that vouches only for the tests' servers on loopback."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def user_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that contains the user's key."""
    return tmp_path_factory.mktemp("user-state")


@pytest.fixture(autouse=True)
def _own_surroundings(
    monkeypatch: pytest.MonkeyPatch,
    user_cache: Path,
    user_state: Path,
    authority: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Isolate tests from the machine's settings; installers use only the wheelhouse."""
    for name in [*os.environ]:
        if name.startswith(("RECONCILER_", "GITHUB_", "PIP_", "CLOUDSDK_", "GOOGLE_")) or name in (
            "CI",
            "COLUMNS",
            "FORCE_COLOR",
            "NO_COLOR",
            "PYTHONPATH",
            "STORAGE_EMULATOR_HOST",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("XDG_CACHE_HOME", str(user_cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-settings"))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setenv("XDG_STATE_HOME", str(user_state))
    monkeypatch.setenv("RECONCILER_PULL_IMAGES", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(WHEELHOUSE))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("PIP_COMPILE", "0")  # half of an installation's time, for a single import


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    """Return the folder of wheels that `make test` fills before the tests."""
    if not WHEELHOUSE.is_dir():
        pytest.fail("the wheelhouse is missing: run the tests by `make test`, or `make wheelhouse` once")
    return WHEELHOUSE


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return the folder of environments that all repositories of a run share: building one takes seconds."""
    base = tmp_path_factory.getbasetemp()
    # The workers' folders are inside the run's folder.
    shared = (base if worker_id == "master" else base.parent) / "environments"
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture
def repository(tmp_path: Path, wheelhouse: Path, environments: Path) -> Iterator[Repository]:
    """Yield a user's repository with a trainer and no manifest yet."""
    made = Repository(tmp_path / "repository", environments)
    yield made
    made.stop()
