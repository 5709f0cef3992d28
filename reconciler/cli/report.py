"""The command `report`."""

from __future__ import annotations

import argparse
import os
import sys

from reconciler.base.errors import ExitCode, InvalidError
from reconciler.cli.comment import run_comment
from reconciler.cli.context import context_of
from reconciler.cli.output import print_message
from reconciler.git.commit import commit_of, still_at
from reconciler.operations.apply import invalid
from reconciler.operations.load_desired import load_desired
from reconciler.operations.origin import origin_of
from reconciler.operations.report import missing_status_reasons, post_statuses, unposted_sentences
from reconciler.reporting.github.settings import github_settings
from reconciler.submission.observe import observe


def run(arguments: argparse.Namespace) -> ExitCode:
    """Post commit statuses that changed: states of jobs, the verdict over them, and the drift."""
    if arguments.comment:
        return run_comment(arguments)
    context = context_of(arguments)
    if github_settings(context.config.github, os.environ, context.config.root) is None:
        print("reconciler: no GitHub repository is configured: nothing to post", file=sys.stderr)
        return ExitCode.DONE
    before = commit_of(context.config.root, os.environ)
    try:
        desired = load_desired(context.config, context.environment, [])
    except InvalidError as error:
        with context.session(start=True) as session:
            commit = still_at(context.config.root, os.environ, before)
            for line in invalid(session, commit, error):
                print_message(line, arguments.log_format)
        raise
    with context.session(start=True) as session:
        origin = origin_of(context.config, desired, desired.jobs, os.environ, whole=True)
        failed = post_statuses(session, desired, observe(session.ports), origin.exact)
        for line in missing_status_reasons(session, origin):
            print_message(line, arguments.log_format)
    for line in unposted_sentences(failed):
        print_message(line, arguments.log_format)
    # A commit unknown to GitHub is no failure: it may be pushed later.
    return ExitCode.FAILED if any(not post.unknown_commit for post in failed) else ExitCode.DONE
