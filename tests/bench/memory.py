"""Memory of a program with all its child processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from .place import Place

_LOOK = 0.005


def peak_of(command: Sequence[str], place: Place) -> int:
    """Return the most bytes seen in a sample; shared memory counts once if the system reports it."""
    most = 0
    process = subprocess.Popen(
        command, cwd=place.root, env=place.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            family = [process.pid, *(p.pid for p in psutil.Process(process.pid).children(recursive=True))]
            most = max(most, sum(map(_bytes, family)))
        time.sleep(_LOOK)
    return most


def _bytes(pid: int) -> int:
    """Return the process's share of memory (PSS), else its resident memory; 0 for an ended process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
