"""The sessions that a run's programs have begun, noted in the run's folder.

What a program starts may clear its environment and close its descriptors: once the runner is dead, neither
the mark nor the lock tells then whose it is. But it is in its program's session, unless it begins one of its
own, and the system gives the session's number to nobody else as long as anything is in it.

On Linux alone; elsewhere nothing is noted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from reconciler.localservice import process_tree


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
    table = [entry for entry in process_tree.table() if entry.session in noted]
    # Whoever has the number of a session and began at another time has it anew: his session isn't the run's.
    others = {
        entry.pid for entry in table if entry.pid == entry.session and entry.start != noted[entry.session]
    }
    found = []
    for entry in table:
        if entry.session not in others and entry.start >= noted[entry.session] and _may_be_ended(entry.pid):
            with suppress(psutil.Error):
                process = psutil.Process(entry.pid)
                if process_tree.run_of(process) in (None, run_id):
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
