"""The shape of the code: imports point one way, and a quick command loads no slow package."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

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
MANIFEST = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: census}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      containerSpec: {imageUri: "example.com/trainer:1"}
"""


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


def test_modules_stay_small() -> None:
    modules = [path for path in (ROOT / "reconciler").rglob("*.py") if "templates" not in path.parts]
    lines = {
        path: len(path.read_text("utf-8").splitlines()) for path in modules if path.name != "__init__.py"
    }
    assert not {path: count for path, count in lines.items() if count > 800}
    long = [path for path, count in lines.items() if count > 500]
    # A long module is one idea, and its docstring explains why.
    assert not [path for path in long if "one idea" not in path.read_text("utf-8").split('"""')[1]]
    assert len([path for path in lines if path.parent == ROOT / "reconciler"]) <= 3


def test_functions_stay_short() -> None:
    counts = sorted(
        node.end_lineno - node.lineno + 1
        for _path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno
    )
    assert counts[-1] <= 60
    assert counts[len(counts) * 9 // 10] <= 20


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", [["--help"], ["validate", "job.yaml"], ["schema", "CustomJob"]], ids=" ".join
)
def test_a_quick_command_imports_nothing_slow(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(MANIFEST)
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


# Words that make a reader stop. The bounds are those of readable projects of this size, not goals to fill.
QUESTION_WORDS = {"what", "whether", "how", "where", "why", "which", "when", "who", "whose", "that"}
RELATIVE_WORDS = {"what", "whatever", "whoever", "where", "which", "who", "whose", "whether"}
VAGUE_WORDS = {
    *("nobody", "anybody", "somebody", "something", "nothing", "anything"),
    *("one", "ones", "told", "tells", "tell", "thereof"),
}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    first = [re.sub(r"\W", "", text.split()[0]).lower() for _place, text in _docstrings()]
    assert sum(word in QUESTION_WORDS for word in first) < 0.03 * len(first)


@pytest.mark.parametrize("words", [RELATIVE_WORDS, VAGUE_WORDS], ids=["relative", "vague"])
def test_docstrings_use_plain_words(words: set[str]) -> None:
    used = [re.sub(r"[^a-z]", "", word.lower()) for _place, text in _docstrings() for word in text.split()]
    assert sum(word in words for word in used) < 0.01 * len(used)


def test_public_names_have_docstrings() -> None:
    documented = [
        ast.get_docstring(node) is not None
        for _path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sum(documented) > 0.9 * len(documented)


def test_code_has_comments() -> None:
    lines = comments = 0
    for path, _tree in _modules():
        text = path.read_text("utf-8")
        lines += text.count("\n")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments += sum(token.type == tokenize.COMMENT for token in tokens)
    assert comments >= 0.02 * lines


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
