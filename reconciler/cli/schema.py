"""`reconciler schema`: the JSON Schema of manifests."""

from __future__ import annotations

import argparse

from reconciler.base.errors import ExitCode, NotFoundError
from reconciler.cli import print_json
from reconciler.cli.flags import complete_with
from reconciler.manifests import schemas

EXAMPLES = "reconciler schema CustomJob"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    kind = parser.add_argument(
        "kind", nargs="?", metavar="KIND", help="CustomJob, Job, … (default: any manifest)"
    )
    complete_with(kind, lambda **_: [kind for _, kind in schemas.KINDS])


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the JSON Schema of a kind, or of any manifest."""
    names = {kind: name for (_, kind), name in schemas.KINDS.items()}
    if arguments.kind not in (None, *names):
        kinds = ", ".join(sorted(names))
        raise NotFoundError(f'there is no kind "{arguments.kind}"', hint=f"the kinds are {kinds}")
    print_json(schemas.document(names.get(arguments.kind, schemas.ANY_KIND)))
    return ExitCode.DONE
