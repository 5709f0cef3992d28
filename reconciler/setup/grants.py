"""The permissions that the reconciler needs in Google Cloud, as commands for a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.config import Environment
from reconciler.services.claimstore import PREFIX

MEMBER = "MEMBER"
"""Stands in a command for whoever runs apply."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a person may have to do: why, and the command."""

    why: str
    command: str


def grants(environment: Environment, source: str, member: str = MEMBER) -> Iterator[Step]:
    """What has to be granted so that `member` can run apply.

    Args:
        environment: One in Google Cloud.
        source: The id that marks the repository's jobs.
        member: As IAM writes it, such as `serviceAccount:E-MAIL`.
    """
    project, submitter = environment.project, environment.submitter
    yield Step(f"{member}, who runs apply, reads and writes claims", _on_claims(environment, source, member))
    yield Step(
        f"{member} uploads packages",
        f"gcloud storage buckets add-iam-policy-binding gs://{environment.staging_bucket} --member={member} "
        "--role=roles/storage.objectUser --condition=None",
    )
    yield Step(
        f"{member} sees and cancels jobs" + ("" if submitter else ", and submits them"),
        _user(project, member),
    )
    if submitter:
        yield from _of_submitter(project, submitter, member)
    account = environment.defaults.get("serviceAccount")
    if account:
        actor = f"serviceAccount:{submitter}" if submitter else member
        yield Step(
            f"jobs that run as {account} are submitted",
            f"gcloud iam service-accounts add-iam-policy-binding {account} --member={actor} "
            "--role=roles/iam.serviceAccountUser",
        )
    yield Step(
        f"{account or 'the service account of training jobs'} must have no role here that writes objects",
        f"gcloud storage buckets get-iam-policy gs://{environment.claims_bucket}",
    )


def _of_submitter(project: str, submitter: str, member: str) -> Iterator[Step]:
    yield Step(
        f"{member} makes tokens for {submitter}",
        f"gcloud iam service-accounts add-iam-policy-binding {submitter} --project={project} "
        f"--member={member} --role=roles/iam.serviceAccountTokenCreator",
    )
    yield Step(
        "tokens are made by this API",
        f"gcloud services enable iamcredentials.googleapis.com --project={project}",
    )
    if member != f"serviceAccount:{submitter}":
        yield Step(f"{submitter} submits jobs", _user(project, f"serviceAccount:{submitter}"))


def _on_claims(environment: Environment, source: str, member: str) -> str:
    """Objects below the repository's folder, and listing them, which is asked of the bucket."""
    bucket, folder = environment.claims_bucket, f"{PREFIX}{source}/"
    expression = (
        f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{folder}") || '
        f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("{folder}")'
    )
    return (
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member} "
        f"--role=roles/storage.objectUser --condition='^#^title=reconciler-claims#expression={expression}'"
    )


def _user(project: str, member: str) -> str:
    return (
        f"gcloud projects add-iam-policy-binding {project} --member={member} "
        "--role=roles/aiplatform.user --condition=None"
    )
