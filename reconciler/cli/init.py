"""`reconciler init`: the set-up of a repository."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from reconciler.base.diagnostics import quote
from reconciler.base.errors import ExitCode, UsageError
from reconciler.base.git_command import Git
from reconciler.base.sanitize import one_line
from reconciler.cli.context import context_of
from reconciler.manifests.settings import LOCAL, Config, find_root, load_config
from reconciler.model.ports import HostedRepository
from reconciler.setup import files, next_steps
from reconciler.setup.claims_bucket import Prepared, prepare_claims
from reconciler.setup.files import EXAMPLE, README, Setup, files_of
from reconciler.setup.next_steps import Step, uncommitted
from reconciler.setup.questions import Flags, flag, other_workflows, read_setup

EXAMPLES = """reconciler init
  reconciler init --steps github
  reconciler init --claims --env production"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    add("--action", metavar="OWNER/REPO@SHA", help="the commit of reconciler that the workflows use")
    add("--engine", choices=("local", "google"), help="where jobs run (default: local)")
    google = parser.add_argument_group("with --engine google; --env names the environment (production)")
    google.add_argument("--project", metavar="ID", help="project ID")
    google.add_argument("--location", metavar="REGION", help="the region, such as us-central1")
    google.add_argument("--staging-bucket", metavar="BUCKET", help="bucket for uploaded packages")
    google.add_argument(
        "--claims-bucket", metavar="BUCKET", help="bucket for claims (default: STAGING-BUCKET-claims)"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--steps",
        choices=("github", "google"),
        help="write nothing; print the commands that set up GitHub or Google Cloud",
    )
    instead.add_argument(
        "--claims",
        action="store_true",
        help="only create the environment's claims bucket if it is missing, and print the permissions "
        "that each account needs",
    )
    parser.add_argument(
        "--this-repository",
        action="store_true",
        help="with --claims: the claims belong to this repository from now on, which was moved, imported or "
        "made anew on GitHub",
    )


_FLAGS = ("action", "engine", "project", "location", "staging_bucket", "claims_bucket")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Set up the repository, prepare an environment's claims bucket, or print the steps for a person."""
    if arguments.this_repository and not arguments.claims:
        hint = "run `reconciler init --claims --this-repository`"
        raise UsageError("--this-repository is for the claims", hint=hint)
    other = "--claims" if arguments.claims else "--steps" if arguments.steps else ""
    if not other:
        return _set_up(arguments)
    for name in _FLAGS:
        if getattr(arguments, name) is not None:
            hint = "see `reconciler init --help`"
            raise UsageError(f"{other} can't be combined with {flag(name)}", hint=hint)
    return _prepare_claims(arguments) if arguments.claims else _print_steps(arguments)


def _set_up(arguments: argparse.Namespace) -> ExitCode:
    root = find_root(Path.cwd())
    flags = Flags(environment=arguments.env, **{name: getattr(arguments, name) for name in _FLAGS})
    setup = read_setup(flags, root)
    changes = _changes(root, setup)
    files.write(root, changes)
    if not arguments.quiet:
        _print_changes(root, changes)
    _print_missing(changes)
    _print_others(setup, changes)
    if not arguments.quiet:
        _print_next(root, setup, changes)
    return ExitCode.DONE


def _changes(root: Path, setup: Setup) -> Sequence[files.WrittenFile]:
    return files.changes(root, files_of(setup, _example(root)), setup.action)


def _print_steps(arguments: argparse.Namespace) -> ExitCode:
    """Print what a person has to do on GitHub or in Google Cloud; with `quiet`, only the commands."""
    root = find_root(Path.cwd())
    if arguments.env:
        _check_named(load_config(root), arguments.env, arguments.steps)
    setup = read_setup(Flags(environment=arguments.env), root)
    if arguments.steps == "github":
        is_filled_in = not any(files.NO_SHA.encode() in change.after for change in _changes(root, setup))
        part = next_steps.github(setup, is_filled_in=is_filled_in)
    elif setup.google:
        part = next_steps.google_cloud(setup, setup.google)
    else:
        raise UsageError(
            "no environment of reconciler.yaml is in Google Cloud",
            hint="add one with `reconciler init --engine google`, or name one with --env",
        )
    print(f"# {part.title}")
    for step in part.steps:
        if not arguments.quiet:
            print(f"\n# {step.why}")
        print(step.command)
    return ExitCode.DONE


def _check_named(config: Config, name: str, system: str) -> None:
    """Raise UsageError if a named environment is missing, or isn't where the steps are."""
    environment = config.environment(name)
    if system == "google" and environment.engine != "google":
        there = [other.name for other in config.environments.values() if other.engine == "google"]
        hint = f"these are: {', '.join(sorted(there))}" if there else "add one with `init --engine google`"
        raise UsageError(f"the environment {quote(name)} isn't in Google Cloud", hint=hint)


