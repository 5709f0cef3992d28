"""Annotations of GitHub Actions: messages at a file and line, in a run and in a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from reconciler.base.diagnostics import ERROR, Level
from reconciler.base.sanitize import workflow_command

_MAX = 10


class Annotation(NamedTuple):
    """Message with its place; `path` is relative to the top of the checkout, "" and 0 are unknown.

    `findings` is the number of those that it is about.
    """

    message: str
    title: str
    path: str = ""
    line: int = 0
    column: int = 0
    findings: int = 1


def annotation_lines(
    annotations: Sequence[Annotation], noun: str, rest: str, level: Level = ERROR, left_out: int = 0
) -> Iterator[str]:
    """Yield workflow commands of one level.

    Args:
        annotations: The annotations.
        noun: What they are, for the command that counts those left out.
        rest: Where to find those left out.
        level: The level of all.
        left_out: The number of further findings.
    """
    # GitHub silently drops annotations after the tenth of a step and level: the tenth counts the rest.
    shown = annotations if len(annotations) + bool(left_out) <= _MAX else annotations[: _MAX - 1]
    yield from map(partial(_command, level), shown)
    if left := left_out + sum(one.findings for one in annotations[len(shown) :]):
        yield workflow_command(
            level, f"{left} more {noun}{'s' * (left > 1)}; {rest}", title=annotations[0].title
        )


def _command(level: Level, one: Annotation) -> str:
    location: dict[str, str | int] = {"file": one.path, "line": one.line, "col": one.column}
    properties = {name: value for name, value in location.items() if value} if one.path else {}
    return workflow_command(level, one.message, **properties, title=one.title)
