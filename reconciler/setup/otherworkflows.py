"""Workflows that are there, and are for another environment than the one that is set up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reconciler.config import LOCAL
from reconciler.setup.files import APPLY_WORKFLOW, PLAN_WORKFLOW
from reconciler.setup.wanted import NO_SHA
from reconciler.setup.writing import Change

_USES = re.compile(r"\buses:[ \t]*[\"']?([\w.-]+/[\w.-]+)/\.github/actions/\w+@([0-9a-f]{40})\b", re.ASCII)
_ENVIRONMENT = re.compile(r"^[ \t]*environment:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OtherWorkflow:
    """A workflow of the reconciler's that is kept.

    Attributes:
        path: From the repository's root, with "/".
        environment: The one that it is for.
        action: `OWNER/REPO@SHA` that it names; "" where that is still to be filled in.
    """

    path: str
    environment: str
    action: str


def other_workflows(changes: Iterable[Change], environment: str) -> Iterator[OtherWorkflow]:
    """Those of the workflows that aren't for `environment`; those of other tools don't count."""
    for change in changes:
        if change.path in (APPLY_WORKFLOW, PLAN_WORKFLOW):
            text = change.after.decode("utf-8", "replace")
            named = _ENVIRONMENT.findall(text) or [LOCAL]
            used = _USES.search(text)
            # What an expression gives isn't known here.
            if used and environment not in named and not any(name.startswith("$") for name in named):
                action = "" if used[2] == NO_SHA else f"{used[1]}@{used[2]}"
                yield OtherWorkflow(change.path, named[-1], action)
