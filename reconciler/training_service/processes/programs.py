"""Start, output and end of a run's programs.

A single thread does all of this: a new process may run Python code between fork and exec only then.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from reconciler.training_service.processes import process_tree
from reconciler.training_service.processes.container_engines import in_container
from reconciler.training_service.state.records import Code, details_of
from reconciler.training_service.state.run_folder import FAILED, SUCCEEDED, Ending, remove
from reconciler.training_service.state.run_log import LineSplitter

_POLL = 0.1
_CHUNK = 64 * 1024
_TO_DIE = 5.0
_TO_DRAIN = 2.0
_SERVER_STARTS = 20
_SERVER = "/"  # no replica's name

Consumer = Callable[[list[str]], None]


@dataclass(frozen=True, slots=True)
class Interruption:
    """Reason to end the run now, and the seconds between SIGTERM and SIGKILL."""

    ending: Ending
    grace: float


class Interrupted(Exception):
    """The run was interrupted, and all its processes are dead."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending


@dataclass(eq=False, slots=True)
class Program:
    """Started program.

    Attributes:
        replica: The name of its replica; "" for a program of the runner itself.
        code: The exit code, negative for the signal that killed it; None while it runs.
    """

    child: subprocess.Popen[bytes]
    replica: str
    code: int | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its session and process group."""
        return self.child.pid


@dataclass(eq=False, slots=True)
class _Stream:
    """Standard output or standard error of a program."""

    program: Program
    stream: IO[bytes]
    consumer: Consumer
    lines: LineSplitter = field(default_factory=LineSplitter)


@dataclass(eq=False, slots=True)
class _Server:
    """Program that starts when a connection waits at its listener.

    Attributes:
        asked: Whether a connection waits for the program's start.
    """

    listener: socket.socket
    start: Callable[[], Program]
    program: Program | None = None
    starts: int = 0
    asked: bool = False


class Programs:
    """Runner of programs.

    Attributes:
        run_id: The mark that all processes carry in their environment.
        sessions: The folder for records of the sessions that programs begin.
        lock: A descriptor that all processes inherit, with the lock that it holds.
        interruption: Returns an interruption once the run is to end; called a few times a second.
    """

    def __init__(
        self, run_id: str, sessions: Path, lock: int, interruption: Callable[[], Interruption | None]
    ) -> None:
        self._run_id = run_id
        self._sessions = sessions
        self._lock = lock
        self._interruption = interruption
        self._running: dict[int, Program] = {}
        self._ended: list[Program] = []
        self._server: _Server | None = None
        self._selector = selectors.DefaultSelector()
        # The end of a child interrupts the wait for output at once.
        self._selector.register(_wake_on_child(), selectors.EVENT_READ, None)
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
        """Run a program to its end while no other runs, and kill the processes that it leaves behind.

        Args:
            out: Gets the lines of its standard output; `err` those of its standard error.
            keep: Further descriptors that it inherits.

        Returns:
            The exit code, negative for the signal that killed it.

        Raises:
            Interrupted: The run is to end.
            OSError: The program can't be started.
        """
        self.pause(0)
        program = self.start(argv, env=env, cwd=cwd, out=out, err=err, keep=keep)
        while not self.turn():
            self.end_if_interrupted()
        self.finish(program)
        assert program.code is not None
        return program.code

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: Consumer,
        err: Consumer,
        keep: Sequence[int] = (),
        replica: str = "",
        first: Callable[[], None] | None = None,
    ) -> Program:
        """Start a program beside running ones; `turn` reports its end, and the caller then calls `finish`.

        Args:
            replica: The replica's name, a mark in the environment of all processes that the program starts.
            first: Runs in the new process before the program.

        Raises:
            OSError: The program can't be started.
        """
        marks = {process_tree.MARK: self._run_id, **({process_tree.REPLICA: replica} if replica else {})}
        self._sessions.mkdir(exist_ok=True)
        before = _before_exec(self._sessions, first)
        child = _start_process(argv, {**env, **marks}, cwd, (self._lock, *keep), before)
        program = Program(child, replica)
        self._running[program.pid] = program
        for stream, consumer in ((child.stdout, out), (child.stderr, err)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, _Stream(program, stream, consumer))
        return program

    def serve(self, listener: socket.socket, start: Callable[[], Program]) -> None:
        """Start a program for the others once a connection waits at a listener, and again after its end.

        The program isn't ended gently with the others, which may need it until their end.
        """
        self._server = _Server(listener, start)
        self._selector.register(listener, selectors.EVENT_READ, self._server)

    def turn(self, timeout: float = _POLL) -> list[Program]:
        """Handle output for up to `timeout` seconds; return the programs that have ended since."""
        self._take_in(0 if self._ended else timeout)
        self._reap()
        if self._server is not None and self._server.asked:
            self._start_server(self._server)
        ended, self._ended = self._ended, []
        return ended

    def finish(self, program: Program, *, kill: bool = True) -> None:
        """Kill the processes that an ended program left behind, and handle the rest of its output."""
        # Kill first: a leftover process may hold the pipe open and print on.
        if kill and process_tree.kill_all(lambda: self._left_by(program), _TO_DIE):
            process_tree.forget_session(self._sessions, program.pid)
        self._drain(program)

    def end_if_interrupted(self) -> None:
        """End all programs and raise Interrupted if the run is to end."""
        interruption = self._interruption()
        if interruption is not None:
            self.end_gently(interruption.grace)
            raise Interrupted(interruption.ending)

    def end_gently(self, grace: float) -> list[Program]:
        """End all processes by SIGTERM, and by SIGKILL those that still live after `grace` seconds.

        With no grace, by SIGKILL alone. An interruption in the meantime may shorten the time.

        Returns:
            The programs that have ended since the last call of `turn`.
        """
        ended: list[Program] = []
        kill_at = time.monotonic() + grace
        if grace:
            # The engine's command forwards the signal to the processes in its container.
            living = [process for process in self.living() if not in_container(process)]
            process_tree.send_signal(living, signal.SIGTERM)
        while time.monotonic() < kill_at and self.living():
            ended += self.turn()
            interruption = self._interruption()
            if interruption is not None:
                kill_at = min(kill_at, time.monotonic() + interruption.grace)
        self.end_all()
        self._drain()
        ended += self._ended
        self._ended.clear()
        return ended

    def pause(self, seconds: float = _POLL) -> None:
        """Wait; raise Interrupted if the run is to end."""
        interruption = self._interruption()
        if interruption is not None:
            raise Interrupted(interruption.ending)
        if seconds:
            time.sleep(seconds)

    def living(self) -> list[psutil.Process]:
        """Return the living processes of the run, except the runner and the program of `serve`."""
        self._reap()
        server = self._server.program if self._server else None
        processes = process_tree.descendants(self._run_id)
        return [process for process in processes if server is None or process.pid != server.pid]

    def end_all(self) -> None:
        """Kill all processes of the run, the runner excepted."""
        if process_tree.kill_descendants(self._run_id, self._reap, _TO_DIE):
            remove(self._sessions)

    def count(self) -> int:
        """Return the number of the run's living processes."""
        return process_tree.count(self._run_id)

    def memory(self, enough: int) -> dict[str, int]:
        """Return the memory in bytes by replica, with "" for all else; rough while it is below `enough`."""
        server = self._server.program if self._server else None
        names = {program.pid: program.replica for program in self._running.values() if program.replica}
        if server is not None:
            names[server.pid] = _SERVER
        sizes = process_tree.memory(self._run_id, names, enough)
        return {name: size for name, size in sizes.items() if name != _SERVER}

    def _left_by(self, program: Program) -> list[psutil.Process]:
        # Without other running programs all processes of the run are leftovers, even those without a mark.
        living = self.living()
        server = self._server.program if self._server else None
        others = any(running is not server for running in self._running.values())
        return [process for process in living if _is_of(program, process)] if others else living

    def _reap(self) -> None:
        for pid, code in process_tree.reap().items():
            program = self._running.pop(pid, None)
            if program is not None:
                # Popen's own wait would find no child any more: it needs the code.
                program.code = program.child.returncode = code
                if self._server is not None and program is self._server.program:
                    self._await_connection(self._server)
                else:
                    self._ended.append(program)

    def _start_server(self, server: _Server) -> None:
        server.asked = False
        server.starts += 1
        server.program = server.start()

    def _await_connection(self, server: _Server) -> None:
        server.program = None
        if server.starts < _SERVER_STARTS:
            self._selector.register(server.listener, selectors.EVENT_READ, server)
        else:
            server.listener.close()  # refuses connections instead of letting them wait for ever

    def _take_in(self, timeout: float) -> None:
        for key, _events in self._selector.select(timeout):
            if key.data is None:
                os.read(key.fd, _CHUNK)  # empties the pipe that reports children
            elif isinstance(key.data, _Server):
                # Not started here: this also runs when the last processes have been ended.
                key.data.asked = True
                self._selector.unregister(key.fileobj)
            elif data := os.read(key.fd, _CHUNK):
                _deliver(key, key.data.lines.feed(data))
            else:
                self._close(key)

    def _drain(self, program: Program | None = None) -> None:
        # A limit, because a process outside of the run may hold the pipe open.
        give_up = time.monotonic() + _TO_DRAIN
        while self._streams(program) and time.monotonic() < give_up:
            self._take_in(_POLL)
        for key in self._streams(program):
            self._close(key)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        _deliver(key, key.data.lines.close())
        key.data.stream.close()

    def _streams(self, program: Program | None) -> list[selectors.SelectorKey]:
        keys = [key for key in self._selector.get_map().values() if isinstance(key.data, _Stream)]
        return [key for key in keys if program is None or key.data.program is program]


