"""`reconciler show`: a job's state, cause, results and log."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from datetime import UTC, datetime

from reconciler.base.errors import ExitCode
from reconciler.cli import has_colours, print_json
from reconciler.cli.context import context_of
from reconciler.cli.flags import add_format, add_name
from reconciler.operations.named_job import find_job
from reconciler.operations.show import job_details
from reconciler.output.details import details_text, resource_yaml
from reconciler.output.json import details_json

EXAMPLES = "reconciler show census-income"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_name(parser)
    add_format(parser, "text", "json", "yaml")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print all that is known of one job."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        job = find_job(session, arguments.name)
        if arguments.format == "yaml":
            print(resource_yaml(job.body()), end="")
            return ExitCode.DONE
        details = job_details(session, job, os.environ)
    if arguments.format == "json":
        print_json(details_json(details))
    else:
        colour = has_colours(sys.stdout)
        print(details_text(details, datetime.now(UTC), _width(), colour=colour))
    return ExitCode.DONE


def _width() -> int | None:
    """Return the terminal's columns; None for a pipe or a file, where nothing is cut or wrapped."""
    return shutil.get_terminal_size((0, 0)).columns or None
