"""`reconciler verify`: a publication, compared with the repository and with its files."""

from __future__ import annotations

import argparse
import os

from reconciler.base.diagnostics import counted
from reconciler.base.errors import ExitCode
from reconciler.base.sanitize import one_line
from reconciler.cli import print_json
from reconciler.cli.context import context_of
from reconciler.cli.flags import add_format, complete_with, job_names
from reconciler.operations.verify import Verification, address_of, verify
from reconciler.output.details import size_text
from reconciler.output.publication import UNSIGNED, publication_line, verified_json

EXAMPLES = """reconciler verify census-income
  reconciler verify gs://risk-models/census-income/current.json"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    name = parser.add_argument(
        "name",
        metavar="NAME",
        help="a base name, or gs://…/current.json; nothing is downloaded: sizes and checksums are those that "
        "Cloud Storage lists (`reconciler fetch` computes them)",
    )
    complete_with(name, job_names)
    add_format(parser, "text", "json")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Compare a publication with the repository and its files; the exit code is 1 if anything differs."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        found = verify(session, address_of(session, arguments.name), os.environ)
    if arguments.format == "json":
        differences = [(str(one.kind), one.message) for one in found.differences]
        print_json(verified_json(found.to, found.current, found.model, differences))
    else:
        print("\n".join(map(one_line, _lines(found))))
    return ExitCode.FAILED if found.differences else ExitCode.DONE


def _lines(found: Verification) -> list[str]:
    files = found.model.files if found.model else ()
    size = size_text(sum(file.size for file in files))
    if found.differences:
        result = [f"✗ {one.message}" for one in found.differences]
    else:
        result = [
            f"✓ its name is that of {found.current.base_name} at commit {found.current.commit[:12]}",
            f"✓ {counted(len(files), 'file')}, {size}: sizes and checksums are the recorded ones",
        ]
    return [publication_line(found.current), f"in {found.current.folder}", *result, UNSIGNED]
