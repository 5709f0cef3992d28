"""The processes that own runs: started, found again, ended."""

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

import psutil

from reconciler.base.state_dir import Home
from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.processes import process_tree
from reconciler.training_service.runner import containers
from reconciler.training_service.state.run_folder import RunFolder, remove, run_folder

_TO_DIE = 1.0
_STOP_POLL = 0.02
_STOP_GENTLY = 3.0
_ASK_AGAIN = 5.0  # seconds after a try that was in vain

_log = logging.getLogger(__name__)


class Runners:
    """The runners of a home's runs; those of a former service too."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._adopted: dict[str, int] = {}
        self._removals: dict[str, _Removal] = {}

    def start(self, folder: RunFolder) -> None:
        """Start a runner that outlives this process and shares nothing with it."""
        checkout = [] if self._home.checkout is None else ["--checkout", str(self._home.checkout)]
        with folder.complaints.open("ab") as complaints:
            self._started[folder.run_id] = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "reconciler.training_service.runner.main"),
                    *checkout,
                    str(folder.path),  # last, as `process_tree.is_runner` looks for it there
                ],
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                cwd="/",
                env=environment_variables.for_runner(os.environ),
                start_new_session=True,
            )

    def lives(self, folder: RunFolder) -> bool:
        """Whether a runner has the run in hand, or is about to take it."""
        runner = self._started.get(folder.run_id)
        if runner is not None and runner.poll() is None:
            return True
        if runner is not None:
            del self._started[folder.run_id]
            if folder.path.exists():
                folder.claim()  # where it never got so far: it counts as lost, not as still to be started
        pid = folder.runner()
        if pid is None:
            self._adopted.pop(folder.run_id, None)
            return False
        self._adopted[folder.run_id] = pid
        return True

    def kill(self, folder: RunFolder) -> bool:
        """Kill whatever lives of a run, its runner first; whether nothing does any more."""
        pid = self._pids().get(folder.run_id) or folder.runner()
        # Who has claimed a run may be no runner, but a service that has given it up: this one, say.
        if pid is not None and process_tree.is_runner(pid, folder.run_id):
            _signal(pid, signal.SIGKILL)
        return self.kill_remains(folder)

    def kill_remains(self, folder: RunFolder) -> bool:
        """Kill what is left of a run whose runner is dead; whether nothing of it lives.

        Containers are removed in the background: False until they are.
        """
        return _kill_left(folder) and self._has_no_containers(folder) and folder.over()

    def stop(self) -> None:
        """End every run within five seconds, also where the home is gone; they are unfinished then."""
        give_up = time.monotonic() + _STOP_GENTLY
        for pid in self._pids().values():
            _signal(pid, signal.SIGTERM)
        while (left := self._pids()) and time.monotonic() < give_up:
            time.sleep(_STOP_POLL)
        for run_id, pid in left.items():
            _signal(pid, signal.SIGKILL)
            folder = run_folder(self._home.path, run_id)
            _kill_left(folder)
            containers.end_containers(folder)
            folder.clean()

    def _has_no_containers(self, folder: RunFolder) -> bool:
        removal = self._removals.get(folder.run_id)
        if removal is not None and not removal.over:
            return False
        if folder.path.exists() and not containers.has_containers(folder):
            self._removals.pop(folder.run_id, None)
            return True
        if removal is not None and removal.gone:
            del self._removals[folder.run_id]
            return True
        if removal is None or removal.is_to_be_repeated:
            self._removals[folder.run_id] = _Removal(folder)
        return False

    def _pids(self) -> dict[str, int]:
        """The runners that live, by run; from memory, because the home may be gone."""
        own = {run_id: runner.pid for run_id, runner in self._started.items() if runner.poll() is None}
        adopted = {
            run_id: pid for run_id, pid in self._adopted.items() if process_tree.is_runner(pid, run_id)
        }
        return own | adopted


class _Removal:
    """One try to remove a run's containers, beside everything else: an engine may take minutes to answer.

    Attributes:
        gone: Whether nothing of them lives.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.gone = False
        self._again = math.inf
        self._thread = threading.Thread(target=self._try, args=(folder,), daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the try has come to its end."""
        return not self._thread.is_alive()

    @property
    def is_to_be_repeated(self) -> bool:
        """Whether it was in vain, some time ago."""
        return time.monotonic() > self._again

    def _try(self, folder: RunFolder) -> None:
        try:
            self.gone = containers.end_containers(folder)
        except Exception:
            _log.exception("can't remove the containers of run %s", folder.run_id)
        self._again = time.monotonic() + _ASK_AGAIN


def _kill_left(folder: RunFolder) -> bool:
    def left() -> list[psutil.Process]:
        run_id = folder.run_id
        return list({*process_tree.marked(run_id), *process_tree.session_members(folder.sessions, run_id)})

    dead = process_tree.kill_all(left, _TO_DIE)
    if dead:
        remove(folder.sessions)
    return dead


def _signal(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)
