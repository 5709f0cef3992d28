"""`python -m tests.mutation`: mutate the decision modules; fail if an undetected change is unexplained."""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .explained import Explained
from .modules import TESTS
from .mutants import Mutant, mutants_of
from .trial import ROOT, Baseline, baseline, start


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a module; with `tests_fail`, its tests fail even without a mutant."""

    module: str
    mutants: int
    survivors: tuple[Mutant, ...]
    seconds: float
    tests_fail: bool = False


def main() -> int:
    """Run the mutations; return 1 if a mutant survived without an explanation."""
    arguments = _arguments()
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    failed, total, killed, accounted = False, 0, 0, 0
    for module in arguments.modules or TESTS:
        result = _mutated(module, arguments.processes)
        explained = Explained(module, result.survivors)
        _print(result, explained)
        failed = failed or result.tests_fail or bool(explained.without)
        total += result.mutants
        killed += result.mutants - len(result.survivors)
        accounted += len(result.survivors) - len(explained.without)
    print(
        f"{total} mutants: {killed} killed, {accounted} explained, {total - killed - accounted} unexplained"
    )
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)}")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if unknown := {*arguments.modules} - {*TESTS}:
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    return arguments


def _mutated(module: str, processes: int) -> Result:
    begun = time.monotonic()
    name = f"reconciler.{module}"
    path = ROOT / f"{name.replace('.', '/')}.py"
    found = baseline(name, path, [f"tests/{test}.py" for test in TESTS[module]])
    if found.failed:
        return Result(module, 0, (), time.monotonic() - begun, tests_fail=True)
    _preload(found.loaded)
    source = path.read_text()
    tree = ast.parse(source)
    mutants = mutants_of(source, tree)
    # The module loaded from the tree must behave like the original: otherwise every mutant seems detected.
    control = start(name, path, tree, lambda: None, [*found.seconds])
    if os.waitpid(control, 0)[1]:
        return Result(module, 0, (), time.monotonic() - begun, tests_fail=True)
    running: dict[int, Mutant] = {}
    survivors = []
    for mutant in mutants:
        tests = _tests_for(mutant, found)
        if not tests:
            survivors.append(mutant)
            continue
        if len(running) == processes:
            survivors += _next_survivor(running)
        running[start(name, path, tree, mutant.apply, tests)] = mutant
    while running:
        survivors += _next_survivor(running)
    survivors.sort(key=mutants.index)
    return Result(module, len(mutants), tuple(survivors), time.monotonic() - begun)


def _preload(names: Iterable[str]) -> None:
    """Import the modules that every try needs."""
    for name in {*names} - {*sys.modules}:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "reconciler" not in sys.modules, "each try has to import it anew, with its mutant"
    gc.freeze()


def _tests_for(mutant: Mutant, found: Baseline) -> Sequence[str]:
    """Return the tests that can detect a mutant, fastest first."""
    tests = found.seconds if mutant.level else found.reached.get(mutant.function, ())
    return sorted(tests, key=lambda test: (found.seconds[test], test))


def _next_survivor(running: dict[int, Mutant]) -> list[Mutant]:
    """Wait for a try to end; return its mutant if it survived."""
    child, status = os.wait()
    mutant = running.pop(child)
    return [mutant] if status == 0 else []


def _print(result: Result, explained: Explained) -> None:
    if result.tests_fail:
        print(f"{result.module}: its tests fail without any mutant")
        return
    survived = len(result.survivors)
    print(
        f"{result.module}: {result.mutants} mutants, {result.mutants - survived} killed, "
        f"{survived - len(explained.without)} explained, {len(explained.without)} unexplained, "
        f"{result.seconds:.0f} s",
        flush=True,
    )
    for mutant in explained.without:
        print(f"  survived, line {mutant.number}, {mutant.function}: {mutant.line}\n    {mutant.change}")
    for entry in explained.unneeded:
        print(f"  explanation no longer needed: {entry}")


if __name__ == "__main__":
    sys.exit(main())
