"""Writes what validation says of each folder in `bad_manifests` into its `expected.json`.

Run `python -m tests.expected_problems` after a change of wording or a new case, then read the difference as a
user would: the tests take it for right from then on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from reconciler.manifests.validate import validate

CASES = Path(__file__).parent / "bad_manifests"
"""Folders that are each a repository of manifests with one kind of mistake."""


def problems_of(case: Path) -> list[dict[str, Any]]:
    """What is wrong with the manifests of a case; the level is left out of errors."""
    found = validate(case, [case / "jobs"])
    problems = [asdict(problem) for problem in (*found.problems, *found.warnings)]
    return [
        {name: value for name, value in problem.items() if (name, value) != ("level", "error")}
        for problem in problems
    ]


if __name__ == "__main__":
    for folder in sorted(path for path in CASES.iterdir() if path.is_dir()):
        text = json.dumps(problems_of(folder), indent=1, ensure_ascii=False)
        (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
