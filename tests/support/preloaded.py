"""A start of the command without the cost of its imports.

`start` forks the command's process from a preloaded process, which has imported the modules of commands and
has run no command. Each process of pytest has at most one such process, and ends it at its own end. If the
variables ask for a feature that only a start of the interpreter can honour, `start` starts an interpreter.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import re
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import reconciler
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent
# Variables that the interpreter, the C library, OpenSSL or a module reads once, before a command runs.
_READ_BEFORE = re.compile(
    "(PYTHON|LC_|LANG|LD_|MALLOC_|GLIBC_|OPENSSL_|NO_COLOR|FORCE_COLOR|GCE_METADATA_|NO_GCE_CHECK|PROMETHEUS_"
    "|prometheus_|_ARC|GOOGLE_API_|CLOUDSDK_C|HTTPLIB2_|PYPARSING)"
)
# Commands import these late; the service's application shows a stopped service.
_IMPORTED_LATE = (
    "google.auth",
    "googleapiclient.discovery",
    "googleapiclient.http",
    "jsonschema",
    "jsonschema_rs",
    "reconciler.training_service.application",
    "rich.console",
    "rich.live",
    "rich.progress_bar",
    "rich.table",
    "rich.text",
    "structlog",
    "urllib3.util.ssltransport",
)
_NUMBER = struct.Struct("i")


def start(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Start `reconciler …` in a folder, with these variables and no others."""
    command = [sys.executable, "-m", "reconciler", *arguments]
    streams: Any = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "text": True}
    if (_read_before(env), _limits()) != (_preloaded().variables, _preloaded().limits):
        return subprocess.Popen(command, cwd=cwd, env=env, **streams)
    return _Forked(command, cwd=cwd, env=env, **streams)


def run(*arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `reconciler …` to its end."""
    process = start(*arguments, cwd=cwd, env=env)
    out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def end() -> None:
    """End the preloaded process if it exists."""
    if _preloaded.cache_info().currsize:
        _preloaded().door.close()  # the process ends when no request can come any more
        _preloaded.cache_clear()


class _Preloaded:
    def __init__(self) -> None:
        self.variables, self.limits = _read_before(os.environ), _limits()
        self.door, inside = socket.socketpair()
        with inside:
            subprocess.run(
                [sys.executable, "-m", __name__, str(inside.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[inside.fileno()],
                check=True,
            )


@cache
def _preloaded() -> _Preloaded:
    return _Preloaded()


def _limits() -> list[tuple[int, int]]:
    """Return the limits of this process, which a command inherits."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return [resource.getrlimit(getattr(resource, name)) for name in sorted(names)]


def _read_before(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if _READ_BEFORE.match(name)}


class _Forked(subprocess.Popen[str]):
    """A command whose process the preloaded process starts and waits for.

    Popen has no public method for either.
    """

    _answers: socket.socket

    def _execute_child(self, args: list[str], *others: Any) -> None:
        cwd, env, pipes = others[4], others[5], others[9:15]
        self._answers, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_preloaded().door, [b"."], [theirs.fileno(), *pipes[0:1], *pipes[3::2]])
        request = {"arguments": args[3:], "cwd": str(cwd), "environ": dict(env)}
        self._answers.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._answer()
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _answer(self, flags: int = 0) -> int:
        answer = self._answers.recv(_NUMBER.size, socket.MSG_WAITALL | flags)
        if not answer:
            raise RuntimeError("the preloaded process has ended")
        (number,) = _NUMBER.unpack(answer)
        assert isinstance(number, int)
        return number

    def _try_wait(self, flags: int) -> tuple[int, int]:
        try:
            status = self._answer(socket.MSG_DONTWAIT if flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(timeout=0)  # type: ignore[attr-defined]
        return self.returncode


def _import_all() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the command does before its imports
        for module in pkgutil.walk_packages(reconciler.__path__, "reconciler."):
            # As an attribute of its package, the module `run` would hide the function that starts a command.
            if not re.search(r"\.(__main__|cli\.run|training_service\.)", module.name):
                importlib.import_module(module.name)
        for name in _IMPORTED_LATE:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection would copy the pages of all imports


def _serve(door: socket.socket) -> tuple[socket.socket, list[int], dict[str, Any]] | None:
    """Fork for each request; return it in the child, and None here when no more requests can come.

    The answer to a request is the child's pid, sent by the child, and its wait status.
    """
    children, woken = socket.socketpair()
    woken.setblocking(False)
    answers: dict[int, socket.socket] = {}
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal; it's for pytest
    while True:
        ready = select.select([door, children], [], [])[0]
        if children in ready:
            children.recv(1000)
            _answer_ends(answers)
        if door not in ready:
            continue
        message, descriptors, *_ = socket.recv_fds(door, 1, 4)
        if not message:
            return None
        answer = socket.socket(fileno=descriptors.pop(0))
        with answer.makefile("rb") as lines:
            request = json.loads(lines.readline())
        if not (pid := os.fork()):
            signal.set_wakeup_fd(-1)
            for connection in (door, children, woken, *answers.values()):
                connection.close()
            return answer, descriptors, request
        answers[pid] = answer
        for descriptor in descriptors:
            os.close(descriptor)


def _answer_ends(answers: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while ended := os.waitpid(-1, os.WNOHANG):
            pid, status = ended
            if not pid:
                return
            with answers.pop(pid) as answer, suppress(OSError):
                answer.sendall(_NUMBER.pack(status))


def _become(answer: socket.socket, descriptors: list[int], request: dict[str, Any]) -> None:
    """Make this process identical to `python -m reconciler` before its first import."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with answer:
        answer.sendall(_NUMBER.pack(os.getpid()))  # from now on, signals act as on any command
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        stream = open(  # noqa: SIM115 - they stay open to the end
            number,
            before.mode,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n",
            closefd=False,
        )
        stream.reconfigure(line_buffering=number == 2 or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[0] = request["cwd"]
    sys.argv = ["reconciler", *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]


def _main() -> None:
    # A test of the runner kills all descendants of its process: this one must not be among them.
    if os.fork():
        os._exit(0)
    _import_all()
    with socket.socket(fileno=int(sys.argv[1])) as door:
        served = _serve(door)
    if served:
        _become(*served)
        runpy.run_module("reconciler", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
