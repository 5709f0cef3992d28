"""Launcher of runner processes: starts them, finds them again, ends them."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.processes import process_tree
from reconciler.training_service.runner import containers
from reconciler.training_service.runner.proxy import make_certificates
from reconciler.training_service.state.run_folder import RunFolder, remove, run_folder

_TO_DIE = 1.0
_STOP_POLL = 0.02
_STOP_GENTLY = 3.0
_RETRY_AFTER = 5.0  # seconds after a failed attempt to remove containers

_log = logging.getLogger(__name__)


class Runners:
    """Runners of a home's runs, including those that a former service started."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._adopted: dict[str, int] = {}
        self._removals: dict[str, _Removal] = {}

    def start(self, folder: RunFolder) -> None:
        """Start a runner that outlives this process and shares no resource with it."""
        make_certificates(folder)
        with folder.complaints.open("ab") as complaints:
            self._started[folder.run_id] = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "reconciler.training_service.runner.main"),
                    str(folder.path),  # last, where `process_tree.is_runner` expects it
                ],
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                cwd="/",
                env=environment_variables.for_runner(os.environ),
                start_new_session=True,
            )

    def lives(self, folder: RunFolder) -> bool:
        """Return True if a runner owns the run or is about to take it."""
        runner = self._started.get(folder.run_id)
        if runner is not None and runner.poll() is None:
            return True
        if runner is not None:
            del self._started[folder.run_id]
            if folder.path.exists():
                # A runner that died before its claim counts as lost. Without a claim the run would count as
                # still to be started, without the limit for lost runs.
                folder.claim()
        pid = folder.runner()
        if pid is None:
            self._adopted.pop(folder.run_id, None)
            return False
        self._adopted[folder.run_id] = pid
        return True

    def kill(self, folder: RunFolder) -> bool:
        """Kill all processes of a run, the runner first; return True once all are dead."""
        pid = self._pids().get(folder.run_id) or folder.runner()
        # The process that claimed the run may be a service that gave the run up, for example this one.
        if pid is not None and process_tree.is_runner(pid, folder.run_id):
            _signal(pid, signal.SIGKILL)
        return self.kill_remains(folder)

    def kill_remains(self, folder: RunFolder) -> bool:
        """Kill the remaining processes of a run whose runner is dead; return True once all are dead.

        Containers are removed in the background: the result is False until they are gone.
        """
        return _kill_processes(folder) and self._has_no_containers(folder) and folder.over()

    def stop(self) -> None:
        """End every run within five seconds, even if the home is gone; the runs stay unfinished."""
        give_up = time.monotonic() + _STOP_GENTLY
        for pid in self._pids().values():
            _signal(pid, signal.SIGTERM)
        while (left := self._pids()) and time.monotonic() < give_up:
            time.sleep(_STOP_POLL)
        for run_id, pid in left.items():
            _signal(pid, signal.SIGKILL)
            folder = run_folder(self._home, run_id)
            _kill_processes(folder)
            containers.end_containers(folder)
            folder.clean()

    def _has_no_containers(self, folder: RunFolder) -> bool:
        removal = self._removals.get(folder.run_id)
        if removal is not None and not removal.finished:
            return False
        if folder.path.exists() and not containers.has_containers(folder):
            self._removals.pop(folder.run_id, None)
            return True
        # Without the run's folder, only the attempt's result shows that the containers are gone.
        if removal is not None and removal.gone:
            del self._removals[folder.run_id]
            return True
        if removal is None or removal.is_due_again:
            self._removals[folder.run_id] = _Removal(folder)
        return False

    def _pids(self) -> dict[str, int]:
        # From memory, because the home may be gone.
        started = {run_id: runner.pid for run_id, runner in self._started.items() if runner.poll() is None}
        adopted = {
            run_id: pid for run_id, pid in self._adopted.items() if process_tree.is_runner(pid, run_id)
        }
        return started | adopted


class _Removal:
    """Attempt to remove a run's containers in the background, because an engine may take minutes to answer.

    Attributes:
        gone: True once all containers are removed.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.gone = False
        self._retry_at = math.inf
        self._thread = threading.Thread(target=self._try, args=(folder,), daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Return True if the attempt has ended."""
        return not self._thread.is_alive()

    @property
    def is_due_again(self) -> bool:
        """Return True if the attempt failed some time ago."""
        return time.monotonic() > self._retry_at

    def _try(self, folder: RunFolder) -> None:
        try:
            self.gone = containers.end_containers(folder)
        except Exception:
            _log.exception("can't remove the containers of run %s", folder.run_id)
        self._retry_at = time.monotonic() + _RETRY_AFTER


def _kill_processes(folder: RunFolder) -> bool:
    def find() -> list[psutil.Process]:
        run_id = folder.run_id
        return list({*process_tree.marked(run_id), *process_tree.session_members(folder.sessions, run_id)})

    dead = process_tree.kill_all(find, _TO_DIE)
    if dead:
        remove(folder.sessions)
    return dead


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
