"""Lower limits for any program of this kind, to which other costs are compared.

`python -m tests.bench.limits FOLDER` prints the cost of each limit on the manifests there, as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

READING = "read all bytes"
LOADING = "CSafeLoader"
LISTING = "json.loads of the listing"


def took(work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of `wall` clock and of `cpu`, with the garbage collector disabled."""
    gc.collect()
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    gc.enable()
    return found


def read(files: Sequence[Path]) -> list[bytes]:
    """Return the bytes of every file, read as simply as Python allows."""
    return [file.read_bytes() for file in files]


def load(contents: Sequence[bytes]) -> None:
    """Load every file with PyYAML's fastest loader, without using the result."""
    for content in contents:
        yaml.load(content, Loader=yaml.CSafeLoader)


def main(folder: Path) -> None:
    """Measure and print the limits."""
    files = sorted(folder.rglob("*.yaml"))
    contents = read(files)
    found = {READING: took(lambda: read(files)), LOADING: took(lambda: load(contents))}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
