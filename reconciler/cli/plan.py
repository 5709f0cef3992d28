"""The command `plan`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from reconciler.base.errors import ExitCode, InvalidError, ReconcilerError, UsageError
from reconciler.cli import print_problems
from reconciler.cli.context import context_of
from reconciler.manifests.settings import FILE_NAME, find_root
from reconciler.model.plan import Action, Plan
from reconciler.operations.load_desired import load_desired
from reconciler.operations.plan import plan_of
from reconciler.submission.observe import observe


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the plan that apply would carry out, without starting a service.

    On disk it writes caches and what they need: the user's key, and the state directory with its mark. For
    a while, a temporary folder holds a copy of a stopped service's database, or with `--base` the base
    commit's files. `--output-dir` writes the plan. Before, `cli.arguments` checks the home: this may run
    `git ls-files`, and removes the mark if git tracks a file of the home.
    """
    plan = _plan(arguments) if arguments.base is None else _plan_against_base(arguments)
    print(_text(plan, arguments))
    if arguments.output_dir:
        _write(plan, arguments.output_dir)
    if plan.comparison and plan.comparison.warnings:
        sys.stdout.flush()
        print_problems(plan.comparison.warnings, arguments.log_format)
    if plan.comparison and plan.comparison.problems:
        # The plan of the valid manifests must come before the errors on stderr.
        sys.stdout.flush()
        in_settings = {problem.path for problem in plan.comparison.problems} == {FILE_NAME}
        invalid = f"{FILE_NAME} is" if in_settings else "some manifests are"
        raise InvalidError(f"{invalid} not valid", problems=plan.comparison.problems)
    pending = any(change.action is not Action.NONE for change in plan.changes)
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _plan(arguments: argparse.Namespace) -> Plan:
    if arguments.output_dir is not None:
        raise UsageError("--output-dir goes with --base", hint="see `reconciler plan --help`")
    context = context_of(arguments)
    # Manifests are loaded first, to report their problems before any request to a service.
    desired = load_desired(context.config, context.environment, arguments.paths)
    print_problems(desired.warnings, arguments.log_format)
    with context.session(start=False) as session:
        return plan_of(session, desired, observe(session.ports), whole=not arguments.paths)


def _plan_against_base(arguments: argparse.Namespace) -> Plan:
    """Return the changes since a commit, without services and credentials."""
    from reconciler.operations.pull_request import proposal_of

    if not arguments.base:
        raise UsageError("--base names no commit", hint="name a branch, a tag, a commit, or HEAD^1")
    return proposal_of(find_root(Path.cwd()), arguments.env, arguments.base, arguments.paths, os.environ)


def _write(plan: Plan, folder: Path) -> None:
    """Write the plan as Markdown, within the limits of a comment and of a job summary, and in full."""
    from reconciler.output.markdown import COMMENT_LIMIT, SUMMARY_LIMIT, plan_markdown

    limits = {"comment.md": COMMENT_LIMIT, "summary.md": SUMMARY_LIMIT, "plan.md": None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, limit in limits.items():
            (folder / name).write_text(plan_markdown(plan, limit) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"can't write to {folder}: {error.strerror}"
        raise ReconcilerError(message, hint="--output-dir names a folder that is made if need be") from None


def _text(plan: Plan, arguments: argparse.Namespace) -> str:
    if arguments.format == "json":
        from reconciler.cli import json_text
        from reconciler.output.json import plan_json

        return json_text(plan_json(plan))
    if arguments.format == "markdown":
        from reconciler.output.markdown import SUMMARY_LIMIT, plan_markdown

        return plan_markdown(plan, None if plan.comparison else SUMMARY_LIMIT)
    from reconciler.output.text import plan_text

    return plan_text(plan, verbose=arguments.verbose)
