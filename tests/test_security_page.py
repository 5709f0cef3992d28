"""SECURITY.md: each rule names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "SECURITY.md").read_text()


def test_each_named_test_and_file_exists() -> None:
    found = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 40
    assert named <= found
    files = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert files
    assert not [name for name in files if not (TESTS.parent / name).exists()]


def test_each_rule_names_a_test() -> None:
    rules = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| rule")]
    assert rules
    assert not [rule for rule in rules if not re.search(r"`test_\w+`|`tests/[\w/]+\.py`", rule)]
