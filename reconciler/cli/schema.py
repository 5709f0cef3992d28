"""The command `schema`."""

from __future__ import annotations

import argparse

from reconciler.base.errors import ExitCode, NotFoundError
from reconciler.cli import print_json
from reconciler.manifests import schemas


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the JSON Schema of a kind, or of any manifest."""
    if arguments.kind is None:
        print_json(schemas.document(schemas.ANY_KIND))
        return ExitCode.DONE
    for (_, kind), name in schemas.KINDS.items():
        if kind == arguments.kind:
            print_json(schemas.document(name))
            return ExitCode.DONE
    known = ", ".join(sorted(kind for _, kind in schemas.KINDS))
    raise NotFoundError(f'there is no kind "{arguments.kind}"', hint=f"the kinds are {known}")
