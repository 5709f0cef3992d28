"""Services as processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reconciler.training_service import address
from reconciler.training_service.address import Address
from tests.support.waiting import until


def command(home: Path, *more: str) -> list[str]:
    return [sys.executable, "-P", "-m", "reconciler.training_service", "--home", str(home), *more]


class Processes:
    """Services started by a test and stopped with it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started: list[subprocess.Popen[str]] = []

    def start(self, arguments: list[str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            arguments or command(self.home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def served(self, process: subprocess.Popen[str]) -> Address:
        def found() -> Address | None:
            assert process.poll() is None, process.communicate()
            read = address.read_address(self.home)
            return read if read and read.pid == process.pid else None

        read: Address = until(found)
        return read

    def start_and_wait(self) -> tuple[subprocess.Popen[str], Address]:
        process = self.start()
        return process, self.served(process)
