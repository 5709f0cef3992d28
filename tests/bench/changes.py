"""`python -m tests.bench.changes ROOT REPEATS`: the seconds until `watch` reports an edit, as JSON.

The time runs from an editor's write of a manifest to the line that the program prints: first for a mistake in
the manifest, then for its correction. The service doesn't run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from reconciler.manifests.settings import JOBS_FOLDER

from . import manifests

_WATCH = (sys.executable, "-m", "reconciler", "watch", "--verbose", "--log-format", "json")
_TELLS = {"a mistake": "invalid", "its mending": "goes-on"}
"""Changes of a manifest, each with the event that reports it."""
_AT_REST = 2
"""Passes after which the loop has no work left and its memory is stable."""


def measured(root: Path, repeats: int) -> Mapping[str, list[float]]:
    """Return the seconds from each edit to its event."""
    file = min((root / JOBS_FOLDER).rglob("*.yaml"))
    text = file.read_text()
    told: dict[str, list[float]] = defaultdict(list)
    with subprocess.Popen(_WATCH, cwd=root, env=os.environ, stderr=subprocess.PIPE, text=True) as watch:
        try:
            events = _events(watch)
            for _ in range(_AT_REST):
                _until("pass", events)
            for _ in range(repeats):
                for (what, event), written in zip(
                    _TELLS.items(), (manifests.broken(text), text), strict=True
                ):
                    began = time.monotonic()
                    file.write_text(written)
                    _until(event, events)
                    told[what].append(time.monotonic() - began)
                    _until("pass", events)
        finally:
            file.write_text(text)
            watch.terminate()
    return told


def _events(watch: subprocess.Popen[str]) -> Iterator[str]:
    assert watch.stderr is not None
    for line in watch.stderr:
        yield json.loads(line)["event"]


def _until(event: str, events: Iterator[str]) -> None:
    if event not in events:
        raise RuntimeError(f"watch ended before it told {event!r}")


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]), int(sys.argv[2]))))
