"""Shape of the code: imports point in one direction, and a quick command loads no slow package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import SLOW_FIXTURES
from tests.support.manifests import PLAIN

ROOT = Path(__file__).resolve().parent.parent
SLOW = {
    "googleapiclient",
    "httplib2",
    "jinja2",
    "google.auth",
    "prometheus_client",
    "requests",
    "rich",
    "structlog",
    "urllib3",
    "waitress",
    "watchdog",
}


def test_contributing_lists_every_package_and_no_other() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("```")[1]
    listed = re.findall(r"^  (\w+)/", layout, re.MULTILINE)
    packages = [path.parent.name for path in (ROOT / "reconciler").glob("*/__init__.py")]
    assert sorted(listed) == sorted(packages)


@pytest.mark.parametrize("page", ["architecture.md", "at-most-once.md"])
def test_pages_name_modules_that_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
    roots = (ROOT, ROOT / "reconciler", ROOT / "reconciler" / "training_service")
    assert not [path for path in named if not any((root / path).exists() for root in roots)]


@pytest.mark.slow
def test_a_module_of_more_than_500_lines_explains_why_it_is_one_idea() -> None:
    for path, tree in _modules():
        lines = len(path.read_text("utf-8").splitlines())
        explained = "one idea" in (ast.get_docstring(tree) or "")
        assert lines <= 500 or explained, (
            f"{path} has {lines} lines: cut it where its ideas part, "
            'or let its docstring explain why it is "one idea"'
        )
        assert lines <= 800, f"{path} has {lines} lines: cut it where its ideas part"


@pytest.mark.slow
def test_a_module_has_no_two_ideas() -> None:
    """Two parts of 50 lines without a reference between their definitions are two ideas."""
    for path, tree in _modules():
        parts = [part for part in _connected(tree.body) if part.lines >= 50]
        named = "; ".join(f"{part.names[0]} and what it names" for part in parts)
        assert len(parts) <= 1, f"{path} holds several ideas ({named}): give each a module of its own"


@pytest.mark.slow
def test_a_package_explains_itself() -> None:
    for path, tree in _modules():
        if path.name == "__init__.py":
            assert ast.get_docstring(tree), f"{path} has no docstring: what does the package give, to whom?"


@pytest.mark.slow
def test_public_classes_have_one_name_each() -> None:
    places: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for path, tree in _modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name, "training_service" in path.parts].append(str(path))
    assert not {name: paths for (name, _), paths in places.items() if len(paths) > 1}, "rename all but one"


@pytest.mark.slow
def test_modules_are_imported_at_the_top() -> None:
    late = {
        f"{path}:{node.lineno}"
        for path, tree in _modules()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reconciler")
    }
    assert len(late) <= 26, f"import at the top what isn't slow and seldom needed: {sorted(late)}"


def test_tests_of_a_module_are_in_its_package() -> None:
    """A test file with a module's name lies in the folder of that module's package."""
    packages = defaultdict(set)
    for path in (ROOT / "reconciler").rglob("*.py"):
        packages[path.stem].add(path.parent.relative_to(ROOT / "reconciler"))
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.name not in {"browser", "failures", "trainers"}:  # targets of their own
            assert folder in packages["__init__"], f"{path}: reconciler/ has no package {folder}"
            owners = packages.get(path.stem.removeprefix("test_"), {folder})
            assert folder in owners, f"{path} has the name of a module of {sorted(map(str, owners))}"


def test_each_package_keeps_quick_tests() -> None:
    """`make quick` covers every package."""
    for package in sorted(path.parent.name for path in (ROOT / "reconciler").glob("*/__init__.py")):
        quick = (
            test
            for file in sorted((ROOT / "tests" / package).rglob("test_*.py"))
            for test in _quick_tests(ast.parse(file.read_text("utf-8")))
        )
        assert len([*islice(quick, 10)]) == 10, f"tests/{package}: fewer than ten tests aren't slow"


def _quick_tests(module: ast.Module) -> Iterator[str]:
    marks = [ast.unparse(node) for node in module.body if isinstance(node, ast.Assign)]
    if any(mark.startswith("pytestmark") and "mark.slow" in mark for mark in marks):
        return
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            fixtures = {argument.arg for argument in node.args.args}
            slow = any("mark.slow" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not slow and not SLOW_FIXTURES & fixtures:
                yield node.name


def test_test_files_import_no_test_file() -> None:
    """Helpers of several test files are in tests/support, and stay there when a test file moves."""
    for path in (ROOT / "tests").rglob("*.py"):
        name = re.search(r"^\s*from tests\.(?:\w+\.)*test_\w+ import", path.read_text("utf-8"), re.MULTILINE)
        assert not name, f"{path} imports from a test file: move what both need to tests/support"


@pytest.mark.slow
def test_functions_stay_short() -> None:
    lengths = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert not {place: lines for place, lines in lengths.items() if lines > 60}, "cut off a step of its own"
    assert sorted(lengths.values())[len(lengths) * 9 // 10] <= 20


@pytest.mark.slow
def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["--help"], ["validate", "job.yaml"], ["schema", "CustomJob"]], ids=" ".join
)
def test_a_quick_command_imports_nothing_slow(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(PLAIN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "reconciler", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "reconciler.cli" in imported
    assert not imported & SLOW


# Words that slow a reader down. The bounds are those of readable projects of this size, not goals to reach.
QUESTION_WORDS = {"what", "whether", "how", "where", "why", "which", "when", "who", "whose", "that"}
RELATIVE_WORDS = {"what", "whatever", "whoever", "where", "which", "who", "whose", "whether"}
VAGUE_WORDS = {
    *("nobody", "anybody", "somebody", "something", "nothing", "anything"),
    *("one", "ones", "told", "tells", "tell", "thereof"),
}


@pytest.mark.slow
def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    first = [re.sub(r"\W", "", text.split()[0]).lower() for _place, text in _docstrings()]
    assert sum(word in QUESTION_WORDS for word in first) < 0.03 * len(first)


@pytest.mark.slow
@pytest.mark.parametrize("words", [RELATIVE_WORDS, VAGUE_WORDS], ids=["relative", "vague"])
def test_docstrings_use_plain_words(words: set[str]) -> None:
    used = [re.sub(r"[^a-z]", "", word.lower()) for _place, text in _docstrings() for word in text.split()]
    assert sum(word in words for word in used) < 0.01 * len(used)


@pytest.mark.slow
def test_public_names_have_docstrings() -> None:
    documented = [
        ast.get_docstring(node) is not None
        for _path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sum(documented) > 0.9 * len(documented)


class _Part(NamedTuple):
    """Definitions of a module that reference each other, directly or indirectly."""

    names: list[str]
    lines: int


def _connected(body: Iterable[ast.stmt]) -> list[_Part]:
    """Return the parts of a module without references between their definitions."""
    nodes = {name: node for node in body for name in _defined(node)}
    part_of = {name: {name} for name in nodes}
    for name, node in nodes.items():
        for other in _named(node) & nodes.keys():
            if part_of[other] is not part_of[name]:
                part_of[name] |= part_of[other]
                part_of.update(dict.fromkeys(part_of[other], part_of[name]))
    parts = {id(names): sorted(names) for names in part_of.values()}
    return [
        _Part(names, sum(_lines(node) for node in {id(n): n for n in map(nodes.get, names)}.values()))
        for names in parts.values()
    ]


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _named(node: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)}


def _lines(node: ast.stmt | None) -> int:
    return (node.end_lineno or 0) - node.lineno + 1 if node else 0


def _modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "reconciler").rglob("*.py")):
        if "templates" not in path.parts:
            yield path, ast.parse(path.read_text("utf-8"))


def _docstrings() -> Iterator[tuple[str, str]]:
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node)
                if text:
                    yield f"{path}:{getattr(node, 'name', '')}", text
