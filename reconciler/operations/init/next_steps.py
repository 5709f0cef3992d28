"""What only a person can do after a set-up, as commands with everything filled in that is known."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reconciler.base.git_command import Git
from reconciler.google.claim_store import PREFIX
from reconciler.manifests.settings import Environment
from reconciler.operations.init.files import APPLY_WORKFLOW, NO_REPOSITORY, SUBMITTER, Wanted, service_account

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


CHECK = "reconciler"
"""The check that a protected branch waits for: the pull request's job, and the roll-up status."""

PROVIDER_VARIABLE = "RECONCILER_IDENTITY_PROVIDER"

_GITHUB_ACTIONS = 15368
"""GitHub's id of the app that checks of workflows come from, https://api.github.com/apps/github-actions."""

_ENABLE = "gcloud services enable"
_APIS = (
    "aiplatform",
    "cloudresourcemanager",
    "iam",
    "iamcredentials",
    "logging",
    "storage",
    "sts",
)


@dataclass(frozen=True, slots=True)
class Part:
    """Steps that belong together.

    Attributes:
        title: What they bring about.
        steps: In the order in which they are to be done.
    """

    title: str
    steps: tuple[Step, ...]


def try_it(*, with_example: bool) -> Part:
    """The first commands, on the embedded service."""
    steps = [
        Step("what would be submitted", "reconciler plan"),
        Step("submit it, and wait for its end", "reconciler apply --wait"),
    ]
    if with_example:
        steps.append(Step("what the trainer printed", "reconciler logs iris"))
    return Part("Try it on this machine; no cloud is needed", tuple(steps))


def commit(uncommitted: Sequence[str], *, is_git: bool) -> Part:
    """Keep what git hasn't got yet.

    Args:
        uncommitted: What `git add` is to name.
        is_git: Whether there is a repository.
    """
    steps = [] if is_git else [Step("a repository", "git init --initial-branch=main")]
    if uncommitted:
        add = f"git add {shlex.join(uncommitted)}\ngit commit --message='Set up reconciler'"
        steps.append(Step("the files of the set-up", add))
    steps.append(Step("check manifests before each commit, where pre-commit is used", "pre-commit install"))
    return Part("Commit it", tuple(steps))


def google_cloud(wanted: Wanted, environment: Environment) -> Part:
    """The project, made ready for the environment; uses the shell's variables."""
    account = environment.submitter or service_account(SUBMITTER, environment.project)
    steps = [] if wanted.is_on_github else [_remote(environment)]
    steps += _resources(environment, account)
    needed = grants(environment, wanted.source, f"serviceAccount:{account}")
    steps += (step for step in needed if not step.command.startswith(_ENABLE))
    steps += _of_trainer(environment)
    if wanted.is_on_github:
        steps += federation(wanted, environment, account)
    return Part(
        f"Google Cloud, project {environment.project}: once, by somebody who may; in one shell", tuple(steps)
    )


def github(wanted: Wanted, environment: Environment | None, *, is_filled_in: bool) -> Part:
    """The repository on GitHub.

    Args:
        wanted: Names the repository.
        environment: The one in Google Cloud that is applied; None for the embedded service.
        is_filled_in: Whether the workflows say where the reconciler comes from.
    """
    steps = [] if is_filled_in else [_fill_in()]
    if environment is not None and wanted.is_on_github:
        number = provider_name(wanted, "$PROJECT_NUMBER")
        steps.append(
            Step(
                "tell the workflow the provider's name",
                f'gh variable set {PROVIDER_VARIABLE} --repo {wanted.repository} --body "{number}"',
            )
        )
    steps += [_publish(), _protection(wanted), _owners(wanted)]
    return Part(f"GitHub, repository {wanted.repository}", tuple(steps))


def _remote(environment: Environment) -> Step:
    return Step(
        "first: the steps that need the repository's name on GitHub are left out until `origin` says it",
        f"git remote add origin https://github.com/{NO_REPOSITORY}.git\n"
        f"reconciler init --env {environment.name}",
    )


