"""A run's shell with answers that tests read."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from uv import find_uv_bin

from reconciler.training_service.environments.pip_settings import uv_settings
from reconciler.training_service.environments.venvs import CommandError, Uv
from reconciler.training_service.jobs import environment_variables


class Shell(Uv):
    """A shell that runs uv as a plain process and records its commands."""

    def __init__(self, temp: Path) -> None:
        self.ran: list[list[str]] = []
        self.said: list[str] = []
        super().__init__(uv_settings({}), {}, temp, Pauses(), self.note)
        self.read_settings()

    def read_settings(self) -> None:
        self.settings = uv_settings(os.environ)
        self.env = self.settings.applied_to(environment_variables.for_installer(os.environ, self.temp))

    def note(self, _severity: str, text: str) -> None:
        self.said.append(text)

    def run(self, task: str, arguments: Sequence[str], lock: int | None, variables: Mapping[str, str]) -> str:
        self.ran.append([*arguments])
        done = subprocess.run(
            [find_uv_bin(), *arguments],
            env={**self.env, **variables},
            cwd=self.temp,
            pass_fds=() if lock is None else (lock,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise CommandError(done.stdout)
        return done.stdout

    def commands(self) -> list[str]:
        """Return the commands of uv, a dry run as "resolve"."""
        return [
            "resolve" if "--dry-run" in argv else argv[1] if argv[0] == "pip" else argv[0]
            for argv in self.ran
        ]


class Pauses:
    """A fake pause in the wait for another builder of the same folder."""

    def pause(self) -> None:
        threading.Event().wait(0.01)
