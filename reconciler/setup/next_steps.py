"""Next steps after a set-up, as commands with all known values filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.base.git_command import Git
from reconciler.google.claim_store import PREFIX
from reconciler.google.client import API_VERSIONS
from reconciler.manifests.settings import Environment
from reconciler.setup.files import (
    APPLY_WORKFLOW,
    NO_REPOSITORY,
    Setup,
    service_account,
    submitter_of,
    template,
    trainer_of,
)

if TYPE_CHECKING:  # most set-ups open no session
    pass

MEMBER = "MEMBER"
"""Placeholder for the identity that runs apply, in a command."""

CHECK = "reconciler plan"
"""Check that a protected branch requires, not the overall status's: GitHub would require both."""

PROVIDER_VARIABLE = "RECONCILER_IDENTITY_PROVIDER"

_ISSUER = "https://token.actions.githubusercontent.com"
_PROVIDER = "github"
_MAPPING = {
    "google.subject": "repository_id",
    "attribute.actor": "actor",
    "attribute.workflow": "workflow_ref",
    "attribute.commit": "sha",
}
"""Attributes of an identity by the claims of a run's token; the audit log shows them."""
_POOLS = "projects/$PROJECT_NUMBER/locations/global/workloadIdentityPools"
_POOL_LENGTH = 32
_ENABLE = "gcloud services enable"
# Google switched "ml" off.
_APIS = sorted({*API_VERSIONS, "cloudresourcemanager", "iam", "sts"} - {"ml"})


