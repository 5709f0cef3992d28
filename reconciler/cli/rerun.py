"""`reconciler rerun`: a changed `rerun` in a job's manifest."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from reconciler.base.errors import ExitCode, NotFoundError, ReconcilerError
from reconciler.base.replaced_files import write_file
from reconciler.base.sanitize import one_line
from reconciler.cli.context import context_of
from reconciler.cli.flags import complete_with, job_names
from reconciler.git.commit import commit_file
from reconciler.manifests.yaml_load import position_in, with_rerun
from reconciler.model.manifest import Manifest
from reconciler.model.plan import DesiredJob
from reconciler.operations.load_desired import load_desired
from reconciler.planning.attempts import base_of

EXAMPLES = "reconciler rerun census-income --commit"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    name = parser.add_argument("name", metavar="NAME", help="a base name, or the job name of one of its runs")
    complete_with(name, job_names)
    parser.add_argument("--commit", action="store_true", help="also commit the manifest, and nothing else")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Change `rerun` in a job's manifest, so that the next apply runs the same content again."""
    context = context_of(arguments)
    root = context.config.root
    manifest = _named(arguments.name, load_desired(context.config, context.environment, []).jobs)
    file = root / manifest.path
    value = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if manifest.reconcile.rerun == value:
        raise ReconcilerError(f'{manifest.path} already has this "rerun"', hint="try again in a second")
    try:
        data = with_rerun(file.read_bytes(), manifest.line, value)
        committed = ""
        if arguments.commit:
            committed = commit_file(root, manifest.path, data, f"Run {manifest.name} again")
        else:
            write_file(file, data)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        line, _ = position_in(file, ("reconcile",), manifest.line)
        hint = f'write it there yourself: reconcile: {{rerun: "{value}"}}'
        raise ReconcilerError(f"can't edit {manifest.path}:{line}: {said}", hint=hint) from None
    line, _ = position_in(file, ("reconcile", "rerun"), manifest.line)
    done = f"committed as {committed[:12]}" if committed else "commit it"
    print(one_line(f'{manifest.path}:{line}: rerun is "{value}"; {done}, and the next apply runs it again'))
    return ExitCode.DONE


def _named(name: str, jobs: tuple[DesiredJob, ...]) -> Manifest:
    """Return the manifest of a base name, or of the name of any of its runs; raise NotFoundError."""
    bases = (name.replace("-", "_"), base_of(name))
    for job in jobs:
        if job.manifest.base_name in bases:
            return job.manifest
    raise NotFoundError(f'no manifest is named "{name}"', hint="see `reconciler status`")
