"""Commands and their flags; a command's module is imported when it runs, which keeps `--help` fast."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from reconciler import __version__
from reconciler.base.errors import ExitCode, UsageError
from reconciler.cli.values import (
    COLUMNS,
    EXAMPLES,
    count,
    digest,
    path,
    port,
    seconds,
    terminal_columns,
    terms,
    trial,
    words,
)

_WITHOUT_HOME = frozenset({"completion", "schema", "trust"})  # "trust" accepts or refuses the home itself
_WITH_VALUE, _SWITCHES = ("--env", "--log-format"), ("--verbose", "-v", "--quiet", "-q")
_YES = "don't ask before anything is done in Google Cloud"
_Flags = Callable[[argparse.ArgumentParser], None]


class _Parser(argparse.ArgumentParser):
    """Parser that raises UsageError; argparse itself exits with 2, which means pending changes here."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")


class _Spec(NamedTuple):
    """A command: its name, help text, example, and flags in addition to the common ones.

    Attributes:
        module: The module of `cli` that runs it; by default that of its name.
        function: The module's function.
    """

    name: str
    summary: str
    example: str
    flags: _Flags
    module: str = ""
    function: str = "run"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line into a namespace; its `command` runs the command. Raise UsageError."""
    argv = _with_command_first(argv)
    if argv[:1] == ["version"]:
        argv = ["--version"]
    elif argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    if argv[:1] not in ([], ["-h"], ["--help"], ["--version"]):
        _check_command(argv[0])
    # A command line to import is no command line of ours: argparse must not read its flags.
    place = argv.index("--") if argv[:1] == ["import"] and "--" in argv else len(argv)
    arguments, unknown = parser_of(argv).parse_known_args(argv[:place])
    if argv[place:]:
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
        raise UsageError(f"{name} needs a command before it", hint="see `reconciler --help`")
    if name not in (names := [spec.name for spec in _COMMANDS]):
        raise UsageError(f"there is no command {name!r}", hint=_hint(name, names, "reconciler"))


def _refuse_unknown(argument: str, command: str) -> NoReturn:
    """Raise UsageError for an argument that the command doesn't take."""
    program = f"reconciler {command}"
    parser = _Parser(prog=program)
    spec = next(spec for spec in _COMMANDS if spec.name == command)
    spec.flags(parser)
    _common(parser)
    if not argument.startswith("-"):
        raise UsageError(f"{command} takes no further argument: {argument!r}", hint=f"see `{program} --help`")
    flag = argument.partition("=")[0]
    # argparse has no public way to ask for the flags.
    known = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    raise UsageError(f"{command} has no flag {flag}", hint=_hint(flag, known, program))


def _hint(word: str, known: Sequence[str], program: str) -> str:
    from reconciler.manifests.findings import similar_word  # slow to import

    similar = similar_word(word, known)
    return f"did you mean {similar}? See `{program} --help`" if similar else f"see `{program} --help`"


