"""How long `reconciler validate` takes on one manifest, and which heavy packages it imports.

Run by `make bench`. It prints figures and judges none of them: they hold for the machine they were taken on.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 15
HEAVY = ("googleapiclient", "google.auth", "requests", "rich", "structlog", "urllib3")
MANIFEST = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: benchmark}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      containerSpec: {imageUri: "example.com/trainer:1"}
"""
RECONCILER = [sys.executable, "-m", "reconciler"]


def cost(command: list[str], folder: Path) -> tuple[float, float]:
    """Milliseconds of wall clock and of CPU for one run."""
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1e3, (after.ru_utime - cpu.ru_utime + after.ru_stime - cpu.ru_stime) * 1e3


def line(name: str, command: list[str], folder: Path) -> str:
    """One row of the table: medians, and the best run."""
    cost(command, folder)  # fills the bytecode cache
    runs = [cost(command, folder) for _ in range(RUNS)]
    walls, cpus = zip(*runs, strict=True)
    return f"{name:34} {statistics.median(walls):7.0f} {min(walls):7.0f} {statistics.median(cpus):7.0f}"


def imported(command: list[str], folder: Path) -> set[str]:
    """The modules that a run imports, by the interpreter's own account (`-X importtime`)."""
    traced = [command[0], "-X", "importtime", *command[1:]]
    told = subprocess.run(traced, cwd=folder, check=True, capture_output=True, text=True).stderr
    return set(re.findall(r"^import time:.*\| +(\S+)$", told, re.MULTILINE))


def main() -> None:
    """Print the table and the imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = folder / "job.yaml"
        manifest.write_text(MANIFEST)
        validate = [*RECONCILER, "validate", os.fspath(manifest)]
        print(f"{'milliseconds, ' + str(RUNS) + ' runs':34} {'median':>7} {'best':>7} {'cpu':>7}")
        print(line("python -c pass", [sys.executable, "-c", "pass"], folder))
        print(line("reconciler --help", [*RECONCILER, "--help"], folder))
        print(line("reconciler validate, one manifest", validate, folder))
        modules = imported(validate, folder)
    print(f"\nvalidate imports {len(modules)} modules; of the heavy packages:")
    for package in HEAVY:
        print(f"  {package:16} {'imported' if package in modules else 'not imported'}")


if __name__ == "__main__":
    main()
