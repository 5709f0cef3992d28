"""What no program of this kind can be faster than, and what others are measured by.

`python -m tests.bench.limits FOLDER` prints as JSON what each took on the manifests there.
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
    """The seconds of `wall` clock and of `cpu`; the collector doesn't run meanwhile."""
    gc.collect()
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    gc.enable()
    return found


def read(files: Sequence[Path]) -> list[bytes]:
    """The bytes of every file, read as plainly as Python can."""
    return [file.read_bytes() for file in files]


def load(contents: Sequence[bytes]) -> None:
    """PyYAML's fastest loader on every file, and nothing with what it loads."""
    for content in contents:
        yaml.load(content, Loader=yaml.CSafeLoader)


def main(folder: Path) -> None:
    """Measure and print."""
    files = sorted(folder.rglob("*.yaml"))
    contents = read(files)
    found = {READING: took(lambda: read(files)), LOADING: took(lambda: load(contents))}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
