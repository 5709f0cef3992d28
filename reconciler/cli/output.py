"""What commands print beside their own results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import ReconcilerError
from reconciler.base.sanitize import one_line


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(f"{json_text(value)}\n")


def json_text(value: Any) -> str:
    """A value as commands print it: the same text for the same value."""
    import json

    # ASCII, so that neither an encoding can break the JSON nor a manifest's text act on a terminal; and only
    # within strings there can be "##[", which GitHub's runner takes for a command wherever it stands.
    return json.dumps(value, indent=2).replace("##[", r"#\u0023[")


def tell_error(error: ReconcilerError, log_format: str) -> None:
    """One error on stderr, and what to do about it."""
    tell(error.message, log_format, error.hint)


def tell(message: str, log_format: str, hint: str = "") -> None:
    """One sentence on stderr, and what to do about it."""
    if log_format == "json":
        from reconciler.base.logging import events

        events(log_format).error("error", message=message, **({"hint": hint} if hint else {}))
        return
    print(f"reconciler: {one_line(message)}", file=sys.stderr)
    if hint:
        print(f"    {one_line(hint)}", file=sys.stderr)


def tell_problems(problems: Sequence[Problem], log_format: str) -> None:
    """What is wrong with manifests, each with its place, on stderr."""
    if log_format == "json":
        from reconciler.base.logging import events
        from reconciler.output.json import problem_json

        for problem in problems:
            events(log_format).error("invalid", **problem_json(problem))
    elif problems:
        from reconciler.output.text import problems_text

        print(problems_text(problems), file=sys.stderr)
