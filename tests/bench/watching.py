"""`python -m tests.bench.watching ROOT PASSES`: the costs of `watch` passes without changes, as JSON.

The passes are the loop's own, in sequence and without the pauses between them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from reconciler.operations.watch.loop import run_pass
from reconciler.operations.watch.source import KeptSettings
from reconciler.operations.watch.state import Checkout, LoopCache, Pass

LOOKED_AT = (0.1, 0.5, 1.0)
"""Fractions of the passes after which the memory is measured."""


def measured(root: Path, passes: int) -> dict[str, Any]:
    """Return the memory after some passes, in bytes, and the CPU seconds of each pass."""
    checkout = Checkout(root, "", os.environ, None, KeptSettings().read)
    looks = {max(1, round(passes * part)) for part in LOOKED_AT}
    memory: dict[int, int] = {}
    cpu: list[float] = []
    cache = LoopCache()
    before: Pass | None = None
    for number in range(1, passes + 1):
        began = time.process_time()
        turn = run_pass(checkout, cache, before)
        cpu.append(time.process_time() - began)
        assert turn.error is None, turn.error
        before = turn
        if number in looks:
            memory[number] = psutil.Process().memory_info().rss
    assert before is not None
    usual = statistics.median(cpu[2:] or cpu)  # the first two compare with a different previous result
    return {"memory": memory, "first": cpu[0], "cpu": usual, "at_rest": before.at_rest}


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]), int(sys.argv[2]))))
