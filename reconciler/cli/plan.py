"""`reconciler plan`."""

from __future__ import annotations

import argparse

from reconciler.cli.context import context_of
from reconciler.cli.output import print_json
from reconciler.errors import ExitCode, UsageError
from reconciler.jsonforms import plan_json
from reconciler.plan import Action, Plan
from reconciler.reconcile import plan_of, wanted
from reconciler.render import plan_markdown, plan_text
from reconciler.submission.observation import observe


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print what apply would do; starts no service and changes nothing."""
    if arguments.base is not None:
        from reconciler.cli import planbase

        return planbase.run(arguments)
    if arguments.output_dir is not None:
        raise UsageError("--output-dir goes with --base", hint="see `reconciler plan --help`")
    context = context_of(arguments)
    desired = wanted(context.config, context.environment, arguments.paths)
    with context.session(start=False) as session:
        plan = plan_of(session, desired, observe(session.ports), whole=not arguments.paths)
    if arguments.format == "json":
        print_json(plan_json(plan))
    else:
        print(plan_markdown(plan) if arguments.format == "markdown" else _text(plan, arguments))
    pending = any(change.action is not Action.NONE for change in plan.changes)
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _text(plan: Plan, arguments: argparse.Namespace) -> str:
    return plan_text(plan, verbose=arguments.verbose)
