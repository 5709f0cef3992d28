"""Search for and end of all processes of a run, including those that have left their parents.

On Linux the runner is a subreaper: a process that loses its parent becomes the runner's child, so the tree
below the runner is complete. On other systems, and after a runner's death, processes are found by a variable
in their environment (`MARK`) and by the sessions that the runner recorded.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

MARK = "RECONCILER_RUN"
REPLICA = "RECONCILER_REPLICA"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE = 0.01
_PAGE = os.sysconf("SC_PAGE_SIZE")

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def become_subreaper() -> None:
    """Adopt every descendant that loses its parent (Linux only)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def tie_to_parent() -> Callable[[], None] | None:
    """Return a function that makes a new process die with this one; None outside of Linux.

    The function runs between fork and exec; only for a process with a single thread.
    """
    if _libc is None:
        return None
    libc, parent = _libc, os.getpid()

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return tie


def reap() -> dict[int, int]:
    """Collect ended children; return exit codes by process id, negative for a signal that killed.

    Only for a process that waits for its children in no other way.
    """
    codes = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def descendants(run_id: str) -> list[psutil.Process]:
    """Return the living descendants of this process, which carry the mark `run_id`."""
    if _libc is None:
        candidates = [*psutil.Process().children(recursive=True), *marked(run_id)]
        return [process for process in candidates if _lives(process)]
    processes = []
    for entry in _below(list(table())):
        with suppress(psutil.Error):
            processes.append(psutil.Process(entry.pid))
    return processes


def count(run_id: str) -> int:
    """Return the number of `descendants`."""
    return len(descendants(run_id)) if _libc is None else len(_below(list(table())))


def memory(run_id: str, names: Mapping[int, str], enough: int) -> dict[str, int]:
    """Return the memory of all `descendants` in bytes, by the name of the nearest ancestor that has one.

    Pages that processes share count once. Pages of files don't count, as the system takes them back. While
    even a rough sum is below `enough`, it stands in for the exact one, which takes longer.

    Args:
        names: Names of processes by their ids. Processes below none of them count under "".
    """
    if _libc is None:
        return {"": sum(_unique(process.pid) for process in descendants(run_id))}
    entries = _below(list(table()))
    rough = {entry.pid: _resident(entry.pid) for entry in entries}
    exact = sum(rough.values()) + psutil.swap_memory().used >= enough
    owners: dict[int, str] = {}
    sizes: dict[str, int] = defaultdict(int)
    for entry in entries:  # parents first
        # A process that has lost its parent mostly still is in its program's session.
        inherited = owners.get(entry.parent) or names.get(entry.session, "")
        owners[entry.pid] = names.get(entry.pid, inherited)
        sizes[owners[entry.pid]] += _proportional(entry.pid, rough[entry.pid]) if exact else rough[entry.pid]
    return dict(sizes)


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    return 0


def _proportional(pid: int, otherwise: int) -> int:
    """Return a process's share of memory; `otherwise` if it hides that, as after a change of its user."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except FileNotFoundError:
        return _unique(pid)  # an old kernel, or the process has ended
    except ProcessLookupError:
        return 0
    except OSError:
        return otherwise
    sizes = {name: int(size.split()[0]) for name, size in (line.split(":") for line in lines)}
    return (sizes.get("Pss", 0) - sizes.get("Pss_File", 0) + sizes.get("SwapPss", 0)) * 1024


def _unique(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().uss)
    return 0


def kill_descendants(run_id: str, reap: Callable[[], object], within: float) -> bool:
    """Kill all descendants of this process, even those that fork as fast as they can.

    Args:
        reap: Collects the children that have ended.

    Returns:
        True once all are dead; False after `within` seconds.
    """

    def living() -> list[psutil.Process]:
        reap()
        return descendants(run_id)

    give_up = time.monotonic() + within
    if _libc is not None and living():
        _kill_below(give_up)
    return kill_all(living, give_up - time.monotonic())


def take_precedence() -> None:
    """Give this process real-time priority if this user may; a crowd of processes could leave it no time."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def forks() -> int:
    """Return the id of the newest process of this system; 0 if the system doesn't report it."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def marked(run_id: str) -> list[psutil.Process]:
    """Return this user's living processes with the run's mark in their environment, except this process."""
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _lives(process) and run_of(process) == run_id
    ]


def run_of(process: psutil.Process) -> str | None:
    """Return the run id in the process's environment; None if it is missing or unreadable."""
    return _variable_of(process, MARK)


def replica_of(process: psutil.Process) -> str | None:
    """Return the replica's name in the process's environment; None if it is missing or unreadable."""
    return _variable_of(process, REPLICA)


