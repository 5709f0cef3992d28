"""Many reconcilers at once in a world that loses, delays and forgets: what must hold whatever happens."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.faults import BEYOND, KINDS
from tests.simulation.guards import GUARDS, sources_without
from tests.simulation.run import Result, Simulation
from tests.simulation.trace import text_of
from tests.support.waiting import PATIENCE

TESTS = Path(__file__).parent
# Enough to see every kind of fault; `make simulate` runs thousands.
SEEDS = range(51)
SEEDS_BEYOND = (*range(15), 25)
SEEN = (
    *(
        "adoptions",
        "cancels",
        "clones behind",
        "jobs adopted",
        "jobs made",
        "retries",
        "returns",
        "set-ups tried again",
        "short looks",
    ),
    "takeovers",
)
"""What must have happened for the runs to say anything."""


@pytest.mark.fault(
    2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 16, 17, 18, 23, 25, 26, 32, 49, 50, 52, 53, 54, 55, 56, 57, 59, 60
)
def test_whatever_goes_wrong_each_attempt_makes_one_job_and_nothing_is_forgotten() -> None:
    faults, seen = Counter[str](), Counter[str]()
    for seed in SEEDS:
        result = Simulation(seed).run()
        assert not result.violations, _told(result)
        faults += result.faults
        seen += result.seen
    assert [kind for kind in KINDS if not faults[kind]] == []
    assert [what for what in SEEN if not seen[what]] == []


@pytest.mark.fault(13)
def test_beyond_the_bounds_a_second_job_is_cancelled_within_one_pass() -> None:
    faults, seen = Counter[str](), Counter[str]()
    for seed in SEEDS_BEYOND:
        result = Simulation(seed, beyond=True).run()
        assert not result.violations, _told(result)
        faults += result.faults
        seen += result.seen
    assert [kind for kind in BEYOND if not faults[kind]] == []
    assert seen["repairs"] > 0


@pytest.mark.parametrize("name", GUARDS)
def test_the_lines_of_each_guard_are_in_the_product(name: str) -> None:
    # `make guards` needs minutes, and would else be the first to notice.
    assert set(sources_without(name)) == {patch.module for patch in GUARDS[name].patches}


def test_guard_whose_line_changed_is_reported() -> None:
    code = (
        "from simulation import guards; "
        "guards.GUARDS['x'] = guards.Guard('I1', (guards.Patch('model.claim', 'no such line', ''),)); "
        "guards.leave_out('x')"
    )
    ended = _python("-c", code)
    assert "guard x: reconciler.model.claim has to contain once: no such line" in ended.stderr


def test_a_seed_is_the_same_run_every_time_on_every_interpreter() -> None:
    here = _digest(Simulation(7).run())
    assert _digest(Simulation(7).run()) == here
    code = (
        "import hashlib; from simulation.run import Simulation; from simulation.trace import text_of; "
        "print(hashlib.sha256(text_of(Simulation(7).run().log).encode()).hexdigest())"
    )
    for hash_seed in ("0", "12345"):
        assert _python("-c", code, hash_seed=hash_seed).stdout.strip() == here


def test_a_finding_is_printed_with_the_command_that_replays_it() -> None:
    ended = _python("-m", "simulation", "--seeds", "100", "--most", "1", "--without", "claim")
    assert ended.returncode == 1
    again = re.search(r'again: make simulate SEED=(\d+) OPTIONS="--without claim"', ended.stdout)
    assert again, ended.stdout[-2000:]
    violations = Simulation(int(again[1]), without="claim").run().violations
    assert violations
    assert all(f"seed {again[1]}: {violation}" in ended.stdout for violation in violations)


def test_a_run_without_a_finding_counts_what_was_injected() -> None:
    ended = _python("-m", "simulation", "--seeds", "3")
    assert ended.returncode == 0, ended.stdout[-2000:]
    assert all(re.search(rf"[\d,]+  {re.escape(kind)}$", ended.stdout, re.M) for kind in KINDS)
    assert "without a finding" in ended.stdout


def _python(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=TESTS, env=environ, timeout=PATIENCE
    )


def _digest(result: Result) -> str:
    return hashlib.sha256(text_of(result.log).encode()).hexdigest()


def _told(result: Result) -> str:
    found = "\n".join(result.violations)
    return f"{text_of(result.log[-80:])}\n{found}\nagain: make simulate SEED={result.seed}"
