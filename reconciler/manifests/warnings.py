"""The warnings of a command: those that the settings acknowledge, and a summary of the others.

Equal warnings of many places are one entry of the summary, with the first places and a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from reconciler.base.diagnostics import Problem, Warned, capped
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.places import placed
from reconciler.manifests.settings import Config

_MOST_PLACES = 3  # of equal warnings
_MOST_LINES = 22  # of all warnings


class WarningGroup(Struct, frozen=True):
    """Equal warnings: the first ones with their places, the number of all, and of the files with any."""

    first: tuple[Problem, ...]
    count: int = 1
    files: int = 1


class WarningSummary(Struct, frozen=True):
    """What of a command's warnings is shown to people.

    Attributes:
        groups: Sorted by the place of their first warning.
        left_out: The numbers of warnings in no group, by kind.
        acknowledged: The numbers of warnings that the settings acknowledge, by kind.
        count: The number of warnings that they don't.
        paths: The files of these.
    """

    groups: tuple[WarningGroup, ...] = ()
    left_out: Mapping[WarningKind, int] = {}
    acknowledged: Mapping[WarningKind, int] = {}
    count: int = 0
    paths: frozenset[str] = frozenset()


class Warnings(Struct, frozen=True):
    """Warnings of one repository.

    Attributes:
        root: The repository's root.
        items: Those that the settings don't acknowledge.
        acknowledged: The numbers of the others, by kind.
    """

    root: Path = Path()
    items: tuple[Warned, ...] = ()
    acknowledged: Mapping[WarningKind, int] = {}

    def __bool__(self) -> bool:
        return bool(self.items)

    def placed(self) -> list[Problem]:
        """Return all warnings with their places: sorted, at most 100 a file and a count of the rest."""
        return capped(placed(self.root, self.items))

    def summary(self, *, in_full: bool = False) -> WarningSummary:
        """Return what is shown: some 20 lines, unless `in_full`, and only these places are looked up."""
        paths = frozenset(warning.path for warning in self.items)
        if in_full:
            everything = tuple(WarningGroup((problem,)) for problem in self.placed())
            return WarningSummary(everything, {}, self.acknowledged, len(self.items), paths)
        groups = grouped(self.items)
        shown = _chosen(groups)
        first = [group[:_MOST_PLACES] for group in shown]
        problems = iter(placed(self.root, [warning for some in first for warning in some]))
        in_place = [tuple(next(problems) for _ in some) for some in first]
        left_out = Counter(warning.kind for warning in self.items if warning.kind)
        left_out -= Counter(warning.kind for group in shown for warning in group if warning.kind)
        return WarningSummary(
            tuple(map(_group, in_place, shown)), left_out, self.acknowledged, len(self.items), paths
        )


NO_WARNINGS = Warnings()


def warnings_of(config: Config, warnings: Iterable[Warned]) -> Warnings:
    """Return the warnings of a repository, without those of the kinds that its settings acknowledge."""
    different = tuple(dict.fromkeys(warnings))
    if not config.acknowledged:
        return Warnings(config.root, different)
    covered = Counter(warning.kind for warning in different if warning.kind)
    items = tuple(warning for warning in different if warning.kind not in config.acknowledged)
    acknowledged = {
        kind: covered[kind] for kind in WarningKind if kind in config.acknowledged & covered.keys()
    }
    return Warnings(config.root, items, acknowledged)


def with_more(warnings: Warnings, config: Config, more: Iterable[Warned]) -> Warnings:
    """Return the warnings of a repository with further ones."""
    further = warnings_of(config, more)
    acknowledged = Counter(warnings.acknowledged) + Counter(further.acknowledged)
    return Warnings(
        config.root,
        tuple(dict.fromkeys((*warnings.items, *further.items))),
        {kind: acknowledged[kind] for kind in WarningKind if acknowledged[kind]},
    )


def grouped(warnings: Sequence[Warned]) -> list[list[Warned]]:
    """Return equal warnings together, sorted by place; the hint may differ, as it says what to write."""
    groups: dict[tuple[str, str], list[Warned]] = {}
    for warning in sorted(warnings, key=_place):
        groups.setdefault((warning.kind, warning.message), []).append(warning)
    return [*groups.values()]


def problem_groups(problems: Sequence[Problem]) -> list[WarningGroup]:
    """Return warnings with places, equal ones together."""
    groups = grouped(problems)
    return [
        _group([warning for warning in group[:_MOST_PLACES] if isinstance(warning, Problem)], group)
        for group in groups
    ]


def _group(first: Sequence[Problem], warnings: Sequence[Warned]) -> WarningGroup:
    return WarningGroup(tuple(first), len(warnings), len({warning.path for warning in warnings}))


def _place(warning: Warned) -> tuple[str, int]:
    return warning.path, warning.line


def _chosen(groups: Sequence[Sequence[Warned]]) -> list[Sequence[Warned]]:
    """Return the groups that fit: first the largest of each kind, then the second largest, and so on."""
    by_kind: dict[str, list[int]] = {}
    for index in sorted(range(len(groups)), key=lambda index: -len(groups[index])):
        by_kind.setdefault(groups[index][0].kind, []).append(index)
    ranked = sorted((rank, index) for of_kind in by_kind.values() for rank, index in enumerate(of_kind))
    chosen: list[int] = []
    lines = 0
    for _, index in ranked:
        lines += _lines(groups[index])
        if chosen and lines > _MOST_LINES:
            break
        chosen.append(index)
    return [groups[index] for index in sorted(chosen)]


def _lines(group: Sequence[Warned]) -> int:
    return 1 + (len(group) > 1) + len(group[0].hint.splitlines())
