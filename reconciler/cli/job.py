"""The commands `cancel`, `render` and `rerun`: jobs that a person names."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime

from reconciler.base.errors import ExitCode, NotFoundError, ReconcilerError, ServiceError, UsageError
from reconciler.base.replaced_files import write_file
from reconciler.base.sanitize import one_line
from reconciler.cli import print_error, print_json, print_lines
from reconciler.cli.context import Context, confirm, context_of, newest_run, readable_jobs, selection_of
from reconciler.cli.progress import progress
from reconciler.git.commit import commit_file
from reconciler.google.session import Session
from reconciler.manifests.yaml_load import position_in, with_rerun
from reconciler.model.claim import BY_COMMAND, ClaimId
from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import Manifest
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.selection import Selection
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.execute import labels_of
from reconciler.operations.load_desired import load_desired
from reconciler.operations.origin import origin_of
from reconciler.operations.plan import request_body
from reconciler.operations.wait import awaited, wait
from reconciler.planning.attempts import base_of
from reconciler.planning.status_rows import job_statuses
from reconciler.submission.claims_upkeep import cancel, record_cancel
from reconciler.submission.observe import observe


def render(arguments: argparse.Namespace) -> ExitCode:
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


def rerun(arguments: argparse.Namespace) -> ExitCode:
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


def cancel_runs(arguments: argparse.Namespace) -> ExitCode:
    """Cancel runs, wait for their ends, and print the final state of each."""
    selection = selection_of(arguments)
    if not selection:
        raise UsageError("no jobs given", hint="name jobs, or select them with -l KEY=VALUE")
    context = context_of(arguments)
    with context.session(start=True) as session:
        # All names are looked up before the first job is cancelled: one may be misspelt.
        if selection.terms:
            jobs = _selected(context, session, selection, arguments.log_format)
        else:
            found = [newest_run(name, session) for name in selection.names]
            jobs = {job.resource: job for job in found}
        for job in (job for job in jobs.values() if job.state.ended):
            print(f"{one_line(job.job_name)} had already ended: {job.state}")
        running = [job for job in jobs.values() if not job.state.ended]
        if named := [one_line(job.job_name) for job in running if job.state is not State.CANCELLING]:
            confirm(context, arguments, f"Cancel {', '.join(named)}?")
        live = [job for job in running if _is_cancelled(session, job, arguments.log_format)]
        if not live:
            return ExitCode.FAILED if running else ExitCode.DONE
        with progress(session, arguments, sys.stderr) as listener:
            ended = wait(session.ports, [awaited(job) for job in live], listener, session.pause)
    for job in ended:
        # The job may have succeeded or failed before the cancellation reached it.
        print(f"{one_line(job.job_name)} ended {job.state}")
    seen = {job.resource for job in ended}
    gone = [f"{job.job_name} is gone; its final state is unknown" for job in live if job.resource not in seen]
    print_lines(gone, arguments.log_format)
    is_done = len(ended) == len(running) and all(job.state is State.CANCELLED for job in ended)
    return ExitCode.DONE if is_done else ExitCode.FAILED


def _is_cancelled(session: Session, job: ActualJob, log_format: str) -> bool:
    """Request a job's cancel; report an error and return False if the service refuses it."""
    # One job must not keep the others running.
    try:
        _cancel(session, job, log_format)
    except ReconcilerError as error:
        print_error(error, log_format)
        return False
    return True


def _cancel(session: Session, job: ActualJob, log_format: str) -> None:
    """Record the cancel on the job's claim, and request it."""
    try:
        record_cancel(session.ports, job, BY_COMMAND)
    except ServiceError as error:
        if job.state is State.CANCELLING:
            # Nothing but the record would make it a person's cancel.
            hint = (
                "apply may have cancelled it, and submits it again if it is wanted: "
                '"suspend: true" in its manifest prevents that'
            )
            raise ServiceError(f"the cancellation isn't recorded: {error.message}", hint=hint) from None
        # Stopping the job counts more: whoever may cancel jobs needn't be able to write claims.
        said = f"the cancellation isn't recorded, so the run will count as cancelled outside: {error.message}"
        print_lines([said], log_format)
    # A job that apply has cancelled needs no other request, but a person's cancel is final.
    if job.state is not State.CANCELLING:
        cancel(session.ports, job)


def _selected(
    context: Context, session: Session, selection: Selection, log_format: str
) -> dict[str, ActualJob]:
    """Return the live runs that `status` shows for the same names and labels; raise NotFoundError."""
    desired, _ = readable_jobs(context, log_format)
    observed = observe(session.ports)
    runs = {run.resource: run for run in observed.runs}
    found = [
        row
        for row in job_statuses(desired, observed.runs, observed.claims)
        if selection.has_name(row.base_name, row.job_name) and selection.has_labels(row.labels)
    ]
    if not found:
        raise NotFoundError("no job has these names and labels", hint="see `reconciler status`")
    # A run without a claim may be another person's, with copied labels: it is cancelled by its name only.
    own = [row for row in found if row.claim != "none" and row.state and not row.state.ended]
    live = {row.resource: runs[row.resource] for row in own}
    if not live:
        print("No running job has these labels.")
    return live
