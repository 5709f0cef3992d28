"""Sentences of the comparison of a checkout with the tree that was applied last."""

from __future__ import annotations

from reconciler.model.applied_tree import Effect, Relation, TreeFinding

_SHOWN_OF_SHA = 7
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def tree_message(finding: TreeFinding) -> str:
    """Return what a person should know, as a clause; "" for nothing."""
    applied = f"{finding.commit[:_SHOWN_OF_SHA]}, applied {_ago(finding.age)}"
    match finding.relation:
        case Relation.NONE if finding.commit:
            return f"no branch has {applied}, any more"
        case Relation.OLDER:
            message = f"this checkout is older than {applied}"
        case Relation.DIVERGED:
            message = f"this checkout has diverged from {applied}"
        case Relation.UNKNOWN:
            message = f"this checkout's history doesn't show if it is newer than {applied}"
        case _:
            return ""
    if not finding.commit:
        return ""
    # It is applied as the head of its branch, or because a person asked for it.
    effect = {Effect.APPLY: ", and is applied all the same", Effect.WITHHOLD: ", so it cancels nothing"}
    return f"{message}{effect.get(finding.effect, '')}"


def tree_hint(finding: TreeFinding) -> str:
    """Return what a person can do, as a clause; "" for nothing."""
    if finding.effect is Effect.APPLY or not finding.commit:
        return ""
    ways = {
        Relation.OLDER: "pull",
        Relation.DIVERGED: "merge or rebase, and push",
        Relation.UNKNOWN: finding.remedy,
    }
    if finding.relation not in ways:
        return ""
    return f"{ways[finding.relation]}, or use `reconciler apply --allow-older`"


def tree_line(finding: TreeFinding) -> str:
    """Return the message and the hint in one line; "" for nothing."""
    message, hint = tree_message(finding), tree_hint(finding)
    return f"{message}: {hint}" if hint else message


def tree_note(finding: TreeFinding) -> str:
    """Return the line as a sentence; "" for nothing, and where the checkout is refused."""
    line = tree_line(finding) if finding.effect is not Effect.REFUSE else ""
    return f"{line[0].upper()}{line[1:]}." if line else ""


def _ago(seconds: float) -> str:
    for size, unit in _UNITS:
        if (number := int(seconds // size)) > 0:
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "less than a minute ago"
