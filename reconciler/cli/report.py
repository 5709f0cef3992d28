"""`reconciler report`: commit statuses, the comment on a pull request, and pages to look at."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, tzinfo
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from reconciler.base.diagnostics import counted, quote
from reconciler.base.errors import ExitCode, InvalidError, UsageError, check_machine
from reconciler.cli import print_error, print_lines, print_message
from reconciler.cli.actions import has_new_failures, print_unposted
from reconciler.cli.context import context_of
from reconciler.cli.flag_types import count, path
from reconciler.cli.flags import add_reports
from reconciler.git.commit import commit_of
from reconciler.manifests.settings import LOCAL, find_root
from reconciler.operations.follow_up import load_or_report
from reconciler.operations.load_desired import load_desired
from reconciler.operations.origin import origin_of
from reconciler.operations.plan import wanted_of
from reconciler.operations.report import (
    missing_status_reasons,
    post_statuses,
    posts_statuses,
    record_keys,
    recorded_state,
    report_problems,
)
from reconciler.output.details import size_text
from reconciler.output.document import NOTHING_CHANGES
from reconciler.pages.folder import write_site
from reconciler.pages.rendering import Pages
from reconciler.pages.snapshot import LIMIT, snapshot, with_details
from reconciler.pages.template import PageContent
from reconciler.reporting.github.api import GitHubApi, GitHubRefusedError
from reconciler.reporting.github.comment import (
    COMMENTS,
    MAX_COMMENT,
    comment_body,
    fits,
    keep_comment,
    plan_marker,
)
from reconciler.reporting.github.event import is_from_fork, pull_request
from reconciler.reporting.github.settings import github_settings
from reconciler.submission.look import look

EXAMPLES = """reconciler report
  reconciler report --html report"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--comment",
        type=path,
        metavar="FILE",
        help="only write FILE as a comment on the workflow run's pull request",
    )
    instead.add_argument(
        "--html",
        type=path,
        metavar="DIR",
        help="only write the report as HTML pages to DIR",
    )
    add_reports(parser)
    add = parser.add_argument_group("with --html").add_argument
    add("--logs", action="store_true", help="include the last lines of each job's log")
    add(
        "--env-values",
        action="store_true",
        help="include the values of environment variables",
    )
    add("--limit", type=count, metavar="N", help="write pages for the newest N runs (default: 1000)")
    add("--timezone", metavar="ZONE", help="time zone, such as Europe/Berlin (default: UTC)")
    add("--force", action="store_true", help="write even if DIR contains other files")


_HINT = "give it the comment.md that `reconciler plan --base … --output-dir …` wrote"
_READ_ONLY = (
    "no comment was written: the workflow run's token may not write any, as on a pull request from a "
    "fork or by Dependabot; on other pull requests, the workflow needs `permissions: {pull-requests: write}`"
)


def run(arguments: argparse.Namespace) -> ExitCode:
    """Post commit statuses that changed: states of jobs, the verdict over them, and the drift."""
    if arguments.comment:
        return _run_comment(arguments)
    if arguments.html:
        return _run_html(arguments)
    _refuse_alone(arguments)
    context = context_of(arguments)
    config = context.config
    if not posts_statuses(config):
        print("reconciler: no GitHub repository is configured: nothing to post", file=sys.stderr)
        return ExitCode.DONE
    desired = load_or_report(
        config,
        partial(load_desired, config, context.environment, []),
        partial(context.session, start=True),
        partial(commit_of, config.root, os.environ),
        lambda report: print_unposted(report.problems, report.denied, arguments.log_format),
    )
    with context.session(start=True) as session:
        origin = origin_of(config, desired, desired.jobs, os.environ, whole=True)
        seen = look(session.ports, wanted_of(desired.jobs), record_keys(session))
        state = recorded_state(session, desired, seen.observed)
        reported = post_statuses(session, desired, state, origin.exact, comments=arguments.comment_merged)
        print_lines(missing_status_reasons(config, origin), arguments.log_format)
    print_unposted(*report_problems(reported), arguments.log_format)
    failures = has_new_failures(sorted(reported.failures.names), arguments)
    unread = [f"{name}'s metrics can't be read: {why}" for name, why in sorted(state.unread_names.items())]
    print_lines(unread, arguments.log_format)
    # A commit unknown to GitHub is no failure: it may be pushed later.
    is_failed = failures or unread or any(not post.unknown_commit for post in reported.failed)
    return ExitCode.FAILED if is_failed else ExitCode.DONE


