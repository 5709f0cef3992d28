"""Placement of replicas, in containers or in environments of this machine.

A container runs in an engine that has its image, else in an engine that can pull it, else, if its command is
Python, in an environment of this machine.
"""

from __future__ import annotations

import os
from dataclasses import replace

from reconciler.training_service.environments.prepare import Say
from reconciler.training_service.jobs.python_containers import (
    how_to_run_staged,
    in_environment,
    is_staged_code,
)
from reconciler.training_service.processes.programs import (
    Programs,
    Tail,
)
from reconciler.training_service.runner.containers import ContainerEngine, find_engine
from reconciler.training_service.state.run_folder import (
    RunError,
    RunFolder,
)
from reconciler.training_service.state.run_log import INFO, WARNING
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask, RunSpec

_PULL = "RECONCILER_PULL_IMAGES"
_PRINTED = 64 * 1024
_WITHOUT_CONTAINER = ("ENGINE_MISSING", "IMAGE_NOT_PULLED")


def placed(
    spec: RunSpec, folder: RunFolder, programs: Programs, say: Say
) -> tuple[RunSpec, ContainerEngine | None]:
    """Return the run with a PythonTask for each container that runs in an environment, and the engine.

    Pulls the images that the engine lacks. Returns no engine for a run without containers.

    Args:
        say: Writes a text to the run's log with a severity.

    Raises:
        RunError: A container has neither an engine with its image nor an environment.
        Interrupted: The run is to end.
    """
    placement = _Placement(folder, programs, say)
    replicas = [replace(replica, task=placement.place(replica.task)) for replica in spec.replicas]
    return replace(spec, replicas=tuple(replicas)), placement.engine


class _Placement:
    """Places tasks; equal tasks once."""

    def __init__(self, folder: RunFolder, programs: Programs, say: Say) -> None:
        self._folder = folder
        self._programs = programs
        self._say = say
        self._placed: list[tuple[ContainerTask, ContainerTask | PythonTask]] = []
        self.engine: ContainerEngine | None = None

    def place(self, task: ContainerTask | PythonTask) -> ContainerTask | PythonTask:
        """Return the task to run: the container, or its command in an environment."""
        if isinstance(task, PythonTask):
            return task
        for earlier, runnable in self._placed:
            if earlier == task:
                return runnable
        runnable = self._place(task)
        self._placed.append((task, runnable))
        return runnable

    def _place(self, task: ContainerTask) -> ContainerTask | PythonTask:
        try:
            self.engine = self.engine or self._found_engine()
            self.engine.make_ready(task, self._run, pull=os.environ.get(_PULL) != "0")
        except RunError as error:
            if error.details["reason"] not in _WITHOUT_CONTAINER:
                raise
            instead = in_environment(task)
            if instead is None:
                raise _with_remedy(error, task) from None
            why = error.message.removesuffix(".")
            self._say(INFO, f"{why}. Its command runs in an environment of this machine instead.")
            return instead
        return task

    def _found_engine(self) -> ContainerEngine:
        engine = find_engine(os.environ)
        for warning in engine.warnings:
            self._say(WARNING, warning)
        return engine

    def _run(self, argv: list[str]) -> tuple[int, str]:
        printed = Tail(_PRINTED)
        # The engine's command needs the variables that lead it to the engine and to registry logins.
        code = self._programs.run(
            argv, env=os.environ, cwd=self._folder.temp(), out=printed.add, err=printed.add
        )
        return code, printed.text()


def _with_remedy(error: RunError, task: ContainerTask) -> RunError:
    """Return the error with the entry that gives staged code an environment; others need their container."""
    if not is_staged_code(task):
        return error
    # The engine's own words come last: a cause is cut where it becomes too long.
    what, _, details = error.message.removesuffix(".").partition(" by ")
    message = f"{what}; or {how_to_run_staged(task.image)}" + (f" ({details})" if details else "")
    return RunError(error.code, message, **{**error.details, "image": task.image})
