"""Command line: the only package, besides the training service, that prints and chooses exit codes.

For people in a terminal and for workflows. Each command has a file of its name, with its flags and its `run`,
which calls an operation and prints the result. Begin at `run` below, then at `arguments.COMMANDS`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from itertools import pairwise
from typing import Any, TextIO

from reconciler.base.errors import ExitCode, InvalidError, ReconcilerError, UsageError, machine_error
from reconciler.base.sanitize import one_line, workflow_command
from reconciler.cli.arguments import command_first, complete, parse
from reconciler.cli.events import events

_BY_SIGNAL = 128  # plus the signal's number, as shells report it
_SUBMITTING = ("apply", "resolve", "watch")
_INTERRUPTED_SUBMISSION = """interrupted; submitted jobs keep running
    the next `reconciler apply` first looks for jobs that this command may have submitted"""


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code; `argv` is the command line without the program's name."""
    # Escape characters that the terminal's encoding lacks: an error would cut the output off.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    log_format = _log_format(argv)
    try:
        try:
            return _run(argv, log_format)
        finally:
            # Here, as argparse prints a help text and exits.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe; at exit the interpreter would flush stdout again and print an error.
        _drop_output()
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        print_message(f"{error.strerror or error}{named}", log_format)
        _drop_output()
    return int(ExitCode.FAILED)


def _run(argv: Sequence[str], log_format: str) -> int:
    try:
        _refuse_unsecure_commands()
        if "_ARGCOMPLETE" in os.environ:  # set by the shell's script alone
            complete(os.environ.get("COMP_LINE", "").split()[1:])
        arguments = parse(argv)
        code: int = arguments.command(arguments)
        return int(code)
    except ReconcilerError as error:
        if isinstance(error, InvalidError):
            from reconciler.cli.problems import print_problems  # slow to import, and `--help` has none

            print_problems(error.problems, log_format)
        print_error(error, log_format)
        return int(error.exit_code)
    except MemoryError as error:
        print_error(machine_error(error), _log_format(argv))
        return int(ExitCode.FAILED)
    except KeyboardInterrupt as stop:
        is_submitting = next(iter(command_first(argv)), "") in _SUBMITTING
        print(_INTERRUPTED_SUBMISSION if is_submitting else "interrupted", file=sys.stderr)
        return _BY_SIGNAL + (stop.args[0] if stop.args else signal.SIGINT)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_unsecure_commands() -> None:
    # With this setting, a printed line may set variables and the search path of a workflow's next steps. Our
    # own output is escaped, but other steps may print the same logs and manifests, which are from others.
    if os.environ.get("ACTIONS_ALLOW_UNSECURE_COMMANDS", "").lower() in ("1", "true", "$true"):
        raise UsageError(
            "ACTIONS_ALLOW_UNSECURE_COMMANDS is set, so lines of a log could change the workflow",
            hint="remove it; steps set variables by writing to the files named in GITHUB_ENV and GITHUB_PATH",
        )


def _log_format(argv: Sequence[str]) -> str:
    # Read from the raw words, because a usage error leaves no parsed arguments.
    words = [word for argument in argv for word in argument.split("=", 1)]
    is_json = any(pair == ("--log-format", "json") for pair in pairwise(words))
    return "json" if is_json else "text"


def has_colours(stream: TextIO) -> bool:
    """Return True for a terminal that isn't dumb, outside of CI, unless NO_COLOR or FORCE_COLOR decides."""
    environ = os.environ
    if environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced != "0"
    return stream.isatty() and not environ.get("CI") and environ.get("TERM") != "dumb"


def agreed(question: str) -> bool:
    """Return True if the person at the terminal answers yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def has_person() -> bool:
    """Return True if a person can read a question on stderr and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def print_paged(text: str) -> None:
    """Print a text; through the user's pager if stdout is a terminal with fewer lines, outside of CI."""
    pager = _pager() if sys.stdout.isatty() and not os.environ.get("CI") else []
    if not pager or text.count("\n") < os.get_terminal_size(sys.stdout.fileno()).lines - 1:
        print(text)
        return
    import subprocess

    # As git does: quit if the text fits, show colours, and leave the text on the screen.
    environ = {"LESS": "FRX", "LV": "-c", **os.environ}
    sys.stdout.flush()
    try:
        process = subprocess.Popen(pager, stdin=subprocess.PIPE, env=environ)
    except OSError:
        print(text)
        return
    try:
        process.communicate(f"{text}\n".encode(sys.stdout.encoding, "backslashreplace"))
    except KeyboardInterrupt:
        # Ctrl-C is for the pager, which still has the terminal.
        process.wait()


def _pager() -> list[str]:
    """Return the command of the pager; empty for none."""
    import shlex

    chosen = os.environ.get("RECONCILER_PAGER", os.environ.get("PAGER", "less"))
    try:
        command = shlex.split(chosen)
    except ValueError:
        return []
    return [] if command == ["cat"] else command


def print_json(value: Any) -> None:
    """Print a JSON document on stdout."""
    sys.stdout.write(f"{json_text(value)}\n")


def print_json_rows(version: int, name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Print a JSON document with a list of objects of texts and whole numbers, one object after the other.

    `version` is that of the document's format. The bytes are those of `print_json`. For 10,000 objects this
    saves 0.2 s and 30 MB.
    """
    sys.stdout.write(f'{{\n  "formatVersion": {version},\n  "{name}": [')
    between, end = "\n    ", "]"
    for row in rows:
        text = _row_text(row).replace("\n", "\n    ")
        sys.stdout.write(between + text)
        between, end = ",\n    ", "\n  ]"
    sys.stdout.write(f"{end}\n}}\n")


def _row_text(row: dict[str, Any]) -> str:
    from msgspec import json

    try:
        text = json.format(json.encode(row), indent=2).decode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json_text(row)
    return _without_commands(text) if text.isascii() else json_text(row)


def json_text(value: Any) -> str:
    """Return a value as indented JSON in ASCII."""
    import json

    # In ASCII, no encoding can break the JSON and no text of a manifest can act on a terminal.
    return _without_commands(json.dumps(value, indent=2))


def _without_commands(text: str) -> str:
    # GitHub's runner takes "##[" for a command anywhere in a line; in JSON it only occurs within strings.
    return text.replace("##[", r"#\u0023[")


def print_error(error: ReconcilerError, log_format: str) -> None:
    """Print an error and its hint on stderr."""
    print_message(error.message, log_format, error.hint)


def print_message(message: str, log_format: str, hint: str = "") -> None:
    """Print a sentence and a hint on stderr."""
    if log_format == "json":
        events(log_format).error("error", message=message, **({"hint": hint} if hint else {}))
        return
    print(f"reconciler: {one_line(message)}", file=sys.stderr)
    if hint:
        print(f"    {one_line(hint)}", file=sys.stderr)


def print_lines(lines: Iterable[str], log_format: str) -> None:
    """Print sentences on stderr."""
    for line in lines:
        print_message(line, log_format)


def print_note(line: str, log_format: str, *, is_warning: bool) -> None:
    """Print a sentence on stderr; in GitHub Actions, a warning becomes an annotation."""
    if is_warning and log_format != "json" and os.environ.get("GITHUB_ACTIONS") == "true":
        print(workflow_command("warning", line), file=sys.stderr, flush=True)
        return
    print_message(line, log_format)
