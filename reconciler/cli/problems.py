"""Problems and warnings of manifests on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from reconciler.base.diagnostics import ERROR, Problem
from reconciler.cli.events import events
from reconciler.manifests.warnings import Warnings
from reconciler.output.problems import problem_json, problems_text


def print_problems(problems: Sequence[Problem], log_format: str) -> None:
    """Print problems on stderr, each with its place."""
    if log_format == "json":
        for problem in problems:
            log = events(log_format)
            record = problem_json(problem)
            is_error = record.pop("level") == ERROR  # the line has a level of its own
            (log.error if is_error else log.warning)("invalid" if is_error else "doubtful", **record)
    elif problems:
        print(problems_text(problems), file=sys.stderr)


def print_warnings(warnings: Warnings, log_format: str, *, verbose: bool) -> None:
    """Print warnings on stderr: as events all of them, as text a summary unless `verbose`."""
    if log_format == "json":
        print_problems(warnings.placed(), log_format)
    elif warnings:
        print(problems_text((), warnings.summary(in_full=verbose)), file=sys.stderr)
