"""Command lines: the chosen command's module is imported, and no other, which keeps `--help` fast.

A command has a module of this package under its name, with `EXAMPLES`, `add_flags` and `run`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from keyword import iskeyword
from typing import Any, NoReturn

from reconciler import __version__
from reconciler.base.errors import UsageError
from reconciler.cli.flag_types import COLUMNS, terminal_columns
from reconciler.cli.flags import add_common
from reconciler.cli.parsers import HelpFormatter, Parser

COMMANDS = {
    "validate": "check manifests offline",
    "plan": "show what apply would do, and any drift",
    "apply": "submit, retry and cancel jobs as planned",
    "status": "show jobs and their states",
    "show": "show a job's state, cause, results and log",
    "logs": "show a job's log",
    "fetch": "download a published model, or the files of a run",
    "verify": "compare a publication with the repository and its files",
    "tensorboard": "open TensorBoard on a job's logs",
    "cancel": "stop runs and report how each ended",
    "report": "post commit statuses, or write jobs and runs as HTML pages",
    "open": "show jobs, runs and logs as live pages in a browser",
    "watch": "run continuously: apply on every change",
    "rerun": 'run a job again by changing "rerun" in its manifest',
    "render": "print the exact API request body",
    "resolve": "resolve a submission whose outcome is unknown",
    "init": "set up a repository and print the next steps",
    "import": "write manifests for jobs that gcloud commands describe",
    "migrate": "move jobs off AI Platform and off images past their end",
    "schema": "print a JSON Schema",
    "env": "print settings for other clients of the embedded service",
    "run": "run a program whose requests to Google reach the embedded service",
    "serve": "run the embedded training service in the foreground",
    "completion": "print the completion script of bash, zsh or fish",
}
"""The commands and what each of them does, in the order of `--help`."""

_WITHOUT_NOTES = frozenset({"completion", "schema"})  # their output is for shells and editors
_WITH_VALUE, _SWITCHES = ("--env", "--log-format"), ("--verbose", "-v", "--quiet", "-q")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line into a namespace whose `command` runs the command; raise UsageError if wrong."""
    argv = command_first(argv)
    if argv[:1] == ["version"]:
        argv = ["--version"]
    elif argv[:1] == ["help"]:
        argv = [*command_first(argv[1:])[:1], "--help"]
    if argv[:1] not in ([], ["-h"], ["--help"], ["--version"]):
        _check_command(argv[0])
    # A command line to import or to run is no command line of ours: argparse must not read its flags.
    end = argv.index("--") if argv[:1] in (["import"], ["run"]) and "--" in argv else len(argv)
    arguments, unknown = parser_of(argv).parse_known_args(argv[:end])
    if argv[:1] == ["run"]:
        arguments.words += argv[end + 1 :]
    elif argv[end:]:
        arguments.sources += argv[end:]
    if unknown:
        _refuse_unknown(unknown[0], argv[0])
    if arguments.env is None:
        arguments.env = os.environ.get("RECONCILER_ENV") or None
    return arguments


def command_first(argv: Sequence[str]) -> Sequence[str]:
    """Move common flags behind the command: of a flag that is there too, the later one counts."""
    index = 0
    while index < len(argv) and argv[index].partition("=")[0] in (*_WITH_VALUE, *_SWITCHES):
        index += 2 if argv[index] in _WITH_VALUE else 1
    return [*argv[index : index + 1], *argv[:index], *argv[index + 1 :]]


def complete(words: Sequence[str]) -> None:
    """Print the candidates for the last of the words, which a shell passes, and exit."""
    parser = parser_of(command_first(words))
    add_common(parser)  # they may come before the command
    _module("completion").complete(parser)


def _check_command(name: str) -> None:
    if name.startswith("-"):
        raise UsageError(f"{name} must come after a command", hint="see `reconciler --help`")
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}", hint=_hint(name, [*COMMANDS], "reconciler"))


def _refuse_unknown(argument: str, command: str) -> NoReturn:
    """Raise UsageError for an argument that the command doesn't take."""
    program = f"reconciler {command}"
    parser = Parser(prog=program)
    _module(command).add_flags(parser)
    add_common(parser)
    if not argument.startswith("-"):
        raise UsageError(f"{command} takes no such argument: {argument!r}", hint=f"see `{program} --help`")
    flag = argument.partition("=")[0]
    # argparse has no public way to ask for the flags.
    flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    raise UsageError(f"{command} has no flag {flag}", hint=_hint(flag, flags, program))


def _hint(word: str, words: Sequence[str], program: str) -> str:
    from reconciler.base.diagnostics import similar_word  # slow to import, and `--help` needs none

    similar = similar_word(word, words)
    return f"did you mean {similar}? See `{program} --help`" if similar else f"see `{program} --help`"


def parser_of(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that `argv` begins with; of the names alone if it begins with none."""
    # Without an explicit width, argparse imports `shutil` to find it, which slows every command down.
    width = (terminal_columns() or COLUMNS) - 2  # argparse's own default
    parser = Parser(
        prog="reconciler",
        formatter_class=partial(HelpFormatter, width=width),
        description="Keep the cloud in sync with a repository of training jobs written in YAML.",
        epilog="exit codes: 0 done, 1 something failed, 2 changes pending (plan --detailed-exitcode), "
        "3 invalid manifests or configuration, 4 refused by a limit (also plan --base) or a stale plan, "
        "64 wrong usage",
    )
    parser.add_argument("--version", action="version", version=f"reconciler {__version__}")
    # Without `prog`, argparse formats a usage text to get it, with imports slower than all its other work.
    commands = parser.add_subparsers(prog=parser.prog, title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name not in argv[:1]:
            # Without any flag, as only its name and summary are printed: argparse makes a formatter for each,
            # which imports `shutil`.
            commands.add_parser(name, help=summary, add_help=False)
            continue
        module = _module(name)
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n  {module.EXAMPLES}",
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=width),
        )
        module.add_flags(sub)
        add_common(sub)
        sub.set_defaults(command=partial(_run, name))
    return parser


def _module(command: str) -> Any:
    return import_module(f"reconciler.cli.{command}_" if iskeyword(command) else f"reconciler.cli.{command}")


def _run(command: str, arguments: argparse.Namespace) -> int:
    if command not in _WITHOUT_NOTES and not arguments.quiet:
        from reconciler.cli.old_home import report_old_home  # slow to import, and `--help` needs none

        report_old_home(arguments.log_format)
    code: int = _module(command).run(arguments)
    return code
