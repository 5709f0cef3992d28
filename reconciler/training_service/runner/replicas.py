"""Replicas of a run, from the first start to the last end.

The run ends with its primary replica: the other replicas are ended then, because parameter servers never end
by themselves. A failed replica also ends the run. A replica that a SIGTERM from outside has ended starts
again, in fresh folders, as the cloud does after it takes a machine away.

A container runs in an engine that has its image, else in an engine that can pull it, else, if its command is
Python, in an environment of this machine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from reconciler.training_service.environments.pip_settings import as_file
from reconciler.training_service.environments.prepare import Prepared, Say, hint_of, prepare
from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.jobs.images import (
    how_to_run_staged,
    in_environment,
    is_staged_code,
    why_not_started,
)
from reconciler.training_service.processes import process_tree
from reconciler.training_service.processes.programs import (
    Consumer,
    Program,
    Programs,
    Tail,
    ending_of,
    killer_of,
)
from reconciler.training_service.runner import mounts
from reconciler.training_service.runner.containers import ContainerEngine, find_engine
from reconciler.training_service.runner.proxy import Proxy, open_proxy
from reconciler.training_service.state.records import Code, details_of, is_set_up
from reconciler.training_service.state.run_folder import (
    FAILED,
    SUCCEEDED,
    ContainerTask,
    Ending,
    PythonTask,
    ReplicaSpec,
    RunError,
    RunFolder,
    RunSpec,
    remove,
)
from reconciler.training_service.state.run_log import ERROR, INFO, WARNING, LogFullError, RunLog

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
        for known, found in self._placed:
            if known == task:
                return found
        found = self._place(task)
        self._placed.append((task, found))
        return found

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
        tasks = [replica.task for replica in self._spec.replicas]
        for number, task in enumerate(tasks):
            if task in tasks[:number]:
                continue
            if isinstance(task, PythonTask):
                prepared = prepare(self._folder, task, self._programs, self._say)
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
        if is_staged_code(task):
            _write_pip_settings(home)
        return start(
            [str(prepared.python), *(("-m", task.module) if task.module else ()), *task.args],
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


def _write_pip_settings(home: Path) -> None:
    """Give the pip that installs staged code's requirements the settings that installers have here.

    They are in a file, as no variable with the password of an index may reach the trainer's log.
    """
    is_mac = sys.platform == "darwin"
    folder = home / ("Library/Application Support/pip" if is_mac else ".config/pip")
    folder.mkdir(parents=True)
    (folder / "pip.conf").write_text(as_file(os.environ), "utf-8")


STARTS = 5
_COLLECT_SECONDS = 0.2
_COUNT_SECONDS = 1.0
_TOGETHER = 5.0  # seconds that the other replicas have to fail as one did
_MANY_FORKS = 100


@dataclass(slots=True)
class _Replica:
    """Replica with its current program and the end of that program's standard error."""

    spec: ReplicaSpec
    program: Program | None = None
    errors: Tail = field(default_factory=Tail)
    starts: int = 0


