"""`reconciler run`: a program of the user's whose requests to Google reach the embedded training service."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from reconciler.base.errors import UsageError
from reconciler.cli.context import context_of
from reconciler.cli.env import clients, flat
from reconciler.training_service.client import redirect_program

EXAMPLES = "reconciler run -- python submit.py"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("words", nargs="*", metavar="-- PROGRAM", help="the program and its arguments")


_BY_SIGNAL = 128  # plus the signal's number, as shells report it


def run(arguments: argparse.Namespace) -> int:
    """Run the program with the variables of `env` and a proxy; return its exit code."""
    if not arguments.words:
        raise UsageError(
            "the program is missing", hint="write it after --: reconciler run -- python submit.py"
        )
    client, groups, home = clients(context_of(arguments))
    with (
        tempfile.TemporaryDirectory(prefix="reconciler-") as folder,
        redirect_program(home, client.url, client.token, Path(folder)) as variables,
    ):
        return _run(arguments.words, {**os.environ, **flat(groups), **variables})


def _run(words: list[str], env: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(words, env=env)
    except FileNotFoundError:
        hint = "write its path, or add its folder to PATH"
        raise UsageError(f"there is no program {words[0]!r}", hint=hint) from None
    except OSError as error:
        raise UsageError(f"{words[0]!r} can't be run: {error.strerror}") from None
    # Signals reach this process alone, but for a terminal's Ctrl-C, which reaches the program too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = process.wait()
    return code if code >= 0 else _BY_SIGNAL - code
