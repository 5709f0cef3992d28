"""Flags that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from types import ModuleType

from reconciler.cli.flag_types import path, terms

FULL = "also read all ended runs and their claims, as an audit"
YES = "don't ask for confirmation in a Google Cloud environment"


def complete_with(action: argparse.Action, candidates: Callable[..., Iterable[str]]) -> None:
    """Have the shell offer these words for a flag's value; none where the function raises an error."""
    # This is how argcomplete's documentation sets a completer.
    action.completer = candidates  # type: ignore[attr-defined]


def job_names(**_: object) -> Iterable[str]:
    """Return the names of the repository's manifests, to be offered by the shell."""
    names: Iterable[str] = _completion().job_names()
    return names


def _environments(**_: object) -> Iterable[str]:
    names: Iterable[str] = _completion().environments()
    return names


def _completion() -> ModuleType:
    from reconciler.cli import completion  # slow to import: for a shell's Tab alone

    return completion


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command."""
    group = parser.add_argument_group("common flags")
    env = group.add_argument(
        "--env", metavar="NAME", help="environment in reconciler.yaml (default: RECONCILER_ENV, or local)"
    )
    complete_with(env, _environments)
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of messages on stderr (default: text)",
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print more detail")
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")


def add_reports(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that post how jobs ended."""
    add = parser.add_argument_group("on GitHub").add_argument
    add(
        "--comment-merged",
        action="store_true",
        help="comment on the merged pull request when its first job has failed, or its last has ended",
    )
    add(
        "--fail-on-new-failure",
        action="store_true",
        help="exit 1 if this run is the first to report that a job has failed",
    )


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the paths of manifests."""
    parser.add_argument(
        "paths", nargs="*", type=path, metavar="PATH", help="manifest files or folders (default: jobs)"
    )


def add_format(parser: argparse.ArgumentParser, *choices: str) -> None:
    """Add `--format`; the first choice, text, is the default."""
    parser.add_argument("--format", choices=choices, default="text", help="output format (default: text)")


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the name of a run: a base name or a job name."""
    name = parser.add_argument(
        "name", metavar="NAME", help="a base name (the run of its manifest's content) or a job name"
    )
    complete_with(name, job_names)


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Add the label selector `-l`, whose terms are `terms`."""
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


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add `--job`, whose values are `names`, and the label selector."""
    names = parser.add_argument(
        "--job",
        dest="names",
        action="append",
        default=[],
        metavar="NAME",
        help="only the job with this base name or job name; may be repeated",
    )
    complete_with(names, job_names)
    add_labels(parser)
