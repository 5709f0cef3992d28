"""Table of the tests that cover each fault, from the marks `@pytest.mark.fault(ROW, …)`.

`python tests/fault_matrix.py` prints the table; with `--write` it goes into docs/faults.md.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
DOCUMENT = TESTS.parent / "docs" / "faults.md"
BEGIN = "<!-- fault matrix: written by tests/fault_matrix.py --write -->"
END = "<!-- end of the fault matrix -->"

ROWS: Mapping[int, str] = {
    1: "The service takes a create, then closes the connection without an answer",
    2: "A create's answer is lost to a timeout",
    3: "A gateway answers a create with its own error page, after the job was made",
    4: "429 and 503 come in long rows",
    5: "A create's credential is refused: nothing renews it and sends again",
    6: "The process is killed at any of its calls",
    7: "Two reconcilers submit the same job at once",
    8: "A reconciler wakes up and goes on, after its claim was taken over",
    9: "A claim's writer is told that somebody else wrote it, and it was itself",
    10: "Claims can't be read or written",
    11: "The claims bucket is empty, a wrong one, or deletes by itself",
    12: "A listing doesn't show a young job yet",
    13: "A listing lags, or a create is executed, later than the bounds allow",
    14: "A listing's pages are short, repeated, or can't be continued",
    15: "A listing is empty because its filter wasn't understood",
    16: "The trials of a tuning job are listed as jobs with its labels",
    17: "A job that was cancelled ends otherwise, late, or not at all",
    18: "A repair is about to cancel the job that stays, or one that isn't ours",
    19: "A new version of the tool computes other names",
    20: "Order, locale, time zone, hash seed, file times, umask, line ends or archives change a name",
    21: "One apply is about to submit or cancel very many jobs",
    22: "A commit is reverted to content that has already run",
    23: "Somebody deletes or cancels a job by hand",
    24: "Two contents share the digits of a name, or a name is cut",
    25: "A job is in a state that nobody expected",
    26: "Two reporters post, and the older news comes last",
    27: "GitHub's limits: statuses of one commit, a description's length, requests refused for a while",
    28: "A status is meant for a commit that GitHub hasn't, or not any more",
    29: "A waiting workflow run is replaced by a newer one, and its commit gets no run",
    30: "The schedule doesn't come, or the runner is taken away in the middle",
    31: "The user or the runner ends the process by a signal",
    32: "The machine's clock jumps, or it slept",
    33: "The disk is full, read-only, or fails",
    34: "The embedded service is killed between intent, start and record",
    35: "A process id is used again, the machine restarts, or a child outlives its job",
    36: "The embedded service's state is locked, damaged, or of a newer version",
    37: "A manifest is made to be expensive: aliases, depth, size, very many values",
    38: "A manifest can be read in two ways: keys twice, YAML 1.1's words, what no JSON can hold",
    39: "A path is a trap: links that lead out or in circles, devices, names that differ by case, a swap",
    40: "A pull request brings code that runs while its plan is made",
    41: "A plan for a pull request opens a connection, or reads credentials",
    42: "A pull request from a fork changes workflows or manifests to get at the repository's identity",
    43: "A branch's name or a title is taken for a part of a workflow's script",
    44: "What a pull request's run leaves behind is taken at its word by a run with more rights",
    45: "Names, errors and log lines hold workflow commands, terminal escapes, Markdown, HTML, mentions",
    46: "A secret stands in a manifest; a token turns up in an error, a log, a claim, a process list",
    47: "A service's error message repeats values of a job's environment",
    48: "The manifests change between plan and apply",
    49: "An apply is stopped half way, by a quota or by pacing",
    50: "GitHub can't be reached while jobs end",
    51: "A service's answers have new, renamed or missing fields",
    52: "Two repositories share one project",
    53: "A job's set-up fails, once or again and again, before its trainer is started",
    54: "A live job is adopted while others adopt it or submit its content, or its adopter dies",
    55: "The summary of ended runs is lost, forged, too large, too new, or of another store",
    56: "A checkout that is behind, or has diverged, is applied after a newer commit",
    57: "An apply of a newer commit comes while one of an older commit is about to cancel",
    58: "The record of the commit that was applied last is lost or damaged, or the history is too short",
    59: "Content whose job apply had cancelled is wanted again",
    60: "Appliers that disagree keep cancelling each other's jobs",
    61: "A cancel is recorded and not carried out, or an apply is killed after it",
    62: "A later run of other content writes to the folder of the desired content's result",
    63: "A further attempt at a tuning job meets the checkpoints of an earlier one",
    64: "A metric that is expected is missing, no number, in two files, or can't be read",
    65: "A metrics file changes after its run was judged, or several processes judge it at once",
    66: "The answer to a step of a publication is lost: a copy, the record, or `current.json`",
    67: "The identity that publishes may not read the run's folder, or may not write to the address",
    68: "A quota refuses a step of a publication",
    69: "A lifecycle rule empties a run's folder before its model is published, or after that",
    70: "Somebody writes to a run's folder, or to a published model, after the model was published",
    71: "An apply of an older commit publishes while one of a newer commit does, or after it",
    72: "A pipeline's backing job is listed with the labels of its request",
    73: "A pipeline comes back with another body than was sent",
    74: "A pipeline trains, and its model can't be registered",
    75: "The embedded service is killed between a pipeline's training and its model's record",
    76: "A claim is of a kind that this version doesn't know",
    77: "The model that is to get another version doesn't exist",
}
"""Possible faults, by row."""

Covered = dict[int, list[str]]
"""Tests by the row of their mark, as `path::name`."""


def covered(folder: Path) -> Covered:
    """Return the marks of all tests below a folder.

    Raises:
        ValueError: A mark is invalid: it isn't on a test, or its rows aren't plain numbers.
    """
    rows: Covered = {}
    for file in sorted(folder.rglob("test_*.py")):
        name, source = file.relative_to(folder).as_posix(), file.read_text(encoding="utf-8")
        if "pytest.mark.fault" not in source:  # parsing all files takes seconds
            continue
        for row, test in _marks(ast.parse(source), name):
            if test not in rows.setdefault(row, []):
                rows[row].append(test)
    return rows


def table(rows: Covered) -> str:
    """Return the table for the document; a row without a test has an empty cell."""
    lines = ["| row | fault | tests |", "|---|---|---|"]
    return "\n".join(lines + [f"| {row} | {ROWS[row]} | {_cell(rows.get(row, []))} |" for row in ROWS])


def with_table(document: str, rows: Covered) -> str:
    """Return the document with its table updated."""
    before, found, rest = document.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the document has no place for the table: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"


def _cell(tests: list[str]) -> str:
    by_file: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(f"`{name}`")
    return "; ".join(f"`{file}`: {', '.join(names)}" for file, names in by_file.items())


def _marks(module: ast.Module, file: str) -> Iterator[tuple[int, str]]:
    """Yield each row with each test of a file that has its mark."""
    known: set[ast.Call] = set()
    for row, call in _faults(_assigned_marks(module)):
        known.add(call)
        yield from ((row, f"{file}::{test.name}") for test in _tests(module))
    for holder in _in_order(module, ast.ClassDef | ast.FunctionDef):
        for row, call in _faults(holder.decorator_list):
            known.add(call)
            marked = [*_tests(holder)] if isinstance(holder, ast.ClassDef) else [holder]
            yield from ((row, f"{file}::{test.name}") for test in marked)
    for _, call in _faults([module]):
        if call not in known:
            raise ValueError(f"{file}:{call.lineno}: this mark is on no test")


def _assigned_marks(module: ast.Module) -> list[ast.AST]:
    """Return the values assigned to `pytestmark`."""
    return [
        statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in statement.targets)
    ]


def _tests(holder: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for node in _in_order(holder, ast.FunctionDef):
        if node.name.startswith("test_"):
            yield node


def _in_order(holder: ast.AST, kinds: Any) -> list[Any]:
    """Return the nodes of some kinds below another node, in file order."""
    found = [node for node in ast.walk(holder) if isinstance(node, kinds)]
    return sorted(found, key=lambda node: node.lineno)


def _faults(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, ast.Call]]:
    """Yield each row of each `pytest.mark.fault(…)` below some nodes."""
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and _is_fault(call.func):
                for row in call.args:
                    if not isinstance(row, ast.Constant) or not isinstance(row.value, int):
                        raise ValueError(f"line {call.lineno}: a row is no plain number")
                    yield row.value, call


def _is_fault(mark: ast.expr) -> bool:
    return (
        isinstance(mark, ast.Attribute) and mark.attr == "fault" and ast.unparse(mark) == "pytest.mark.fault"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Which test covers which fault.")
    parser.add_argument("--write", action="store_true", help="put the table into docs/faults.md")
    rows = covered(TESTS)
    if parser.parse_args().write:
        DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), rows), encoding="utf-8")
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
