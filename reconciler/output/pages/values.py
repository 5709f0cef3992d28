"""Values that the pages of an environment are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from msgspec import Struct

from reconciler.manifests.secrets import without_secrets
from reconciler.model.details import JobDetails
from reconciler.model.plan import Plan, Target
from reconciler.planning.outcome import JobStatus

_LEFT_OUT = "(left out)"


class CommitInfo(Struct, frozen=True):
    """Author, time (RFC 3339) and first line of a commit; "" if git doesn't have it."""

    sha: str
    author: str = ""
    time: str = ""
    subject: str = ""


class Content(Struct, frozen=True):
    """Choices about the content of pages.

    Attributes:
        logs: True for the last lines of each job's log.
        env_values: True for the values of environment variables.
        zone: The time zone of shown times, and its name.
    """

    logs: bool = False
    env_values: bool = False
    zone: tzinfo = UTC
    zone_name: str = "UTC"


class Site(Struct, frozen=True, dict=True):
    """State of an environment at a moment.

    Attributes:
        title: The repository's name.
        made: The moment, in UTC.
        rows: All rows of `status --all`.
        whole: True if all manifests could be read.
        plan: The present plan; None if manifests are invalid or claims can't be read.
        repository, run: The pages of the repository on GitHub and of this run of Actions; "" for none.
        notes: Sentences about parts that could not be read.
        details: Details of the jobs with a page, by `row_key`.
        commits: The commits of all rows, by hash.
    """

    title: str
    target: Target
    made: datetime
    rows: Sequence[JobStatus]
    whole: bool = True
    plan: Plan | None = None
    repository: str = ""
    run: str = ""
    notes: Sequence[str] = ()
    details: Mapping[tuple[str, str], JobDetails] = {}
    commits: Mapping[str, CommitInfo] = {}
    content: Content = Content()


def shown_spec(spec: Mapping[str, object], content: Content) -> Mapping[str, object]:
    """Return a spec as pages show it: without secrets, and with the values that the content has."""
    shown = without_secrets(spec)
    return shown if content.env_values else _without_values(shown)  # type: ignore[no-any-return]


def _without_values(node: Any, name: str = "") -> Any:
    """Return JSON with the values of variables left out: those of all objects in a list called `env`."""
    if isinstance(node, Mapping):
        return {key: _without_values(part, key) for key, part in node.items()}
    if not isinstance(node, list | tuple):
        return node
    if name != "env":
        return [_without_values(item) for item in node]
    return [
        {key: _LEFT_OUT if key == "value" else part for key, part in item.items()}
        if isinstance(item, Mapping)
        else _LEFT_OUT
        for item in node
    ]


def row_key(row: JobStatus) -> tuple[str, str]:
    """Return the key of a row: several runs may have one name, and rows without a run have no resource."""
    return row.job_name, row.resource
