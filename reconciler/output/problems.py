"""Problems of manifests and settings as text for people, as workflow commands for GitHub, and as JSON.

All text from manifests goes through `sanitize`, so that it can't act on a terminal or on a workflow's log. It
knows no plan: `validate` is the quickest command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from reconciler.base.diagnostics import ERROR, WARNING, Level, Problem, counted
from reconciler.base.sanitize import one_line
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.warnings import WarningGroup, WarningSummary
from reconciler.model.plan import FORMAT_VERSION
from reconciler.output.annotations import Annotation, annotation_lines

NO_WARNINGS = WarningSummary()

_REST = "run `reconciler validate`"
_NOUNS: dict[Level, str] = {ERROR: "problem", WARNING: "warning"}


def problems_text(problems: Sequence[Problem], warnings: WarningSummary = NO_WARNINGS) -> str:
    """Return a line for each problem and for equal warnings, in the format of compilers, with the hint below.

    A last line counts the warnings that the summary leaves out.
    """
    groups = sorted([*map(_alone, problems), *warnings.groups], key=lambda group: group.first[0])
    lines = [line for group in groups for line in _lines(group)]
    if warnings.left_out:
        left = counted(sum(warnings.left_out.values()), "more warning")
        lines.append(f"… and {left}, which --verbose shows: {_by_kind(warnings.left_out)}")
    return "\n".join(lines)


def validation_text(files: int, problems: Sequence[Problem], warnings: WarningSummary = NO_WARNINGS) -> str:
    """Return the problems and warnings, and a last line that counts them."""
    valid = f"{counted(files, 'file')} valid" if files else "No manifests found"
    parts = [problems_text(problems, warnings)] if problems or warnings.groups else []
    last = _settings_lines(warnings)
    if problems:
        last.append(f"{problem_count(problems, warnings)} of {files}.")
    else:
        last.append(f"{valid}; {problem_count((), warnings)}." if warnings.count else f"{valid}.")
    return "\n\n".join([*parts, "\n".join(last)])


def _settings_lines(warnings: WarningSummary) -> list[str]:
    """Return what `warnings` in the settings covers, and what to write there for the first warning."""
    lines = []
    if warnings.acknowledged:
        covered = counted(sum(warnings.acknowledged.values()), "warning")
        lines.append(f"reconciler.yaml acknowledges {covered}: {_by_kind(warnings.acknowledged)}.")
    if warnings.groups:
        kind = warnings.groups[0].first[0].kind
        lines.append(
            f"To acknowledge warnings of a kind, write in reconciler.yaml: warnings: {{{kind}: ignore}}"
        )
    return lines


def _by_kind(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.items())


def _alone(problem: Problem) -> WarningGroup:
    return WarningGroup((problem,))


def _lines(group: WarningGroup) -> Iterator[str]:
    problem = group.first[0]
    field = f" ({problem.pointer})" if problem.pointer else ""
    level, kind = ("warning: ", f" [{problem.kind}]") if problem.kind else ("", "")
    yield one_line(f"{_place(problem)}: {level}{problem.message}{field}{kind}")
    if others := others_text(group, _place):
        yield f"    {one_line(others)}"
    yield from (f"    {one_line(line)}" for line in problem.hint.splitlines())


def _place(problem: Problem) -> str:
    return f"{problem.path}:{problem.line}:{problem.column}"


def others_text(group: WarningGroup, place: Callable[[Problem], str]) -> str:
    """Return how many warnings are equal, and the places behind the first; "" for a single warning."""
    listed = ", ".join(map(place, group.first[1:]))
    if group.count == len(group.first):
        return f"also at {listed}" if listed else ""
    return f"{group.count} of these in {counted(group.files, 'file')}, also at {listed}, …"


def validation_github(files: int, problems: Sequence[Problem], warnings: WarningSummary = NO_WARNINGS) -> str:
    """Return workflow commands, which GitHub shows as annotations at file and line."""
    lines = [*problem_annotations(problems), *_warning_annotations(warnings)]
    return "\n".join(lines) if lines else validation_text(files, (), warnings)


def problem_annotations(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield workflow commands for problems, at the places of their manifests."""
    annotations = [_annotation(_alone(problem), "Invalid manifest") for problem in problems]
    return annotation_lines(annotations, "problem", _REST)


def _warning_annotations(warnings: WarningSummary) -> Iterator[str]:
    """Yield workflow commands for warnings, equal ones in one, and a last one that counts those left out."""
    annotations = [_annotation(group, "Probably a mistake") for group in warnings.groups]
    left_out = sum(warnings.left_out.values())
    return annotation_lines(annotations, "warning", _REST, WARNING, left_out)


def _annotation(group: WarningGroup, title: str) -> Annotation:
    problem = group.first[0]
    kind = f" [{problem.kind}]" if problem.kind else ""
    lines = f"{problem.message}{kind}", others_text(group, _place), problem.hint
    message = "\n".join(filter(None, lines))
    return Annotation(message, title, problem.path, problem.line, problem.column, group.count)


def problem_count(problems: Sequence[Problem], warnings: WarningSummary = NO_WARNINGS) -> str:
    """Return the numbers of problems and warnings, and of files with any."""
    files = len({problem.path for problem in problems} | warnings.paths)
    numbers = Counter(problem.level for problem in problems)
    numbers[WARNING] += warnings.count
    counts = [counted(numbers[level], noun) for level, noun in _NOUNS.items() if numbers[level]]
    return f"{' and '.join(counts)} in {counted(files, 'file')}"


def validation_json(
    files: int, problems: Sequence[Problem], acknowledged: Mapping[WarningKind, int]
) -> dict[str, Any]:
    """Return the output of `validate --format json`; `problems` include all warnings."""
    return {
        "formatVersion": FORMAT_VERSION,
        "valid": all(problem.kind for problem in problems),
        "files": files,
        "problems": [problem_json(problem) for problem in problems],
        "acknowledged": {str(kind): count for kind, count in acknowledged.items()},
    }


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return a problem with its place, level and kind."""
    return {**asdict(problem), "kind": str(problem.kind), "level": str(problem.level)}