@dataclass(frozen=True, slots=True)
class Step:
    """Step for a person: its purpose, and the command."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Part:
    """Titled group of steps, in order."""

    title: str
    steps: Iterable[Step]


def grants(environment: Environment, source: str, member: str = MEMBER) -> Iterator[Step]:
    """Yield the permissions that `member` needs to run apply.

    Args:
        environment: An environment in Google Cloud.
        source: The id that marks the repository's jobs.
        member: As IAM writes it, such as `serviceAccount:E-MAIL`.
    """
    project, submitter = environment.project, environment.submitter
    yield Step(f"{member}, who runs apply, reads and writes claims", _on_claims(environment, source, member))
    yield Step(f"{member} uploads packages", _on_bucket(environment.staging_bucket, member))
    submits = "" if submitter else ", and submits them"
    yield Step(f"{member} sees and cancels jobs{submits}", _user(project, member))
    if submitter:
        yield from _of_submitter(project, submitter, member)
    if environment.publish:
        yield from _of_publisher(_bucket_of(environment.publish), member)
    account = environment.defaults.get("serviceAccount")
    if account:
        actor = f"serviceAccount:{submitter}" if submitter else member
        yield Step(
            f"{actor} submits jobs that run as {account}",
            f"gcloud iam service-accounts add-iam-policy-binding {account} --member={actor} "
            "--role=roles/iam.serviceAccountUser",
        )
    trainer = account or "the service account of training jobs"
    for bucket in filter(None, dict.fromkeys([environment.claims_bucket, _bucket_of(environment.publish)])):
        yield Step(
            f"{trainer} must have no role here that writes objects",
            f"gcloud storage buckets get-iam-policy gs://{bucket}",
        )


def _of_publisher(bucket: str, member: str) -> Iterator[Step]:
    for role, does in (("objectViewer", "reads published models"), ("objectCreator", "publishes models")):
        yield Step(f"{member} {does}", _on_bucket(bucket, member, role=role))
    # The other objects are written once: nobody needs to be able to replace them.
    expression = 'resource.name.endsWith("/current.json")'
    condition = f"'^#^title=reconciler-current#expression={expression}'"
    yield Step(f"{member} replaces current.json alone", _on_bucket(bucket, member, condition))


def _bucket_of(uri: str) -> str:
    return uri.removeprefix("gs://").partition("/")[0]


def _of_submitter(project: str, submitter: str, member: str) -> Iterator[Step]:
    # A federated identity that acts as the submitter makes the tokens by itself. With a role on itself, the
    # submitter could renew a leaked token for ever.
    is_federated = member == f"serviceAccount:{submitter}"
    if not is_federated:
        yield Step(
            f"{member} makes tokens for {submitter}",
            f"gcloud iam service-accounts add-iam-policy-binding {submitter} --project={project} "
            f"--member={member} --role=roles/iam.serviceAccountTokenCreator",
        )
    yield Step(
        "enable the API that makes the tokens", f"{_ENABLE} iamcredentials.googleapis.com --project={project}"
    )
    if not is_federated:
        yield Step(f"{submitter} submits jobs", _user(project, f"serviceAccount:{submitter}"))


def _on_claims(environment: Environment, source: str, member: str) -> str:
    # Listing is a permission on the bucket, not on objects, so the condition has a second clause for it.
    bucket, folder = environment.claims_bucket, f"{PREFIX}{source}/"
    expression = (
        f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{folder}") || '
        f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("{folder}")'
    )
    return _on_bucket(bucket, member, f"'^#^title=reconciler-claims#expression={expression}'")


def _on_bucket(bucket: str, member: str, condition: str = "None", role: str = "objectUser") -> str:
    return (
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member} "
        f"--role=roles/storage.{role} --condition={condition}"
    )


def _user(project: str, member: str) -> str:
    return (
        f"gcloud projects add-iam-policy-binding {project} --member={member} "
        "--role=roles/aiplatform.user --condition=None"
    )


def attribute_condition(setup: Setup, repository_id: str, owner_id: str) -> str:
    """Return the condition on a run's token, in CEL: this workflow, for the branch whose jobs are applied.

    Args:
        setup: The repository and its branch.
        repository_id: The repository's number: its name can be given up, and taken by another owner.
        owner_id: The owner's number.
    """
    ref = f"refs/heads/{setup.branch}"
    return (
        f"assertion.repository_id == '{repository_id}' && "
        f"assertion.repository_owner_id == '{owner_id}' && "
        f"assertion.ref == '{ref}' && "
        "assertion.event_name in ['push', 'schedule', 'workflow_dispatch'] && "
        f"assertion.workflow_ref == '{setup.repository}/{APPLY_WORKFLOW}@{ref}' && "
        "assertion.runner_environment == 'github-hosted'"
    )


def pool_id(setup: Setup) -> str:
    """Return the id of an identity pool for this repository alone."""
    # A shared pool would admit other repositories through a provider with a weaker condition.
    words = re.sub("[^a-z0-9]+", "-", setup.repository.rpartition("/")[2].lower())
    return f"reconciler-{words}"[:_POOL_LENGTH].strip("-")


def federation(setup: Setup, environment: Environment, account: str) -> Iterator[Step]:
    """Yield the steps that let runs of the workflow act as `account`; they use shell variables.

    They update a provider that exists in the project, by the repository's variable that names it: after a
    rename, its pool has the old name.
    """
    project, pool = environment.project, pool_id(setup)
    pools = "gcloud iam workload-identity-pools"
    variables = f"repos/{setup.repository}/actions/variables"
    named = f'.variables[] | select(.name == "{PROVIDER_VARIABLE}") | .value'
    yield Step(
        "look up the numbers of the project, the repository and its owner, and the provider that the "
        "repository has in this project, for the commands below",
        f"PROJECT_NUMBER=$(gcloud projects describe {project} --format='value(projectNumber)')\n"
        f"REPOSITORY_ID=$(gh api repos/{setup.repository} --jq .id)\n"
        f"OWNER_ID=$(gh api repos/{setup.repository} --jq .owner.id)\n"
        f"PROVIDER=$(gh api {variables} --jq '{named}')\n"
        'case "$PROVIDER" in "projects/$PROJECT_NUMBER/"*) ;; *) PROVIDER= ;; esac',
    )
    yield Step(
        "without a provider: create a pool of identities for this repository alone",
        f'[ -n "$PROVIDER" ] || {pools} create {pool} --project={project} --location=global',
    )
    condition = attribute_condition(setup, "$REPOSITORY_ID", "$OWNER_ID")
    mapping = "--attribute-mapping=" + ",".join(
        f"{name}=assertion.{claim}" for name, claim in _MAPPING.items()
    )
    yield Step(
        f"admit only this workflow on {setup.branch}, by numbers that can't be reused; after a rename, a "
        "transfer or a new default branch, this updates the provider",
        f'CONDITION="{condition}"\n'
        'if [ -n "$PROVIDER" ]; then\n'
        f'  {pools} providers update-oidc "$PROVIDER" {mapping} --attribute-condition="$CONDITION"\n'
        "else\n"
        f"  {pools} providers create-oidc {_PROVIDER} --project={project} --location=global "
        f"--workload-identity-pool={pool} --issuer-uri={_ISSUER} {mapping} "
        '--attribute-condition="$CONDITION"\n'
        f'  PROVIDER="{_POOLS}/{pool}/providers/{_PROVIDER}"\n'
        "fi",
    )
    yield Step(
        f"let the workflow act as {account}",
        f"gcloud iam service-accounts add-iam-policy-binding {account} --project={project} "
        "--role=roles/iam.workloadIdentityUser "
        '--member="principal://iam.googleapis.com/${PROVIDER%/providers/*}/subject/$REPOSITORY_ID"',
    )


def commit(uncommitted: Sequence[str], *, is_git: bool) -> Step | None:
    """Return the command that commits the paths, in a new repository unless `is_git`; None without paths."""
    if not uncommitted:
        return None
    new = "" if is_git else "git init --initial-branch=main && "
    return Step(
        "commit the set-up",
        f"{new}git add {shlex.join(uncommitted)} && git commit --message='Set up reconciler'",
    )


def google_cloud(setup: Setup, environment: Environment) -> Part:
    """Return the steps that prepare the project for the environment; they use shell variables."""
    title = f"Google Cloud, project {environment.project}: once, by an administrator, in one shell"
    return Part(title, _google_steps(setup, environment))


def _google_steps(setup: Setup, environment: Environment) -> Iterator[Step]:
    account = submitter_of(environment)
    if not setup.is_on_github:
        yield Step(
            "name the repository on GitHub first: the steps that need its name are still missing below",
            f"git remote add origin https://github.com/{NO_REPOSITORY}.git\n"
            f"reconciler init --steps google --env {environment.name}",
        )
    yield from _resources(environment, account)
    needed = grants(environment, setup.source, f"serviceAccount:{account}")
    # `_resources` has enabled all APIs already.
    yield from (step for step in needed if not step.command.startswith(_ENABLE))
    yield from _of_trainer(environment)
    if setup.is_on_github:
        yield from federation(setup, environment, account)


def github(setup: Setup, *, is_filled_in: bool) -> Part:
    """Return the steps on GitHub; `is_filled_in`: True if the workflows name the reconciler's repository."""
    return Part(f"GitHub, repository {setup.repository}", _github_steps(setup, is_filled_in))


