"""The repository, settings, environment and log that most commands need; the lookup of a run by name."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import InvalidError, NotFoundError, RefusedError, ServiceError, UsageError
from reconciler.cli import agreed, has_person, print_error, print_message
from reconciler.google.session import Session, open_session
from reconciler.manifests.settings import Config, Environment, find_root, load_config
from reconciler.model.job import ActualJob
from reconciler.model.plan import DesiredJob
from reconciler.model.reason import missing_reason
from reconciler.model.selection import Selection
from reconciler.operations.load_desired import load_desired
from reconciler.operations.show import FoundJob, find_job
from reconciler.output.wording.plan import missing_text


class Context(Struct, frozen=True):
    """Settings of the repository, and the environment chosen for a command."""

    config: Config
    environment: Environment

    def session(self, *, start: bool) -> AbstractContextManager[Session]:
        """Open the environment; with `start`, start the embedded service if it isn't running."""
        return open_session(self.config, self.environment, os.environ, start=start)


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


def newest_run(name: str, session: Session) -> ActualJob:
    """Return the run of a job name, or the newest run of a base name, with its spec; raise NotFoundError."""
    return run_of(found_run(name, session))


def found_run(name: str, session: Session) -> FoundJob:
    """Return the job of a name with its run.

    Raises:
        NotFoundError: No job has this name, or the service has no run of it.
        ServiceError: The jobs or the claims can't be read.
    """
    found = find_job(session, name)
    if "claim" in found.unread:
        # The claims tell our runs from others of the same name.
        raise ServiceError(found.unread["claim"])
    if found.run is None:
        # An attempt's claim is the last word on a job that was refused, is held or was deleted.
        last = found.attempt.claim if found.attempt else None
        reason = (missing_text(missing_reason(last)) or "it was deleted from the service") if last else ""
        not_yet = "it wasn't submitted yet: see `reconciler plan`"
        raise NotFoundError(f'the service has no run of "{name}"', hint=reason or not_yet)
    return found


def run_of(found: FoundJob) -> ActualJob:
    """Return the run that `found_run` made sure of."""
    assert found.run is not None
    return found.run
