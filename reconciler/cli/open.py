"""`reconciler open`: live pages for a browser of this machine."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path

from reconciler.base.errors import ExitCode, ReconcilerError
from reconciler.cli import print_error, print_message
from reconciler.cli.context import context_of
from reconciler.cli.flag_types import port
from reconciler.manifests.settings import find_root

EXAMPLES = "reconciler open"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--no-browser", action="store_true", help="print the link without opening a browser")
    parser.add_argument("--port", type=port, metavar="N", help="port to listen on (default: any free port)")


ELSEWHERE = "run `reconciler open`"
"""Where to get a link to live pages; in place of the link itself, where others may read it in a log."""

_LOOPBACK = "127.0.0.1"
_INTERVAL = 0.5
"""Seconds between two looks for a signal, or at the process that this one serves pages for."""


def run(arguments: argparse.Namespace) -> ExitCode:
    """Serve the pages until an interrupt; print a link, and open it in the browser."""
    root = context_of(arguments).config.root
    with _live_pages(lambda: root, arguments.env, arguments.port or 0) as link:
        print(link(), flush=True)
        print_message("the link works once, within two minutes; Ctrl-C ends the pages", arguments.log_format)
        with _browser(link()) if _has_browser(arguments) else nullcontext():
            try:
                # A wait without a limit would miss a signal that arrives just before it begins.
                while True:
                    time.sleep(_INTERVAL)
            except KeyboardInterrupt:
                return ExitCode.DONE
    return ExitCode.DONE


def _has_browser(arguments: argparse.Namespace) -> bool:
    """Return True if a person looks at this machine's screen."""
    if arguments.no_browser or os.environ.get("CI") or not sys.stdout.isatty():
        return False
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


@contextmanager
def _browser(link: str) -> Iterator[None]:
    """Open a link in the user's browser."""
    # A checkout may contain any program: a relative entry of PATH must not lead to it.
    absolute = filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep))
    os.environ["PATH"] = os.pathsep.join(absolute)
    import webbrowser

    # Other users see a program's arguments: they get the name of a file that only this user can read.
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}">')
        file.flush()
        webbrowser.open(Path(file.name).as_uri())
        yield


def serve_pages(env: str | None, log_format: str) -> None:
    """Serve the pages in a process of its own, until this process or the program in its place has ended.

    Without a terminal to show their link on, nobody could open them: they aren't served.
    """
    if not sys.stderr.isatty():
        print_message(f"pages: {ELSEWHERE}", log_format)
        return
    parent = os.getpid()
    if os.fork():
        return
    # The child must never return to the caller, which becomes another program.
    code = 1
    try:
        _serve_for(lambda: os.getppid() == parent, env, log_format)
        code = 0
    except KeyboardInterrupt:
        code = 0
    except ReconcilerError as error:
        print_error(error, log_format)
    finally:
        os._exit(code)


def _serve_for(is_needed: Callable[[], bool], env: str | None, log_format: str) -> None:
    with _live_pages(lambda: find_root(Path.cwd()), env, 0) as link:
        print_message(f"pages: {link()} (once, within two minutes)", log_format)
        while is_needed():
            time.sleep(_INTERVAL)


@contextmanager
def _live_pages(root: Callable[[], Path], env: str | None, port: int) -> Iterator[Callable[[], str]]:
    """Serve the pages of an environment; yield a function that returns a new link to them."""
    # Slow to import: `serve` becomes the service without a wait for it.
    from reconciler.pages import listener, live

    pages = live.LivePages(root, os.environ, env)
    with listener.listening((_LOOPBACK, port), {}, pages.answer) as url:
        yield lambda: pages.link(url)
