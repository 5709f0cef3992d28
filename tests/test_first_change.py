"""First changes: the rows of "Where to add", and the pages' examples, work when followed to the letter."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WHERE = (ROOT / "docs/architecture.md").read_text("utf-8").split("\n## Where to add\n")[1].split("\n### ")[0]
ROWS = {line.split(" | ")[0].strip("| "): line for line in WHERE.splitlines() if line.startswith("| ")}
JOB = (ROOT / "tests/bad_manifests/doubtful-machine/jobs/job.yaml").read_text("utf-8")
COMMAND = """
from reconciler.base.errors import ExitCode
EXAMPLES = "reconciler greet"
def add_flags(parser):
    pass
def run(arguments):
    print("hello")
    return ExitCode.DONE
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the code and the schemas, with a good manifest, as a case of bad manifests."""
    # Includes the bytecode: compiling all files takes a second.
    for folder in ("reconciler", "schemas"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    case = tmp_path / "tests/bad_manifests/mine"
    (case / "jobs").mkdir(parents=True)
    (case / "jobs/job.yaml").write_text(JOB.replace("standart", "standard"), "utf-8")
    shutil.copy(ROOT / "tests/expected_problems.py", tmp_path / "tests")
    return tmp_path


def python(copy: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the copy's Python code."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, env={**os.environ, **environ})


def place(copy: Path, row: str, path: str) -> Path:
    """Return the path in the copy that a row names."""
    assert f"`{path}`" in ROWS[row], f'the row "{row}" names no `{path}`'
    return copy / path if path.startswith(("schemas/", "tests/")) else copy / "reconciler" / path


def begin(file: Path, name: str, line: str) -> None:
    """Insert a line at the beginning of the function, or of the mapping, of this name."""
    lines = file.read_text("utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines.insert(node.body[0].end_lineno or 0, f"    {line}")  # after the docstring
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            lines.insert(node.lineno, f"    {line}")
    assert f"    {line}" in lines, f"{file.name} has no {name}"
    file.write_text("\n".join([*lines, ""]), "utf-8")


def expected(copy: Path, row: str) -> list[dict[str, str]]:
    """Return the problems of the copy's case, written by the row's command."""
    assert "`python -m tests.expected_problems`" in ROWS[row]
    assert place(copy, row, "tests/bad_manifests/").is_dir()
    assert python(copy, "-m", "tests.expected_problems").returncode == 0
    problems: list[dict[str, str]] = json.loads(
        (copy / "tests/bad_manifests/mine/expected.json").read_text("utf-8")
    )
    return problems


@pytest.mark.slow
def test_row_of_a_command_adds_a_command(copy: Path) -> None:
    row = "a command"
    (place(copy, row, "cli/") / "greet.py").write_text(COMMAND, "utf-8")
    begin(place(copy, row, "cli/arguments.py"), "COMMANDS", '"greet": "say hello",')
    assert "`COMMANDS` of `tests/support/commands.py`" in ROWS[row], "its test needs each command's words"
    assert python(copy, "-m", "reconciler", "greet").stdout == "hello\n"
    assert "say hello" in python(copy, "-m", "reconciler", "--help").stdout
    assert (
        "reconciler greet" in python(copy, "-m", "reconciler", "greet", "--help").stdout.split("example:")[1]
    )


@pytest.mark.slow
def test_row_of_a_flag_adds_a_flag_that_the_shell_offers(copy: Path) -> None:
    file = place(copy, "a flag", "cli/") / "schema.py"
    begin(file, "add_flags", 'parser.add_argument("--loud", action="store_true", help="say more")')
    begin(file, "run", "print(arguments.loud)")
    printed = python(copy, "-m", "reconciler", "schema", "CustomJob", "--loud").stdout
    assert printed.startswith("True\n{")
    line = "reconciler schema --lo"
    offered = copy / "offered"
    at_tab = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    python(copy, "-m", "reconciler", _ARGCOMPLETE_STDOUT_FILENAME=str(offered), **at_tab)
    assert "--loud" in offered.read_text("utf-8")


@pytest.mark.slow
def test_row_of_a_rule_adds_a_rule_to_the_schema_and_to_the_code(copy: Path) -> None:
    row = "a rule for one manifest"
    assert expected(copy, row) == []
    rule = 'Rule(required=("imageUri", "args"))'
    with place(copy, row, "schemas/rules.py").open("a", encoding="utf-8") as file:
        file.write(f'\nOBJECTS["aiplatform.ContainerSpec"] = {rule}\n')
    assert "`python schemas/generate.py`" in ROWS[row]
    assert python(copy, "schemas/generate.py").returncode == 0
    finding = 'yield Finding(("metadata", "name"), "the name is dull", "write another one")'
    begin(place(copy, row, "manifests/rules.py"), "domain_findings", finding)
    assert {problem["message"] for problem in expected(copy, row)} == {
        '"args" is missing',
        "the name is dull",
    }


@pytest.mark.slow
def test_row_of_a_warning_adds_a_warning(copy: Path) -> None:
    row = "a warning of `validate`"
    kinds = place(copy, row, "base/warning_kinds.py")
    line = '    DULL_NAME = "dullName", "A name says nothing."\n'
    kinds.write_text(f"{kinds.read_text('utf-8')}{line}", "utf-8")
    assert "`python schemas/generate.py`" in ROWS[row]
    assert python(copy, "schemas/generate.py", PYTHONPATH=str(copy)).returncode == 0
    kind = "kind=WarningKind.DULL_NAME"
    finding = f'yield Finding(("metadata", "name"), "the name is dull", "write another one", {kind})'
    begin(place(copy, row, "manifests/rules.py"), "domain_findings", finding)
    assert [problem["kind"] for problem in expected(copy, row)] == ["dullName"]
    command = ("-m", "reconciler", "validate", "tests/bad_manifests/mine/jobs")
    done = python(copy, *command)
    assert (done.returncode, "the name is dull (/metadata/name) [dullName]" in done.stdout) == (0, True)
    assert python(copy, *command, "--strict").returncode == 3
    (copy / "reconciler.yaml").write_text("warnings: {dullName: ignore, imageTag: ignore}\n", "utf-8")
    assert python(copy, *command, "--strict").returncode == 0


def test_no_row_names_more_than_three_files_to_change_and_five_in_all() -> None:
    for row, line in ROWS.items():
        cells = line.split("|")
        assert len(files_in(cells[2])) <= 3, row
        assert len(files_in(line[len(row) + 2 :])) <= 5, row


def files_in(text: str) -> set[tuple[str, ...]]:
    return {*re.findall(r"`([\w./-]+(?:\.\w+|/))`|\]\((.+?)\)|the (README)", text)}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/first-change.md"])
def test_examples_of_one_test_select_tests(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    examples = re.findall(r"\.venv/bin/pytest -n 0 (\S+\.py)(?: -k (\w+))?", text)
    assert examples
    for file, word in examples:
        names = re.findall(r"^def test_(\w+)", (ROOT / file).read_text("utf-8"), re.MULTILINE)
        assert [name for name in names if word in name], f"{file} has no test with {word} in its name"
