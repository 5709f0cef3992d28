"""Runs one program after the other for a run: output taken in, requests to end obeyed, nothing left behind.

One thread does it all: what a new process does between fork and exec is safe only so.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from reconciler.localservice import process_tree
from reconciler.localservice.run_folder import Ending
from reconciler.localservice.run_log import LineSplitter

_POLL = 0.1
_CHUNK = 64 * 1024
_TO_DIE = 5.0
_TO_DRAIN = 2.0

Consumer = Callable[[list[str]], None]


@dataclass(frozen=True, slots=True)
class Interruption:
    """Why a run is to end now, and how many seconds its processes get between SIGTERM and SIGKILL."""

    ending: Ending
    grace: float


class Interrupted(Exception):
    """The run was to end, and all its processes are dead."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending


class Programs:
    """Runs programs, one at a time.

    Attributes:
        run_id: The mark that all processes carry in their environment.
        lock: A descriptor that all processes inherit, with the lock it holds.
        asked: Tells whether the run is to end; called a few times a second.
    """

    def __init__(self, run_id: str, lock: int, asked: Callable[[], Interruption | None]) -> None:
        self._run_id = run_id
        self._lock = lock
        self._asked = asked
        self._wakeup = _wake_on_child()
        process_tree.become_subreaper()

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: Consumer,
        err: Consumer,
        keep: Sequence[int] = (),
    ) -> int:
        """Run a program to its end, and end what it leaves behind.

        Args:
            out: Gets the lines of its standard output; `err` those of its standard error.
            keep: More descriptors that it inherits.

        Returns:
            The exit code, negative for the signal that killed it.

        Raises:
            Interrupted: The run was to end.
            OSError: The program can't be started.
        """
        self.pause(0)
        with _started(argv, {**env, process_tree.MARK: self._run_id}, cwd, (self._lock, *keep)) as child:
            return _Attendance(child, out, err, self).attend()

    def pause(self, seconds: float = _POLL) -> None:
        """Wait; raises Interrupted where the run is to end."""
        interruption = self._asked()
        if interruption is not None:
            raise Interrupted(interruption.ending)
        if seconds:
            time.sleep(seconds)

    def living(self) -> list[psutil.Process]:
        """What programs have left behind, or have still running."""
        return process_tree.descendants(self._run_id)

    def end_all(self) -> None:
        """Kill every process that was started."""
        process_tree.kill_all(self._left, _TO_DIE)

    def _left(self) -> list[psutil.Process]:
        process_tree.reap()
        return self.living()

    @property
    def wakeup(self) -> int:
        """A descriptor that becomes readable when a child ends."""
        return self._wakeup

    def asked(self) -> Interruption | None:
        """Whether the run is to end."""
        return self._asked()


class _Attendance:
    """One program from its start to the death of the last process that it has started."""

    def __init__(
        self, child: subprocess.Popen[bytes], out: Consumer, err: Consumer, programs: Programs
    ) -> None:
        self._child = child
        self._programs = programs
        self._selector = selectors.DefaultSelector()
        self._selector.register(programs.wakeup, selectors.EVENT_READ, None)
        for stream, consumer in ((child.stdout, out), (child.stderr, err)):
            self._register(stream, consumer)
        self._interruption: Interruption | None = None
        self._kill_at = 0.0

    def attend(self) -> int:
        with self._selector:
            code = self._to_exit()
            self._to_silence()
        self._child.returncode = code  # collected here, not by Popen
        if self._interruption is not None:
            raise Interrupted(self._interruption.ending)
        return code

    def _register(self, stream: IO[bytes] | None, consumer: Consumer) -> None:
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (LineSplitter(), consumer))

    def _to_exit(self) -> int:
        while True:
            self._take_in(_POLL)
            codes = process_tree.reap()
            if self._child.pid in codes:
                return codes[self._child.pid]
            self._press()

    def _press(self) -> None:
        """Ask the processes to end when the run is to end; make them, once their time is over."""
        if self._interruption is None:
            self._interruption = self._programs.asked()
            if self._interruption is not None:
                self._kill_at = time.monotonic() + self._interruption.grace
                process_tree.tell(self._programs.living(), signal.SIGTERM)
        elif time.monotonic() > self._kill_at:
            process_tree.tell(self._programs.living(), signal.SIGKILL)

    def _to_silence(self) -> None:
        """After the program's end: what it has started ends as well, at once or within the grace it has."""
        while self._interruption and time.monotonic() < self._kill_at and self._programs.living():
            self._take_in(_POLL)
            process_tree.reap()
        self._programs.end_all()
        give_up = time.monotonic() + _TO_DRAIN
        while len(self._selector.get_map()) > 1 and time.monotonic() < give_up:
            self._take_in(_POLL)
        for key in self._streams():
            self._close(key)

    def _take_in(self, timeout: float) -> None:
        for key, _events in self._selector.select(timeout):
            if key.data is None:
                os.read(key.fd, _CHUNK)
            elif data := os.read(key.fd, _CHUNK):
                _deliver(key, key.data[0].feed(data))
            else:
                self._close(key)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        _deliver(key, key.data[0].close())

    def _streams(self) -> list[selectors.SelectorKey]:
        return [key for key in self._selector.get_map().values() if key.data is not None]


def _deliver(key: selectors.SelectorKey, lines: list[str]) -> None:
    if lines:
        key.data[1](lines)


@contextmanager
def _started(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, descriptors: Sequence[int]
) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        start_new_session=True,
        pass_fds=descriptors,
        preexec_fn=process_tree.dying_with_parent(),
    )
    try:
        yield child
    finally:
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def _wake_on_child() -> int:
    """A descriptor that becomes readable when a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reading
