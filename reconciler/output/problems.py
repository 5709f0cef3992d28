"""Problems of manifests and settings as text for people, as workflow commands for GitHub, and as JSON.

All text from manifests goes through `sanitize`, so that it can't act on a terminal or on a workflow's log. It
knows no plan: `validate` is the quickest command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import asdict

from reconciler.base.diagnostics import ERROR, WARNING, Level, Problem, counted
from reconciler.base.sanitize import one_line
from reconciler.model.plan import FORMAT_VERSION
from reconciler.output.annotations import Annotation, annotation_lines

_ANNOTATIONS: dict[Level, tuple[str, str]] = {
    ERROR: ("problem", "Invalid manifest"),
    WARNING: ("warning", "Probably a mistake"),
}
"""Level -> noun and title."""


def problems_text(problems: Sequence[Problem]) -> str:
    """Return a line for each problem, in the format of compilers, with the hint below."""
    lines = []
    for problem in problems:
        field = f" ({problem.pointer})" if problem.pointer else ""
        where = f"{problem.path}:{problem.line}:{problem.column}"
        level = "warning: " if problem.level == WARNING else ""
        lines.append(one_line(f"{where}: {level}{problem.message}{field}"))
        if problem.hint:
            lines += (f"    {one_line(line)}" for line in problem.hint.splitlines())
    return "\n".join(lines)


def validation_text(files: int, problems: Sequence[Problem]) -> str:
    """Return the problems, and a last line that counts them."""
    valid = f"{counted(files, 'file')} valid" if files else "No manifests found"
    if not problems:
        return f"{valid}."
    if all(problem.level == WARNING for problem in problems):
        return f"{problems_text(problems)}\n\n{valid}; {problem_count(problems)}."
    return f"{problems_text(problems)}\n\n{problem_count(problems)} of {files}."


def validation_github(files: int, problems: Sequence[Problem]) -> str:
    """Return workflow commands, which GitHub shows as annotations at file and line."""
    lines = [line for level in _ANNOTATIONS for line in problem_annotations(problems, level)]
    return "\n".join(lines or [validation_text(files, problems)])


def problem_annotations(problems: Sequence[Problem], level: Level = ERROR) -> Iterator[str]:
    """Yield workflow commands for the problems of a level, at the places of their manifests."""
    noun, title = _ANNOTATIONS[level]
    annotations = [
        Annotation(
            "\n".join(filter(None, (problem.message, problem.hint))),
            title,
            problem.path,
            problem.line,
            problem.column,
        )
        for problem in problems
        if problem.level == level
    ]
    return annotation_lines(annotations, noun, "run `reconciler validate`", level)


def problem_count(problems: Sequence[Problem]) -> str:
    """Return the numbers of problems and warnings, and of files with any."""
    files = len({problem.path for problem in problems})
    numbers = Counter(problem.level for problem in problems)
    counts = [counted(numbers[level], noun) for level, (noun, _) in _ANNOTATIONS.items() if numbers[level]]
    return f"{' and '.join(counts)} in {counted(files, 'file')}"


def validation_json(files: int, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the output of `validate --format json`."""
    return {
        "formatVersion": FORMAT_VERSION,
        "valid": all(problem.level == WARNING for problem in problems),
        "files": files,
        "problems": [problem_json(problem) for problem in problems],
    }


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return a problem with its place and level."""
    return asdict(problem)
