"""Many concurrent reconcilers in a world with loss, delay and data loss: invariants that always hold."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from reconciler.model import claimed_run
from reconciler.model.job import State
from reconciler.submission import adoption, protocol
from tests.simulation import guards
from tests.simulation.faults import BEYOND, KINDS
from tests.simulation.guards import GUARDS, Guard, left_out, print_first_seed
from tests.simulation.run import Result, Simulation
from tests.simulation.trace import text_of
from tests.support.planning import run_of, wanted
from tests.support.waiting import PATIENCE

TESTS = Path(__file__).parent
# Enough seeds to inject every kind of fault; `make simulate` runs thousands.
SEEDS = (*range(51), 75, 306, 730, 2069)
SEEDS_BEYOND = (*range(15), 25)
SEEN = (
    *(
        "adoptions",
        "cancels",
        "clones behind",
        "jobs adopted",
        "jobs made",
        "models in place at the end",
        "models not published",
        "models of another environment",
        "models of another manifest",
        "models recorded again",
        "models replaced",
        "models taken over",
        "results in a folder",
        "results overwritten",
        "retries",
        "returns",
        "set-ups tried again",
        "short looks",
    ),
    "takeovers",
)
"""Events that must occur for the runs to be meaningful."""


@pytest.mark.slow
@pytest.mark.fault(
    2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 16, 17, 18, 23, 25, 26, 32, 49, 50, 52, 53, 54, 55, 56, 57, 59, 60
)
@pytest.mark.fault(66, 67, 68, 69, 70, 71)
def test_whatever_goes_wrong_each_attempt_makes_one_job_and_nothing_is_forgotten() -> None:
    faults, seen = Counter[str](), Counter[str]()
    for seed in SEEDS:
        result = Simulation(seed).run()
        assert not result.violations, _told(result)
        faults += result.faults
        seen += result.seen
    assert [kind for kind in KINDS if not faults[kind]] == []
    assert [what for what in SEEN if not seen[what]] == []


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_functions_of_each_guard_are_replaced_for_the_time_of_a_run(name: str) -> None:
    # `make guards` takes minutes, and would otherwise be the first to detect a missing function.
    with left_out(name) as calls:
        assert set(calls) == set(GUARDS[name].instead)


def test_replaced_function_reaches_every_module_that_imports_it() -> None:
    run, modules = run_of(wanted(), State.RUNNING), [vars(claimed_run), vars(adoption), vars(protocol)]
    original = claimed_run.elder
    with left_out("older-stays") as calls:
        assert [module["elder"]([run]) for module in modules] == [run] * 3
        assert calls == {"model.claimed_run:elder": 3}
    assert all(module["elder"] is original for module in modules)


@pytest.mark.parametrize(
    "function",
    ["model.missing:elder", "model.claim:missing", "model.claim:Claim.missing", "model.claim:MAX_ERROR"],
)
def test_guard_reports_function_that_does_not_exist(
    function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guards, "SEEDS", 1)
    monkeypatch.setattr(guards, "GUARDS", {"x": Guard("I1", {function: lambda *_: None})})
    assert print_first_seed("x") == 1
    module, _, name = function.partition(":")
    assert f"reconciler.{module} has no function {name}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_guard_reports_function_that_nothing_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called, uncalled = "submission.protocol:Submitter._send", "submission.protocol:Submitter.resubmit"
    monkeypatch.setattr(guards, "SEEDS", 1)
    for functions, said in (
        ([called], "no violation within 1 seeds"),
        ([called, uncalled], f"nothing called {uncalled}"),
    ):
        as_before = dict.fromkeys(functions, lambda function, *arguments: function(*arguments))
        monkeypatch.setattr(guards, "GUARDS", {"x": Guard("never", as_before)})
        assert print_first_seed("x") == 1
        assert capsys.readouterr().out.endswith(f" {said}\n")


@pytest.mark.slow
def test_a_seed_is_the_same_run_every_time_on_every_interpreter() -> None:
    here = _digest(Simulation(7).run())
    assert _digest(Simulation(7).run()) == here
    code = (
        "import hashlib; from simulation.run import Simulation; from simulation.trace import text_of; "
        "print(hashlib.sha256(text_of(Simulation(7).run().log).encode()).hexdigest())"
    )
    for hash_seed in ("0", "12345"):
        assert _python("-c", code, hash_seed=hash_seed).stdout.strip() == here


@pytest.mark.slow
def test_a_finding_is_printed_with_the_command_that_replays_it() -> None:
    ended = _python("-m", "simulation", "--seeds", "100", "--most", "1", "--without", "claim")
    assert ended.returncode == 1
    again = re.search(r'again: make simulate SEED=(\d+) OPTIONS="--without claim"', ended.stdout)
    assert again, ended.stdout[-2000:]
    violations = Simulation(int(again[1]), without="claim").run().violations
    assert violations
    assert all(f"seed {again[1]}: {violation}" in ended.stdout for violation in violations)


@pytest.mark.slow
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
