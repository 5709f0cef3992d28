"""Runner process: owns one run, from its packages to its end.

Started as `python -m reconciler.training_service.runner.main RUN_FOLDER`.
The runner outlives the service that started it. The files in the run's folder show a later service the run's
progress and ending. All processes that the runner starts die with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from reconciler.base.errors import MachineError
from reconciler.training_service.jobs.machines import MemoryLimits
from reconciler.training_service.processes.programs import Interrupted, Interruption, Programs
from reconciler.training_service.runner.containers import end_containers
from reconciler.training_service.state.records import Code, details_of, reason_of
from reconciler.training_service.state.run_folder import (
    CANCELLED,
    FAILED,
    PREPARING,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    Ending,
    RunError,
    RunFolder,
    locked,
    now,
    read_json,
    write_measurements,
)
from reconciler.training_service.state.run_log import ERROR, WARNING, RunLog
from reconciler.training_service.state.run_spec import RunSpec
from reconciler.training_service.tuning.measurements import ReportedMetrics

_STOP_GRACE = 2.0


def main(arguments: list[str]) -> int:
    """Carry out the run in the given folder, unless another process does or has done so."""
    folder = RunFolder(Path(arguments[-1]))
    try:
        with locked(folder.runner_lock), locked(folder.lock) as lock:
            if folder.claim():
                _Run(folder, lock).carry_out()
                # Exit without releasing the locks first: they become free only with the process, so a
                # service that finds them free finds no live runner.
                os._exit(0)
    except BlockingIOError:
        pass  # another runner owns the run
    return 0


class _Run:
    """Execution of one run."""

    def __init__(self, folder: RunFolder, lock: int) -> None:
        self._folder = folder
        self._spec = RunSpec.from_json(read_json(folder.spec) or {})
        self._log = RunLog(folder.log, self._spec.log_limit)
        self._programs = Programs(folder.run_id, folder.sessions, lock, self._interruption)
        self._memory = MemoryLimits(self._spec, self._programs.memory)
        self._stop = False
        self._deadline: float | None = None
        self._cancel_logged = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def carry_out(self) -> None:
        """Carry out the run and record its ending."""
        ending = self._ending()
        # The ending is recorded last: once it is there, a service expects no living process of the run.
        self._programs.end_all()
        end_containers(self._folder)
        if ending.state == FAILED:
            self._log_failure(ending)
        if self._folder.path.exists():
            self._record(replace(ending, time=now()))
        self._folder.clean()

    def _ending(self) -> Ending:
        try:
            return self._work()
        except Interrupted as interrupted:
            return interrupted.ending
        except (OSError, MachineError) as error:
            details = details_of(reason_of(error) if isinstance(error, OSError) else "MACHINE_FAILED")
            message = f"The machine failed the job: {error}"
            return Ending(FAILED, Code.RESOURCE_EXHAUSTED, message, details=details)
        except Exception:
            message = f"The service failed the job: {traceback.format_exc()}"
            return Ending(FAILED, Code.INTERNAL, message, details=details_of("INTERNAL"))

    def _work(self) -> Ending:
        # Imported late, because the imports are slow and the runner must claim the run at once.
        from reconciler.training_service.runner import placement, replicas, starter

        self._folder.set_phase(PREPARING)
        for warning in self._spec.warnings:
            self._say(WARNING, warning)
        try:
            self._spec, engine = placement.placed(self._spec, self._folder, self._programs, self._say)
            self._memory = MemoryLimits(self._spec, self._programs.memory)
            starting = starter.Starter(self._folder, self._spec, engine, self._programs, self._say)
            starting.prepare()
            self._folder.set_phase(RUNNING)
            self._deadline = time.monotonic() + self._spec.time_limit
            reported = ReportedMetrics(
                starting.metrics_file(self._spec.primary), self._spec.metrics, time.time()
            )
            collect = self._collector(reported)
            try:
                ending = replicas.Replicas(self._spec, self._programs, self._log, starting, collect).run()
            finally:
                collect()
            if ending.state == SUCCEEDED:
                self._warn_of_reports(reported)
            return ending
        except RunError as error:
            return error.ending

    def _collector(self, reported: ReportedMetrics) -> Callable[[], None]:
        """Return a function that stores the primary's new measurements; it does nothing outside of trials."""
        if not self._spec.metrics:
            return lambda: None

        def collect() -> None:
            before = reported.unusable
            is_changed = reported.poll() is not None or reported.unusable != before
            if is_changed and self._folder.path.exists():
                write_measurements(self._folder, reported.measurements, reported.unusable)

        return collect

    def _warn_of_reports(self, reported: ReportedMetrics) -> None:
        """Log the reports that the study can't use, before another trial makes the same mistake."""
        for tag in reported.unusable.not_finite:
            self._say(WARNING, f"The trial reported a value of {tag} that is no finite number.")
        unmeasured = [name for name in self._spec.metrics if not reported.has(name)]
        if unmeasured and reported.unusable.other_tags:
            tags = ", ".join(reported.unusable.other_tags)
            self._say(WARNING, f"The trial reported {tags}, and its study wants {', '.join(unmeasured)}.")

    def _interruption(self) -> Interruption | None:
        if self._stop or not self._folder.path.exists():
            return Interruption(Ending(STOPPED), _STOP_GRACE)
        exceeded = self._memory.exceeded()
        if exceeded is not None:
            return Interruption(exceeded, 0.0)
        message, reason = self._folder.cancel_asked(), "REQUESTED"
        if message is None and self._deadline is not None and time.monotonic() > self._deadline:
            message = f"The job was cancelled: it ran for longer than {self._spec.time_limit_field}."
            reason = "TIME_LIMIT"
        if message is None:
            return None
        if not self._cancel_logged:  # at once: processes may take long to end
            self._cancel_logged = True
            self._say(WARNING, message)
        details = details_of(reason)
        return Interruption(Ending(CANCELLED, Code.CANCELLED, message, details=details), self._spec.grace)

    def _record(self, ending: Ending) -> None:
        try:
            self._folder.end(ending)
        except OSError:
            self._folder.clean()  # on a full disk this makes room for the record
            self._folder.end(ending)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stop = True

    def _say(self, severity: str, text: str) -> None:
        self._log.write(severity, text.splitlines())

    def _log_failure(self, ending: Ending) -> None:
        # The first line alone: the others repeat the trainer's output, which the log already contains.
        with suppress(OSError):
            self._log.write(ERROR, ending.message.splitlines()[:1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
