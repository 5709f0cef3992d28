"""`reconciler render`: the exact body of a request."""

from __future__ import annotations

import argparse
import os

from reconciler.base.errors import ExitCode, NotFoundError
from reconciler.cli import print_json
from reconciler.cli.context import context_of
from reconciler.cli.flags import complete_with, job_names
from reconciler.model.claim import ClaimId
from reconciler.model.naming import label_of
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.execute import labels_of
from reconciler.operations.load_desired import load_desired
from reconciler.operations.origin import origin_of
from reconciler.operations.plan import request_body

EXAMPLES = "reconciler render census-income"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    name = parser.add_argument("name", metavar="NAME", help="a base name, or the job name of a manifest")
    complete_with(name, job_names)


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the body that a first submission of the job would send."""
    # Only the id of the request is missing: each submission has a new one.
    context = context_of(arguments)
    desired = load_desired(context.config, context.environment, [], use=CodeUse.STAGED)
    base = arguments.name.replace("-", "_")
    for job in desired.jobs:
        if job.job_name == arguments.name or job.manifest.base_name == base:
            origin = origin_of(context.config, desired, [job], os.environ, whole=False)
            id, commit = ClaimId(label_of(job.identity)), origin.commit_of(job)
            labels = labels_of(job, context.config.source, commit, id, context.environment.instance)
            print_json(request_body(job, desired, context.environment.staging_bucket, job.job_name, labels))
            return ExitCode.DONE
    raise NotFoundError(
        f'no manifest is named "{arguments.name}"',
        hint="render shows manifests as they are now, not earlier runs",
    )
