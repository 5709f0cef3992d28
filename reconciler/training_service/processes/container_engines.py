"""Container engines of this machine and their abilities."""

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
# The folders in which Podman looks for the program of `--init`; Docker includes its own.
_INITS = ("/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/lib/podman", "/usr/local/lib/podman")


@dataclass(frozen=True, slots=True)
class Client:
    """Command of a container engine.

    Attributes:
        program: The path of the command.
        environ: The environment of the command.
    """

    program: Path
    environ: Mapping[str, str]

    def ask(self, *arguments: str, within: float = _ANSWER) -> tuple[int, str, str]:
        """Run the engine's command; return its exit code, standard output and standard error.

        Raises:
            OSError: The command can't be run.
            subprocess.TimeoutExpired: The command took longer than `within` seconds.
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
    """Abilities of an engine.

    Attributes:
        name: DOCKER or PODMAN, whatever the name of its command.
        limits: The resources that it can limit, of `cpu` and `memory`.
        options: The options that every container needs on this machine.
    """

    name: str
    limits: frozenset[str]
    options: tuple[str, ...]


def clients(environ: Mapping[str, str]) -> Iterator[Client]:
    """Yield the engine commands on the path; an engine need not be behind each."""
    for name in (DOCKER, PODMAN):
        program = shutil.which(name, path=environ.get("PATH", os.defpath))
        if program is not None:
            yield Client(Path(program), environ)


def any_engine(environ: Mapping[str, str]) -> bool:
    """Return True if a container engine works on this machine."""
    return any(isinstance(abilities(client), Abilities) for client in clients(environ))


def in_container(process: psutil.Process) -> bool:
    """Return True for a container's process and for the monitor that Podman puts above it.

    Podman's command forwards signals to its container by itself.
    """
    try:
        return any(above.name() == "conmon" for above in (process, *process.parents()))
    except psutil.Error:
        return False


def last_line(output: str) -> str:
    """Return the last line of a program's output, mostly the reason of its failure, without Docker's hint."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"(Run|See) 'docker .*--help'", line)]
    return lines[-1] if lines else "no word of why."


def abilities(client: Client) -> Abilities | str:
    """Return the abilities of the engine behind this command, or the reason why it doesn't work."""
    try:
        _, output, errors = client.ask("info", "--format", "{{json .}}")
        info = json.loads(output)
    except subprocess.TimeoutExpired:
        return f"nothing, for {_ANSWER:.0f} seconds."
    except OSError as error:
        return str(error)
    except ValueError:
        return last_line(errors or output)
    if "host" in info:  # Podman, whose command may be called docker
        return _podman(info["host"])
    if not info.get("ServerVersion"):  # the command works, but reaches no engine
        return last_line("\n".join(info.get("ServerErrors") or ()) or errors)
    names = {"cpu": "CpuCfsQuota", "memory": "MemoryLimit"}
    limits = frozenset(limit for limit, name in names.items() if info.get(name))
    return Abilities(DOCKER, limits, ("--init",))


def _podman(host: Mapping[str, Any]) -> Abilities:
    limits = frozenset(host.get("cgroupControllers") or ()) & {"cpu", "memory"}
    remote = host.get("serviceIsRemote", False)
    # Without --init a Python that is process 1 ignores SIGTERM. Podman refuses the option if the program for
    # it is missing.
    can_init = remote or shutil.which("catatonit", path=os.pathsep.join((*_INITS, os.defpath)))
    options = (*(("--init",) if can_init else ()), *(() if remote else _ulimits()))
    return Abilities(PODMAN, limits, options)


def _ulimits() -> tuple[str, ...]:
    # Podman as root asks for higher limits than this process has. Without CAP_SYS_RESOURCE that fails, so
    # pass this process's own limits.
    status = Path("/proc/self/status")
    if os.geteuid() != 0 or not status.exists():
        return ()
    capabilities = re.search(r"^CapEff:\s*(\w+)", status.read_text(), re.MULTILINE)
    if capabilities is None or int(capabilities[1], 16) >> 24 & 1:  # CAP_SYS_RESOURCE
        return ()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Podman lowers its own limit of processes to the number of process ids.
    ids = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = ids if processes == resource.RLIM_INFINITY else min(ids, processes)
    return ("--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={processes}:{processes}")
