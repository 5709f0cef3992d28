"""`reconciler plan`."""

from __future__ import annotations

import argparse

from reconciler.cli.context import context_of
from reconciler.errors import ExitCode, UsageError
from reconciler.load_desired import load_desired
from reconciler.plan import Action, Plan
from reconciler.reconcile import plan_of
from reconciler.submission.observation import observe


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print what apply would do; starts no service and changes nothing."""
    if arguments.base is not None:
        from reconciler.cli import planbase

        return planbase.run(arguments)
    if arguments.output_dir is not None:
        raise UsageError("--output-dir goes with --base", hint="see `reconciler plan --help`")
    context = context_of(arguments)
    # First, so that a mistake in a manifest is reported before any service is asked.
    desired = load_desired(context.config, context.environment, arguments.paths)
    with context.session(start=False) as session:
        plan = plan_of(session, desired, observe(session.ports), whole=not arguments.paths)
    print(_text(plan, arguments))
    pending = any(change.action is not Action.NONE for change in plan.changes)
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _text(plan: Plan, arguments: argparse.Namespace) -> str:
    if arguments.format == "json":
        from reconciler.cli.output import json_text
        from reconciler.jsonforms import plan_json

        return json_text(plan_json(plan))
    from reconciler.render import plan_markdown, plan_text

    as_text = arguments.format != "markdown"
    return plan_text(plan, verbose=arguments.verbose) if as_text else plan_markdown(plan)
