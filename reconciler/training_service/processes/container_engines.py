"""Which container engines there are on this machine, and what they can do here."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

DOCKER = "docker"
PODMAN = "podman"

_ANSWER = 15.0
# Where Podman looks for the program that is process 1 with `--init`; Docker brings its own.
_INITS = ("/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/lib/podman", "/usr/local/lib/podman")


@dataclass(frozen=True, slots=True)
class Client:
    """The command that one tells an engine by.

    Attributes:
        program: Its path.
        environ: The environment that it gets.
    """

    program: Path
    environ: Mapping[str, str]

    def ask(self, *arguments: str, within: float = _ANSWER) -> tuple[int, str, str]:
        """Run the engine's command: its exit code, standard output and standard error.

        Raises:
            OSError: It isn't there.
            subprocess.TimeoutExpired: It took longer than `within` seconds.
        """
        done = subprocess.run(
            [self.program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within,
            env=dict(self.environ),
        )
        return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an engine can do.

    Attributes:
        name: DOCKER or PODMAN, whatever its command is called.
        limits: Which of `cpu` and `memory` it can limit.
        options: What every container needs to be started here.
    """

    name: str
    limits: frozenset[str]
    options: tuple[str, ...]


def clients(environ: Mapping[str, str]) -> Iterator[Client]:
    """The commands on the path; an engine need not be behind each."""
    for name in (DOCKER, PODMAN):
        program = shutil.which(name, path=environ.get("PATH", os.defpath))
        if program is not None:
            yield Client(Path(program), environ)


def in_container(process: psutil.Process) -> bool:
    """Whether this is a container's process, or the monitor that Podman puts above it.

    A signal to Podman's command reaches the container by itself.
    """
    try:
        return any(above.name() == "conmon" for above in (process, *process.parents()))
    except psutil.Error:
        return False


def last_line(output: str) -> str:
    """What a program says last, which is why it has failed; Docker's hint at its own help is none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if not re.match(r"(Run|See) 'docker .*--help'", line)]
    return told[-1] if told else "no word of why."


def abilities(client: Client) -> Abilities | str:
    """What the engine behind this command can do, or why it doesn't work."""
    try:
        _, output, errors = client.ask("info", "--format", "{{json .}}")
        told = json.loads(output)
    except subprocess.TimeoutExpired:
        return f"nothing, for {_ANSWER:.0f} seconds."
    except OSError as error:
        return str(error)
    except ValueError:
        return last_line(errors or output)
    if "host" in told:  # also where Podman goes by the name of docker
        return _podman(told["host"])
    if not told.get("ServerVersion"):  # then only the command is there, no engine behind it
        return last_line("\n".join(told.get("ServerErrors") or ()) or errors)
    names = {"cpu": "CpuCfsQuota", "memory": "MemoryLimit"}
    limits = frozenset(limit for limit, name in names.items() if told.get(name))
    return Abilities(DOCKER, limits, ("--init",))


def _podman(host: Mapping[str, Any]) -> Abilities:
    limits = frozenset(host.get("cgroupControllers") or ()) & {"cpu", "memory"}
    remote = host.get("serviceIsRemote", False)
    # Without it a Python that is process 1 ignores SIGTERM; but Podman refuses where it lacks the program.
    can_init = remote or shutil.which("catatonit", path=os.pathsep.join((*_INITS, os.defpath)))
    options = (*(("--init",) if can_init else ()), *(() if remote else _ulimits()))
    return Abilities(PODMAN, limits, options)


def _ulimits() -> tuple[str, ...]:
    """This process's own limits, where root may not raise them: the higher ones that Podman asks for fail."""
    status = Path("/proc/self/status")
    if os.geteuid() != 0 or not status.exists():
        return ()
    capabilities = re.search(r"^CapEff:\s*(\w+)", status.read_text(), re.MULTILINE)
    if capabilities is None or int(capabilities[1], 16) >> 24 & 1:  # CAP_SYS_RESOURCE
        return ()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Podman lowers its own number of processes to that of process ids.
    ids = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = ids if processes == resource.RLIM_INFINITY else min(ids, processes)
    return ("--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={processes}:{processes}")
