"""The modules that a command loads: only those it needs. Times aren't checked, as they vary by machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.manifests import PLAIN

pytestmark = pytest.mark.slow

# Runs a command and prints the names of all loaded modules as the last line of stderr.
TELLING = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
sys.argv[0] = "reconciler"
from reconciler.__main__ import main
sys.exit(main())
"""

# Libraries that take about a tenth of a second to load: for a few commands, or for invalid files.
HEAVY = {
    "concurrent.futures.process",
    "github",
    "google.auth",
    "googleapiclient",
    "http.client",
    "httplib2",
    "jsonschema",
    "multiprocessing",
    "psutil",
    "prometheus_client",
    "reconciler.training_service.application",
    "requests",
    "rich",
    "sqlite3",
    "ssl",
    "structlog",
    "subprocess",
    "urllib3",
    "waitress",
    "watchdog",
}
# Modules for reading a manifest; neither `--help` nor a schema needs them.
READING = {"dataclasses", "jsonschema_rs", "msgspec", "yaml"}
# Modules that read every installed distribution.
DISTRIBUTIONS = {"importlib.metadata"}
# Modules that call a service.
ASKING = {"reconciler.operations.session", "reconciler.training_service.client", "reconciler.base.http.send"}
# Modules that compute and describe a plan.
PLANNING = {"reconciler.planning.planner", "reconciler.submission.observe"}
# Modules that stage a package, for manifests with a package.
STAGING = {"reconciler.packaging.sdist"}
# Modules for certain output formats only.
TELLING_MORE = {"structlog", "reconciler.output.markdown", "difflib"}
# Modules of these that `plan` imports at its top, in a few milliseconds; STAGING takes no longer.
QUICK = {"reconciler.output.markdown"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository of a single valid manifest, without settings."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "census.yaml").write_text(PLAIN)
    return tmp_path


@pytest.fixture
def served(root: Path) -> Iterator[Path]:
    """Return the same repository, with its embedded service running."""
    command = [sys.executable, "-m", "reconciler", "serve"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "is served" in process.stdout.readline()
        try:
            yield root
        finally:
            process.terminate()
            process.wait(30)


def loaded(root: Path, *command: str, code: int = 0) -> set[str]:
    """Return the modules that are loaded when a command ends."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RECONCILER_")}
    done = subprocess.run(
        [sys.executable, "-c", TELLING, *command], cwd=root, env=environ, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    modules = set(done.stderr.splitlines()[-1].split())
    assert "reconciler.cli" in modules
    return modules


@pytest.mark.slow
@pytest.mark.parametrize("command", [("--help",), ("--version",), ("help",)], ids=" ".join)
def test_help_loads_nothing_but_the_command_line(command: tuple[str, ...], tmp_path: Path) -> None:
    modules = loaded(tmp_path, *command)
    assert modules & (HEAVY | READING | DISTRIBUTIONS | ASKING | PLANNING | STAGING | TELLING_MORE) == set()
    assert modules & {"json", "pathlib", "reconciler.base.diagnostics", "reconciler.model.manifest"} == set()


def test_a_schema_is_printed_without_what_reads_manifests(tmp_path: Path) -> None:
    modules = loaded(tmp_path, "schema", "CustomJob")
    assert modules & (HEAVY | DISTRIBUTIONS | ASKING | PLANNING | STAGING | TELLING_MORE | {"yaml"}) == set()


def test_validating_asks_and_plans_nothing(root: Path) -> None:
    modules = loaded(root, "validate")
    assert "jsonschema_rs" in modules
    assert "yaml" not in modules, "the manifest is as nearly everybody writes them"
    assert modules & (HEAVY | DISTRIBUTIONS | ASKING | PLANNING | STAGING | TELLING_MORE) == set()


@pytest.mark.slow
def test_what_explains_is_loaded_for_what_is_wrong(root: Path) -> None:
    (root / "jobs" / "census.yaml").write_text(PLAIN.replace("n1-standard-4", "[]"))
    modules = loaded(root, "validate", code=3)
    assert "jsonschema" in modules
    assert modules & (HEAVY - {"jsonschema"} | DISTRIBUTIONS | ASKING | PLANNING | STAGING) == set()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_running_service_is_asked_with_what_is_at_hand(command: str, served: Path) -> None:
    modules = loaded(served, command)
    assert modules >= ASKING
    assert modules & (HEAVY | DISTRIBUTIONS | TELLING_MORE - QUICK) == set()
    assert "concurrent.futures" not in modules or command == "plan", "needed for a distant service"
    # Of the service's package, only its client and its address are loaded.
    of_service = {name for name in modules if name.startswith("reconciler.training_service.")}
    assert of_service == {"reconciler.training_service.address", "reconciler.training_service.client"}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_stopped_service_is_looked_at_without_what_runs_jobs(command: str, root: Path) -> None:
    modules = loaded(root, command)
    needed = {"reconciler.training_service.application", "sqlite3"}
    assert needed <= modules
    assert modules & (HEAVY - needed | DISTRIBUTIONS | TELLING_MORE - QUICK) == set()
    for name in ("supervisor", "server", "containers", "environments"):
        assert f"reconciler.training_service.{name}" not in modules


@pytest.mark.slow
def test_settings_and_packages_load_what_they_need(root: Path) -> None:
    """Check that the names above are current: a renamed module would escape the tests above."""
    (root / "reconciler.yaml").write_text("limits: {submissions: 3}\n")
    package = root / "jobs" / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text("")
    (root / "jobs" / "census.yaml").write_text(PACKAGED)
    modules = loaded(root, "plan", "--format", "markdown")
    assert STAGING | PLANNING | {"reconciler.output.markdown"} <= modules


PACKAGED = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census}
package: {path: trainer}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      pythonPackageSpec:
        executorImageUri: us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest
        pythonModule: trainer.task
"""
