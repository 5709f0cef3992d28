"""The repository, settings and environment that most commands need, and the lookup of a run by name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import InvalidError, NotFoundError, RefusedError, UsageError
from reconciler.cli import agreed, has_person, print_error, print_message
from reconciler.google.session import Session, open_session
from reconciler.manifests.settings import Config, Environment, find_root, load_config
from reconciler.model.claim import age
from reconciler.model.job import ActualJob
from reconciler.model.manifest import Selection
from reconciler.model.plan import DesiredJob
from reconciler.submission.observe import observe

if TYPE_CHECKING:
    from reconciler.planning.attempts import Attempt


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
        raise RefusedError("cancelled: nothing was done", hint="answer y to go on, or pass --yes")


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
    """Return the run of a job name, or the newest run of a base name; raise NotFoundError."""
    (run,) = newest_runs([name], session)
    return run


def newest_runs(names: Iterable[str], session: Session) -> list[ActualJob]:
    """Return the run of each job name, and the newest run of each base name; raise NotFoundError."""
    from reconciler.planning.attempts import attempts_by_base  # slow to import, and needed by few commands

    observed = observe(session.ports)
    by_base = attempts_by_base([], observed.runs, observed.claims)
    return [_newest(name, by_base) for name in names]


def _newest(name: str, by_base: Mapping[str, Sequence[Attempt]]) -> ActualJob:
    from reconciler.planning.status_rows import missing_reason  # slow to import, and needed by few commands

    found = [attempt for attempts in by_base.values() for attempt in attempts if attempt.name == name]
    found = found or [*by_base.get(name.replace("-", "_"), [])]
    if not found:
        raise NotFoundError(f'there is no job "{name}"', hint="see `reconciler status`")
    # Runs with a claim are certainly ours; others only have the same name.
    claimed = [attempt.run for attempt in found if attempt.run and attempt.claim]
    runs = claimed or [run for attempt in found for run in (attempt.run, *attempt.strangers) if run]
    if not runs:
        # An attempt's claim is the last word on a job that was refused, is held or was deleted.
        last = found[-1].claim
        reason = (missing_reason(last) or "it was deleted from the service") if last else ""
        raise NotFoundError(f'the service has no run of "{name}"', hint=reason or "see `reconciler status`")
    return max(runs, key=age)