def _refuse_alone(arguments: argparse.Namespace) -> None:
    """Raise UsageError for a flag that only pages have."""
    given = {
        "--logs": arguments.logs,
        "--env-values": arguments.env_values,
        "--limit": arguments.limit,
        "--timezone": arguments.timezone,
        "--force": arguments.force,
    }
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag} is for pages", hint="add --html DIR")


def _run_html(arguments: argparse.Namespace) -> ExitCode:
    """Write the pages of the environment into a folder; start nothing and post nothing."""
    zone, name = _zone(arguments.timezone)
    context = context_of(arguments)
    desired = None
    try:
        desired = load_desired(context.config, context.environment, [])
    except (InvalidError, UsageError) as error:
        # An invalid manifest must not hide the runs.
        print_error(error, arguments.log_format)
    content = PageContent(arguments.logs, arguments.env_values, zone, name)
    with context.session(start=False) as session:
        taken = snapshot(session, desired, content, os.environ)
        site = with_details(session, taken, os.environ, arguments.limit or LIMIT)
    pages = Pages(site)
    made = ((path, text) for path in pages.paths() if (text := pages.page(path)) is not None)
    number, size = write_site(arguments.html, made, force=arguments.force)
    print_lines(site.notes, arguments.log_format)
    print(f"{counted(number, 'page')}, {size_text(size)}: open {arguments.html / 'index.html'}")
    return ExitCode.FAILED if site.plan is None and desired else ExitCode.DONE


def _zone(name: str | None) -> tuple[tzinfo, str]:
    """Return the zone of this name, by default UTC; raise UsageError."""
    if name is None:
        return UTC, "UTC"
    try:
        return ZoneInfo(name), name
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = "write a name such as UTC or Europe/Berlin, which this machine's time zone database has"
        raise UsageError(f"there is no time zone {quote(name)}", hint=hint) from None


def _run_comment(arguments: argparse.Namespace) -> ExitCode:
    """Update the comment on this run's pull request with the file's text, if the token may write."""
    environment, github = _configured(arguments)
    text = _text(arguments.comment, environment)
    said = text.removeprefix(NOTHING_CHANGES)
    number = pull_request(os.environ)
    settings = github_settings(github, os.environ, find_root(Path.cwd()))
    if settings is None:
        print_message("no GitHub repository is configured: nothing to post", arguments.log_format)
        return ExitCode.DONE
    if not settings.token:
        print_message(f"no comment was written: {settings.no_token}", arguments.log_format)
        return ExitCode.DONE
    try:
        with closing(settings.transport()) as transport:
            api = GitHubApi(transport, settings, COMMENTS)
            action = keep_comment(api, number, plan_marker(environment), said, create=said == text)
    except GitHubRefusedError as refusal:
        # Pull requests from forks always have a read-only token; their checks must not fail for it.
        message = _READ_ONLY if refusal.read_only else f"comment not written: {refusal.message}"
        # Nothing is amiss in the workflow if a fork's token can't write.
        is_amiss = refusal.read_only and not is_from_fork(os.environ)
        print_unposted([message], [message] if is_amiss else [], arguments.log_format)
        return ExitCode.DONE if refusal.read_only else ExitCode.FAILED
    print(f"Comment on pull request {number}: {action}.")
    return ExitCode.DONE


def _configured(arguments: argparse.Namespace) -> tuple[str, Mapping[str, Any] | None]:
    """Return the environment's name and the `github` settings."""
    try:
        context = context_of(arguments)
    except InvalidError:
        # The file's text already reports the invalid settings, so the comment must still be written.
        return arguments.env or LOCAL, None
    return context.environment.name, context.config.github


def _text(path: Path, environment: str) -> str:
    """Return the file's text; raise UsageError if it can't be the text of a comment."""
    try:
        with path.open("rb") as file:
            # A character has at most 4 bytes, so a longer file never fits.
            text = file.read(4 * MAX_COMMENT + 1).decode()
    except OSError as error:
        check_machine(error, f"can't read {path}")
        raise UsageError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} isn't UTF-8 text", hint=_HINT) from None
    if "\0" in text or not text.strip():
        raise UsageError(f"{path} is empty or not text", hint=_HINT)
    if not fits(comment_body(plan_marker(environment), text)):
        raise UsageError(f"{path} is longer than the {MAX_COMMENT:,} characters of a comment", hint=_HINT)
    return text
