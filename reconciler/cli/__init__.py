"""The command line: the only place that prints and that decides exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import pairwise

from reconciler.base.errors import ExitCode, InvalidError, ReconcilerError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.cli.arguments import parse

_BY_SIGNAL = 128  # plus the signal's number, as shells report it
_INTERRUPTED = """interrupted; jobs that were submitted go on
    what may have been submitted is looked for by the next `reconciler apply`, before it sends anything"""


def run(argv: Sequence[str]) -> int:
    """Run one command, and return its exit code; `argv` is the command line without the program's name."""
    # What a terminal's encoding can't show is escaped, rather than an error in the middle of the output.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _refuse_unsecure_commands()
        arguments = parse(argv)
        code: ExitCode = arguments.command(arguments)
        sys.stdout.flush()
        return int(code)
    except ReconcilerError as error:
        return _failed(error, _log_format(argv))
    except KeyboardInterrupt as stop:
        print(_INTERRUPTED, file=sys.stderr)
        return _BY_SIGNAL + (stop.args[0] if stop.args else signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output went away; the interpreter must not complain about it at exit.
        _drop_output()
        return int(ExitCode.FAILED)
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        print(f"reconciler: {one_line(f'{error.strerror or error}{named}')}", file=sys.stderr)
        _drop_output()
        return int(ExitCode.FAILED)


def _drop_output() -> None:
    """What is still to be written to stdout goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_unsecure_commands() -> None:
    """With that setting, a printed line may set variables and the search path of a workflow's next steps.

    Nothing that is printed here is a command by mistake; the setting is refused all the same, as what a job
    logs and what a manifest says come from others, and other steps may show them too.
    """
    if os.environ.get("ACTIONS_ALLOW_UNSECURE_COMMANDS", "").lower() in ("1", "true", "$true"):
        raise UsageError(
            "ACTIONS_ALLOW_UNSECURE_COMMANDS is set: lines of a log could then change the workflow",
            hint="remove it; a step sets variables by writing to the files in GITHUB_ENV and GITHUB_PATH",
        )


def _log_format(argv: Sequence[str]) -> str:
    """The `--log-format` that was asked for: also a command line that is wrong elsewhere has one."""
    words = [word for argument in argv for word in argument.split("=", 1)]
    asked = any(pair == ("--log-format", "json") for pair in pairwise(words))
    return "json" if asked else "text"


def _failed(error: ReconcilerError, log_format: str) -> int:
    from reconciler.cli.output import tell_error, tell_problems

    if isinstance(error, InvalidError):
        tell_problems(error.problems, log_format)
    tell_error(error, log_format)
    return int(error.exit_code)
