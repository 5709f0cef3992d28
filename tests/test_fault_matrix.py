"""Coverage of faults: each known fault has a test, and the document lists it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.fault_matrix import BEGIN, DOCUMENT, END, ROWS, TESTS, Covered, covered, table, with_table

MARKED = """
import pytest

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.fault(4))])
@pytest.mark.fault(2, 3)
def test_a(x): ...

@pytest.mark.fault(3)
class TestB:
    def helper(self): ...
    def test_b(self): ...

def test_c(): ...
"""


@pytest.fixture(scope="module")
def rows() -> Covered:
    return covered(TESTS)


@pytest.mark.slow
def test_every_row_has_a_test(rows: Covered) -> None:
    assert not {row: ROWS[row] for row in ROWS if row not in rows}


@pytest.mark.slow
def test_every_mark_names_a_row_that_there_is(rows: Covered) -> None:
    assert rows.keys() <= ROWS.keys()


@pytest.mark.slow
def test_the_document_has_the_table(rows: Covered) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert with_table(document, rows) == document, "run `python tests/fault_matrix.py --write`"


def test_marks_are_read_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "test_a.py").write_text(MARKED)
    (tmp_path / "test_b.py").write_text(f"pytestmark = [pytest.mark.slow, pytest.mark.fault(9)]\n{MARKED}")
    (tmp_path / "helper.py").write_text(MARKED)
    rows = covered(tmp_path)
    assert rows == {
        2: ["deeper/test_a.py::test_a", "test_b.py::test_a"],
        3: ["deeper/test_a.py::test_a", "deeper/test_a.py::test_b", "test_b.py::test_a", "test_b.py::test_b"],
        4: ["deeper/test_a.py::test_a", "test_b.py::test_a"],
        9: ["test_b.py::test_a", "test_b.py::test_b", "test_b.py::test_c"],
    }
    assert (
        "| 4 | 429 and 503 come in long rows | `deeper/test_a.py`: `test_a`; `test_b.py`: `test_a` |"
        in table(rows)
    )
    assert "| 1 | The service takes a create, then closes the connection without an answer |  |" in table(
        rows
    )


@pytest.mark.parametrize(
    "text", ["MARK = pytest.mark.fault(1)", "@pytest.mark.fault(ROW)\ndef test_a(): ..."]
)
def test_a_mark_that_would_be_lost_is_an_error(tmp_path: Path, text: str) -> None:
    ast.parse(text)
    (tmp_path / "test_a.py").write_text(text)
    with pytest.raises(ValueError, match=r"on no test|no plain number"):
        covered(tmp_path)


def test_only_the_table_is_written() -> None:
    old = f"# Title\n\n{BEGIN}\n| old |\n{END}\nThe end\n"
    new = with_table(old, {})
    assert new.startswith(f"# Title\n\n{BEGIN}\n\n| row |")
    assert new.endswith(f"\n\n{END}\nThe end\n")
    assert "| old |" not in new
    assert with_table(new, {}) == new
    with pytest.raises(ValueError, match="no place"):
        with_table("# Title\n", {})
