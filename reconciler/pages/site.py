"""Values of a site: the state of an environment at a moment, and the reader of its jobs' details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from reconciler.model.details import JobDetails
from reconciler.model.plan import Plan, Target
from reconciler.pages.template import (
    PageContent,
)
from reconciler.planning.outcome import JobStatus


class CommitInfo(Struct, frozen=True):
    """Author, time (RFC 3339) and first line of a commit; "" if git doesn't have it."""

    sha: str
    author: str = ""
    time: str = ""
    subject: str = ""


class Site(Struct, frozen=True, dict=True):
    """State of an environment at a moment.

    Attributes:
        title: The repository's name.
        made: The moment, in UTC.
        rows: All rows of `status --all`.
        whole: True if all manifests could be read, and there is at least one.
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
    content: PageContent = PageContent()


def row_key(row: JobStatus) -> tuple[str, str]:
    """Return the key of a row: several runs may have one name, and rows without a run have no resource."""
    return row.job_name, row.resource


class JobReader(Protocol):
    """What a site's pages show of its jobs beside the rows."""

    def has_page(self, row: JobStatus) -> bool:
        """Return True for a row whose details can be read."""

    def details(self, row: JobStatus) -> JobDetails | None:
        """Return the details of a row with a page; None if the job was deleted since."""

    def completed(self, rows: Sequence[JobStatus]) -> Sequence[JobStatus]:
        """Return the rows with their causes and results."""

    def prepare_times(self, rows: Sequence[JobStatus]) -> Sequence[str]:
        """Return the beginning of the set-up of each row (RFC 3339); "" for an unknown one."""


class RecordedJobs:
    """The details in the values of a site, whose rows are complete."""

    def __init__(self, details: Mapping[tuple[str, str], JobDetails]) -> None:
        self._details = details

    def has_page(self, row: JobStatus) -> bool:
        """Return True for a row with details."""
        return row_key(row) in self._details

    def details(self, row: JobStatus) -> JobDetails | None:
        """Return the details of a row; None without any."""
        return self._details.get(row_key(row))

    def completed(self, rows: Sequence[JobStatus]) -> Sequence[JobStatus]:
        """Return the rows, which are complete."""
        return rows

    def prepare_times(self, rows: Sequence[JobStatus]) -> Sequence[str]:
        """Return the beginning of the set-up of each row; "" for an unknown one."""
        return [details.prepare_time if (details := self.details(row)) else "" for row in rows]