def _github_steps(setup: Setup, is_filled_in: bool) -> Iterator[Step]:
    if not is_filled_in:
        yield Step(
            "name the repository and commit (all 40 digits) of reconciler that the workflows use",
            "reconciler init --action OWNER/REPO@SHA",
        )
    if setup.google and setup.is_on_github:
        new = f"{_POOLS}/{pool_id(setup)}/providers/{_PROVIDER}"
        provider = f"${{PROVIDER:-{new}}}"
        yield Step(
            "give the workflow the provider's name",
            f'gh variable set {PROVIDER_VARIABLE} --repo {setup.repository} --body "{provider}"',
        )
    yield Step("push the set-up, or open a pull request with it", "git push --set-upstream origin HEAD")
    yield _protection(setup)
    owner = setup.repository.partition("/")[0]
    lines = " ".join(f"'{path} @{owner}/TEAM'" for path in ("/.github/", "/jobs/", "/reconciler.yaml"))
    yield Step(
        "name the team that must review changes to these files; the ruleset can require code owners' reviews",
        f"printf '%s\\n' {lines} >>.github/CODEOWNERS",
    )


def _resources(environment: Environment, account: str) -> Iterator[Step]:
    project = environment.project
    apis = " ".join(f"{api}.googleapis.com" for api in _APIS)
    yield Step("enable the APIs", f"{_ENABLE} {apis} --project={project}")
    yield Step(
        "create the staging bucket",
        f"gcloud storage buckets create gs://{environment.staging_bucket} --project={project} "
        f"--location={environment.location} --uniform-bucket-level-access --public-access-prevention",
    )
    yield Step(
        "create the claims bucket; this warns of settings that make claims less safe",
        f"gcloud auth application-default login\nreconciler init --claims --env {environment.name}",
    )
    for address, does in ((account, "submits jobs"), (trainer_of(environment), "runs jobs")):
        name, _, host = address.partition("@")
        if address == service_account(name, project):
            yield Step(
                f"create the service account that {does}",
                f"gcloud iam service-accounts create {name} --project={project}",
            )
        elif host:
            yield Step(f"{address} {does}", f"gcloud iam service-accounts describe {address}")


