"""Start of one replica's processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from reconciler.training_service.environments.prepare import Prepared, Say, hint_of, prepare
from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.jobs.python_containers import why_not_started
from reconciler.training_service.processes.programs import (
    Consumer,
    Program,
    Programs,
)
from reconciler.training_service.runner import mounts
from reconciler.training_service.runner.containers import ContainerEngine
from reconciler.training_service.runner.proxy import Proxy, open_proxy
from reconciler.training_service.state.records import Code
from reconciler.training_service.state.run_folder import (
    Ending,
    RunError,
    RunFolder,
    remove,
)
from reconciler.training_service.state.run_log import WARNING
from reconciler.training_service.state.run_spec import ContainerTask, PythonTask, ReplicaSpec, RunSpec


class Starter:
    """Starter of a run's replicas; `prepare` is called once, before the first start.

    Args:
        spec: The run, as `placed` returns it with the engine.
        say: Writes a text to the run's log with a severity.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        engine: ContainerEngine | None,
        programs: Programs,
        say: Say,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._programs = programs
        self._say = say
        self._buckets = folder.service_home / "gcs"
        self._prepared: list[tuple[PythonTask, Prepared]] = []
        self._engine = engine
        self._view: mounts.View | None = None
        self._links: Path | None = None
        self._proxy: Proxy | None = None

    def prepare(self) -> None:
        """Fetch and install the needs of the replicas' tasks, once for equal tasks.

        Raises:
            RunError: A package is missing, or no installed Python fits.
            InstallError: uv failed.
            Interrupted: The run is to end.
        """
        for replica in self._spec.replicas:
            task = replica.task
            if isinstance(task, PythonTask) and all(task != earlier for earlier, _ in self._prepared):
                prepared = prepare(self._folder, task, replica.env, self._programs, self._say)
                self._prepared.append((task, prepared))
        self._proxy = open_proxy(self._folder, self._spec.storage, self._programs, self._say)
        if self._prepared:
            self._find_mounts()

    def metrics_file(self, replica: ReplicaSpec) -> Path:
        """Return the file to which the replica's trainer reports its metrics."""
        return self._folder.temp() / replica.task_name / "hypertune" / "output.metrics"

    def start(self, replica: ReplicaSpec, out: Consumer, err: Consumer) -> Program:
        """Start a replica's program in a new working folder, home and temporary folder.

        Raises:
            RunError: The container can't be started.
            OSError: The program can't be started.
        """
        work, home, temp = (
            folder / replica.task_name
            for folder in (self._folder.work, self._folder.home, self._folder.temp())
        )
        for path in (work, home, temp):
            remove(path)
            path.mkdir(parents=True)
        start = partial(self._programs.start, cwd=work, out=out, err=err, replica=replica.task_name)
        task = replica.task
        if isinstance(task, ContainerTask):
            assert self._engine is not None
            argv, env = self._engine.command(
                replica, self._folder, self._buckets, self._spec.buckets, self._proxy
            )
            return start(argv, env=env)
        prepared = self._prepared_for(task)
        return start(
            [str(prepared.python), *(("-m", task.module) if task.module else ()), *prepared.args],
            env={
                **environment_variables.for_trainer(os.environ, prepared.programs, home, temp),
                **(self._proxy.variables(replica.env) if self._proxy else {}),
                **{name: self._with_links(value) for name, value in replica.env.items()},
            },
            keep=prepared.locks,
            first=self._showing_buckets(work),
        )

    def explain(self, replica: ReplicaSpec, code: int, errors: str) -> Ending | None:
        """Return the run's ending if more than the exit code is known of a replica's failure.

        Args:
            errors: The end of the replica's standard error.
        """
        if why := why_not_started(replica.task, code, errors):
            return RunError(Code.FAILED_PRECONDITION, why, "CODE_NOT_STARTED").ending
        if not isinstance(replica.task, ContainerTask) or self._engine is None:
            return None
        error = self._engine.explain(self._folder, replica, code, errors)
        return None if error is None else error.ending

    def hint(self, replica: ReplicaSpec, errors: str) -> str:
        """Return advice about a failure; "" if there is none."""
        if isinstance(replica.task, ContainerTask):
            return ""
        return hint_of(replica.task, self._prepared_for(replica.task), errors)

    def _prepared_for(self, task: PythonTask) -> Prepared:
        return next(prepared for prepared_task, prepared in self._prepared if prepared_task == task)

    def _find_mounts(self) -> None:
        self._buckets.mkdir(parents=True, exist_ok=True)
        view = mounts.View(self._buckets, self._spec.buckets, self._proxy.bundle if self._proxy else None)
        problem = mounts.mount_problem(view, self._root(), self._folder.path)
        if not problem:
            self._view = view
            return
        self._links = self._folder.temp() / "gcs"
        for name in mounts.link(view, self._links):
            self._say(WARNING, f"The bucket {name} holds claims as well: its files are seen as they are now.")
        if mounts.mentions_gcs(self._spec, self._folder.packages):
            self._say(WARNING, mounts.warning(problem))
        if mounts.mentions_tensorflow_1(self._spec, self._folder.packages):
            self._say(WARNING, mounts.tensorflow_1_warning(problem))

    def _showing_buckets(self, work: Path) -> Callable[[], None] | None:
        view, root = self._view, self._root()
        return None if view is None else lambda: mounts.show(view, root, work)

    def _with_links(self, value: str) -> str:
        # RECONCILER_GCS_DIR, and the user's variables that refer to it.
        return value.replace(str(self._buckets), str(self._links)) if self._links else value

    def _root(self) -> Path:
        """Return an empty folder to mount a trainer's own root folder on."""
        root = self._folder.temp() / "root"
        root.mkdir(exist_ok=True)
        return root
