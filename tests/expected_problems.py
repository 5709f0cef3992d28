"""`python -m tests.expected_problems`: write the problems of each case in `bad_manifests` to its file.

The file is `expected.json`. Run this after a change of wording or a new case, then review the difference as a
user would: the tests accept it from then on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import validate
from reconciler.manifests.warnings import Warnings
from reconciler.operations.publication_rules import publication_problems

CASES = Path(__file__).parent / "bad_manifests"
"""Folders that each hold a repository of manifests with a single kind of mistake, some with settings."""


def problems_of(case: Path) -> list[dict[str, Any]]:
    """Return the problems of a case's manifests, without the empty kind of errors."""
    config = load_config(case)
    environment = config.environment(None)
    found = validate(case, [case / "jobs"], environment.filled)
    addresses = publication_problems(case, found.manifests, config, environment)
    warnings = Warnings(case, (*found.warnings, *addresses.warnings)).placed()
    problems = (*found.problems, *addresses.errors, *warnings)
    return [
        {name: value for name, value in asdict(problem).items() if (name, value) != ("kind", "")}
        for problem in problems
    ]


if __name__ == "__main__":
    for folder in sorted(path for path in CASES.iterdir() if path.is_dir()):
        text = json.dumps(problems_of(folder), indent=1, ensure_ascii=False)
        (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
