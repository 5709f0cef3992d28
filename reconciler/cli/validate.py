"""`reconciler validate`: the check of manifests, offline."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from msgspec.structs import replace

from reconciler.base.diagnostics import Problem, UnplacedWarning, capped, in_checkout
from reconciler.base.errors import ExitCode, InvalidError
from reconciler.cli import print_json
from reconciler.cli.flags import add_format, add_paths
from reconciler.git.index import GitIndex
from reconciler.manifests.settings import FILE_NAME, Environment, check_found, find_root, load_config
from reconciler.manifests.training_images import image_warnings
from reconciler.manifests.validate import validate
from reconciler.manifests.warnings import WarningSummary, warnings_of
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
        "--strict",
        action="store_true",
        help="treat warnings, such as an unknown machine type, as errors, but for acknowledged ones",
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
    unfit, code = _code_problems(root, validation.manifests, environment, index)
    errors = [*validation.problems, *capped(unfit), *publications.errors]
    images = image_warnings(validation.manifests, date.today())
    folders = folder_warnings(validation.manifests, environment)
    of_manifests = (*missing, *validation.warnings, *code, *images, *folders, *publications.warnings)
    warnings = warnings_of(config, (*config.warnings, *of_manifests))
    if arguments.format == "json":
        problems = sorted([*errors, *warnings.placed()])
        print_json(validation_json(validation.files, problems, warnings.acknowledged))
    elif arguments.format == "github":
        summary = _in_checkout(warnings.summary(), root)
        print(validation_github(validation.files, in_checkout(sorted(errors), root), summary))
    else:
        summary = warnings.summary(in_full=arguments.verbose)
        # Warnings about the settings are in a further file, `reconciler.yaml`.
        files = validation.files and validation.files + (FILE_NAME in summary.paths)
        print(validation_text(files, sorted(errors), summary))
    return ExitCode.INVALID if errors or (warnings and arguments.strict) else ExitCode.DONE


def _in_checkout(summary: WarningSummary, root: Path) -> WarningSummary:
    """Return a summary with the paths that GitHub resolves."""
    groups = [replace(group, first=tuple(in_checkout(group.first, root))) for group in summary.groups]
    return replace(summary, groups=tuple(groups))


def _code_problems(
    root: Path, manifests: Sequence[Manifest], environment: Environment, index: GitIndex
) -> tuple[list[Problem], list[UnplacedWarning]]:
    """Return why code can't be staged, and the warnings about code that can."""
    if all(manifest.package is None for manifest in manifests):
        return [], []
    from reconciler.operations.code_warnings import code_problems  # slow to import; most have no package

    return code_problems(root, manifests, environment, index)
