"""The commands `render` and `rerun`: one manifest as the service gets it, and run again."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime

from reconciler.base.errors import ExitCode, NotFoundError, ReconcilerError
from reconciler.base.sanitize import one_line
from reconciler.cli import print_json
from reconciler.cli.context import context_of
from reconciler.git.commit import commit_file, write_file
from reconciler.manifests.yaml_load import position_in, with_rerun
from reconciler.model.claim import ClaimId
from reconciler.model.manifest import Manifest
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.operations.execute import labels_of
from reconciler.operations.load_desired import load_desired
from reconciler.operations.origin import origin_of
from reconciler.operations.plan import request_body
from reconciler.planning.attempts import base_of


def render(arguments: argparse.Namespace) -> ExitCode:
    """Print the body that a first submission of the job would send."""
    # Only the id of the request is missing: each submission has a new one.
    context = context_of(arguments)
    desired = load_desired(context.config, context.environment, [])
    base = arguments.name.replace("-", "_")
    for job in desired.jobs:
        if job.job_name == arguments.name or job.manifest.base_name == base:
            origin = origin_of(context.config, desired, [job], os.environ, whole=False)
            id, commit = ClaimId(label_of(job.identity)), origin.commit_of(job)
            labels = labels_of(job, context.config.source, commit, id, context.environment.instance)
            print_json(request_body(job, desired, context.environment.staging_bucket, job.job_name, labels))
            return ExitCode.DONE
    raise NotFoundError(
        f'no manifest is called "{arguments.name}"',
        hint="render shows manifests as they are now, not earlier runs",
    )


def rerun(arguments: argparse.Namespace) -> ExitCode:
    """Change `rerun` in a job's manifest, so that the next apply runs the same content again."""
    context = context_of(arguments)
    root = context.config.root
    manifest = _named(arguments.name, load_desired(context.config, context.environment, []).jobs)
    file = root / manifest.path
    value = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if manifest.reconcile.rerun == value:
        raise ReconcilerError(f'{manifest.path} has this "rerun" already', hint="try again in a second")
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
        hint = f'write there yourself: reconcile: {{rerun: "{value}"}}'
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
    raise NotFoundError(f'no manifest is called "{name}"', hint="see `reconciler status`")
