"""Replicas of a run, from the first start to the last end.

The run ends with its primary replica: the other replicas are ended then, because parameter servers never end
by themselves. A failed replica also ends the run. A replica that a SIGTERM from outside has ended starts
again, in fresh folders, as the cloud does after it takes a machine away.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from reconciler.training_service.processes import process_tree
from reconciler.training_service.processes.programs import (
    Program,
    Programs,
    Tail,
    ending_of,
    killer_of,
)
from reconciler.training_service.runner.starter import Starter
from reconciler.training_service.state.records import Code, details_of, is_failed_set_up
from reconciler.training_service.state.run_folder import (
    FAILED,
    SUCCEEDED,
    Ending,
)
from reconciler.training_service.state.run_log import ERROR, INFO, WARNING, LogFullError, RunLog
from reconciler.training_service.state.run_spec import ContainerTask, ReplicaSpec, RunSpec

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
        if is_failed_set_up(explained.details) and not self._all_lack_set_up(replica):
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
        return explained is not None and is_failed_set_up(explained.details)

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