class Replicas:
    """Runner of a run's replicas.

    Args:
        collect: Collects measurements; called a few times a second.
    """

    def __init__(
        self, spec: RunSpec, programs: Programs, log: RunLog, starter: Starter, collect: Callable[[], None]
    ) -> None:
        self._spec = spec
        self._programs = programs
        self._log = log
        self._starter = starter
        self._collect = collect
        self._replicas = [_Replica(replica) for replica in spec.replicas]
        self._over_limit: Ending | None = None
        self._collect_at = self._count_at = 0.0
        self._forks = 0

    def run(self) -> Ending:
        """Start all replicas and wait for the run's end; all their processes are dead afterwards.

        Raises:
            Interrupted: The run is to end.
            OSError: A replica can't be started, or the log can't be written.
        """
        for replica in self._replicas:
            self._start(replica)
        while (ending := self._turn()) is None:
            self._programs.end_if_interrupted()
        with suppress(OSError):  # a log error of the other replicas must not change the ending
            self._programs.end_gently(0 if self._over_limit else self._spec.grace)
        return ending

    def _turn(self) -> Ending | None:
        ended = self._programs.turn()
        self._check_periodically()
        ending = self._ending_after(ended) if ended and not self._over_limit else None
        return self._over_limit or ending

    def _ending_after(self, ended: Sequence[Program]) -> Ending | None:
        replicas = [replica for program in ended for replica in self._replicas if replica.program is program]
        for replica in replicas:
            self._finish(replica)
        # The primary's success counts before another replica's failure at the same moment.
        if any(replica is self._replicas[0] and _code(replica) == 0 for replica in replicas):
            return Ending(SUCCEEDED)
        for replica in replicas:
            if _code(replica) != 0 and not self._may_start_again(replica):
                return self._failure(replica)
        stopped = [replica for replica in replicas if _code(replica) != 0]
        return self._start_again(stopped) if stopped else None

    def _may_start_again(self, replica: _Replica) -> bool:
        return self._spec.restarts and killer_of(_code(replica)) is signal.SIGTERM and replica.starts < STARTS

    def _finish(self, replica: _Replica) -> None:
        assert replica.program is not None
        # A container's engine ends by itself once it has recorded the container's end: don't kill it.
        self._programs.finish(replica.program, kill=not isinstance(replica.spec.task, ContainerTask))

    def _failure(self, replica: _Replica) -> Ending:
        code, errors = _code(replica), replica.errors.text()
        explained = self._starter.explain(replica.spec, code, errors)
        if explained is None:
            return ending_of(replica.spec.name, code, errors, self._starter.hint(replica.spec, errors))
        # A failed set-up uses up no attempt, which is right only if no trainer of the run ever started.
        if is_set_up(explained.details) and not self._all_lack_set_up(replica):
            return replace(explained, details=details_of("MACHINE_FAILED"))
        return explained

    def _all_lack_set_up(self, first: _Replica) -> bool:
        """Return True if no replica got further than the first that failed; waits a moment for the others."""
        others = [replica for replica in self._replicas if replica is not first]
        until = time.monotonic() + _TOGETHER
        while any(_lives(replica) for replica in others) and time.monotonic() < until:
            self._programs.end_if_interrupted()
            ended = self._programs.turn()
            for replica in others:
                if replica.program in ended:
                    self._finish(replica)
        return first.starts == 1 and all(self._lacks_set_up(replica) for replica in others)

    def _lacks_set_up(self, replica: _Replica) -> bool:
        if replica.starts != 1 or _lives(replica) or _code(replica) == 0:
            return False
        explained = self._starter.explain(replica.spec, _code(replica), replica.errors.text())
        return explained is not None and is_set_up(explained.details)

    def _start_again(self, stopped: Sequence[_Replica]) -> Ending | None:
        """Start replicas again that SIGTERM has ended, or all replicas if they must start together.

        Returns:
            The run's ending if the primary succeeded while it was ended with the others.
        """
        together = self._spec.restarts_together and len(self._replicas) > 1
        follows = "all replicas are started again" if together else "it is started again"
        for replica in stopped:
            self._say(WARNING, f"The replica {replica.spec.name} was ended by SIGTERM: {follows}.")
        if together:
            ended, primary = self._programs.end_gently(self._spec.grace), self._replicas[0]
            if primary.program in ended and _code(primary) == 0:
                return Ending(SUCCEEDED)
        for replica in self._replicas if together else stopped:
            # At a shutdown of the machine all processes get SIGTERM: start none again then.
            self._programs.end_if_interrupted()
            self._start(replica)
        return None

    def _start(self, replica: _Replica) -> None:
        errors = Tail()
        name = replica.spec.task_name

        def err(lines: list[str]) -> None:
            errors.add(lines)
            self._print(ERROR, lines, name)

        replica.errors = errors
        replica.starts += 1
        replica.program = self._starter.start(replica.spec, lambda lines: self._print(INFO, lines, name), err)

    def _print(self, severity: str, lines: list[str], replica: str) -> None:
        if self._over_limit is not None:
            return
        try:
            self._log.write(severity, lines, replica)
        except LogFullError:
            size = _size(self._spec.log_limit)
            self._over_limit = _limit_ending(
                "LOG_LIMIT",
                f"its log has reached {size}, the limit of a run; the replica {replica} printed last",
            )

    def _check_periodically(self) -> None:
        now = time.monotonic()
        if now >= self._collect_at:
            self._collect()
            self._collect_at = now + _COLLECT_SECONDS
        # Counting takes long. Between the regular counts, count if many processes started since the last one.
        forks = process_tree.forks()
        if now >= self._count_at or abs(forks - self._forks) > _MANY_FORKS:
            self._count()
            self._count_at, self._forks = time.monotonic() + _COUNT_SECONDS, forks

    def _count(self) -> None:
        limit = self._spec.process_limit
        if self._over_limit is None and (count := self._programs.count()) > limit:
            process_tree.take_precedence()  # the runner needs CPU time to end the crowd
            why = f"it had {count} processes at once, and a run may have {limit}"
            self._over_limit = _limit_ending("PROCESS_LIMIT", why)

    def _say(self, severity: str, text: str) -> None:
        self._log.write(severity, [text])


def _lives(replica: _Replica) -> bool:
    return replica.program is not None and replica.program.code is None


def _code(replica: _Replica) -> int:
    assert replica.program is not None
    assert replica.program.code is not None
    return replica.program.code


def _limit_ending(reason: str, why: str) -> Ending:
    message = f"The job was ended: {why}."
    return Ending(FAILED, Code.RESOURCE_EXHAUSTED, message, details=details_of(reason))


def _size(count: int) -> str:
    mebibytes, rest = divmod(count, 1024 * 1024)
    return f"{count} bytes" if rest else f"{mebibytes} MiB"
