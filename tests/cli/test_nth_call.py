"""An apply fails or dies at its n-th request, for every n: later applies end with one job a manifest."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse, NoAnswerError
from reconciler.cli import run
from reconciler.operations import session
from tests.support.held_service import HeldService
from tests.support.repository import Repository

ML_JOB = """
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {{name: old}}
reconcile: {{rerun: "{rerun}"}}
spec:
  trainingInput:
    {{region: us-central1, scaleTier: BASIC, runtimeVersion: "2.11", pythonModule: task,
     packageUris: ["gs://acme/task.tar.gz"]}}
"""
PASSES = 4
EVERY = {"raise after": 3, "kill before": 3}
"""Of which requests one is met, where not each: those that the other faults meet all are as good."""
CRASHED = 70
LATER = 300.0
"""Seconds, longer than any outcome stays unknown."""

Send = Callable[[DirectTransport, HttpRequest], HttpResponse]
Fault = Callable[[Send, DirectTransport, HttpRequest], HttpResponse]


def raise_before(send: Send, transport: DirectTransport, request: HttpRequest) -> HttpResponse:
    raise NoAnswerError("the connection broke")


def raise_after(send: Send, transport: DirectTransport, request: HttpRequest) -> HttpResponse:
    send(transport, request)
    raise NoAnswerError("the connection broke")


def kill_before(send: Send, transport: DirectTransport, request: HttpRequest) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def kill_after(send: Send, transport: DirectTransport, request: HttpRequest) -> NoReturn:
    send(transport, request)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


FAULTS: dict[str, Fault] = {
    "raise before": raise_before,
    "raise after": raise_after,
    "kill before": kill_before,
    "kill after": kill_after,
}


class SharedTime:
    """The offset in seconds of the clocks of this process and of its forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    @property
    def ahead(self) -> float:
        return float(struct.unpack("d", self._memory[:8])[0])

    def sleep(self, seconds: float) -> None:
        """Advance the clock of all processes."""
        self._memory[:8] = struct.pack("d", self.ahead + seconds)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class Patient(HeldService):
    """A service with a clock that advances when a reconciler waits."""

    def __init__(self, home: Path, time: SharedTime) -> None:
        self.time = time
        super().__init__(home)

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.time.ahead)


@pytest.fixture
def held(repository: Repository) -> Iterator[Patient]:
    with Patient(repository.home, SharedTime()).running() as service:
        yield service


def write(repository: Repository, rerun: str) -> None:
    """Write two manifests, each for a protocol: with names chosen by the service, and by the client."""
    repository.job("census", reconcile=f'{{rerun: "{rerun}"}}')
    repository.write("jobs/old.yaml", ML_JOB.format(rerun=rerun))


def in_child(
    repository: Repository, held: Patient, *arguments: str, at: int = 0, fault: Fault | None = None
) -> tuple[int, int]:
    """Run a command in a forked process; its request number `at` meets the fault.

    Returns:
        The exit code of the process, as in `subprocess`, and the number of requests that it began.
    """
    counted = repository.root.parent / "counted"
    counted.write_bytes(b"")
    pid = os.fork()
    if pid == 0:
        code = CRASHED
        try:
            code = _child(repository.root, held.time, counted, arguments, at, fault)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), len(counted.read_bytes())


def _child(
    root: Path, time: SharedTime, counted: Path, arguments: tuple[str, ...], at: int, fault: Fault | None
) -> int:
    os.chdir(root)
    with (root.parent / "output").open("w") as output:
        sys.stdout = sys.stderr = output
        send = DirectTransport.send
        calls = 0

        def sending(transport: DirectTransport, request: HttpRequest) -> HttpResponse:
            nonlocal calls
            calls += 1
            with counted.open("ab") as file:
                file.write(b".")
            return fault(send, transport, request) if fault and calls == at else send(transport, request)

        DirectTransport.send = sending  # type: ignore[method-assign]
        session._Clock.sleep = lambda self, seconds: time.sleep(seconds)  # type: ignore[method-assign]
        session._Clock.monotonic = lambda self: time.monotonic()  # type: ignore[method-assign]
        try:
            return run(arguments)
        except BaseException:
            traceback.print_exc(file=output)
            raise


def output(repository: Repository) -> str:
    return (repository.root.parent / "output").read_text()


def converge(repository: Repository, held: Patient) -> None:
    """Apply until the plan is empty."""
    for _ in range(PASSES):
        held.time.sleep(LATER)
        in_child(repository, held, "apply")
        if in_child(repository, held, "plan", "--detailed-exitcode")[0] == 0:
            return
    pytest.fail(f"still something to do after {PASSES} passes:\n{output(repository)}")


@pytest.mark.fault(6)
@pytest.mark.parametrize("name", FAULTS)
def test_an_apply_that_fails_at_any_request_is_made_good_by_the_next(
    repository: Repository, held: Patient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(repository, "golden")
    monkeypatch.chdir(repository.root)
    assert run(["plan"]) == 0, "what it loads, no child has to load again"
    code, calls = in_child(repository, held, "apply")
    assert code == 0, output(repository)
    assert in_child(repository, held, "plan", "--detailed-exitcode")[0] == 0
    assert sorted(held.names().values()) == [1, 1]
    assert calls > 10

    reached = 0
    numbers = range(1, calls + 1, EVERY.get(name, 1))
    for applies, number in enumerate(numbers, 2):
        write(repository, f"{name} {number}")
        code, made = in_child(repository, held, "apply", at=number, fault=FAULTS[name])
        killed = name.startswith("kill") and made >= number
        assert code in ([-signal.SIGKILL] if killed else [0, 1]), output(repository)
        reached += made >= number
        converge(repository, held)
        names = held.names()
        assert set(names.values()) == {1}, f"request {number}: {names}"
        assert len(names) == 2 * applies, f"request {number}: {names}"
    assert reached >= len(numbers) - 2, "the fault was met at nearly every request"
