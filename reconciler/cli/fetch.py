"""`reconciler fetch`: the published model, or the files of a run, in a new folder."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from reconciler.base.diagnostics import counted
from reconciler.base.errors import ExitCode, UsageError
from reconciler.base.new_folder import check_new
from reconciler.base.sanitize import one_line
from reconciler.cli import print_json
from reconciler.cli.context import context_of
from reconciler.cli.flags import add_format, add_name
from reconciler.operations.fetch import Progress, RemoteFolder, fetch, find_folder
from reconciler.output.details import size_text
from reconciler.output.publication import fetched_json, publication_line

EXAMPLES = """reconciler fetch census-income
  reconciler fetch census-income models/old --run census_income_0011223344556677"""

_EVERY = 5.0  # seconds between two lines of progress


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_name(parser)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="a folder that is new or empty, which gets all files or none (default: NAME, where you are)",
    )
    parser.add_argument("--run", default="", metavar="JOB_NAME", help="fetch the files of this run")
    add_format(parser, "text", "json")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Fetch the published model of a job, else the files of its run, with their checksums verified."""
    folder = _folder(arguments)
    check_new(folder)
    context = context_of(arguments)
    with context.session(start=False) as session:
        remote = find_folder(session, arguments.name, arguments.run)
        is_text = arguments.format == "text"
        if is_text and not arguments.quiet:
            print("\n".join(map(one_line, _head(remote))), flush=True)
        fetch(session, remote, folder, _listener(remote, is_quiet=arguments.quiet))
    if is_text:
        print(f"{counted(len(remote.files), 'file')}, {size_text(remote.size)}: {one_line(str(folder))}")
    else:
        print_json(fetched_json(remote.current, remote.job_name, remote.uri, str(folder), _files(remote)))
    return ExitCode.DONE


def _folder(arguments: argparse.Namespace) -> Path:
    """Return the absolute path of the folder; raise UsageError if the name can't be one."""
    if arguments.folder is None and Path(arguments.name).name != arguments.name:
        raise UsageError(f"{arguments.name!r} is no name of a job", hint="see `reconciler status`")
    return Path(os.path.normpath(Path(arguments.folder or arguments.name).absolute()))


def _head(remote: RemoteFolder) -> list[str]:
    what = publication_line(remote.current) if remote.current else f"{remote.job_name}, the files of a run"
    return [what, f"{counted(len(remote.files), 'file')}, {size_text(remote.size)}, from {remote.uri}"]


def _files(remote: RemoteFolder) -> list[tuple[str, int, str]]:
    return [(file.name, file.size, file.crc32c) for file in remote.files]


def _listener(remote: RemoteFolder, *, is_quiet: bool) -> Callable[[Progress], None]:
    """Return a listener that prints a line every few seconds, so that long work is seen to go on."""
    printed = time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal printed
        if is_quiet or time.monotonic() - printed < _EVERY:
            return
        printed = time.monotonic()
        sizes = f"{size_text(progress.size)} of {size_text(remote.size)}"
        print(
            f"  {progress.files} of {counted(len(remote.files), 'file')}, {sizes}",
            file=sys.stderr,
            flush=True,
        )

    return report
