"""Parameters of a set-up, from flags, git and `reconciler.yaml`."""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.base.diagnostics import quote
from reconciler.base.errors import InvalidError, UsageError
from reconciler.base.git_command import VERIFY, Git
from reconciler.manifests.settings import FILE_NAME, LOCAL, Config, Environment, load_config
from reconciler.setup.files import (
    APPLY_WORKFLOW,
    NO_REPOSITORY,
    NO_SHA,
    PLAN_WORKFLOW,
    TRAINER,
    ReconcilerAction,
    Setup,
    WrittenFile,
    action_of,
    github_repository,
    is_plain_branch,
    service_account,
    settings,
    source_id,
)

_USUAL_BRANCHES = ("main", "master")
_OF_GOOGLE = {
    "project": "project",
    "location": "location",
    "stagingBucket": "staging_bucket",
    "claimsBucket": "claims_bucket",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags of the command line; None for a missing flag."""

    environment: str | None = None
    action: str | None = None
    engine: str | None = None
    project: str | None = None
    location: str | None = None
    staging_bucket: str | None = None
    claims_bucket: str | None = None


def flag(name: str) -> str:
    """Return the flag of the attribute `name` of `Flags`."""
    return f"--{name.replace('_', '-')}"


def read_setup(flags: Flags, root: Path) -> Setup:
    """Return the set-up of the repository at `root`, from the flags, `reconciler.yaml` and git.

    Without a source id in the settings, it gets a new random one.

    Raises:
        UsageError: A flag is wrong, or contradicts `reconciler.yaml`.
        InvalidError: `reconciler.yaml` is invalid.
    """
    action = action_of(flags.action) if flags.action is not None else ReconcilerAction()
    config = load_config(root)
    described = _described(flags, config)
    git = Git(root)
    repository = github_repository((git.ask("remote", "get-url", "origin") or "").strip())
    source = config.source
    # The default source is shared by all repositories without settings; a new one must be unique.
    if source == LOCAL:
        source = source_id((repository or str(root)).rpartition("/")[2], secrets.token_hex(4))
    existing = _existing(config, flags.environment) if flags.engine is None else None
    setup = Setup(source, repository or NO_REPOSITORY, _branch(git), action, described or existing)
    if described is not None:
        checked = _checked(setup, described)
        _refuse_other(config, checked)
        setup = replace(setup, google=checked)
    return setup


def _described(flags: Flags, config: Config) -> Environment | None:
    """Return the environment that the flags describe; None without `--engine google`."""
    given = {name: getattr(flags, name) for name in _OF_GOOGLE.values()}
    if flags.engine != "google":
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{flag(name)} needs --engine google")
        return None
    lacking = [flag(name) for name in ("project", "location", "staging_bucket") if not given[name]]
    if lacking:
        raise UsageError(f"--engine google needs {', '.join(lacking)} too")
    name = flags.environment or "production"
    if not re.fullmatch("[a-z][a-z0-9-]{0,29}", name) or name == LOCAL:
        hint = "use at most 30 lower-case letters, digits and '-', a letter first; \"local\" is taken"
        raise UsageError(
            f"--env: {quote(name)} can't be the name of an environment in Google Cloud", hint=hint
        )
    project, location = given["project"], given["location"]
    staging = _bucket(given["staging_bucket"])
    claims = _bucket(given["claims_bucket"] or f"{staging}-claims")
    defaults = {"serviceAccount": service_account(TRAINER, project)}
    instance = _instance(config, name, project, location)
    return Environment(
        name, "google", project, location, staging, claims, defaults=defaults, instance=instance
    )


def _instance(config: Config, name: str, project: str, location: str) -> str:
    """Return the instance for an environment; "" unless others share its project and location."""
    # A changed instance would hide the environment's claims, and its jobs would be submitted again.
    existing = config.environments.get(name)
    if existing is not None:
        return existing.instance
    used = {
        other.instance
        for other in config.environments.values()
        if (other.engine, other.project, other.location) == ("google", project, location)
    }
    return name if used else ""


def _bucket(text: str) -> str:
    return text.removeprefix("gs://").rstrip("/")


def _existing(config: Config, name: str | None) -> Environment | None:
    """Return the environment in Google Cloud with this name in `reconciler.yaml`, else the first."""
    environments = [
        environment for environment in config.environments.values() if environment.engine == "google"
    ]
    named = [environment for environment in environments if environment.name == name]
    return next(iter(named or environments), None)


def _checked(setup: Setup, google: Environment) -> Environment:
    """Return the environment as read from its own `reconciler.yaml`; raise UsageError that names the flag."""
    # The reader of `reconciler.yaml` has all rules for its values, so the flags need none of their own.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_text(settings(setup), encoding="utf-8")
        try:
            return load_config(Path(folder)).environment(google.name)
        except InvalidError as error:
            problem = error.problems[0]
    name = _OF_GOOGLE.get(problem.pointer.rpartition("/")[2])
    raise UsageError(f"{flag(name) if name else '--env'}: {problem.message}", hint=problem.hint) from None


def _refuse_other(config: Config, environment: Environment) -> None:
    existing = config.environments.get(environment.name)
    fields = ("engine", "project", "location", "staging_bucket")
    if existing is None or all(getattr(existing, name) == getattr(environment, name) for name in fields):
        return
    raise UsageError(
        f"{FILE_NAME} has another environment {quote(environment.name)} already",
        hint="change it there, or give this one another name with --env",
    )


def _branch(git: Git) -> str:
    """Return the branch to apply: the remote's default as git knows it, else a usual or the present one.

    Usual ones are `main` and `master`, as far as they exist.
    """
    of_remote = git.ask("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
    branch = (of_remote or "").strip().removeprefix("origin/")
    if not branch:
        here = (git.ask("symbolic-ref", "--quiet", "--short", "HEAD") or "").strip()
        usual = [name for name in _USUAL_BRANCHES if name == here or _exists(git, name)]
        branch = here if here in usual else next(iter(usual), here)
    # Other names would need quoting in YAML, a shell command and an expression.
    return branch if is_plain_branch(branch) else "main"


def _exists(git: Git, branch: str) -> bool:
    places = ("refs/heads", "refs/remotes/origin")
    return any(git.ask(*VERIFY, f"{place}/{branch}") is not None for place in places)


_USES = re.compile(r"\buses:[ \t]*[\"']?([\w.-]+/[\w.-]+)/\.github/actions/\w+@([0-9a-f]{40})\b", re.ASCII)
_ENVIRONMENT = re.compile(r"^[ \t]*environment:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OtherWorkflow:
    """Reconciler workflow that is kept, for another environment; `action` is "" for a placeholder."""

    path: str
    environment: str
    action: str


def other_workflows(changes: Iterable[WrittenFile], environment: str) -> Iterator[OtherWorkflow]:
    """Yield the kept workflows of the reconciler that aren't for `environment`."""
    for change in changes:
        if change.path in (APPLY_WORKFLOW, PLAN_WORKFLOW):
            # A workflow of another tool may have the same path; it doesn't use the reconciler's actions.
            text = change.after.decode("utf-8", "replace")
            named = _ENVIRONMENT.findall(text) or [LOCAL]
            used = _USES.search(text)
            # The value of an expression is known only to a run of the workflow.
            if used and environment not in named and not any(name.startswith("$") for name in named):
                action = "" if used[2] == NO_SHA else f"{used[1]}@{used[2]}"
                yield OtherWorkflow(change.path, named[-1], action)
