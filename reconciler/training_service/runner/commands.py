"""Preparation and start of a run's replicas, each time in fresh folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from reconciler.training_service.environments.prepare import Prepared, Say, hint_of_missing_module, prepare
from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.processes.programs import Consumer, Program, Programs, Tail
from reconciler.training_service.runner import mounts
from reconciler.training_service.runner.containers import Engine, find_engine
from reconciler.training_service.state.run_folder import (
    ContainerTask,
    Ending,
    PythonTask,
    ReplicaSpec,
    RunFolder,
    RunSpec,
    remove,
)
from reconciler.training_service.state.run_log import WARNING

_PRINTED = 64 * 1024


class Commands:
    """Starter of a run's replicas; `prepare` is called once, before the first start.

    Attributes:
        say: Writes a text to the run's log with a severity.
        check_home: Raises HomeError if another person may have written the service's home: at any moment a
            checkout may bring a branch with a home of its own.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        programs: Programs,
        say: Say,
        check_home: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._programs = programs
        self._say = say
        self._check_home = check_home
        self._buckets = folder.service_home / "gcs"
        self._prepared: list[tuple[PythonTask, Prepared]] = []
        self._engine: Engine | None = None
        self._shows_buckets = False

    def prepare(self) -> None:
        """Fetch and install the needs of the replicas' tasks, once for equal tasks.

        Raises:
            RunError: A package or an image is missing, or no installed Python or container engine fits.
            InstallError: pip failed.
            HomeError: The home must not be used.
            Interrupted: The run is to end.
        """
        self._check_home()
        tasks = [replica.task for replica in self._spec.replicas]
        for number, task in enumerate(tasks):
            if task in tasks[:number]:
                continue
            if isinstance(task, PythonTask):
                prepared = prepare(self._folder, task, self._programs, self._say, self._check_home)
                self._prepared.append((task, prepared))
            else:
                self._engine = self._engine or self._found_engine()
                self._engine.make_ready(task, self._run)
        if self._prepared:
            self._find_mounts()

    def metrics_file(self, replica: ReplicaSpec) -> Path:
        """Return the file to which the replica's trainer reports its metrics."""
        return self._folder.temp() / replica.task_name / "hypertune" / "output.metrics"

    def start(self, replica: ReplicaSpec, out: Consumer, err: Consumer) -> Program:
        """Start a replica's program in a new working folder, home and temporary folder.

        Raises:
            RunError: The container can't be started.
            HomeError: The home must not be used.
            OSError: The program can't be started.
        """
        work, home, temp = (
            folder / replica.task_name
            for folder in (self._folder.work, self._folder.home, self._folder.temp())
        )
        for path in (work, home, temp):
            remove(path)
            path.mkdir(parents=True)
        self._check_home()  # again, because preparation may take minutes
        start = partial(self._programs.start, cwd=work, out=out, err=err, replica=replica.task_name)
        task = replica.task
        if isinstance(task, ContainerTask):
            assert self._engine is not None
            argv, env = self._engine.command(replica, self._folder, self._buckets, self._spec.buckets)
            return start(argv, env=env)
        prepared = next(prepared for prepared_task, prepared in self._prepared if prepared_task == task)
        return start(
            [str(prepared.python), "-m", task.module, *task.args],
            env={
                **environment_variables.for_trainer(os.environ, prepared.programs, home, temp),
                **replica.env,
            },
            keep=prepared.locks,
            first=self._showing_buckets(work),
        )

    def explain(self, replica: ReplicaSpec, code: int, errors: str) -> Ending | None:
        """Return the run's ending if the failed replica's container explains more than its exit code.

        Args:
            errors: The end of the replica's standard error.
        """
        if not isinstance(replica.task, ContainerTask) or self._engine is None:
            return None
        error = self._engine.explain(self._folder, replica, code, errors)
        return None if error is None else error.ending

    def hint(self, replica: ReplicaSpec, errors: str) -> str:
        """Return advice about a failure; "" if there is none."""
        if isinstance(replica.task, ContainerTask):
            return ""
        return hint_of_missing_module(replica.task, errors)

    def _found_engine(self) -> Engine:
        engine = find_engine(os.environ)
        for warning in engine.warnings:
            self._say(WARNING, warning)
        return engine

    def _find_mounts(self) -> None:
        self._buckets.mkdir(parents=True, exist_ok=True)
        problem = mounts.mount_problem(self._buckets, self._root(), self._folder.path)
        self._shows_buckets = not problem
        if problem and mounts.mentions_gcs(self._spec, self._folder.packages):
            self._say(WARNING, mounts.warning(problem))

    def _showing_buckets(self, work: Path) -> Callable[[], None] | None:
        if not self._shows_buckets:
            return None
        buckets, root = self._buckets, self._root()
        return lambda: mounts.show(buckets, root, work)

    def _run(self, argv: list[str]) -> tuple[int, str]:
        printed = Tail(_PRINTED)
        # The engine's command needs the variables that lead it to the engine and to registry logins.
        code = self._programs.run(
            argv, env=os.environ, cwd=self._folder.temp(), out=printed.add, err=printed.add
        )
        return code, printed.text()

    def _root(self) -> Path:
        """Return an empty folder to mount a trainer's own root folder on."""
        root = self._folder.temp() / "root"
        root.mkdir(exist_ok=True)
        return root