def _of_trainer(environment: Environment) -> Iterator[Step]:
    trainer = trainer_of(environment)
    if trainer and environment.staging_bucket == environment.claims_bucket:
        yield Step(
            "the claims need a bucket of their own before training jobs may write to the staging bucket",
            'write "claimsBucket" into reconciler.yaml, and run `reconciler init` again',
        )
    elif trainer:
        yield Step(
            f"{trainer} reads packages and writes the output of jobs",
            _on_bucket(environment.staging_bucket, f"serviceAccount:{trainer}"),
        )


def _protection(setup: Setup) -> Step:
    # The rule set's `integration_id` is that of GitHub Actions: https://api.github.com/apps/github-actions.
    body = template("ruleset.json").rstrip()
    return Step(
        f'require the check "{CHECK}" of GitHub Actions; remove a rule that still requires "reconciler"',
        f"gh api --method POST repos/{setup.repository}/rulesets --input - <<'END'\n{body}\nEND",
    )


def uncommitted(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the paths for `git add` that add exactly the changes of `paths`.

    A folder stands for its files if it has no other changes. Without git, all paths are returned.

    Args:
        root: The repository's root.
        paths: Files below it, with "/".
    """
    real = {_real(root, path) for path in paths}
    changed = _changed_files(root)
    uncommitted_paths = real if changed is None else real & changed
    shared = {_top(path) for path in (changed or set()) - real}
    return sorted({path if _top(path) in shared else _top(path) for path in uncommitted_paths})


def _real(root: Path, path: str) -> str:
    # Git tracks a file below a linked folder at the link's target.
    file = root / path
    return (file.parent.resolve() / file.name).relative_to(root.resolve()).as_posix()


def _top(path: str) -> str:
    return path.partition("/")[0]


def _changed_files(root: Path) -> set[str] | None:
    """Return the files with uncommitted changes, without ignored ones; None if git fails."""
    git = Git(root)
    # `git status` runs the filters that a hostile repository may configure, unless they are switched off.
    prefix, filters_off = git.ask("rev-parse", "--show-prefix"), git.filters_off()
    if prefix is None or filters_off is None:
        return None
    options = ["--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"]
    listed = git.ask(*filters_off, "status", *options, "--", ".")
    if listed is None:
        return None
    # Each entry starts with two letters of state and a space.
    return {entry[3:].removeprefix(prefix.strip()) for entry in listed.split("\0") if entry}