def _resources(environment: Environment, account: str) -> Iterator[Step]:
    project = environment.project
    apis = " ".join(f"{api}.googleapis.com" for api in _APIS)
    yield Step("the APIs", f"{_ENABLE} {apis} --project={project}")
    yield Step(
        "the staging bucket",
        f"gcloud storage buckets create gs://{environment.staging_bucket} --project={project} "
        f"--location={environment.location} --uniform-bucket-level-access --public-access-prevention",
    )
    yield Step(
        "the claims bucket; warns of what makes claims less safe",
        f"gcloud auth application-default login\nreconciler init --claims --env {environment.name}",
    )
    for address, does in ((account, "submits jobs"), (_trainer(environment), "runs them")):
        name, _, host = address.partition("@")
        if address == service_account(name, project):
            yield Step(
                f"the service account that {does}",
                f"gcloud iam service-accounts create {name} --project={project}",
            )
        elif host:
            yield Step(f"{address} {does}", f"gcloud iam service-accounts describe {address}")


def _of_trainer(environment: Environment) -> Iterator[Step]:
    trainer = _trainer(environment)
    if not trainer:
        return
    if environment.staging_bucket == environment.claims_bucket:
        yield Step(
            "the claims need a bucket of their own before training jobs may write to the staging bucket",
            'write "claimsBucket" into reconciler.yaml, and run `reconciler init` again',
        )
        return
    yield Step(
        f"{trainer} reads packages, and writes what jobs put out",
        f"gcloud storage buckets add-iam-policy-binding gs://{environment.staging_bucket} "
        f"--member=serviceAccount:{trainer} --role=roles/storage.objectUser --condition=None",
    )


def _trainer(environment: Environment) -> str:
    return str(environment.defaults.get("serviceAccount") or "")


def _fill_in() -> Step:
    return Step(
        "where the workflows take reconciler from: its repository, and one of its commits, all 40 digits",
        "reconciler init --action OWNER/REPO@SHA",
    )


def _publish() -> Step:
    return Step("publish it, or open a pull request of it", "git push --set-upstream origin HEAD")


def _protection(wanted: Wanted) -> Step:
    check = {"context": CHECK, "integration_id": _GITHUB_ACTIONS}
    checks = {"required_status_checks": [check], "strict_required_status_checks_policy": False}
    ruleset = {
        "name": CHECK,
        "target": "branch",
        "enforcement": "active",
        "conditions": {"ref_name": {"include": ["~DEFAULT_BRANCH"], "exclude": []}},
        "rules": [
            {"type": "deletion"},
            {"type": "non_fast_forward"},
            {"type": "required_status_checks", "parameters": checks},
        ],
    }
    body = json.dumps(ruleset, indent=2)
    return Step(
        f'from now on nothing is merged without the check "{CHECK}", which only GitHub Actions can give',
        f"gh api --method POST repos/{wanted.repository}/rulesets --input - <<'END'\n{body}\nEND",
    )


def _owners(wanted: Wanted) -> Step:
    owner = wanted.repository.partition("/")[0]
    paths = ("/.github/", "/jobs/", "/reconciler.yaml")
    lines = " ".join(shlex.quote(f"{path} @{owner}/TEAM") for path in paths)
    return Step(
        "whose review a change of these needs: name the team; the ruleset can require code owners' reviews",
        f"printf '%s\\n' {lines} >>.github/CODEOWNERS",
    )


def uncommitted(root: Path, paths: Iterable[str]) -> list[str]:
    """What `git add` is to name, so that of the work tree's changes exactly those of `paths` are taken.

    A folder stands for what is in it where nothing else in it has changed. Without git all of them are named.

    Args:
        root: The repository's root.
        paths: Files below it, with "/".
    """
    real = {_real(root, path) for path in paths}
    news = _news(root)
    found = real if news is None else real & news
    others = (news or set()) - real
    shared = {_top(path) for path in others}
    return sorted({path if _top(path) in shared else _top(path) for path in found})


def _real(root: Path, path: str) -> str:
    """Where git has the file, if a folder is a link."""
    file = root / path
    return (file.parent.resolve() / file.name).relative_to(root.resolve()).as_posix()


def _top(path: str) -> str:
    return path.partition("/")[0]


def _news(root: Path) -> set[str] | None:
    """The files that aren't as the last commit has them, and aren't ignored; None where git can't tell."""
    git = Git(root)
    prefix, switched_off = git.ask("rev-parse", "--show-prefix"), git.filters_off()
    if prefix is None or switched_off is None:
        return None
    listing = (
        "status",
        "--porcelain",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=all",
    )
    listed = git.ask(*switched_off, *listing, "--", ".")
    if listed is None:
        return None
    return {entry[3:].removeprefix(prefix.strip()) for entry in listed.split("\0") if entry}
