"""`reconciler watch`: an apply on every change."""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from reconciler.base.errors import ExitCode, InvalidError, ServiceError, UsageError
from reconciler.base.state_dir import OLD_HOME, HomeError, home_of, location_of, prepare_home
from reconciler.cli.events import events
from reconciler.cli.flag_types import seconds, settling
from reconciler.cli.open import ELSEWHERE
from reconciler.manifests.settings import find_root, load_config
from reconciler.operations.watch.health import Health
from reconciler.operations.watch.loop import Loop
from reconciler.operations.watch.metrics import Metrics
from reconciler.operations.watch.remote import Clone, RemoteBranch, checked_branch, checked_url
from reconciler.operations.watch.report import PassReporter
from reconciler.operations.watch.rest import SETTLES_IN
from reconciler.operations.watch.source import FolderWatcher, LocalFiles
from reconciler.operations.watch.wakeups import LONGEST_BACKOFF, Wakes
from reconciler.pages.listener import address_of, listening
from reconciler.pages.live import LivePages
from reconciler.reporting.github.settings import DEFAULT_API_URL
from reconciler.training_service.client import check_installed

EXAMPLES = "reconciler watch --listen 127.0.0.1:9464"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    remote = parser.add_argument_group("watch a remote branch instead of the local files")
    remote.add_argument("--remote", metavar="URL", help="https, ssh or file URL; cloned to a separate folder")
    remote.add_argument("--branch", metavar="NAME", help="branch to watch (default: main)")
    remote.add_argument(
        "--interval", type=seconds, metavar="SECONDS", help="time between fetches (default: 60)"
    )
    add(
        "--resync",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="maximum time between passes (default: 300)",
    )
    add(
        "--settle",
        type=settling,
        metavar="SECONDS",
        help="on Google Cloud, time without a change before changes are applied (default: 10, at most 120)",
    )
    add(
        "--listen",
        metavar="127.0.0.1:PORT",
        help="serve /healthz, /metrics and the pages to this machine only",
    )


DEFAULT_BRANCH = "main"
DEFAULT_INTERVAL = 60.0
PASS_TAKES = 600.0
"""Seconds after which a running pass counts as stuck: longer than its pacing and its patience."""


def run(arguments: argparse.Namespace) -> ExitCode:
    """Run passes until a signal ends them."""
    level = logging.WARNING if arguments.quiet else logging.DEBUG if arguments.verbose else logging.INFO
    metrics = Metrics()
    reporter = PassReporter(events(arguments.log_format, level), metrics)
    health = Health(max(arguments.resync, LONGEST_BACKOFF) + PASS_TAKES)
    wakes = Wakes()
    address = address_of(arguments.listen) if arguments.listen else None
    with ExitStack() as resources:
        # Entered first and left last, so that a second signal ends the process at any time.
        resources.enter_context(wakes.by_signals())
        source = resources.enter_context(_source(arguments, wakes, reporter))
        if address:
            pages = {"/healthz": health.page, "/metrics": metrics.page}
            live = _live(source, arguments.env)
            url = resources.enter_context(listening(address, pages, live.answer))
            # A log keeps the link for others to read.
            reporter.listening(url, live.link(url) if sys.stderr.isatty() else ELSEWHERE)
        Loop(source, wakes, reporter, health, arguments.resync, random.random).run()
    return ExitCode.DONE


def _live(source: LocalFiles | RemoteBranch, env: str | None) -> LivePages:
    """Return the pages of a source's present files."""

    def root() -> Path:
        if isinstance(source, LocalFiles):
            return source.root
        if not source.clone.commit:
            raise ServiceError("the branch hasn't been fetched yet", hint="try again in a moment")
        return source.clone.tree

    return LivePages(root, source.environ, env)


@contextmanager
def _source(
    arguments: argparse.Namespace, wakes: Wakes, reporter: PassReporter
) -> Iterator[LocalFiles | RemoteBranch]:
    root = find_root(Path.cwd())
    if arguments.remote is None:
        _check_local(arguments, root)
        files = FolderWatcher(written_by_services(root), wakes.change)
        try:
            settles_in = arguments.settle or SETTLES_IN
            yield LocalFiles(root, os.environ, arguments.env, files, wakes, reporter, settles_in)
        finally:
            files.close()
        return
    # The branch's reconciler.yaml must not redirect the operator's token; the environment overrides it.
    os.environ["GITHUB_API_URL"] = os.environ.get("GITHUB_API_URL") or DEFAULT_API_URL
    if arguments.settle:
        hint = "remove one of the two: --settle waits until local files are at rest"
        raise UsageError("--settle can't be combined with --remote", hint=hint)
    url, branch = checked_url(arguments.remote), checked_branch(arguments.branch or DEFAULT_BRANCH)
    home = home_of(root, os.environ)
    prepare_home(home)
    clone = Clone(home, url, branch, os.environ)
    clone.open()
    try:
        # The checkout lies in the home, and must not get a home of its own.
        environ = {**os.environ, "RECONCILER_HOME": str(home)}
        interval = arguments.interval or DEFAULT_INTERVAL
        yield RemoteBranch(clone, environ, arguments.env, interval, wakes, reporter, random.random)
    finally:
        clone.close()


def written_by_services(root: Path) -> list[Path]:
    """Return the folders that training services write to while the checkout stays as it is."""
    # The service of an earlier version may still run.
    folders = [root / OLD_HOME]
    with suppress(HomeError):  # reported by the command or pass that needs the home
        folders.append(Path(os.path.realpath(location_of(root, os.environ))))
    return folders


def _check_local(arguments: argparse.Namespace, root: Path) -> None:
    """Raise an error for mistakes that no edit of the manifests can fix."""
    if arguments.branch or arguments.interval:
        raise UsageError("--branch and --interval need --remote", hint="add --remote URL")
    try:
        config = load_config(root)
    except InvalidError:
        return  # the first pass reports it, and an edit may fix it
    if config.environment(arguments.env).engine == "local":
        check_installed()
        home_of(root, os.environ)
