"""What most commands begin with: the repository, its settings and the chosen environment."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct

from reconciler.base.errors import NotFoundError
from reconciler.google.session import Session, open_session
from reconciler.manifests.settings import Config, Environment, find_root, load_config
from reconciler.model.duplicates import age
from reconciler.model.job import ActualJob
from reconciler.submission.observe import observe


class Context(Struct, frozen=True):
    """The repository that a command runs in, and the environment that it is about."""

    config: Config
    environment: Environment

    def session(self, *, start: bool) -> AbstractContextManager[Session]:
        """The environment, opened; `start` starts the embedded service where it doesn't run."""
        return open_session(self.config, self.environment, os.environ, start=start)


def context_of(arguments: argparse.Namespace) -> Context:
    """The context of the working directory; raises InvalidError for a broken `reconciler.yaml`."""
    config = load_config(find_root(Path.cwd()))
    return Context(config, config.environment(arguments.env))


def newest_run(name: str, session: Session) -> ActualJob:
    """The run that NAME means: a job name's, or the newest of a base name; raises NotFoundError.

    A run that a claim knows goes before one that only has its name.
    """
    from reconciler.planning.attempts import attempts_by_base  # slow to import, and needed by few commands

    observed = observe(session.ports)
    by_base = attempts_by_base([], observed.runs, observed.known)
    attempts = [attempt for of_base in by_base.values() for attempt in of_base]
    found = [attempt for attempt in attempts if attempt.name == name]
    found = found or by_base.get(name.replace("-", "_"), [])
    if not found:
        raise NotFoundError(f'there is no job "{name}"', hint="see `reconciler status`")
    known = [attempt.run for attempt in found if attempt.run and attempt.claim]
    alike = (run for attempt in found for run in (attempt.run, *attempt.strangers) if run)
    runs = known or list(alike)
    if not runs:
        raise NotFoundError(f'the service has no run of "{name}"', hint="see `reconciler status`")
    return max(runs, key=age)
