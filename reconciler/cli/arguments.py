"""Commands and their flags; a command's module is imported when it runs, which keeps `--help` fast."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from reconciler import __version__
from reconciler.base.errors import UsageError
from reconciler.cli.parsers import HelpFormatter, Parser
from reconciler.cli.values import (
    COLUMNS,
    EXAMPLES,
    count,
    digest,
    path,
    port,
    seconds,
    settling,
    terminal_columns,
    terms,
    trial,
    words,
)

_WITHOUT_NOTES = frozenset({"completion", "schema"})  # their output is for shells and editors
_WITH_VALUE, _SWITCHES = ("--env", "--log-format"), ("--verbose", "-v", "--quiet", "-q")
_FULL = "also read all ended runs and their claims, as an audit"
_YES = "don't ask for confirmation in a Google Cloud environment"
_Flags = Callable[[argparse.ArgumentParser], None]


class _Spec(NamedTuple):
    """A command: its name, help text, and flags in addition to the common ones.

    Attributes:
        module: The module of `cli` that runs it; by default that of its name.
        function: The module's function.
    """

    name: str
    summary: str
    flags: _Flags
    module: str = ""
    function: str = "run"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line into a namespace whose `command` runs the command; raise UsageError if wrong."""
    argv = _with_command_first(argv)
    if argv[:1] == ["version"]:
        argv = ["--version"]
    elif argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    if argv[:1] not in ([], ["-h"], ["--help"], ["--version"]):
        _check_command(argv[0])
    # A command line to import or to run is no command line of ours: argparse must not read its flags.
    place = argv.index("--") if argv[:1] in (["import"], ["run"]) and "--" in argv else len(argv)
    arguments, unknown = parser_of(argv).parse_known_args(argv[:place])
    if argv[:1] == ["run"]:
        arguments.words += argv[place + 1 :]
    elif argv[place:]:
        arguments.sources += argv[place:]
    if unknown:
        _refuse_unknown(unknown[0], argv[0])
    if arguments.env is None:
        arguments.env = os.environ.get("RECONCILER_ENV") or None
    return arguments


def _with_command_first(argv: Sequence[str]) -> Sequence[str]:
    """Move common flags behind the command: of a flag that is there too, the later one counts."""
    place = 0
    while place < len(argv) and argv[place].partition("=")[0] in (*_WITH_VALUE, *_SWITCHES):
        place += 2 if argv[place] in _WITH_VALUE else 1
    return [*argv[place : place + 1], *argv[:place], *argv[place + 1 :]]


def _check_command(name: str) -> None:
    if name.startswith("-"):
        raise UsageError(f"{name} must come after a command", hint="see `reconciler --help`")
    if name not in (names := [spec.name for spec in _COMMANDS]):
        raise UsageError(f"there is no command {name!r}", hint=_hint(name, names, "reconciler"))


def _refuse_unknown(argument: str, command: str) -> NoReturn:
    """Raise UsageError for an argument that the command doesn't take."""
    program = f"reconciler {command}"
    parser = Parser(prog=program)
    spec = next(spec for spec in _COMMANDS if spec.name == command)
    spec.flags(parser)
    _common(parser)
    if not argument.startswith("-"):
        raise UsageError(f"{command} takes no such argument: {argument!r}", hint=f"see `{program} --help`")
    flag = argument.partition("=")[0]
    # argparse has no public way to ask for the flags.
    known = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    raise UsageError(f"{command} has no flag {flag}", hint=_hint(flag, known, program))


def _hint(word: str, known: Sequence[str], program: str) -> str:
    from reconciler.base.diagnostics import similar_word  # slow to import

    similar = similar_word(word, known)
    return f"did you mean {similar}? See `{program} --help`" if similar else f"see `{program} --help`"


