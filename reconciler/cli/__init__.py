"""The command line: the only place that prints and that decides exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from reconciler.cli.arguments import parse
from reconciler.errors import ExitCode, InvalidError, ReconcilerError

_BY_SIGNAL = 128  # plus the signal's number, as shells report it
_INTERRUPTED = """interrupted; jobs that were submitted go on
    what may have been submitted is looked for by the next `reconciler apply`, before it sends anything"""


def run(argv: Sequence[str]) -> int:
    """Run one command; its exit code."""
    # What a terminal's encoding can't show is escaped, rather than an error in the middle of the output.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments = parse(argv)
        code: ExitCode = arguments.command(arguments)
        sys.stdout.flush()
        return int(code)
    except ReconcilerError as error:
        return _failed(error)
    except KeyboardInterrupt as stop:
        print(_INTERRUPTED, file=sys.stderr)
        return _BY_SIGNAL + (stop.args[0] if stop.args else signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output went away; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.FAILED)


def _failed(error: ReconcilerError) -> int:
    from reconciler.cli.output import tell_error
    from reconciler.render import problems_text

    if isinstance(error, InvalidError) and error.problems:
        print(problems_text(error.problems), file=sys.stderr)
    tell_error(error)
    return int(error.exit_code)
