"""`reconciler plan`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.cli.context import Context, context_of
from reconciler.config import FILE_NAME, find_root
from reconciler.errors import ExitCode, InvalidError, ReconcilerError, UsageError
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
        return _run_against_base(arguments)
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


def _run_against_base(arguments: argparse.Namespace) -> ExitCode:
    """Print the changes since a commit; asks no service, and reads no credentials."""
    from reconciler.plan import Action
    from reconciler.proposed import proposal_of

    if not arguments.base:
        raise UsageError("--base names no commit", hint="name a branch, a tag, a commit, or HEAD^1")
    root = find_root(Path.cwd())
    plan = proposal_of(root, arguments.env, arguments.base, arguments.paths, os.environ)
    print(_text(plan, arguments))
    if arguments.output_dir:
        _write(plan, arguments.output_dir)
    if plan.comparison and plan.comparison.problems:
        sys.stdout.flush()
        of_settings = {problem.path for problem in plan.comparison.problems} == {FILE_NAME}
        what = f"{FILE_NAME} is" if of_settings else "some manifests are"
        raise InvalidError(f"{what} not valid", problems=plan.comparison.problems)
    pending = any(change.action is not Action.NONE for change in plan.changes)
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _write(plan: Plan, folder: Path) -> None:
    """Write the plan as Markdown: for a comment, for a job summary, and in full."""
    from reconciler.markdown import COMMENT_LIMIT, SUMMARY_LIMIT
    from reconciler.planmarkdown import plan_markdown

    limits = {"comment.md": COMMENT_LIMIT, "summary.md": SUMMARY_LIMIT, "plan.md": None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, limit in limits.items():
            (folder / name).write_text(plan_markdown(plan, limit) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"can't write to {folder}: {error.strerror}"
        raise ReconcilerError(message, hint="--output-dir names a folder that is made if need be") from None


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
    if arguments.format == "markdown":
        from reconciler.markdown import SUMMARY_LIMIT
        from reconciler.planmarkdown import plan_markdown

        return plan_markdown(plan, None if plan.comparison else SUMMARY_LIMIT)
    from reconciler.render import plan_text

    return plan_text(plan, verbose=arguments.verbose)