def parser_of(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that `argv` begins with; of all commands if it begins with none."""
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
    # Only the chosen command gets a parser: the parsers of all commands take most of argparse's time.
    for spec in [spec for spec in _COMMANDS if spec.name in argv[:1]] or _COMMANDS:
        sub = commands.add_parser(
            spec.name,
            help=spec.summary,
            description=spec.summary[0].upper() + spec.summary[1:] + ".",
            epilog=f"example:\n  {EXAMPLES[spec.name]}",
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=width),
        )
        spec.flags(sub)
        _common(sub)
        sub.set_defaults(command=partial(_run, spec))
    return parser


def _run(spec: _Spec, arguments: argparse.Namespace) -> int:
    if spec.name not in _WITHOUT_NOTES and not arguments.quiet:
        _report_old_home(arguments.log_format)
    module: Any = import_module(f"reconciler.cli.{spec.module or spec.name}")
    code: int = getattr(module, spec.function)(arguments)
    return code


def _report_old_home(log_format: str) -> None:
    from pathlib import Path

    from reconciler.base.state_dir import OLD_HOME
    from reconciler.manifests.settings import find_root

    old = find_root(Path.cwd()) / OLD_HOME
    if os.path.lexists(old):
        from reconciler.cli.old_home import report_old_home  # slow to import, and seldom needed

        report_old_home(old, log_format)


def _common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("common flags")
    group.add_argument(
        "--env", metavar="NAME", help="environment in reconciler.yaml (default: RECONCILER_ENV, or local)"
    )
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of messages on stderr (default: text)",
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print more detail")
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")


def _paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", type=path, metavar="PATH", help="manifest files or folders (default: jobs)"
    )


def _format(parser: argparse.ArgumentParser, *choices: str) -> None:
    parser.add_argument("--format", choices=choices, default="text", help="output format (default: text)")


def _validate(parser: argparse.ArgumentParser) -> None:
    _paths(parser)
    _format(parser, "text", "json", "github")
    parser.add_argument(
        "--strict", action="store_true", help="treat warnings, such as an unknown machine type, as errors"
    )


def _plan(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _paths(parser)
    _selection(parser)
    _format(parser, "text", "json", "markdown")
    add("--base", metavar="REF", help="show the changes since HEAD left REF, offline; exit 4 over a limit")
    add(
        "--output-dir",
        type=path,
        metavar="DIR",
        help="with --base, also write comment.md, summary.md and plan.md to DIR",
    )
    add("--detailed-exitcode", action="store_true", help="exit 2 if there are changes to apply")
    add("--drift", action="store_true", help="with --detailed-exitcode, exit 2 for drift too")
    add("--full", action="store_true", help=_FULL)


def _apply(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _paths(parser)
    _selection(parser)
    _format(parser, "text", "json")
    add("--full", action="store_true", help=_FULL)
    add("--wait", action="store_true", help="wait until the jobs end; exit 1 unless all have succeeded")
    add("--logs", action="store_true", help="with --wait, print the end of each failed job's log")
    add("--allow-older", action="store_true", help="apply a checkout although a newer one was applied")
    add("--plan-digest", type=digest, metavar="sha256:…", help="apply only if the plan still has this digest")
    add("--yes", action="store_true", help=_YES)


def _status(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="base names or job names (default: all)")
    _format(parser, "text", "json")
    _labels(parser)
    add(
        "--state",
        type=words,
        action="extend",
        metavar="STATE",
        help="only jobs in this state: failed, running, held, …",
    )
    add("--limit", type=count, metavar="N", help="show at most N jobs, the most urgent first")
    add("--all", action="store_true", help="include earlier runs, newest first")
    add("--wide", action="store_true", help="show more columns, without truncation")


def _labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-l",
        "--selector",
        dest="terms",
        type=terms,
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="only jobs with this label; also KEY!=VALUE or KEY; separate several with commas",
    )


def _cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="base names (the newest run of each) or job names"
    )
    _labels(parser)
    parser.add_argument("--yes", action="store_true", help=_YES)


def _selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--job",
        dest="names",
        action="append",
        default=[],
        metavar="NAME",
        help="only the job with this base name or job name; may be repeated",
    )
    _labels(parser)


def _show(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    _format(parser, "text", "json", "yaml")


def _watch(parser: argparse.ArgumentParser) -> None:
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


def _logs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _name(parser)
    add("-f", "--follow", action="store_true", help="keep printing until the job has ended")
    add(
        "--replica",
        metavar="REPLICA",
        help="only this replica, such as workerpool1-0 or worker-replica-0; service: the service's messages",
    )
    add("--trial", type=trial, metavar="N", help="only this trial of a tuning job, counted from 1")


def _tensorboard(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    parser.add_argument(
        "--port", type=port, metavar="N", help="local port (default: 6006, or the next free one)"
    )


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a base name (its newest run) or a job name")


def _manifest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a base name, or the job name of a manifest")


def _schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help="CustomJob, Job, … (default: any manifest)")


def _init(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--action", metavar="OWNER/REPO@SHA", help="the commit of reconciler that the workflows use")
    add("--engine", choices=("local", "google"), help="where jobs run (default: local)")
    google = parser.add_argument_group("with --engine google; --env names the environment (production)")
    google.add_argument("--project", metavar="ID", help="project ID")
    google.add_argument("--location", metavar="REGION", help="the region, such as us-central1")
    google.add_argument("--staging-bucket", metavar="BUCKET", help="bucket for uploaded packages")
    google.add_argument(
        "--claims-bucket", metavar="BUCKET", help="bucket for claims (default: STAGING-BUCKET-claims)"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--steps",
        choices=("github", "google"),
        help="write nothing; print the commands that set up GitHub or Google Cloud",
    )
    instead.add_argument(
        "--claims",
        action="store_true",
        help="only create the environment's claims bucket if it is missing, and print the permissions "
        "that each account needs",
    )


def _env(parser: argparse.ArgumentParser) -> None:
    forms = ("shell", "json", "python")
    parser.add_argument("--format", choices=forms, default="shell", help="output format (default: shell)")


def _program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="-- PROGRAM", help="the program and its arguments")


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stop", action="store_true", help="stop the running service")
    parser.add_argument("--port", type=port, metavar="N", help="port to listen on (default: any free port)")


def _open(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-browser", action="store_true", help="print the link without opening a browser")
    parser.add_argument("--port", type=port, metavar="N", help="port to listen on (default: any free port)")


def _resolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a job name, or a base name with one unresolved submission"
    )
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--resubmit", action="store_true", help="submit it again once no earlier request can create a job")
    add("--give-up", action="store_true", help="don't submit it again; adopt its job if it appears after all")


def _rerun(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a base name, or the job name of one of its runs")
    parser.add_argument("--commit", action="store_true", help="also commit the manifest, and nothing else")


def _import(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("sources", nargs="*", metavar="SOURCE", help="files; - for standard input; or -- and a command line")
    add("-o", "--output", type=path, metavar="PATH", help="a folder, or one .yaml file (default: jobs)")
    add("--live", action="store_true", help="import the environment's own jobs; SOURCE is then a job name")
    _labels(parser)
    add("--filter", metavar="EXPR", help="with --live, only jobs that the service's list filter selects")
    add(
        "--adopt",
        action="store_true",
        help="with --live, bind live jobs to their manifests: apply submits none of them",
    )
    add("--dry-run", action="store_true", help="print the manifests and write nothing")
    add("--force", action="store_true", help="overwrite files with other content")
    add(
        "--run",
        action="store_true",
        help="don't suspend jobs that have ended: the next apply runs them again",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="give a variable or a placeholder <NAME> its value",
    )
    add("--set-file", action="append", default=[], metavar="NAME=FILE", help="the same, from a file")


def _migrate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _paths(parser)
    _format(parser, "text", "markdown", "json")
    add("--write", action="store_true", help="replace the manifests: all of them or none")
    add("--run", action="store_true", help="don't suspend the migrated jobs: the next apply submits them")
    add("--image", help="the image that runs Python packages, in containers, whose image is past its end")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")


def _report(parser: argparse.ArgumentParser) -> None:
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--comment",
        type=path,
        metavar="FILE",
        help="only write FILE as this run's comment on its pull request",
    )
    instead.add_argument(
        "--html",
        type=path,
        metavar="DIR",
        help="only write the report as HTML pages to DIR",
    )
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


_COMMANDS = (
    _Spec("validate", "check manifests offline", _validate),
    _Spec("plan", "show what apply would do, and any drift", _plan),
    _Spec("apply", "submit, retry and cancel jobs as planned", _apply),
    _Spec("status", "show jobs and their states", _status),
    _Spec("show", "show a job's state, cause, results and log", _show, "status", "show"),
    _Spec("logs", "show a job's log", _logs),
    _Spec("tensorboard", "open TensorBoard on a job's logs", _tensorboard, "logs", "tensorboard"),
    _Spec("cancel", "stop runs and report how each ended", _cancel, "job", "cancel_runs"),
    _Spec("report", "post commit statuses for jobs that changed", _report),
    _Spec("open", "show jobs, runs and logs as live pages in a browser", _open),
    _Spec("watch", "run continuously: apply on every change", _watch),
    _Spec("rerun", 'run a job again by changing "rerun" in its manifest', _rerun, "job", "rerun"),
    _Spec("render", "print the exact API request body", _manifest, "job", "render"),
    _Spec("resolve", "resolve a submission whose outcome is unknown", _resolve),
    _Spec("init", "set up a repository and print the next steps", _init),
    _Spec("import", "write manifests for jobs that gcloud commands describe", _import, "import_jobs"),
    _Spec("migrate", "move jobs off AI Platform and off images past their end", _migrate),
    _Spec("schema", "print a JSON Schema", _schema, "validate", "print_schema"),
    _Spec(
        "env",
        "print settings for other clients of the embedded service",
        _env,
        "service",
        "print_settings",
    ),
    _Spec("run", "run a program whose requests to Google reach the embedded service", _program),
    _Spec("serve", "run the embedded training service in the foreground", _serve, "service", "serve"),
    _Spec("completion", "print the completion script of bash, zsh or fish", _completion),
)
