"""`reconciler report`."""

from __future__ import annotations

import argparse
import os
import sys

from reconciler.cli.context import context_of
from reconciler.cli.output import tell_failed
from reconciler.errors import ExitCode
from reconciler.reconcile import wanted
from reconciler.report import post, statuses
from reconciler.reporters.settings import github_settings
from reconciler.submission.observation import observe


def run(arguments: argparse.Namespace) -> ExitCode:
    """Post the states of the wanted jobs that their commits don't show yet."""
    context = context_of(arguments)
    if github_settings(context.config.github, os.environ) is None:
        print("reconciler: no GitHub repository is configured: nothing to post", file=sys.stderr)
        return ExitCode.DONE
    desired = wanted(context.config, context.environment, [])
    with context.session(start=True) as session:
        by_commit = statuses(context.environment.name, desired.jobs, observe(session.ports), "", {})
    failed = post(context.config, by_commit, os.environ)
    tell_failed(failed)
    return ExitCode.FAILED if failed else ExitCode.DONE
