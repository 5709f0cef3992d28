"""What `make demo` shows when its jobs have ended: how each ended, its metrics, and where its model is.

Ends 1 where a job's newest run did not succeed, also if it ended in an earlier demo.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def newest_runs() -> list[dict[str, Any]]:
    """The newest run of each base name, as `reconciler status` tells it."""
    command = [sys.executable, "-m", "reconciler", "status", "--format", "json"]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    runs = [job for job in answer["jobs"] if job["state"]]
    by_base = {job["baseName"]: job for job in sorted(runs, key=lambda job: job["createTime"])}
    return [by_base[base] for base in sorted(by_base)]


def outputs() -> list[Path]:
    """The metrics files in the local buckets; the model is beside each."""
    home = Path(os.environ.get("RECONCILER_HOME") or ".reconciler")
    return sorted((home / "gcs").rglob("metrics.json"))


def main() -> int:
    """Print both; 1 where there is a job that did not succeed."""
    runs = newest_runs()
    failed = [job for job in runs if job["state"] != "SUCCEEDED"]
    for job in runs:
        print(f"{job['state']:10} {job['jobName']}")
    print("\nmodels and metrics:")
    for metrics in outputs():
        print(f"  {metrics.with_name('model.joblib')}\n    {metrics.read_text().strip()}")
    for job in failed:
        print(f"\n{job['jobName']}: {job['error']}", file=sys.stderr)
    if failed:
        print("what it wrote: .venv/bin/reconciler logs NAME; from scratch: make clean demo", file=sys.stderr)
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