def _example(root: Path) -> list[str]:
    """Return the example's files that exist already or can be added to a new repository."""
    # A README of any other name or format counts as the repository's own.
    has_readme = any(path.name.lower().startswith("readme") for path in root.iterdir())
    readme = [] if has_readme and not _is_file(root, README) else [README]
    jobs = root / "jobs"
    is_new = not jobs.is_dir() or not any(jobs.iterdir())
    return [*readme, *(path for path in EXAMPLE if is_new or _is_file(root, path))]


def _is_file(root: Path, path: str) -> bool:
    file = root / path
    return file.is_file() and file.parent.resolve().is_relative_to(root.resolve())


def _print_changes(root: Path, changes: Sequence[files.WrittenFile]) -> None:
    print(f"In {one_line(str(root))}:")
    for change in changes:
        print(f"  {change.verb:9} {change.path}")


def _print_missing(changes: Sequence[files.WrittenFile]) -> None:
    for change in changes:
        if change.missing:
            print(f"\n{change.path} already exists and was left unchanged. Add to it:\n")
            _indented(change.missing)


def _print_others(setup: Setup, changes: Sequence[files.WrittenFile]) -> None:
    name = setup.google.name if setup.google else LOCAL
    others = [*other_workflows(changes, name)]
    if not others:
        return
    print()
    for other in others:
        print(f"{other.path} is for the environment {quote(other.environment)}, and was left unchanged.")
    action = "" if setup.action.is_known else next((other.action for other in others if other.action), "")
    what = "this file" if len(others) == 1 else "these files"
    also = f", with --action {action}" if action else ""
    print(f"For {quote(name)}, remove {what} and run the same `reconciler init` again{also}:\n")
    _indented(f"rm {' '.join(other.path for other in others)}")


def _print_next(root: Path, setup: Setup, changes: Sequence[files.WrittenFile]) -> None:
    """Print the next commands, each with its purpose."""
    is_git = Git(root).ask("rev-parse", "--git-dir") is not None
    steps = [next_steps.commit(uncommitted(root, [change.path for change in changes]), is_git=is_git)]
    if setup.google:
        steps.append(Step("prepare Google Cloud", _steps_of("google", setup)))
    else:
        steps.insert(0, Step("train the jobs", "reconciler apply --wait"))
    steps.append(Step("prepare GitHub", _steps_of("github", setup)))
    print("\nNext:")
    for step in filter(None, steps):
        print(f"  {f'{step.why}:':21} {step.command}")


def _steps_of(system: str, setup: Setup) -> str:
    environment = f" --env {setup.google.name}" if setup.google else ""
    return f"reconciler init --steps {system}{environment}"


def _indented(text: str) -> None:
    for line in text.splitlines():
        print(f"    {line}".rstrip())


def _prepare_claims(arguments: argparse.Namespace) -> ExitCode:
    context, changes_owner = context_of(arguments), arguments.this_repository
    opened = context.session_of_any_owner() if changes_owner else context.session(start=True)
    with opened as session:
        prepared = prepare_claims(session, changes_owner=changes_owner)
        repository = session.repository
    _print_claims(prepared, context.config.source)
    if changes_owner:
        _print_owner(repository)
    return ExitCode.DONE


def _print_claims(prepared: Prepared, source: str) -> None:
    made = "was created" if prepared.made else "already exists"
    where = f", in {one_line(prepared.location)}" if prepared.location else ""
    print(f"The bucket {prepared.bucket} {made}{where}.")
    print(f"The claims of {source} are kept in gs://{prepared.bucket}/{prepared.folder}")
    if prepared.runs:
        print(
            f"The service has {prepared.runs} run{'' if prepared.runs == 1 else 's'} of {source} already: "
            "apply adopts those that have no claim, after comparing them."
        )
    for warning in prepared.warnings:
        _step(f"warning: {warning.why}", warning)
    if prepared.steps:
        print("\nPermissions; MEMBER is, for example, serviceAccount:E-MAIL, user:E-MAIL or principal://…")
    for step in prepared.steps:
        _step(step.why, step)


def _print_owner(repository: HostedRepository | None) -> None:
    if repository:
        print(one_line(f"The claims belong to {repository.name} on {repository.server} now."))
    else:
        print(
            "The claims belong to the repository whose workflow on GitHub writes next: first disable the "
            "workflows of any other repository with this source."
        )


def _step(why: str, step: Step) -> None:
    print(f"\n{why}:\n    {step.command}")
