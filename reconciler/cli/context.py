"""What most commands begin with: the repository, its settings and the chosen environment."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from reconciler.config import Config, Environment, find_root, load_config
from reconciler.errors import NotFoundError
from reconciler.job import ActualJob
from reconciler.planner import base_of
from reconciler.session import Session, open_session


@dataclass(frozen=True, slots=True)
class Context:
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
    """The run that NAME means: a job name, or a base name's newest run; raises NotFoundError."""
    runs = sorted(session.runs(), key=lambda run: (run.create_time, run.resource))
    base = name.replace("-", "_")
    by_job = [run for run in runs if run.job_name == name]
    by_base = [run for run in runs if base_of(run.job_name) == base]
    if not by_job and not by_base:
        raise NotFoundError(f'there is no job "{name}"', hint="see `reconciler status`")
    return (by_job or by_base)[-1]