def parser_of(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that `argv` begins with; of all commands if it begins with none."""
    # Without an explicit width, argparse imports `shutil` to find it, which slows every command down.
    width = (terminal_columns() or COLUMNS) - 2  # argparse's own default
    parser = _Parser(
        prog="reconciler",
        formatter_class=partial(argparse.HelpFormatter, width=width),
        description="Makes the cloud agree with a repository of training jobs kept as YAML.",
        epilog="exit codes: 0 done, 1 something failed, 2 changes pending (plan --detailed-exitcode), "
        "3 invalid manifests or configuration, 4 refused by a limit or a stale plan, 64 wrong usage",
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
            epilog=f"example:\n  {spec.example}",
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=width),
        )
        spec.flags(sub)
        _common(sub)
        sub.set_defaults(command=partial(_run, spec))
    return parser


def _run(spec: _Spec, arguments: argparse.Namespace) -> ExitCode:
    if spec.name not in _WITHOUT_HOME:
        _refuse_foreign_home()
    module: Any = import_module(f"reconciler.cli.{spec.module or spec.name}")
    code: ExitCode = getattr(module, spec.function)(arguments)
    return code


def _refuse_foreign_home() -> None:
    """Raise HomeError if another person may have made the home."""
    # A foreign home may contain anything, so this check precedes every read of it.
    from pathlib import Path

    from reconciler.base.state_dir_trust import home_of
    from reconciler.manifests.settings import find_root

    home_of(find_root(Path.cwd()), os.environ)


def _common(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("common flags")
    group.add_argument("--env", metavar="NAME", help="environment of reconciler.yaml (RECONCILER_ENV; local)")
    group.add_argument("--log-format", choices=("text", "json"), default="text", help="what goes to stderr")
    group.add_argument("-v", "--verbose", action="store_true", help="tell more")
    group.add_argument("-q", "--quiet", action="store_true", help="tell errors only")


def _paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", type=path, metavar="PATH", help="files or folders of manifests (default: jobs)"
    )


def _format(parser: argparse.ArgumentParser, *choices: str) -> None:
    parser.add_argument("--format", choices=choices, default="text", help="what goes to stdout (text)")


def _validate(parser: argparse.ArgumentParser) -> None:
    _paths(parser)
    _format(parser, "text", "json", "github")
    parser.add_argument(
        "--strict", action="store_true", help="exit 3 also for warnings, such as an unknown machine type"
    )


def _plan(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _paths(parser)
    _selection(parser)
    _format(parser, "text", "json", "markdown")
    add("--base", metavar="REF", help="changes since HEAD left this commit or branch; asks no service")
    add(
        "--output-dir",
        type=path,
        metavar="DIR",
        help="with --base, also write comment.md, summary.md and plan.md there",
    )
    add("--detailed-exitcode", action="store_true", help="exit 2 if there is something to do")
    add("--drift", action="store_true", help="with --detailed-exitcode, exit 2 for drift too")


def _apply(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _paths(parser)
    _selection(parser)
    _format(parser, "text", "json")
    add("--wait", action="store_true", help="until the jobs have ended; 1 if a job hasn't succeeded")
    add("--plan-digest", type=digest, metavar="sha256:…", help="refuse if the plan is no longer this one")
    add("--yes", action="store_true", help=_YES)


def _status(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="base names or job names (default: all)")
    _format(parser, "text", "json")
    _labels(parser)
    add("--state", type=words, action="extend", metavar="STATE", help="only these: failed, running, held, …")
    add("--limit", type=count, metavar="N", help="at most N jobs, the most urgent ones first")
    add("--all", action="store_true", help="all runs that there ever were, the newest first")
    add("--wide", action="store_true", help="more columns, and none cut off")


def _labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-l",
        "--selector",
        dest="terms",
        type=terms,
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="only jobs with this label; also KEY!=VALUE, KEY, and several with commas",
    )


def _cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="base names (their newest runs) or job names"
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
        help="only the manifest of this base name or job name; may be repeated",
    )
    _labels(parser)


def _show(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    _format(parser, "text", "json", "yaml")


def _watch(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    remote = parser.add_argument_group("a branch of a remote in place of the files here")
    remote.add_argument("--remote", metavar="URL", help="https, ssh or file; fetched, and checked out apart")
    remote.add_argument("--branch", metavar="NAME", help="the branch (main)")
    remote.add_argument("--interval", type=seconds, metavar="SECONDS", help="between two fetches (60)")
    add("--resync", type=seconds, default=300.0, metavar="SECONDS", help="between two passes, at most (300)")
    add(
        "--listen",
        metavar="127.0.0.1:PORT",
        help="serve /healthz, /metrics and pages there, to this machine alone",
    )


def _logs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _name(parser)
    add("-f", "--follow", action="store_true", help="go on until the job has ended")
    add(
        "--replica",
        metavar="REPLICA",
        help="one replica alone, such as workerpool1-0 or worker-replica-0; the service's own words: service",
    )
    add("--trial", type=trial, metavar="N", help="one trial of a tuning job alone, from 1")


def _tensorboard(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    parser.add_argument(
        "--port",
        type=port,
        metavar="N",
        help="on this machine (TensorBoard's own choice: 6006, or a later one)",
    )


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a base name (its newest run) or a job name")


def _manifest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a manifest's base name, or the job name that it gives now"
    )


def _schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help="CustomJob, Job, … (default: any manifest)")


def _init(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--action", metavar="OWNER/REPO@SHA", help="the commit that workflows take the reconciler from")
    add("--engine", choices=("local", "google"), help="where jobs run (local)")
    google = parser.add_argument_group("with --engine google; --env names the environment (production)")
    google.add_argument("--project", metavar="ID", help="the project's id")
    google.add_argument("--location", metavar="REGION", help="the region, such as us-central1")
    google.add_argument("--staging-bucket", metavar="BUCKET", help="where packages are uploaded")
    google.add_argument(
        "--claims-bucket", metavar="BUCKET", help="where claims are kept (STAGING-BUCKET-claims)"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--steps",
        choices=("github", "google"),
        help="write nothing; print what a person has to do on GitHub, or in Google Cloud, as commands",
    )
    instead.add_argument(
        "--claims",
        action="store_true",
        help="instead of all this, make the claims bucket of the environment where it isn't there, and print "
        "who needs which permission",
    )


def _env(parser: argparse.ArgumentParser) -> None:
    forms = ("shell", "json", "python")
    parser.add_argument("--format", choices=forms, default="shell", help="the form of the lines (shell)")


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stop", action="store_true", help="end the service that runs")
    parser.add_argument("--port", type=port, metavar="PORT", help="the port to serve at (any free one)")


def _open(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-browser", action="store_true", help="print the link, and open nothing")
    parser.add_argument("--port", type=port, metavar="N", help="on this machine (any free one)")


def _trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="accept the home without a question")


def _resolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="a job name, or a base name with one submission that isn't settled"
    )
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--resubmit", action="store_true", help="send it again, as soon as no earlier request can act")
    add("--give-up", action="store_true", help="never send it again; its job is bound if it appears")


def _rerun(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a manifest's base name, or the name of one of its runs")
    parser.add_argument("--commit", action="store_true", help="commit the manifest as well, and nothing else")


def _import(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("sources", nargs="*", metavar="SOURCE", help="files, - for standard input; or -- and a command line")
    add("-o", "--output", type=path, metavar="PATH", help="a folder, or a .yaml file for all jobs (jobs)")
    add("--live", action="store_true", help="jobs of the environment; SOURCE is then a job's name")
    _labels(parser)
    add("--dry-run", action="store_true", help="print the manifests, and write nothing")
    add("--force", action="store_true", help="overwrite files with other content")
    add("--run", action="store_true", help="don't suspend jobs that have ended: they run again")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="the value of a variable or <NAME>")
    add("--set-file", action="append", default=[], metavar="NAME=FILE", help="the same, from a file")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")


def _report(parser: argparse.ArgumentParser) -> None:
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--comment",
        type=path,
        metavar="FILE",
        help="instead, keep one comment on this run's pull request up to date with the file's text",
    )
    instead.add_argument(
        "--html",
        type=path,
        metavar="DIR",
        help="instead, write pages to look at into a folder; posts nothing",
    )
    add = parser.add_argument_group("with --html").add_argument
    add("--logs", action="store_true", help="with the last lines of each job's log")
    add(
        "--env-values",
        action="store_true",
        help="with the values of environment variables, not their names alone",
    )
    add("--limit", type=count, metavar="N", help="pages for the newest N runs (1000)")
    add("--timezone", metavar="ZONE", help="show times in a zone such as Europe/Berlin (UTC)")
    add("--force", action="store_true", help="write into a folder with other files too")


_COMMANDS = (
    _Spec("validate", "check manifests, offline", "reconciler validate jobs/", _validate),
    _Spec("plan", "show what apply would do, and the drift", EXAMPLES["plan"], _plan),
    _Spec("apply", "submit what is missing", "reconciler apply --wait", _apply),
    _Spec("status", "show jobs and their states", EXAMPLES["status"], _status),
    _Spec("show", "show one job: its cause, times, results and log", "reconciler show census-income", _show),
    _Spec("logs", "show a job's log", EXAMPLES["logs"], _logs),
    _Spec(
        "tensorboard",
        "open TensorBoard on what a job logs for it",
        "reconciler tensorboard census-income --port 6006",
        _tensorboard,
    ),
    _Spec("cancel", "stop a run, and say how it really ended", EXAMPLES["cancel"], _cancel),
    _Spec("report", "post commit statuses for what has changed", EXAMPLES["report"], _report),
    _Spec("open", "show jobs, runs and logs as live pages in a browser", "reconciler open", _open),
    _Spec(
        "watch",
        "keep jobs as the manifests say, for ever",
        "reconciler watch --listen 127.0.0.1:9464",
        _watch,
    ),
    _Spec(
        "rerun",
        "change rerun in a job's manifest, so that the same content runs again",
        "reconciler rerun census-income --commit",
        _rerun,
        "manifest",
        "rerun",
    ),
    _Spec(
        "render",
        "print the exact API request body",
        "reconciler render census-income",
        _manifest,
        "manifest",
        "render",
    ),
    _Spec(
        "resolve",
        "settle a submission whose outcome stayed unknown",
        "reconciler resolve census-income --resubmit",
        _resolve,
    ),
    _Spec(
        "init",
        "set up a repository, and print what is left to do",
        "reconciler init\n  reconciler init --steps github\n  reconciler init --claims --env production",
        _init,
    ),
    _Spec(
        "import", "write manifests of jobs from gcloud's commands", EXAMPLES["import"], _import, "import_jobs"
    ),
    _Spec(
        "schema", "print a JSON Schema", "reconciler schema CustomJob", _schema, "validate", "print_schema"
    ),
    _Spec(
        "env",
        "print what other clients need to use the embedded training service",
        'eval "$(reconciler env)"',
        _env,
        "service",
        "print_settings",
    ),
    _Spec(
        "serve",
        "run the embedded training service in the foreground",
        "reconciler serve",
        _serve,
        "service",
        "serve",
    ),
    _Spec(
        "completion",
        "print the script that completes commands, flags and job names in a shell",
        EXAMPLES["completion"],
        _completion,
    ),
    _Spec(
        "trust",
        "show the content of the home in this checkout, and accept it as yours",
        "reconciler trust --yes",
        _trust,
    ),
)
