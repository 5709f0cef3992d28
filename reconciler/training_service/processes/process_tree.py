"""Every process that a run has started: found and ended, also those that have left their parents.

On Linux the runner is a subreaper: whoever loses its parent becomes its child, so the tree below it is
complete. Where there is no such thing, and after a runner's death, a variable in the environment of all that
a run has started tells, and `sessions`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

MARK = "RECONCILER_RUN"
REPLICA = "RECONCILER_REPLICA"

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
    if _libc is None:
        found = [*psutil.Process().children(recursive=True), *marked(run_id)]
        return [process for process in found if _lives(process)]
    processes = []
    for entry in _below(list(table())):
        with suppress(psutil.Error):
            processes.append(psutil.Process(entry.pid))
    return processes


def count(run_id: str) -> int:
    """How many `descendants` there are."""
    return len(descendants(run_id)) if _libc is None else len(_below(list(table())))


def kill_descendants(run_id: str, reap: Callable[[], object], within: float) -> bool:
    """Kill all that this process has started, also what starts new processes as fast as it can.

    Args:
        reap: Collects the children that have ended.

    Returns:
        Whether nothing of it lives; False after `within` seconds.
    """

    def living() -> list[psutil.Process]:
        reap()
        return descendants(run_id)

    give_up = time.monotonic() + within
    if _libc is not None and living():
        _kill_below(give_up)
    return kill_all(living, give_up - time.monotonic())


def take_precedence() -> None:
    """Run before everything else from now on, where this user may: else a crowd of others leaves no time."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def forks() -> int:
    """A number that grows with each process that anybody starts; 0 where the system doesn't tell."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def marked(run_id: str) -> list[psutil.Process]:
    """The living processes of this user with the run's mark in their environment, this one excepted."""
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _lives(process) and run_of(process) == run_id
    ]


def run_of(process: psutil.Process) -> str | None:
    """The run that has started this process, by its mark; None where that isn't known."""
    return _variable_of(process, MARK)


def replica_of(process: psutil.Process) -> str | None:
    """The replica that has started this process, by its mark; None where that isn't known."""
    return _variable_of(process, REPLICA)


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
    """Kill what `find` finds until it finds nothing; False where that took longer than `within` seconds.

    All are halted before the first is killed: none can start another meanwhile, or notice that one is gone.
    """
    give_up = time.monotonic() + within
    halted: set[int] = set()
    while living := find():
        new = [process for process in living if process.pid not in halted]
        what = signal.SIGSTOP if new else signal.SIGKILL
        _tell_groups(new or living, what)
        tell(new or living, what)
        halted.update(process.pid for process in new)
        if time.monotonic() > give_up:
            tell(living, signal.SIGKILL)
            return False
        if not new:
            time.sleep(_PAUSE)
    return True


def _tell_groups(processes: Iterable[psutil.Process], what: signal.Signals) -> None:
    """Send a signal to whole process groups: at one moment, so that nothing that forks is ahead of it.

    All that a run has started is in sessions of its own, so their groups hold nothing else.
    """
    groups = set()
    for process in processes:
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(process.pid))
    for group in groups - {0, os.getpgrp()}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, what)


class Entry(NamedTuple):
    """A line of the system's table of processes; `start` in ticks since the machine's start."""

    pid: int
    parent: int
    group: int
    session: int
    start: int


def table() -> Iterator[Entry]:
    """The living processes, each as it is when it is read: `/proc/PID/stat`, see proc(5)."""
    for name in os.listdir("/proc"):  # noqa: PTH208 plain names are quicker, and it counts here
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 a Path for each process takes longer than reading
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            threads = int(fields[17])
            if fields[0] not in (b"Z", b"X") or threads > 1:
                yield Entry(int(name), *(int(fields[place]) for place in (1, 2, 3, 19)))


def _below(table: Sequence[Entry]) -> list[Entry]:
    """What this process has started, directly or not."""
    children = defaultdict(list)
    for entry in table:
        children[entry.parent].append(entry)
    found = list(children[os.getpid()])
    for entry in found:  # it grows meanwhile
        found += children[entry.pid]
    return found


def _kill_below(give_up: float) -> None:
    """Halt what this process has started until there is nothing new in it, then kill it all.

    Each is halted as soon as it is seen, with its process group: what forks must not win the race.
    """
    known: set[Entry] = set()
    below: list[Entry] = []
    while time.monotonic() < give_up:
        seen, ours, groups = [], {os.getpid()}, {os.getpgrp(), 0}
        for entry in table():
            seen.append(entry)
            if entry.parent in ours:
                ours.add(entry.pid)
                if entry not in known:
                    _halt(entry, groups)
        below = _below(seen)
        for entry in below:
            if entry.pid not in ours and entry not in known:
                _halt(entry, groups)
        if known.issuperset(below):
            break
        known.update(below)
    for entry in below:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(entry.pid, signal.SIGKILL)


def _halt(entry: Entry, groups: set[int]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if entry.group not in groups:
            groups.add(entry.group)
            os.killpg(entry.group, signal.SIGSTOP)
        os.kill(entry.pid, signal.SIGSTOP)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _variable_of(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def note(folder: Path) -> None:
    """Note the session that this process has begun; between fork and exec, so that none starts unnoted.

    Raises:
        OSError: It can't be written; then the program must not be started.
    """
    if sys.platform == "linux":
        pid = os.getpid()
        (folder / str(pid)).write_text(f"{_start_of(pid)} {_system()}")


def forget(folder: Path, session: int) -> None:
    """Take back the note of a session that nothing is in any more."""
    with suppress(OSError):
        (folder / str(session)).unlink()


def members(folder: Path, run_id: str) -> list[psutil.Process]:
    """The living processes in the noted sessions, as far as this process may end them."""
    noted = dict(_noted(folder))
    if not noted:
        return []
    entries = [entry for entry in table() if entry.session in noted]
    # Whoever has the number of a session and began at another time has it anew: his session isn't the run's.
    others = {
        entry.pid for entry in entries if entry.pid == entry.session and entry.start != noted[entry.session]
    }
    found = []
    for entry in entries:
        if entry.session not in others and entry.start >= noted[entry.session] and _may_be_ended(entry.pid):
            with suppress(psutil.Error):
                process = psutil.Process(entry.pid)
                if run_of(process) in (None, run_id):
                    found.append(process)
    return found


def _noted(folder: Path) -> Iterator[tuple[int, int]]:
    """Session and start of each program that was started since this system was."""
    system = _system()
    with suppress(OSError):
        for path in folder.iterdir():
            start, _, of = path.read_text().partition(" ")
            if of == system:  # what is only partly written is of a program that never ran
                yield int(path.name), int(start)


def _start_of(pid: int) -> int:
    """When a process began, in ticks since the machine's start: the clock's corrections don't change it."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def _system() -> str:
    """What is another after each start of the machine, or of the container that holds these processes."""
    parts = []
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(_start_of(1)))
    return " ".join(parts) or "?"


def _may_be_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid != os.getpid()
