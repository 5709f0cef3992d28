"""Trainers that misbehave."""

from __future__ import annotations

import json

from tests.support.training_service.runs import Run, nothing_is_left_of


def failure_of(run: Run) -> tuple[int, str]:
    """Start a run and wait for its failure; return the error's code and message."""
    state, code, message = run.start().end()
    assert state == "FAILED"
    assert nothing_is_left_of(run)
    return code, message


def of_small_machines(run: Run, mebibytes: int = 128) -> Run:
    """Return the run on machines with this much memory."""
    spec = json.loads(run.folder.spec.read_text())
    for replica in spec["replicas"]:
        replica["memory"] = mebibytes * 2**20
    run.folder.spec.write_text(json.dumps(spec))
    return run
