"""Tests in a separate namespace: with loopback as the only network, and with host names of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

IS_INSIDE = bool(os.environ.get("TESTS_RUN_IN_A_NAMESPACE"))
"""True in the process inside the namespace."""

_ENTER = """
ip link set lo up
printf '127.0.0.1 localhost %s\\n' "$1" > "$2"
mount --bind "$2" /etc/hosts
shift 2
exec "$@"
"""


def run_inside(file: str, tmp_path: Path, names: str = "") -> None:
    """Run a file's tests again, with `IS_INSIDE`; `names` resolve to this machine there."""
    alone = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-ec", _ENTER, "sh", names]
    hosts = str(tmp_path / "hosts")
    if subprocess.run([*alone, hosts, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system allows no namespaces")
    inside = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        [*alone, hosts, *inside, f"--basetemp={tmp_path / 'inside'}"],
        env={**os.environ, "TESTS_RUN_IN_A_NAMESPACE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
