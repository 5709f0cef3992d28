"""`reconciler plan`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from reconciler.cli.context import Context, context_of
from reconciler.errors import ExitCode, UsageError
from reconciler.meanwhile import Meanwhile
from reconciler.plancache import KeptPlan, PlanCache
from reconciler.submission.observation import Listed, Observed, listed, observed
from reconciler.wanting import Wanting

if TYPE_CHECKING:
    from reconciler.plan import Plan
    from reconciler.ports import Ports


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print what apply would do; starts no service and changes nothing."""
    if arguments.base is not None:
        from reconciler.cli import planbase

        return planbase.run(arguments)
    if arguments.output_dir is not None:
        raise UsageError("--output-dir goes with --base", hint="see `reconciler plan --help`")
    context = context_of(arguments)
    whole = not arguments.paths
    cache = _cache(context, arguments)
    kept = cache.load() if cache is not None else None
    with context.session(start=False) as session:
        looking = Meanwhile(lambda: _look(session.ports, kept))
        try:
            with Wanting(
                context.config, context.environment, arguments.paths, beside=looking.begin
            ) as wanting:
                is_wanted = kept is not None and kept.wanted == wanting.seen
                if kept is not None and is_wanted and isinstance(looking.result(), Listed):
                    session.ports.claims.check(kept.runs)
                    print(kept.text)
                    return ExitCode.DONE
                desired = wanting.result()
        except BaseException:
            # A mistake in a manifest is told without waiting for a service that is far away. The embedded
            # one may be looked at in this very process, over a copy that has to be taken away.
            if session.is_local:
                looking.end()
            raise
        # The service may still be answering: what is needed only now is imported meanwhile.
        from reconciler.plan import Action
        from reconciler.reconcile import plan_of

        found = looking.result()
        seen = observed(session.ports, found) if isinstance(found, Listed) else found
        plan = plan_of(session, desired, seen, whole=whole)
        arguments.made = plan, desired, seen  # so that the end of this function takes nothing apart
    text = _text(plan, arguments)
    print(text)
    if cache is not None:
        cache.save(plan, wanting.look, seen, text)
    pending = any(change.action is not Action.NONE for change in plan.changes)
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _look(ports: Ports, kept: KeptPlan | None) -> Listed | Observed:
    """What there is: only listed where that is what it was for the plan that is kept."""
    found = listed(ports)
    return found if kept is not None and found.digest == kept.listed else observed(ports, found)


def _cache(context: Context, arguments: argparse.Namespace) -> PlanCache | None:
    """What remembers plans of all manifests as text; None where the plan is to be another one."""
    if arguments.paths or arguments.format == "json":
        return None
    config, environment = context.config, context.environment
    target = (
        environment.name,
        environment.engine,
        environment.project,
        environment.location,
        environment.instance,
    )
    told = arguments.format, "verbose" if arguments.verbose else ""
    return PlanCache(config.root, os.environ, (*target, config.source, *told))


def _text(plan: Plan, arguments: argparse.Namespace) -> str:
    if arguments.format == "json":
        from reconciler.cli.output import json_text
        from reconciler.jsonforms import plan_json

        return json_text(plan_json(plan))
    from reconciler.render import plan_markdown, plan_text

    as_text = arguments.format != "markdown"
    return plan_text(plan, verbose=arguments.verbose) if as_text else plan_markdown(plan)
