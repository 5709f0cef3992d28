"""Messages, errors and JSON, printed alike by all commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import ReconcilerError
from reconciler.base.sanitize import one_line


def print_json(value: Any) -> None:
    """Print a JSON document on stdout."""
    sys.stdout.write(f"{json_text(value)}\n")


def json_text(value: Any) -> str:
    """Return a value as indented JSON in ASCII."""
    import json

    # In ASCII, no encoding can break the JSON and no text of a manifest can act on a terminal. GitHub's
    # runner takes "##[" for a command anywhere in a line; in JSON it only occurs within strings.
    return json.dumps(value, indent=2).replace("##[", r"#\u0023[")


def print_error(error: ReconcilerError, log_format: str) -> None:
    """Print an error and its hint on stderr."""
    print_message(error.message, log_format, error.hint)


def print_message(message: str, log_format: str, hint: str = "") -> None:
    """Print a sentence and a hint on stderr."""
    if log_format == "json":
        from reconciler.base.logging import events

        events(log_format).error("error", message=message, **({"hint": hint} if hint else {}))
        return
    print(f"reconciler: {one_line(message)}", file=sys.stderr)
    if hint:
        print(f"    {one_line(hint)}", file=sys.stderr)


def print_problems(problems: Sequence[Problem], log_format: str) -> None:
    """Print the problems of manifests on stderr, each with its place."""
    if log_format == "json":
        from reconciler.base.logging import events
        from reconciler.output.json import problem_json

        for problem in problems:
            events(log_format).error("invalid", **problem_json(problem))
    elif problems:
        from reconciler.output.text import problems_text

        print(problems_text(problems), file=sys.stderr)