def _is_of(program: Program, process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == program.pid or process_tree.replica_of(process) == program.replica
    except OSError:
        return False


def _deliver(key: selectors.SelectorKey, lines: list[str]) -> None:
    if lines:
        key.data.consumer(lines)


def _start_process(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    descriptors: Sequence[int],
    before: Callable[[], None],
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=before,
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"{argv[0]} could not be started: {error}") from error


def _before_exec(folder: Path, first: Callable[[], None] | None) -> Callable[[], None]:
    tie = process_tree.tie_to_parent()

    def before() -> None:
        process_tree.record_session(folder)
        if first is not None:
            first()
        if tie is not None:
            tie()  # last: the kernel drops this setting if a process changes its capabilities

    return before


def _wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reading


_TAIL = 2048
_TRACEBACK = "Traceback (most recent call last):"


class Tail:
    """End of a program's output, by default as much as an error message holds.

    Attributes:
        limit: The number of characters to keep.
    """

    def __init__(self, limit: int = _TAIL) -> None:
        self._limit = limit
        self._text = ""

    def add(self, lines: list[str]) -> None:
        """Append lines."""
        self._text = (self._text + "".join(f"{line}\n" for line in lines[-self._limit :]))[-self._limit :]

    def text(self) -> str:
        """Return the end of the output, from the first traceback on if there is one."""
        _, mark, rest = self._text.partition(_TRACEBACK)
        return f"{mark}{rest}" if mark else self._text


def killer_of(code: int) -> signal.Signals | None:
    """Return the signal that ended a program; shells and containers report it as 128 plus its number."""
    number = -code if code < 0 else code - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def ending_of(replica: str, code: int, errors: str, hint: str = "") -> Ending:
    """Return the job's ending after one of its replicas ended with this code.

    Args:
        replica: The replica's name in the cloud's error messages.
        errors: The end of its standard error.
        hint: Further advice for the user; "" for none.
    """
    if code == 0:
        return Ending(SUCCEEDED)
    killer, cause = killer_of(code), "NON_ZERO_EXIT"
    if killer is None:
        reason = f"The replica {replica} exited with a non-zero status of {code}. Termination reason: Error."
    elif killer is signal.SIGKILL:
        cause = "KILLED"
        reason = f"The replica {replica} was killed by signal 9 (SIGKILL): out of memory, or killed by hand."
    else:
        cause = "ENDED_BY_SIGNAL"
        reason = f"The replica {replica} was killed by signal {killer} ({killer.name})."
    message = "\n".join(filter(None, (reason, errors.rstrip(), hint)))
    # The cloud reports failures of the program itself as an invalid argument.
    kind = Code.RESOURCE_EXHAUSTED if killer is signal.SIGKILL else Code.INVALID_ARGUMENT
    return Ending(FAILED, kind, message, details=details_of(cause, exitCode=str(code)))
