"""What a repository is to be set up as."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reconciler.errors import UsageError

NO_SHA = "0" * 40
"""Stands in a file where the commit of the action has to be filled in."""

NO_REPOSITORY = "OWNER/NAME"
"""Stands in a command where the repository's name on GitHub isn't known."""

SUBMITTER = "reconciler-submitter"
TRAINER = "reconciler-trainer"
"""What the service accounts are called where nothing else is written."""

_ACTION = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}@)[A-Za-z0-9._-]+)@([0-9a-f]{40})")
_GITHUB_URL = re.compile(
    r"(?:(?:https://|ssh://git@)github\.com/|git@github\.com:)"
    r"([A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}(?:\.git)?/?\Z)[A-Za-z0-9._-]+?)(?:\.git)?/?"
)
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:[./][A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Action:
    """Where the workflows take the reconciler from.

    Attributes:
        repository: `owner/name` on GitHub.
        sha: The commit's full name; all zeros where somebody has to fill it in.
    """

    repository: str = "OWNER/REPO"
    sha: str = NO_SHA

    @property
    def is_known(self) -> bool:
        """Whether nothing has to be filled in."""
        return self.sha != NO_SHA


@dataclass(frozen=True, slots=True)
class Google:
    """An environment in Google Cloud.

    Attributes:
        name: What `--env` calls it.
        project: The project's id.
        location: The region.
        staging_bucket: Without `gs://`, as the claims bucket.
        claims_bucket: Where claims are kept.
        submitter: The service account that the workflow acts as, and whose tokens carry each create.
        trainer: The service account that jobs run as; "" where it is the project's default.
        instance: Keeps it apart from another environment with its project and location; "" for none.
    """

    name: str
    project: str
    location: str
    staging_bucket: str
    claims_bucket: str
    submitter: str
    trainer: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `reconciler init` was asked for, and what it found.

    Attributes:
        source: The id that marks the repository's jobs.
        repository: `owner/name` on GitHub, or NO_REPOSITORY.
        branch: The branch whose jobs are applied.
        action: Where the workflows take the reconciler from.
        google: The environment in Google Cloud; None where the embedded service is all.
    """

    source: str
    repository: str = NO_REPOSITORY
    branch: str = "main"
    action: Action = Action()
    google: Google | None = None

    @property
    def is_on_github(self) -> bool:
        """Whether the repository's name there is known."""
        return self.repository != NO_REPOSITORY


def service_account(name: str, project: str) -> str:
    """The e-mail address of a project's service account; that of `example.com:p` is below `p.example.com`."""
    domain, _, own = project.rpartition(":")
    return f"{name}@{own}{'.' if domain else ''}{domain}.iam.gserviceaccount.com"


def action_of(text: str) -> Action:
    """`OWNER/REPO@SHA` as an action; raises UsageError for anything but a whole commit."""
    match = _ACTION.fullmatch(text)
    if match is None:
        raise UsageError(
            "--action is not of the form OWNER/REPO@SHA",
            hint="name a repository on GitHub, and all 40 digits of one of its commits: a tag can be moved",
        )
    return Action(match[1], match[2])


def github_repository(url: str) -> str | None:
    """The `owner/name` that a remote's URL means on github.com; None for any other URL."""
    match = _GITHUB_URL.fullmatch(url)
    return match[1] if match else None


def is_plain_branch(name: str) -> bool:
    """Whether a branch's name needs no quoting in YAML, in a shell and in an expression."""
    return _BRANCH.fullmatch(name) is not None


def source_id(name: str, random: str) -> str:
    """An id for the jobs of a repository: what its name gives, and `random`, which keeps it apart."""
    words = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return f"{words if words[:1].isalpha() else 'jobs'}-{random}"
