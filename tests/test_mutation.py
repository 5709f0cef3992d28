"""Mutation run: its changes, and the explanation of each survivor."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation import explained
from tests.mutation.explained import Explained
from tests.mutation.modules import TESTS
from tests.mutation.mutants import mutants_of

ROOT = Path(__file__).resolve().parent.parent
SOURCE = '''
if TYPE_CHECKING:
    from elsewhere import Table

LIMIT: int = 3


def f(a: "tuple[int, str]", b: str = "") -> bool:
    """Text for people."""
    print("also for people")
    return a[0] > LIMIT and not b
'''


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.function, mutant.change) for mutant in mutants_of(source, ast.parse(source))]


def test_every_decision_is_changed_and_nothing_that_people_read() -> None:
    assert changes(SOURCE) == [
        ("(module)", "LIMIT: int = 3 -> LIMIT: int = 4"),
        ("(module)", "LIMIT: int = 3 -> LIMIT: int = 2"),
        ("f", "a: 'tuple[int, str]', b: str='' -> a: 'tuple[int, str]', b: str='other'"),
        ("f", "print('also for people') -> (removed)"),
        ("f", "return a[0] > LIMIT and (not b) -> return None"),
        ("f", "a[0] > LIMIT and (not b) -> a[0] > LIMIT or not b"),
        ("f", "a[0] > LIMIT and (not b) -> not b"),
        ("f", "a[0] > LIMIT and (not b) -> a[0] > LIMIT"),
        ("f", "a[0] > LIMIT -> a[0] >= LIMIT"),
        ("f", "a[0] > LIMIT -> a[0] <= LIMIT"),
        ("f", "a[0] -> a[1]"),
        ("f", "a[0] -> a[-1]"),
        ("f", "not b -> b"),
    ]


def test_each_mutant_is_one_change_of_the_tree() -> None:
    texts = set()
    for index in range(len(changes(SOURCE))):
        tree = ast.parse(SOURCE)
        mutants_of(SOURCE, tree)[index].apply()
        texts.add(ast.unparse(tree))
    assert len(texts) == len(changes(SOURCE))
    assert ast.unparse(ast.parse(SOURCE)) not in texts


def test_constants_are_told_apart_by_the_expression_around_them() -> None:
    assert changes("x = 1 + 1") == [
        ("(module)", "1 + 1 -> 1 - 1"),
        ("(module)", "1 + 1 -> 2 + 1"),
        ("(module)", "1 + 1 -> 0 + 1"),
        ("(module)", "1 + 1 -> 1 + 2"),
        ("(module)", "1 + 1 -> 1 + 0"),
    ]


def test_equal_changes_of_one_function_are_numbered() -> None:
    assert changes("x = a < b\ny = a < b") == [
        ("(module)", "a < b -> a <= b"),
        ("(module)", "a < b -> a >= b"),
        ("(module)", "a < b -> a <= b #2"),
        ("(module)", "a < b -> a >= b #2"),
    ]


def test_only_survivors_without_an_explanation_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "explained.toml"
    monkeypatch.setattr(explained, "_FILE", file)
    entry = '[[m]]\nfunction = "(module)"\nchanges = [{}]\nreason = "{}"\n'
    survivors = mutants_of("x = 1", ast.parse("x = 1"))
    file.write_text(entry.format("'x = 1 -> x = 2', 'x = 1 -> x = 3'", "why"))
    report = Explained("m", survivors)
    assert [mutant.change for mutant in report.without] == ["x = 1 -> x = 0"]
    assert report.unneeded == ["(module): x = 1 -> x = 3"]
    file.write_text(entry.format("'x = 1 -> x = 2', 'x = 1 -> x = 0'", ""))
    assert len(Explained("m", survivors).without) == 2


def test_every_module_and_every_test_that_is_named_exists() -> None:
    for module, tests in TESTS.items():
        assert (ROOT / "reconciler" / f"{module.replace('.', '/')}.py").is_file()
        assert [test for test in tests if not (ROOT / "tests" / f"{test}.py").is_file()] == []
    assert explained.modules() <= TESTS.keys()
