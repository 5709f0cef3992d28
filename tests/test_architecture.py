"""The shape of the code: imports point one way, and a quick command loads no slow package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SLOW = {
    "googleapiclient",
    "httplib2",
    "google.auth",
    "prometheus_client",
    "requests",
    "rich",
    "structlog",
    "urllib3",
    "waitress",
    "watchdog",
}
MANIFEST = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      containerSpec: {imageUri: "example.com/trainer:1"}
"""


def test_contributing_lists_every_package_and_no_other() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("```")[1]
    listed = re.findall(r"^  (\w+)/", layout, re.MULTILINE)
    packages = [path.parent.name for path in (ROOT / "reconciler").glob("*/__init__.py")]
    assert sorted(listed) == sorted(packages)


@pytest.mark.parametrize("page", ["architecture.md", "at-most-once.md"])
def test_pages_name_modules_that_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
    roots = (ROOT, ROOT / "reconciler", ROOT / "reconciler" / "training_service")
    assert not [path for path in named if not any((root / path).exists() for root in roots)]


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", [["--help"], ["validate", "job.yaml"], ["schema", "CustomJob"]], ids=" ".join
)
def test_a_quick_command_imports_nothing_slow(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(MANIFEST)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "reconciler", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "reconciler.cli" in imported
    assert not imported & SLOW
