"""An independent emulation of GitHub: npm's emulator, on a port of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NODE_MODULES = Path(__file__).parents[2] / ".venv" / "node" / "node_modules"
START = Path(__file__).parents[1] / "node" / "emulate.cjs"

# Tokens that the emulator accepts.
OWNERS = "owners"
STRANGERS = "strangers"


@contextmanager
def emulated_github() -> Iterator[str]:
    """Yield the URL of a GitHub with the repository acme/models; skip if Node or the emulator is missing."""
    node = shutil.which("node")
    if not node or not (NODE_MODULES / "emulate").is_dir():
        pytest.skip("Node and the emulator are missing: `make test` installs what npm has")
    environ = {**os.environ, "NODE_PATH": str(NODE_MODULES)}
    with subprocess.Popen([node, str(START)], stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()
