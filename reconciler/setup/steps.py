"""What only a person can do after a set-up, as commands with everything filled in that is known."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reconciler.config import Environment
from reconciler.setup.grants import Step, grants
from reconciler.setup.identity import federation, provider_name
from reconciler.setup.wanted import NO_REPOSITORY, SUBMITTER, Wanted, service_account

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
