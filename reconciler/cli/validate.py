"""`reconciler validate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from reconciler.cli.output import print_json
from reconciler.config import find_root, load_config
from reconciler.desired import code_problems
from reconciler.diagnostics import capped
from reconciler.errors import ExitCode
from reconciler.jsonforms import validation_json
from reconciler.reconcile import check_found, manifest_paths
from reconciler.render import validation_github, validation_text
from reconciler.validation.validate import validate


def run(arguments: argparse.Namespace) -> ExitCode:
    """Check the manifests and print every problem."""
    root = find_root(Path.cwd())
    filled = frozenset(load_config(root).environment(arguments.env).defaults)
    found = validate(root, manifest_paths(root, arguments.paths), filled)
    check_found(found, arguments.paths)
    problems = sorted([*found.problems, *capped(code_problems(root, found.manifests))])
    if arguments.format == "json":
        print_json(validation_json(found.files, problems))
    elif arguments.format == "github":
        print(validation_github(found.files, problems))
    else:
        print(validation_text(found.files, problems))
    return ExitCode.INVALID if problems else ExitCode.DONE
