"""Workload Identity Federation: which runs of GitHub Actions may act in Google Cloud, and no key anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reconciler.config import Environment
from reconciler.setup.files import APPLY_WORKFLOW
from reconciler.setup.grants import Step
from reconciler.setup.wanted import Wanted

ISSUER = "https://token.actions.githubusercontent.com"
EVENTS = ("push", "schedule", "workflow_dispatch")
PROVIDER = "github"

_POOL_LENGTH = 32


def attribute_condition(wanted: Wanted, repository_id: str, owner_id: str) -> str:
    """The condition, in CEL, on a run's token: this workflow, for the branch whose jobs are applied.

    Args:
        wanted: Names the repository and its branch.
        repository_id: The repository's number: a name can be given up, and taken by somebody else.
        owner_id: The number of its owner.
    """
    ref = f"refs/heads/{wanted.branch}"
    events = ", ".join(f"'{event}'" for event in EVENTS)
    return " && ".join(
        (
            f"assertion.repository_id == '{repository_id}'",
            f"assertion.repository_owner_id == '{owner_id}'",
            f"assertion.ref == '{ref}'",
            f"assertion.event_name in [{events}]",
            f"assertion.workflow_ref == '{wanted.repository}/{APPLY_WORKFLOW}@{ref}'",
            "assertion.runner_environment == 'github-hosted'",
        )
    )


def pool_id(wanted: Wanted) -> str:
    """A pool for this repository alone: another's provider with a weaker condition lets nobody in here."""
    words = re.sub("[^a-z0-9]+", "-", wanted.repository.rpartition("/")[2].lower())
    return f"reconciler-{words}"[:_POOL_LENGTH].strip("-")


def provider_name(wanted: Wanted, project_number: str) -> str:
    """The provider's full name, which the workflow is given."""
    return (
        f"projects/{project_number}/locations/global/workloadIdentityPools/{pool_id(wanted)}"
        f"/providers/{PROVIDER}"
    )


def federation(wanted: Wanted, environment: Environment, account: str) -> Iterator[Step]:
    """How runs of the workflow come to act as the service account `account`; uses the shell's variables."""
    project, pool = environment.project, pool_id(wanted)
    yield Step(
        "the numbers behind the names, for the commands below",
        f"PROJECT_NUMBER=$(gcloud projects describe {project} --format='value(projectNumber)')\n"
        f"REPOSITORY_ID=$(gh api repos/{wanted.repository} --jq .id)\n"
        f"OWNER_ID=$(gh api repos/{wanted.repository} --jq .owner.id)",
    )
    yield Step(
        "a pool of identities for this repository alone",
        f"gcloud iam workload-identity-pools create {pool} --project={project} --location=global",
    )
    condition = attribute_condition(wanted, "$REPOSITORY_ID", "$OWNER_ID")
    yield Step(
        f"only this workflow on {wanted.branch} gets in, by numbers that nobody else can come to have",
        f"gcloud iam workload-identity-pools providers create-oidc {PROVIDER} --project={project} "
        f"--location=global --workload-identity-pool={pool} --issuer-uri={ISSUER} "
        "--attribute-mapping=google.subject=assertion.repository_id "
        f'--attribute-condition="{condition}"',
    )
    member = (
        "principal://iam.googleapis.com/projects/$PROJECT_NUMBER/locations/global"
        f"/workloadIdentityPools/{pool}/subject/$REPOSITORY_ID"
    )
    yield Step(
        f"it acts as {account}",
        f"gcloud iam service-accounts add-iam-policy-binding {account} --project={project} "
        f'--role=roles/iam.workloadIdentityUser --member="{member}"',
    )
