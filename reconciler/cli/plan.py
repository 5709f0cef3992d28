"""`reconciler plan`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from reconciler.cli.context import context_of
from reconciler.cli.output import print_json
from reconciler.errors import ExitCode, UsageError
from reconciler.meanwhile import Meanwhile
from reconciler.submission.observation import observe
from reconciler.wanting import Wanting

if TYPE_CHECKING:
    from reconciler.plan import Plan


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print what apply would do; starts no service and changes nothing."""
    if arguments.base is not None:
        from reconciler.cli import planbase

        return planbase.run(arguments)
    if arguments.output_dir is not None:
        raise UsageError("--output-dir goes with --base", hint="see `reconciler plan --help`")
    context = context_of(arguments)
    whole = not arguments.paths
    with context.session(start=False) as session:
        observing = Meanwhile(lambda: observe(session.ports))
        try:
            with Wanting(
                context.config, context.environment, arguments.paths, beside=observing.begin
            ) as wanting:
                desired = wanting.result()
        except BaseException:
            # A mistake in a manifest is told without waiting for a service that is far away. The embedded
            # one may be looked at in this very process, over a copy that has to be taken away.
            if session.is_local:
                observing.end()
            raise
        # The service may still be answering: what is needed only now is imported meanwhile.
        from reconciler.plan import Action
        from reconciler.reconcile import plan_of

        plan = plan_of(session, desired, observing.result(), whole=whole)
        arguments.made = plan, desired, observing  # so that the end of this function takes nothing apart
    _tell(plan, arguments)
    pending = any(change.action is not Action.NONE for change in plan.changes)
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _tell(plan: Plan, arguments: argparse.Namespace) -> None:
    if arguments.format == "json":
        from reconciler.jsonforms import plan_json

        print_json(plan_json(plan))
        return
    from reconciler.render import plan_markdown, plan_text

    as_text = arguments.format != "markdown"
    print(plan_text(plan, verbose=arguments.verbose) if as_text else plan_markdown(plan))
