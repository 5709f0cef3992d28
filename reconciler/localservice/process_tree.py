"""Every process that a run has started: found and ended, also those that have left their parents.

On Linux the runner is a subreaper: whoever loses its parent becomes its child, so the tree below it is
complete. Where there is no such thing, and after a runner's death, a variable in the environment of all that
a run has started tells.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

MARK = "RECONCILER_RUN"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE = 0.01

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def become_subreaper() -> None:
    """Take in every descendant that loses its parent, where the system can do that."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dying_with_parent() -> Callable[[], None] | None:
    """What a new process is to do first to be killed when this one dies, where the system can do that.

    Only for a process with a single thread: it runs between fork and exec.
    """
    if _libc is None:
        return None
    libc, parent = _libc, os.getpid()

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return tie


def reap() -> dict[int, int]:
    """Collect the children that have ended: exit codes by process id, negative for the signal that killed.

    Only for a process that waits for its children in no other way.
    """
    codes = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            codes[found[0]] = os.waitstatus_to_exitcode(found[1])
    return codes


def descendants(run_id: str) -> list[psutil.Process]:
    """The living processes that this one has started, directly or not; `run_id` is the mark they carry."""
    below = psutil.Process().children(recursive=True)
    found = below if _libc is not None else [*below, *marked(run_id)]
    return [process for process in found if _lives(process)]


def marked(run_id: str) -> list[psutil.Process]:
    """The living processes of this user with the run's mark in their environment, this one excepted."""
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _lives(process) and _mark_of(process) == run_id
    ]


def is_runner(pid: int, run_id: str) -> bool:
    """Whether this process is the runner of this run, and not another one with a number used again."""
    try:
        return psutil.Process(pid).cmdline()[-1:][0].endswith(run_id)
    except (psutil.Error, IndexError):
        return False


def tell(processes: Iterable[psutil.Process], what: signal.Signals) -> None:
    """Send a signal to each that still lives."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(what)


def kill_all(find: Callable[[], list[psutil.Process]], within: float) -> bool:
    """Kill what `find` finds until it finds nothing; False where that took longer than `within` seconds."""
    give_up = time.monotonic() + within
    while living := find():
        tell(living, signal.SIGKILL)
        if time.monotonic() > give_up:
            return False
        time.sleep(_PAUSE)
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None
