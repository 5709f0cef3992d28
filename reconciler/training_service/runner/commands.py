"""What a run's replicas are started with: made ready once for each task, in fresh folders each time."""

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
    FAILED,
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
    """Starts replicas of a run, once all that they need is there.

    Attributes:
        say: Writes a text to the run's log, with a severity.
        check_home: Raises HomeError where the service's home may be another person's: a branch with a home of
            its own may be checked out at any moment.
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
        """Fetch and install what the replicas' tasks need.

        Raises:
            PreparationError: A package is missing, or no Python here will do.
            InstallError: pip failed.
            ContainerError: There is no container engine, or an image isn't to be had.
            HomeError: The home isn't used.
            Interrupted: The run was to end.
        """
        self._check_home()
        tasks = [replica.task for replica in self._spec.replicas]
        for number, task in enumerate(tasks):
            if task in tasks[:number]:
                continue
            if isinstance(task, PythonTask):
                self._prepared.append((task, self._ready(task)))
            else:
                self._engine = self._engine or self._found_engine()
                self._engine.make_ready(task, self._run)
        if self._prepared:
            self._find_mounts()

    def metrics_file(self, replica: ReplicaSpec) -> Path:
        """Where the replica's trainer reports its metrics to."""
        return self._folder.temp() / replica.task_name / "hypertune" / "output.metrics"

    def start(self, replica: ReplicaSpec, out: Consumer, err: Consumer) -> Program:
        """Start a replica's program: its working folder, home and temporary folder are new and its own.

        Raises:
            ContainerError: Its container can't be started.
            HomeError: The home isn't used.
            OSError: It can't be started.
        """
        work, home, temp = (
            folder / replica.task_name
            for folder in (self._folder.work, self._folder.home, self._folder.temp())
        )
        for path in (work, home, temp):
            remove(path)
            path.mkdir(parents=True)
        self._check_home()
        start = partial(self._programs.start, cwd=work, out=out, err=err, replica=replica.task_name)
        task = replica.task
        if isinstance(task, ContainerTask):
            assert self._engine is not None
            argv, env = self._engine.command(replica, self._folder, self._buckets, self._spec.buckets)
            return start(argv, env=env)
        prepared = next(prepared for of, prepared in self._prepared if of == task)
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
        """How the run ends whose replica has failed, where the replica's container tells more than its code.

        Args:
            errors: The end of what it has printed to its standard error.
        """
        if not isinstance(replica.task, ContainerTask) or self._engine is None:
            return None
        error = self._engine.explain(self._folder, replica, code, errors)
        return None if error is None else Ending(FAILED, error.code, error.message)

    def hint(self, replica: ReplicaSpec, errors: str) -> str:
        """What to do about a failure, "" where that isn't known."""
        if isinstance(replica.task, ContainerTask):
            return ""
        return hint_of_missing_module(replica.task, errors)

    def _ready(self, task: PythonTask) -> Prepared:
        return prepare(self._folder, task, self._programs, self._say, self._check_home)

    def _found_engine(self) -> Engine:
        engine = find_engine(os.environ)
        for warning in engine.warnings:
            self._say(WARNING, warning)
        return engine

    def _find_mounts(self) -> None:
        """Find out whether trainers can be shown the buckets; the log tells where one needs it in vain."""
        self._buckets.mkdir(parents=True, exist_ok=True)
        problem = mounts.why_not(self._buckets, self._root(), self._folder.path)
        self._shows_buckets = not problem
        if problem and mounts.wanted(self._spec, self._folder.packages):
            self._say(WARNING, mounts.told(problem))

    def _showing_buckets(self, work: Path) -> Callable[[], None] | None:
        if not self._shows_buckets:
            return None
        buckets, root = self._buckets, self._root()
        return lambda: mounts.show(buckets, root, work)

    def _run(self, argv: list[str]) -> tuple[int, str]:
        printed = Tail(_PRINTED)
        # The engine's command needs what leads it to the engine and to the logins of registries.
        code = self._programs.run(
            argv, env=os.environ, cwd=self._folder.temp(), out=printed.add, err=printed.add
        )
        return code, printed.text()

    def _root(self) -> Path:
        """An empty folder that a trainer's own root folder is put together on."""
        root = self._folder.temp() / "root"
        root.mkdir(exist_ok=True)
        return root
