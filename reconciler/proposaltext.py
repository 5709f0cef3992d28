"""A proposal as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reconciler.inert import one_line
from reconciler.planning.proposal import Edit, Proposal, ProposedChange
from reconciler.planning.settings import decides
from reconciler.render import change_lines, field_line, target_text

_SHOWN_OF_SHA = 12
_MAX_SETTINGS = 50
_UNASKED = "No service was asked what ran before: `reconciler plan` tells what is submitted."


def proposal_text(proposal: Proposal, *, verbose: bool = False) -> str:
    """The settings that differ, what is new, changed and removed, and only with `verbose` what isn't.

    It is one line where nothing is to be told.

    The problems aren't in it.
    """
    shown = [found for found in proposal.changes if verbose or found.edit is not Edit.UNCHANGED]
    head = f"Plan for {target_text(proposal.target)} against {proposal.base[:_SHOWN_OF_SHA]}"
    above = [*_settings(proposal)]
    if not shown and not above and not proposal.base_problems and not proposal.problems:
        return f"{head}: no job differs, {len(proposal.changes)} unchanged{_moved(proposal)}."
    lines = [one_line(head), "", *above]
    if not proposal.changes and proposal.problems:
        return "\n".join([*lines, _problems(proposal)])
    for found in shown:
        lines += _lines(found)
    lines += [""] if shown else []
    lines.append(f"{_counted(proposal)}{_hours(proposal)}.")
    if proposal.problems:
        lines.append(_problems(proposal))
    if proposal.base_problems:
        told = "1 problem" if proposal.base_problems == 1 else f"{proposal.base_problems} problems"
        lines.append(f"The manifests that are compared with have {told}: jobs of invalid ones count as new.")
    return "\n".join([*lines, _UNASKED])


def _problems(proposal: Proposal) -> str:
    files = len({problem.path for problem in proposal.problems})
    told = "1 problem" if len(proposal.problems) == 1 else f"{len(proposal.problems)} problems"
    return f"{told} in {files} file{'' if files == 1 else 's'}: what can't be read isn't counted above."


def _settings(proposal: Proposal) -> Iterator[str]:
    """The settings that differ, at most 50 and those first that decide most, and what that means."""
    if proposal.settings:
        yield "Settings change, in reconciler.yaml:"
        for field in proposal.settings[:_MAX_SETTINGS]:
            what = decides(field.pointer)
            sign = "!" if what else " "
            yield f"  {sign} {field_line(field)}" + (f"  ({what})" if what else "")
        left = len(proposal.settings) - _MAX_SETTINGS
        yield from [f"    … and {left} more"] * (left > 0)
        yield ""
    for note in proposal.notes:
        yield from (one_line(note), "")


def _lines(found: ProposedChange) -> Iterator[str]:
    head, reason, *fields = change_lines(found.change)
    yield head
    edit = "" if found.change.reason.startswith(found.edit) else f"{found.edit}: "
    yield f"      {edit}{reason.lstrip()}"
    yield from fields
    yield from (f"      {one_line(note)}" for note in found.notes)


def _counted(proposal: Proposal) -> str:
    count = Counter(found.edit for found in proposal.changes)
    return ", ".join(f"{count[edit]} {edit}" for edit in Edit) + _moved(proposal)


def _moved(proposal: Proposal) -> str:
    moved = sum(found.edit is Edit.UNCHANGED and bool(found.notes) for found in proposal.changes)
    return f" ({moved} in another place)" if moved else ""


def _hours(proposal: Proposal) -> str:
    before = sum(found.hours_before for found in proposal.changes)
    after = sum(found.hours_after for found in proposal.changes)
    return f"; at most {before:.10g} → {after:.10g} accelerator-hours" if before or after else ""
