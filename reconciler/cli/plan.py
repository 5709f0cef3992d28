"""`reconciler plan`: what apply would do."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import ExitCode, InvalidError, ReconcilerError, RefusedError, UsageError
from reconciler.cli import has_colours, json_text, print_lines
from reconciler.cli.actions import links
from reconciler.cli.context import context_of, is_by_hand, selection_of
from reconciler.cli.flag_types import path, terminal_columns
from reconciler.cli.flags import FULL, add_format, add_paths, add_selection
from reconciler.cli.problems import print_warnings
from reconciler.manifests.settings import FILE_NAME, LOCAL, find_root
from reconciler.manifests.warnings import Warnings, warnings_of
from reconciler.model.plan import Action, Plan, Target
from reconciler.operations.code_warnings import with_code_warnings
from reconciler.operations.load_desired import load_desired
from reconciler.operations.observed_state import state_of
from reconciler.operations.plan import (
    compared_with_commit,
    plan_of,
    target_of,
    unknown_images,
    wanted_of,
    with_changed_files,
    with_tree,
)
from reconciler.operations.pull_request import proposal_of
from reconciler.operations.tree import tree_check
from reconciler.output.document import COMMENT_LIMIT, NOTHING_CHANGES, SUMMARY_LIMIT
from reconciler.output.json import plan_json
from reconciler.output.markdown import Merge, changes_nothing, plan_documents, plan_markdown
from reconciler.output.text import plan_text
from reconciler.reporting.github.event import proposed_merge
from reconciler.submission.look import look

EXAMPLES = """reconciler plan --detailed-exitcode
  reconciler plan --base origin/main --format markdown"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    add_paths(parser)
    add_selection(parser)
    add_format(parser, "text", "json", "markdown")
    add(
        "--base",
        metavar="REF",
        help="show the changes since the merge base of HEAD and REF, offline; exit 4 over a limit",
    )
    add(
        "--output-dir",
        type=path,
        metavar="DIR",
        help="with --base, also write comment.md, summary.md and plan.md to DIR",
    )
    add("--detailed-exitcode", action="store_true", help="exit 2 if there are changes to apply")
    add("--drift", action="store_true", help="with --detailed-exitcode, exit 2 for drift too")
    add("--full", action="store_true", help=FULL)


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the plan that apply would carry out, without starting a service.

    For a while, a temporary folder holds a copy of a stopped service's database, or the files of the base
    commit or of an earlier run's commit. `--output-dir` writes the plan.
    """
    plan, warnings = _plan(arguments) if arguments.base is None else (_plan_against_base(arguments), ())
    print(_text(plan, warnings, arguments))
    if arguments.output_dir:
        _write(plan, arguments.output_dir)
    if plan.comparison and plan.comparison.warnings:
        sys.stdout.flush()
        warnings_of_base = Warnings(items=plan.comparison.warnings)
        print_warnings(warnings_of_base, arguments.log_format, verbose=arguments.verbose)
    problems = plan.comparison.problems if plan.comparison else ()
    if problems:
        # The plan of the valid manifests must come before the errors on stderr.
        sys.stdout.flush()
        in_settings = {problem.path for problem in problems} == {FILE_NAME}
        invalid = f"{FILE_NAME} is" if in_settings else "some manifests are"
        raise InvalidError(f"{invalid} not valid", problems=problems)
    if plan.comparison and plan.refusals:
        sys.stdout.flush()
        raise RefusedError(
            f"apply would refuse this plan: {'; '.join(plan.refusals)}", hint=_raise_limit(plan)
        )
    pending = any(change.action is not Action.NONE for change in plan.changes)
    pending = pending or (arguments.drift and bool(plan.drift))
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _raise_limit(plan: Plan) -> str:
    limits = ", ".join(f"{name}: {most}" for name, most in plan.needed_limits.items())
    where = f"environments: {{{plan.target.environment}: {{limits: {{{limits}}}}}}}"
    return f"raise the limit in the same pull request if that is wanted, in {FILE_NAME}: {where}"


def _plan(arguments: argparse.Namespace) -> tuple[Plan, Sequence[Problem]]:
    """Return the plan, and for JSON the warnings about its manifests."""
    if arguments.output_dir is not None:
        raise UsageError("--output-dir needs --base", hint="see `reconciler plan --help`")
    target = Target(arguments.env or LOCAL, "", "", "")
    try:
        context = context_of(arguments)
        target = target_of(context.config, context.environment)
        # Manifests are loaded first, to report their problems before any request to a service.
        selection = selection_of(arguments)
        desired = load_desired(context.config, context.environment, arguments.paths, selection=selection)
        desired = with_code_warnings(desired, context.config, context.environment)
    except InvalidError as error:
        if arguments.format == "json":
            print(_json(Plan(target, (), (), None), error.problems), flush=True)
        raise
    print_warnings(desired.warnings, arguments.log_format, verbose=arguments.verbose)
    with context.session(start=False) as session:
        seen = look(session.ports, wanted_of(desired.jobs), full=arguments.full)
        print_lines(seen.notes, arguments.log_format)
        plan = plan_of(session, desired, state_of(session, desired, seen.observed), by_hand=is_by_hand())
        plan = compared_with_commit(session, desired, plan)
        plan = with_tree(plan, tree_check(session, desired).compare())
        unknown = warnings_of(context.config, unknown_images(session, plan))
    print_warnings(unknown, arguments.log_format, verbose=arguments.verbose)
    plan = with_changed_files(plan, desired, context.config.root, os.environ)
    is_json = arguments.format == "json"
    return plan, [*desired.warnings.placed(), *unknown.placed()] if is_json else ()


def _plan_against_base(arguments: argparse.Namespace) -> Plan:
    """Return the changes since a commit, without services and credentials."""
    if not arguments.base:
        raise UsageError("--base names no commit", hint="name a branch, a tag, a commit, or HEAD^1")
    root, selection = find_root(Path.cwd()), selection_of(arguments)
    return proposal_of(root, arguments.env, arguments.base, arguments.paths, os.environ, selection)


def _write(plan: Plan, folder: Path) -> None:
    """Write the plan as Markdown, within the limits of a comment and of a job summary, and in full."""
    limits = {"comment.md": COMMENT_LIMIT, "summary.md": SUMMARY_LIMIT, "plan.md": None}
    documents = plan_documents(plan, limits.values(), links(), _merge())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in zip(limits, documents, strict=True):
            is_quiet = name == "comment.md" and changes_nothing(plan)
            (folder / name).write_text(f"{NOTHING_CHANGES * is_quiet}{text}\n", encoding="utf-8")
    except OSError as error:
        message = f"can't write to {folder}: {error.strerror}"
        raise ReconcilerError(
            message, hint="--output-dir names a folder, which is created if it is missing"
        ) from None


def _text(plan: Plan, warnings: Sequence[Problem], arguments: argparse.Namespace) -> str:
    if arguments.format == "json":
        return _json(plan, warnings)
    if arguments.format == "markdown":
        return plan_markdown(plan, None if plan.comparison else SUMMARY_LIMIT, links(), _merge())
    colour, width = has_colours(sys.stdout), terminal_columns()
    return plan_text(plan, verbose=arguments.verbose, colour=colour, width=width)


def _merge() -> Merge | None:
    """Return the merge that this run of GitHub Actions plans; None for any other command."""
    merge = proposed_merge(os.environ)
    return Merge(merge.head, merge.base, merge.default, datetime.now(UTC)) if merge else None


def _json(plan: Plan, problems: Sequence[Problem]) -> str:
    return json_text(plan_json(plan, problems))
