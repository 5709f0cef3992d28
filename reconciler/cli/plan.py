"""The command `plan`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import ExitCode, InvalidError, ReconcilerError, UsageError
from reconciler.cli import has_colours, json_text, print_lines, print_problems
from reconciler.cli.context import context_of, is_by_hand, selection_of
from reconciler.cli.values import terminal_columns
from reconciler.manifests.settings import FILE_NAME, LOCAL, find_root
from reconciler.model.plan import Action, Plan, Target
from reconciler.operations.load_desired import load_desired
from reconciler.operations.plan import (
    compared_with_commit,
    plan_of,
    target_of,
    wanted_of,
    with_changed_files,
    with_tree,
)
from reconciler.operations.tree import tree_check
from reconciler.submission.look import look

if TYPE_CHECKING:
    from reconciler.output.markdown import Links


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the plan that apply would carry out, without starting a service.

    On disk it writes caches and what they need: the user's key, and the state directory with its mark. For
    a while, a temporary folder holds a copy of a stopped service's database, or the files of the base commit
    or of an earlier run's commit. `--output-dir` writes the plan. Before, `cli.arguments` checks the home:
    this may run `git ls-files`, and removes the mark if git tracks a file of the home.
    """
    plan, warnings = _plan(arguments) if arguments.base is None else (_plan_against_base(arguments), ())
    print(_text(plan, warnings, arguments))
    if arguments.output_dir:
        _write(plan, arguments.output_dir)
    if plan.comparison and plan.comparison.warnings:
        sys.stdout.flush()
        print_problems(plan.comparison.warnings, arguments.log_format)
    problems = plan.comparison.problems if plan.comparison else ()
    if problems:
        # The plan of the valid manifests must come before the errors on stderr.
        sys.stdout.flush()
        in_settings = {problem.path for problem in problems} == {FILE_NAME}
        invalid = f"{FILE_NAME} is" if in_settings else "some manifests are"
        raise InvalidError(f"{invalid} not valid", problems=problems)
    pending = any(change.action is not Action.NONE for change in plan.changes)
    pending = pending or (arguments.drift and bool(plan.drift))
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _plan(arguments: argparse.Namespace) -> tuple[Plan, Sequence[Problem]]:
    """Return the plan and the warnings about its manifests."""
    if arguments.output_dir is not None:
        raise UsageError("--output-dir needs --base", hint="see `reconciler plan --help`")
    target = Target(arguments.env or LOCAL, "", "", "")
    try:
        context = context_of(arguments)
        target = target_of(context.config, context.environment)
        # Manifests are loaded first, to report their problems before any request to a service.
        selection = selection_of(arguments)
        desired = load_desired(context.config, context.environment, arguments.paths, selection=selection)
    except InvalidError as error:
        if arguments.format == "json":
            print(_json(Plan(target, (), (), None), error.problems), flush=True)
        raise
    print_problems(desired.warnings, arguments.log_format)
    with context.session(start=False) as session:
        seen = look(session.ports, wanted_of(desired.jobs), full=arguments.full)
        print_lines(seen.notes, arguments.log_format)
        plan = plan_of(session, desired, seen.observed, by_hand=is_by_hand())
        plan = compared_with_commit(session, desired, plan)
        plan = with_tree(plan, tree_check(session, desired).compare())
    return with_changed_files(plan, desired, context.config.root, os.environ), desired.warnings


def _plan_against_base(arguments: argparse.Namespace) -> Plan:
    """Return the changes since a commit, without services and credentials."""
    from reconciler.operations.pull_request import proposal_of

    if not arguments.base:
        raise UsageError("--base names no commit", hint="name a branch, a tag, a commit, or HEAD^1")
    root, selection = find_root(Path.cwd()), selection_of(arguments)
    return proposal_of(root, arguments.env, arguments.base, arguments.paths, os.environ, selection)


def _write(plan: Plan, folder: Path) -> None:
    """Write the plan as Markdown, within the limits of a comment and of a job summary, and in full."""
    from reconciler.output.markdown import COMMENT_LIMIT, SUMMARY_LIMIT, plan_documents

    limits = {"comment.md": COMMENT_LIMIT, "summary.md": SUMMARY_LIMIT, "plan.md": None}
    documents = plan_documents(plan, limits.values(), _links())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in zip(limits, documents, strict=True):
            (folder / name).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        message = f"can't write to {folder}: {error.strerror}"
        raise ReconcilerError(
            message, hint="--output-dir names a folder, which is created if it is missing"
        ) from None


def _text(plan: Plan, warnings: Sequence[Problem], arguments: argparse.Namespace) -> str:
    if arguments.format == "json":
        return _json(plan, warnings)
    if arguments.format == "markdown":
        from reconciler.output.markdown import SUMMARY_LIMIT, plan_markdown

        return plan_markdown(plan, None if plan.comparison else SUMMARY_LIMIT, _links())
    from reconciler.output.text import plan_text

    colour, width = has_colours(sys.stdout), terminal_columns()
    return plan_text(plan, verbose=arguments.verbose, colour=colour, width=width)


def _links() -> Links:
    """Return the addresses on GitHub of the work tree's files and of this run; none outside of Actions."""
    from reconciler.base.git_command import Git
    from reconciler.git.commit import head_of
    from reconciler.output.markdown import NO_LINKS, Links
    from reconciler.reporting.github.api import repository_url, run_url

    address = repository_url(os.environ)
    if not address:
        return NO_LINKS
    root = find_root(Path.cwd())
    head = head_of(root, os.environ)
    folder = (Git(root, os.environ).ask("rev-parse", "--show-prefix") or "").strip("\n")
    return Links(f"{address}/blob", head.carried if head else "", folder, run_url(os.environ))


def _json(plan: Plan, problems: Sequence[Problem]) -> str:
    from reconciler.output.json import plan_json

    return json_text(plan_json(plan, problems))
