"""The commands and their flags; a command is imported when it is chosen, so that `--help` is quick."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from reconciler import __version__
from reconciler.errors import ExitCode, UsageError

_Flags = Callable[[argparse.ArgumentParser], None]


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would end the process with 2, which means pending changes here."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")


@dataclass(frozen=True, slots=True)
class _Spec:
    """One command: its name, what `--help` says, an example, and its flags beside the common ones."""

    name: str
    summary: str
    example: str
    flags: _Flags


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line as a namespace whose `command` runs it; raises UsageError."""
    arguments = _parser().parse_args(argv)
    if arguments.env is None:
        arguments.env = os.environ.get("RECONCILER_ENV") or None
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="reconciler",
        description="Makes the cloud agree with a repository of training jobs kept as YAML.",
        epilog="exit codes: 0 done, 1 something failed, 2 changes pending (plan --detailed-exitcode), "
        "3 invalid manifests or configuration, 4 refused by a limit or a stale plan, 64 wrong usage",
    )
    parser.add_argument("--version", action="version", version=f"reconciler {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for spec in _COMMANDS:
        sub = commands.add_parser(
            spec.name,
            help=spec.summary,
            description=spec.summary[0].upper() + spec.summary[1:] + ".",
            epilog=f"example:\n  {spec.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        spec.flags(sub)
        _common(sub)
        sub.set_defaults(command=_Lazy(spec.name))
    return parser


class _Lazy:
    """A command whose module is imported when it runs."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, arguments: argparse.Namespace) -> ExitCode:
        module: Any = import_module(f"reconciler.cli.{self._name}")
        code: ExitCode = module.run(arguments)
        return code


def _common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("common flags")
    group.add_argument("--env", metavar="NAME", help="environment of reconciler.yaml (RECONCILER_ENV; local)")
    group.add_argument("--log-format", choices=("text", "json"), default="text", help="what goes to stderr")
    group.add_argument("-v", "--verbose", action="store_true", help="tell more")
    group.add_argument("-q", "--quiet", action="store_true", help="tell errors only")


def _paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="files or folders of manifests (default: jobs)"
    )


def _format(parser: argparse.ArgumentParser, *choices: str) -> None:
    parser.add_argument("--format", choices=choices, default="text", help="what goes to stdout (text)")


def _validate(parser: argparse.ArgumentParser) -> None:
    _paths(parser)
    _format(parser, "text", "json", "github")


def _plan(parser: argparse.ArgumentParser) -> None:
    _paths(parser)
    _format(parser, "text", "json", "markdown")
    parser.add_argument(
        "--detailed-exitcode", action="store_true", help="exit 2 where there is something to do"
    )


def _apply(parser: argparse.ArgumentParser) -> None:
    _paths(parser)
    _format(parser, "text", "json")
    parser.add_argument("--wait", action="store_true", help="until the jobs have ended; 1 if one failed")
    parser.add_argument(
        "--plan-digest", type=_digest, metavar="sha256:…", help="refuse if the plan is no longer this one"
    )


def _digest(text: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f'not a digest as `plan` prints it: "{text}"')
    return text


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="base names or job names (default: all)")
    _format(parser, "text", "json")


def _logs(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a base name (its newest run) or a job name")


def _manifest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a manifest's base name, or the job name that it gives now"
    )


def _schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help="CustomJob, Job, … (default: any manifest)")


def _init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--claims",
        action="store_true",
        required=True,
        help="make its claims bucket where it isn't there, and print who needs which permission",
    )


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stop", action="store_true", help="end the service that runs")


def _resolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a job name, or a base name with one submission that isn't settled"
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--resubmit", action="store_true", help="send it again, as soon as no earlier request can act"
    )
    how.add_argument(
        "--give-up", action="store_true", help="never send it again; its job is bound if it appears"
    )


def _none(parser: argparse.ArgumentParser) -> None:
    """No flags beside the common ones."""


_COMMANDS = (
    _Spec("validate", "check manifests, offline", "reconciler validate jobs/", _validate),
    _Spec("plan", "show what apply would do, and the drift", "reconciler plan --detailed-exitcode", _plan),
    _Spec("apply", "submit what is missing", "reconciler apply --wait", _apply),
    _Spec("status", "show jobs and their states", "reconciler status census-income", _status),
    _Spec("logs", "show a job's log", "reconciler logs census-income --follow", _logs),
    _Spec("cancel", "stop a run, and say how it really ended", "reconciler cancel census-income", _name),
    _Spec("report", "post commit statuses for what has changed", "reconciler report", _none),
    _Spec("render", "print the exact API request body", "reconciler render census-income", _manifest),
    _Spec(
        "resolve",
        "settle a submission whose outcome stayed unknown",
        "reconciler resolve census-income --resubmit",
        _resolve,
    ),
    _Spec("init", "set up an environment", "reconciler init --claims --env prod", _init),
    _Spec("schema", "print a JSON Schema", "reconciler schema CustomJob", _schema),
    _Spec("serve", "run the embedded training service in the foreground", "reconciler serve", _serve),
)
