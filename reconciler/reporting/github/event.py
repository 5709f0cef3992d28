"""The event that a run of GitHub Actions is for: its pull request or merge group, as far as it is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from reconciler.base.errors import UsageError, check_machine
from reconciler.base.git_command import SHA

_MAX_EVENT = 32 * 1024 * 1024
_BRANCH = "refs/heads/"


class ProposedMerge(Struct, frozen=True):
    """Merge that a run's event is about; all names are text of others.

    Attributes:
        head: The commit that is merged, 40 hex digits.
        base: The branch that it is merged into.
        default: The repository's default branch; "" if unknown.
    """

    head: str
    base: str
    default: str


def pull_request(environ: Mapping[str, str]) -> int:
    """Return the number of a GitHub Actions run's pull request; raise UsageError for other runs."""
    if environ.get("GITHUB_EVENT_NAME") != "pull_request":
        hint = "use `reconciler report --comment` in a workflow on `pull_request`"
        raise UsageError("there is no pull request to comment on", hint=hint)
    match _event(environ):
        case {"pull_request": {"number": int(number)}} if number > 0 and number is not True:
            return number
    raise UsageError(
        "the event in GITHUB_EVENT_PATH names no pull request", hint="GitHub Actions sets the variable"
    )


def is_from_fork(environ: Mapping[str, str]) -> bool:
    """Return True if a run's pull request comes from another repository, or its event doesn't tell."""
    match _event(environ):
        case {"pull_request": {"head": {"repo": {"full_name": str(source)}}}}:
            return source != environ.get("GITHUB_REPOSITORY")
    return True


def proposed_merge(environ: Mapping[str, str]) -> ProposedMerge | None:
    """Return the merge that a run on `pull_request` or `merge_group` is about; None for another run."""
    name = environ.get("GITHUB_EVENT_NAME")
    if name not in ("pull_request", "merge_group"):
        return None
    match event := _event(environ):
        case {"pull_request": {"head": {"sha": str(head)}, "base": {"ref": str(base)}}}:
            pass
        case {"merge_group": {"head_sha": str(head), "base_ref": str(base)}}:
            base = base.removeprefix(_BRANCH)
        case _:
            return None
    match event:
        case {"repository": {"default_branch": str(default)}}:
            pass
        case _:
            default = ""
    return ProposedMerge(head, base, default) if SHA.fullmatch(head) and base else None


def _event(environ: Mapping[str, str]) -> Any:
    """Return the run's event; None for a file that is missing or isn't JSON."""
    path = environ.get("GITHUB_EVENT_PATH", "")
    try:
        with Path(path).open("rb") as file:
            return json.loads(file.read(_MAX_EVENT))
    except OSError as error:
        check_machine(error, f"can't read {path}")
        return None
    except (ValueError, RecursionError):
        return None
