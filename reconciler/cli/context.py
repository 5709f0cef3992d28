"""The repository, settings, environment and log that most commands need; the lookup of a run by name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import InvalidError, NotFoundError, RefusedError, ServiceError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.cli import agreed, has_person, print_error, print_message
from reconciler.google.session import Session, open_session
from reconciler.manifests.settings import Config, Environment, find_root, load_config
from reconciler.model.job import ActualJob
from reconciler.model.plan import DesiredJob
from reconciler.model.selection import Selection

if TYPE_CHECKING:
    from reconciler.operations.show import FoundJob


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
    from reconciler.operations.load_desired import load_desired  # slow to import, and needed by few commands

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
    from reconciler.operations.show import find_job  # slow to import, and needed by few commands
    from reconciler.planning.status_rows import missing_reason

    found = find_job(session, name)
    if "claim" in found.unread:
        # The claims tell our runs from others of the same name.
        raise ServiceError(found.unread["claim"])
    if found.run is None:
        # An attempt's claim is the last word on a job that was refused, is held or was deleted.
        last = found.attempt.claim if found.attempt else None
        reason = (missing_reason(last) or "it was deleted from the service") if last else ""
        not_yet = "it wasn't submitted yet: see `reconciler plan`"
        raise NotFoundError(f'the service has no run of "{name}"', hint=reason or not_yet)
    return found


def run_of(found: FoundJob) -> ActualJob:
    """Return the run that `found_run` made sure of."""
    assert found.run is not None
    return found.run


def events(log_format: str, level: int = 20, stream: TextIO | None = None) -> Any:
    """Return a structlog logger for `text` or `json`, which prints sanitized values to stderr by default.

    The default level is `logging.INFO`, without the import of `logging`, which a plan doesn't need.
    """
    import structlog

    renderer: Any = structlog.processors.JSONRenderer() if log_format == "json" else _as_text
    return structlog.wrap_logger(
        structlog.PrintLogger(stream or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            _sanitize_values,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )


def _sanitize_values(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: one_line(value) if isinstance(value, str) else value for key, value in event.items()}


def _as_text(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """Return `TIME EVENT JOB key=value …` on one line; a job and a message have no key."""
    time, name = event.pop("timestamp"), event.pop("event")
    event.pop("level")
    bare = ("job", "message")
    rest = "".join(f"  {value}" if key in bare else f"  {key}={value}" for key, value in event.items())
    return f"{time[11:19]}  {name:10}{rest}".rstrip()