def is_runner(pid: int, run_id: str) -> bool:
    """Return True for a runner of this run, False for another process that reuses the number."""
    try:
        return psutil.Process(pid).cmdline()[-1:][0].endswith(run_id)
    except (psutil.Error, IndexError):
        return False


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that still lives."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def kill_all(find: Callable[[], list[psutil.Process]], within: float) -> bool:
    """Kill the processes that `find` returns until it returns none; return False after `within` seconds."""
    # Halt all processes before the first is killed: none can then fork, or react to another's death.
    give_up = time.monotonic() + within
    halted: set[int] = set()
    while living := find():
        new = [process for process in living if process.pid not in halted]
        number = signal.SIGSTOP if new else signal.SIGKILL
        _signal_groups(new or living, number)
        send_signal(new or living, number)
        halted.update(process.pid for process in new)
        if time.monotonic() > give_up:
            send_signal(living, signal.SIGKILL)
            return False
        if not new:
            time.sleep(_PAUSE)
    return True


def _signal_groups(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    # A signal to a group reaches all members at one moment, so a process that forks can't get ahead of it.
    # Programs of a run start in their own sessions, so their groups contain no foreign process.
    groups = set()
    for process in processes:
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(process.pid))
    for group in groups - {0, os.getpgrp()}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


class Entry(NamedTuple):
    """Row of the system's process table; `start` in ticks since the machine's start."""

    pid: int
    parent: int
    group: int
    session: int
    start: int


def table() -> Iterator[Entry]:
    """Yield the living processes from `/proc/PID/stat` (see proc(5))."""
    for name in os.listdir("/proc"):  # noqa: PTH208 plain names are faster, and this loop is hot
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 a Path for each process takes longer than reading
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # the process has ended
            # A main thread that has ended is a zombie while other threads of its process go on.
            threads = int(fields[17])
            if fields[0] not in (b"Z", b"X") or threads > 1:
                yield Entry(int(name), *(int(fields[index]) for index in (1, 2, 3, 19)))


def _below(table: Sequence[Entry]) -> list[Entry]:
    """Return the descendants of this process."""
    children = defaultdict(list)
    for entry in table:
        children[entry.parent].append(entry)
    below = list(children[os.getpid()])
    for entry in below:  # the list grows in the loop
        below += children[entry.pid]
    return below


def _kill_below(give_up: float) -> None:
    """Halt all descendants of this process, then kill them."""
    halted: set[Entry] = set()
    below: list[Entry] = []
    while time.monotonic() < give_up:
        entries, ours, groups = [], {os.getpid()}, {os.getpgrp(), 0}
        # Halt each process while the table is still being read: a process that forks must not win the race.
        for entry in table():
            entries.append(entry)
            if entry.parent in ours:
                ours.add(entry.pid)
                if entry not in halted:
                    _halt(entry, groups)
        # Children that the table lists before their parents.
        below = _below(entries)
        for entry in below:
            if entry.pid not in ours and entry not in halted:
                _halt(entry, groups)
        if halted.issuperset(below):
            break
        halted.update(below)
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


def record_session(folder: Path) -> None:
    """Record the session that this process has begun.

    Runs between fork and exec, so that every session is recorded before its program starts.

    Raises:
        OSError: The record can't be written; the program must not start.
    """
    if sys.platform == "linux":
        pid = os.getpid()
        (folder / str(pid)).write_text(f"{_start_of(pid)} {_system()}")


def forget_session(folder: Path, session: int) -> None:
    """Remove the record of an empty session."""
    with suppress(OSError):
        (folder / str(session)).unlink()


def session_members(folder: Path, run_id: str) -> list[psutil.Process]:
    """Return the living processes of the recorded sessions that this process may end."""
    starts = dict(_recorded_sessions(folder))
    if not starts:
        return []
    entries = [entry for entry in table() if entry.session in starts]
    # A leader with another start time reuses the session's number: that session isn't the run's.
    others = {
        entry.pid for entry in entries if entry.pid == entry.session and entry.start != starts[entry.session]
    }
    members = []
    for entry in entries:
        if entry.session not in others and entry.start >= starts[entry.session] and _may_be_ended(entry.pid):
            with suppress(psutil.Error):
                process = psutil.Process(entry.pid)
                if run_of(process) in (None, run_id):
                    members.append(process)
    return members


def _recorded_sessions(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the session id and start time of each program started since this system's start."""
    system = _system()
    with suppress(OSError):
        for path in folder.iterdir():
            start, _, recorded_system = path.read_text().partition(" ")
            # A partly written record fails this check: its program never ran.
            if recorded_system == system:
                yield int(path.name), int(start)


def _start_of(pid: int) -> int:
    """Return a process's start in ticks since the machine's start, independent of the clock."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def _system() -> str:
    """Return an id of this start of the machine or container."""
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
