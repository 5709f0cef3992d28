"""The repository, settings, environment and log that most commands need; the lookup of a run by name."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import InvalidError, NotFoundError, RefusedError, ServiceError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.cli import agreed, has_person, print_error, print_message
from reconciler.manifests.settings import Config, Environment, find_root, load_config
from reconciler.model.job import ActualJob
from reconciler.model.plan import DesiredJob
from reconciler.model.reason import missing_reason
from reconciler.model.selection import Selection
from reconciler.operations.load_desired import load_desired
from reconciler.operations.named_job import NamedJob, find_job
from reconciler.operations.session import Session, open_session
from reconciler.output.wording.plan import missing_text


class Context(Struct, frozen=True):
    """Settings of the repository, and the environment chosen for a command."""

    config: Config
    environment: Environment

    def session(self, *, start: bool) -> AbstractContextManager[Session]:
        """Open the environment; with `start`, for a command that writes, as `open_session`."""
        return open_session(self.config, self.environment, os.environ, start=start)

    def session_of_any_owner(self) -> AbstractContextManager[Session]:
        """Open the environment to write, also if its claims belong to another repository."""
        return open_session(self.config, self.environment, os.environ, start=True, changes_owner=True)


def context_of(arguments: argparse.Namespace) -> Context:
    """Return the context of the working directory; raise InvalidError for an invalid `reconciler.yaml`."""
    config = load_config(find_root(Path.cwd()))
    return Context(config, config.environment(arguments.env))


def is_by_hand() -> bool:
    """Return True if a person started the command: not in continuous integration, which sets `CI`."""
    return not os.environ.get("CI")


def confirm(context: Context, arguments: argparse.Namespace, question: str) -> None:
    """Ask before something is done in Google Cloud; only with a terminal and without `--yes`.

    Raises:
        RefusedError: The person doesn't agree.
    """
    if context.environment.engine == "local" or arguments.yes or not has_person():
        return
    if not agreed(f"{question} ({context.environment.name}, project {context.environment.project})"):
        raise RefusedError("cancelled: nothing was done", hint="answer y to continue, or pass --yes")


def selection_of(arguments: argparse.Namespace) -> Selection:
    """Return the selection by the arguments' names and labels."""
    return Selection(tuple(arguments.names or ()), tuple(arguments.terms))


def readable_jobs(context: Context, log_format: str) -> tuple[tuple[DesiredJob, ...], bool]:
    """Return the desired jobs without their specs, and True if these are all.

    Report invalid manifests. Without any manifest, they are more likely out of sight than deleted.
    """
    try:
        jobs = load_desired(context.config, context.environment, []).jobs
        # Without the specs: they are a third of the memory that 10,000 jobs take, and `status` shows none.
        slim = (replace(job, manifest=replace(job.manifest, packed={}), packed={}) for job in jobs)
        return tuple(slim), bool(jobs)
    except (InvalidError, UsageError) as error:
        # An invalid manifest must not hide the runs.
        print_error(error, log_format)
        print_message("only runs are known", log_format)
        return (), False


def run_of(session: Session, name: str, *, live: bool = False) -> tuple[NamedJob, ActualJob]:
    """Return the job of a name, and its run with its spec.

    Args:
        session: The environment.
        name: A job name, or a base name.
        live: True to take the live run of a base name, whatever its content, if there is one.

    Raises:
        NotFoundError: No job has this name, or the service has no run of it.
        ServiceError: The jobs or the claims can't be read.
        UsageError: `live`, and several live runs have this base name.
    """
    job = find_job(session, name)
    if "claim" in job.unread:
        # The claims tell our runs from others of the same name.
        raise ServiceError(job.unread["claim"])
    running = job.live_runs if live else []
    if len(running) > 1:
        names = " or ".join(one_line(run.job_name) for run in running)
        raise UsageError(f'"{name}" has {len(running)} live runs', hint=f"name one of them: {names}")
    if running:
        return job, session.read(running[0])
    if job.run is None:
        # An attempt's claim is the last word on a job that was refused, is held or was deleted.
        last = job.attempt.claim if job.attempt else None
        reason = (missing_text(missing_reason(last)) or "it was deleted from the service") if last else ""
        not_yet = "it wasn't submitted yet: see `reconciler plan`"
        raise NotFoundError(f'the service has no run of "{name}"', hint=reason or not_yet)
    return job, job.run
