"""The mutation run: what it changes, and that nothing survives without an explanation that is true."""

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
        ("(module)", "3 -> 4"),
        ("(module)", "3 -> 2"),
        ("f", "'' -> 'other'"),
        ("f", "print('also for people') -> (removed)"),
        ("f", "return a[0] > LIMIT and (not b) -> return None"),
        ("f", "a[0] > LIMIT and (not b) -> a[0] > LIMIT or not b"),
        ("f", "a[0] > LIMIT and (not b) -> not b"),
        ("f", "a[0] > LIMIT and (not b) -> a[0] > LIMIT"),
        ("f", "a[0] > LIMIT -> a[0] >= LIMIT"),
        ("f", "a[0] > LIMIT -> a[0] <= LIMIT"),
        ("f", "0 -> 1"),
        ("f", "0 -> -1"),
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


def test_the_same_change_twice_in_one_line_is_told_apart() -> None:
    assert changes("x = 1 + 1") == [
        ("(module)", "1 + 1 -> 1 - 1"),
        ("(module)", "1 -> 2"),
        ("(module)", "1 -> 0"),
        ("(module)", "1 -> 2 #2"),
        ("(module)", "1 -> 0 #2"),
    ]


def test_survivors_need_an_explanation_and_explanations_a_survivor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "explained.toml"
    monkeypatch.setattr(explained, "_FILE", file)
    entry = '[[m]]\nfunction = "(module)"\nline = "x = 1"\nchanges = [{}]\nreason = "{}"\n'
    survivors = mutants_of("x = 1", ast.parse("x = 1"))
    file.write_text(entry.format("'1 -> 2', '1 -> 3'", "why"))
    told = Explained("m", survivors)
    assert [mutant.change for mutant in told.without] == ["1 -> 0"]
    assert told.stale == ["(module): x = 1: 1 -> 3"]
    file.write_text(entry.format("'1 -> 2', '1 -> 0'", ""))
    assert len(Explained("m", survivors).without) == 2


def test_every_module_and_every_test_that_is_named_exists() -> None:
    for module, tests in TESTS.items():
        assert (ROOT / "reconciler" / f"{module.replace('.', '/')}.py").is_file()
        assert [test for test in tests if not (ROOT / "tests" / f"{test}.py").is_file()] == []
    assert explained.modules() <= TESTS.keys()
