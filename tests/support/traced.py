"""A command under `strace -f`: the programs it started, the addresses it reached, the bytes it sent.

The record is the kernel's own, because a hook inside a process doesn't see the programs that it starts.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import PATIENCE, until

STRACE = shutil.which("strace")

_CALLS = "execve,execveat,connect,sendto,sendmsg,sendmmsg,write,writev,open,openat,openat2,creat"
_EXEC = re.compile(r'execve\("((?:[^"\\]|\\.)*)", (\[.*?\])(?:, 0x|, \[).*\) = 0$')
_INET = re.compile(
    r'connect\(\d+, \{sa_family=AF_INET, sin_port=htons\((\d+)\), sin_addr=inet_addr\("([^"]+)"\)'
)
_INET6 = re.compile(r'connect\(\d+, \{sa_family=AF_INET6, sin6_port=htons\((\d+)\),.*?"([0-9a-f:.]+)"')
_OPEN = re.compile(r'(?:open|openat|openat2|creat)\((?:[^"]*?, )?"((?:[^"\\]|\\.)*)".* = \d+$')
_SENT = re.compile(r"(?:sendto|sendmsg|sendmmsg|write|writev)\((\d+)")


@dataclass(frozen=True)
class Traced:
    """A finished command.

    Attributes:
        calls: The system calls of each process, by its id, as strace prints them.
    """

    code: int
    out: str
    err: str
    calls: Mapping[int, Sequence[str]]

    @property
    def programs(self) -> list[list[str]]:
        """Return the words of every command line that was started, the traced command's own first."""
        return [*self._programs()]

    @property
    def addresses(self) -> set[tuple[str, int]]:
        """Return every network address of an attempted connection."""
        found = (
            (match[2], int(match[1]))
            for line in self._lines()
            for match in (_INET.search(line), _INET6.search(line))
            if match
        )
        return set(found)

    @property
    def opened(self) -> set[str]:
        """Return the names of all opened files and folders, as the processes gave them."""
        return {match[1] for line in self._lines() if (match := _OPEN.search(line))}

    def opened_but_by(self, is_other: Callable[[list[str]], bool]) -> set[str]:
        """Return `opened` without the files of the programs for which `is_other` is true."""
        found = set()
        for lines in self.calls.values():
            for line in lines:
                if (match := _EXEC.match(line)) and is_other(_words(match)):
                    break
                if match := _OPEN.search(line):
                    found.add(match[1])
        return found

    def sends(self, secret: str) -> list[str]:
        """Return the calls that wrote the secret to a file, a pipe or a socket."""
        return [line[:300] for line in self._lines() if secret in line and _SENT.match(line)]

    def _lines(self) -> Iterator[str]:
        for lines in self.calls.values():
            yield from lines

    def _programs(self) -> Iterator[list[str]]:
        for line in self._lines():
            if match := _EXEC.match(line):
                yield _words(match)


def _words(match: re.Match[str]) -> list[str]:
    return [str(word) for word in ast.literal_eval(match[2])]


def traced(
    command: Sequence[str],
    folder: Path,
    *,
    cwd: Path,
    environ: Mapping[str, str],
    enough: Callable[[str], bool] | None = None,
    settle: Callable[[], None] = lambda: None,
) -> Traced:
    """Run a command under strace, with every process that it starts.

    Args:
        command: The command line.
        folder: The folder of the traces; made anew.
        cwd: The working directory.
        environ: All environment variables.
        enough: Takes the command's output so far; once it returns True, the command gets a
            SIGTERM. None for a command that ends by itself.
        settle: Called when the command has ended; ends its remaining processes, because strace waits for
            them.
    """
    assert STRACE, "strace is not installed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outputs = folder / "out", folder / "err", folder / "code", folder / "pid"
    # A shell of its own writes the exit code: strace ends only with the last process.
    script = '"$@" >"$OUT" 2>"$ERR" </dev/null & echo $! >"$PID"; wait $!; echo $? >"$CODE"'
    tracer = subprocess.Popen(
        [
            STRACE,
            *("-ff", "-qq", "--seccomp-bpf", "-s", "100000", "-e", f"trace={_CALLS}", "-e", "signal=none"),
            *("-o", str(folder / "trace"), "--", "/bin/sh", "-c", script, "sh", *command),
        ],
        cwd=cwd,
        env={
            **environ,
            **dict(zip(("OUT", "ERR", "CODE", "PID"), map(str, outputs), strict=True)),
        },
        stdin=subprocess.DEVNULL,
    )
    out, err, code, pid = outputs

    def has_ended() -> bool:
        return (code.exists() and code.read_text().endswith("\n")) or tracer.poll() is not None

    try:
        if enough is not None:
            until(lambda: has_ended() or (err.exists() and enough(out.read_text() + err.read_text())))
            if not has_ended():
                os.kill(int(pid.read_text()), signal.SIGTERM)
        until(has_ended)
        settle()
        tracer.wait(PATIENCE)
    finally:
        tracer.kill()
        tracer.wait()
    files = sorted(folder.glob("trace.*"), key=lambda file: int(file.suffix[1:]))
    calls = {int(file.suffix[1:]): file.read_text(errors="replace").splitlines() for file in files}
    return Traced(int(code.read_text()), out.read_text(), err.read_text(), calls)
