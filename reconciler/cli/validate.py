"""`reconciler validate`: the check of manifests, offline."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from reconciler.base.diagnostics import Problem, capped, in_checkout
from reconciler.base.errors import ExitCode, InvalidError
from reconciler.cli import print_json
from reconciler.cli.flags import add_format, add_paths
from reconciler.git.index import GitIndex
from reconciler.manifests.settings import FILE_NAME, Environment, check_found, find_root, load_config
from reconciler.manifests.training_images import image_warnings
from reconciler.manifests.validate import validate
from reconciler.model.manifest import Manifest
from reconciler.operations.folder_warnings import folder_warnings
from reconciler.operations.jobs_folder import manifest_paths
from reconciler.operations.publication_rules import publication_problems
from reconciler.output.problems import validation_github, validation_json, validation_text

EXAMPLES = "reconciler validate jobs/"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_paths(parser)
    add_format(parser, "text", "json", "github")
    parser.add_argument(
        "--strict", action="store_true", help="treat warnings, such as an unknown machine type, as errors"
    )


def run(arguments: argparse.Namespace) -> ExitCode:
    """Check the manifests and print every problem and warning."""
    root = find_root(Path.cwd())
    try:
        config = load_config(root)
        environment = config.environment(arguments.env)
    except InvalidError as error:
        if arguments.format != "github":
            raise
        print(validation_github(1, in_checkout(error.problems, root)))
        return ExitCode.INVALID
    paths, missing = manifest_paths(root, arguments.paths)
    index = GitIndex(root, os.environ)
    validation = validate(root, paths, environment.filled, index=index, with_identities=False)
    check_found(validation, arguments.paths)
    publications = publication_problems(root, validation.manifests, config, environment)
    unfit, doubtful = _code_problems(root, validation.manifests, environment, index)
    errors = [*validation.problems, *capped(unfit), *publications.errors]
    images = capped(image_warnings(validation.manifests, date.today()))
    folders = capped(folder_warnings(root, validation.manifests, environment))
    code = capped(doubtful)
    warnings = [*config.warnings, *missing, *validation.warnings, *code, *images, *folders]
    warnings += publications.warnings
    problems = sorted([*errors, *warnings])
    if arguments.format == "json":
        print_json(validation_json(validation.files, problems))
    elif arguments.format == "github":
        print(validation_github(validation.files, in_checkout(problems, root)))
    else:
        # Warnings about the settings are in a further file, `reconciler.yaml`.
        files = validation.files and validation.files + any(problem.path == FILE_NAME for problem in problems)
        print(validation_text(files, problems))
    return ExitCode.INVALID if errors or (problems and arguments.strict) else ExitCode.DONE


def _code_problems(
    root: Path, manifests: Sequence[Manifest], environment: Environment, index: GitIndex
) -> tuple[list[Problem], list[Problem]]:
    """Return why code can't be staged, and the warnings about code that can."""
    if all(manifest.package is None for manifest in manifests):
        return [], []
    from reconciler.operations.code_warnings import code_problems  # slow to import; most have no package

    return code_problems(root, manifests, environment, index)
