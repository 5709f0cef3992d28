"""Command line: the only package that prints and chooses exit codes."""

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
    """Run a command and return its exit code; `argv` is the command line without the program's name."""
    # Escape characters that the terminal's encoding lacks: an error would cut the output off.
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
        # The reader closed the pipe; at exit the interpreter would flush stdout again and print an error.
        _drop_output()
        return int(ExitCode.FAILED)
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        print(f"reconciler: {one_line(f'{error.strerror or error}{named}')}", file=sys.stderr)
        _drop_output()
        return int(ExitCode.FAILED)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_unsecure_commands() -> None:
    # With this setting, a printed line may set variables and the search path of a workflow's next steps. Our
    # own output is escaped, but other steps may print the same logs and manifests, which are from others.
    if os.environ.get("ACTIONS_ALLOW_UNSECURE_COMMANDS", "").lower() in ("1", "true", "$true"):
        raise UsageError(
            "ACTIONS_ALLOW_UNSECURE_COMMANDS is set: lines of a log could then change the workflow",
            hint="remove it; a step sets variables by writing to the files in GITHUB_ENV and GITHUB_PATH",
        )


def _log_format(argv: Sequence[str]) -> str:
    # Read from the raw words, because a usage error leaves no parsed arguments.
    words = [word for argument in argv for word in argument.split("=", 1)]
    is_json = any(pair == ("--log-format", "json") for pair in pairwise(words))
    return "json" if is_json else "text"


def _failed(error: ReconcilerError, log_format: str) -> int:
    from reconciler.cli.output import print_error, print_problems

    if isinstance(error, InvalidError):
        print_problems(error.problems, log_format)
    print_error(error, log_format)
    return int(error.exit_code)
