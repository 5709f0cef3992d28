"""`reconciler plan --base`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from reconciler.cli.output import print_json
from reconciler.config import FILE_NAME, find_root
from reconciler.errors import ExitCode, InvalidError, ReconcilerError, UsageError
from reconciler.jsonforms import plan_json
from reconciler.plan import Action, Plan
from reconciler.planning.proposal import Proposal
from reconciler.proposed import proposal_of


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print what changes over the base; asks no service, and reads no credentials."""
    if not arguments.base:
        raise UsageError("--base names no commit", hint="name a branch, a tag, a commit, or HEAD^1")
    root = find_root(Path.cwd())
    proposal = proposal_of(root, arguments.env, arguments.base, arguments.paths, os.environ)
    _print(proposal, arguments)
    if arguments.output_dir:
        _write(proposal, arguments.output_dir)
    if proposal.problems:
        sys.stdout.flush()
        of_settings = {problem.path for problem in proposal.problems} == {FILE_NAME}
        what = f"{FILE_NAME} is" if of_settings else "some manifests are"
        raise InvalidError(f"{what} not valid", problems=proposal.problems)
    pending = any(found.change.action is not Action.NONE for found in proposal.changes)
    return ExitCode.CHANGES_PENDING if arguments.detailed_exitcode and pending else ExitCode.DONE


def _print(proposal: Proposal, arguments: argparse.Namespace) -> None:
    if arguments.format == "json":
        changes = tuple(found.change for found in proposal.changes)
        print_json(plan_json(Plan(proposal.target, changes, (), None)))
    elif arguments.format == "markdown":
        from reconciler.proposalmarkdown import proposal_markdown

        print(proposal_markdown(proposal))
    else:
        from reconciler.proposaltext import proposal_text

        print(proposal_text(proposal, verbose=arguments.verbose))


def _write(proposal: Proposal, folder: Path) -> None:
    """The same as Markdown: for a comment, for a job summary, and whole."""
    from reconciler.markdown import COMMENT_LIMIT, SUMMARY_LIMIT
    from reconciler.proposalmarkdown import proposal_markdown

    limits = {"comment.md": COMMENT_LIMIT, "summary.md": SUMMARY_LIMIT, "plan.md": None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, limit in limits.items():
            (folder / name).write_text(proposal_markdown(proposal, limit) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"can't write to {folder}: {error.strerror}"
        raise ReconcilerError(message, hint="--output-dir names a folder that is made if need be") from None
