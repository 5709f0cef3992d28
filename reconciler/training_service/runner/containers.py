"""Containers, run through Docker or Podman.

A container isn't a child of the command that starts it: it lives on when the command is killed. So the
engine is recorded in the run's folder first, and all containers of a run carry a label, by which they are
removed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reconciler.training_service.jobs import environment_variables
from reconciler.training_service.processes.container_engines import (
    PODMAN,
    Abilities,
    Client,
    abilities,
    clients,
    last_line,
)
from reconciler.training_service.runner.mounts import BUNDLE, View
from reconciler.training_service.runner.proxy import Proxy
from reconciler.training_service.state.records import Code
from reconciler.training_service.state.run_folder import RunError, RunFolder, read_json, write_json
from reconciler.training_service.state.run_spec import ContainerTask, ReplicaSpec

BUCKETS = "/gcs"
METRICS = "/tmp/hypertune"  # noqa: S108 the default folder of cloudml-hypertune in every container

_LABEL = "reconciler.run"
_REMOVAL = 60.0
_KILLED = 137
# Variables that change the engine command's own behaviour: the replica's values must not reach it.
_OBEYED = re.compile(
    r"PATH|HOME|USER|LANG|TMPDIR|STORAGE_(?:DRIVER|OPTS)|NOTIFY_SOCKET"
    r"|_?(?:BUILDAH|CONTAINERS?|DOCKER|LC|LD|LISTEN|PODMAN|REGISTR(?:Y|IES)|SSL|XDG)_.*|GO[A-Z]+|.*_PROXY",
    re.IGNORECASE,
)
_NOT_RUN = re.compile(
    r"ERROR \(catatonit:\d+\): failed to exec pid1: (?P<catatonit>.+)"
    r"|\[FATAL tini \(\d+\)\] exec .+ failed: (?P<tini>.+)"
)


class Runs(Protocol):
    """Runner of one of the run's programs, which returns its exit code and its output."""

    def __call__(self, argv: list[str]) -> tuple[int, str]:
        """Run the program to its end; raise an exception if the run is to end."""


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """Working container engine."""

    client: Client
    abilities: Abilities

    @property
    def name(self) -> str:
        """Return `docker` or `podman`."""
        return self.abilities.name

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the differences to the cloud with this engine."""
        missing = " and ".join(sorted({"cpu", "memory"} - self.abilities.limits))
        if not missing:
            return ()
        return (f"{self.name} can't limit {missing} here: containers run without such a limit.",)

    def make_ready(self, task: ContainerTask, run: Runs, *, pull: bool = True) -> None:
        """Pull the task's image, unless this machine has an image of this name.

        Args:
            pull: False to pull no image.

        Raises:
            RunError: The image is missing or can't be pulled.
        """
        program = str(self.client.program)
        code, _ = run([program, "image", "inspect", "--format", "{{.Id}}", "--", task.image])
        if code == 0:
            return
        if task.image.startswith("localhost/"):  # Podman's prefix of images built on this machine
            message = f"The image {task.image} isn't here: build it first."
            raise RunError(Code.NOT_FOUND, message, "IMAGE_NOT_PULLED", image=task.image)
        if not pull:
            message = f"{self.name} doesn't have the image {task.image}, and no image is to be pulled."
            raise RunError(Code.NOT_FOUND, message, "IMAGE_NOT_PULLED", image=task.image)
        code, output = run([program, "pull", "--", task.image])
        if code != 0:
            full = "no space left on device" in output
            message = f"The image {task.image} can't be pulled by {self.name}: {last_line(output)}"
            if full:
                raise RunError(Code.RESOURCE_EXHAUSTED, message, "DISK_FULL")
            raise RunError(Code.NOT_FOUND, message, "IMAGE_NOT_PULLED", image=task.image)

    def command(
        self,
        replica: ReplicaSpec,
        folder: RunFolder,
        buckets: Path,
        visible: Sequence[str] = (),
        proxy: Proxy | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command that runs a replica's container in the foreground, and its whole environment.

        The container gets the variables of the image and of the replica, and none of this machine. Call this
        anew for each start: an ended container is kept until `end_containers`.

        Args:
            buckets: The folder of the buckets' folders.
            visible: The parts of the buckets that the container sees, as in `RunSpec.buckets`.
            proxy: The run's proxy, if it has one.
        """
        assert isinstance(replica.task, ContainerTask)
        # Recorded before the start: the process that ends the run must find the container.
        write_json(_record(folder), {"program": str(self.client.program), "name": self.name})
        replica_folder = _prepare_replica_folder(folder, replica)
        variables = {
            **(
                proxy.variables(replica.env, BUNDLE)
                if proxy
                else environment_variables.proxies(self.client.environ)
            ),
            **replica.env,
            "RECONCILER_GCS_DIR": BUCKETS,
            "CLOUD_ML_HP_METRIC_FILE": f"{METRICS}/output.metrics",
        }
        gpus = tuple(filter(None, replica.env.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        if gpus:  # in the container the GPUs are numbered from 0
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(gpus))))
        # Values go through the command's environment, because every user can read a command's arguments.
        through = {name: value for name, value in variables.items() if not _OBEYED.fullmatch(name)}
        task = replica.task
        argv = [
            *(str(self.client.program), "run", "--cidfile", str(replica_folder / "container")),
            *("--name", f"reconciler-{folder.run_id}-{replica.task_name}-{secrets.token_hex(2)}"),
            *("--label", f"{_LABEL}={folder.run_id}"),
            *("--pull", "never", "--network", "host"),
            *("--log-driver", "none", "--security-opt", "label=disable"),
            *(
                "--volume",
                f"{replica_folder / 'hypertune'}:{METRICS}",
                *_volumes(replica_folder, buckets, visible),
            ),
            *(("--volume", f"{proxy.bundle}:{BUNDLE}:ro") if proxy else ()),
            *self.abilities.options,
            *self._limits(replica),
            *self._gpus(gpus),
            *("--env-file", str(_env_file(replica_folder, variables.keys() - through.keys(), variables))),
            *(word for name in through for word in ("--env", name)),
            *(("--entrypoint", task.command[0]) if task.command else ()),
            *("--", task.image, *task.command[1:], *task.args),
        ]
        return argv, {**self.client.environ, **through}

    def explain(self, folder: RunFolder, replica: ReplicaSpec, code: int, errors: str) -> RunError | None:
        """Return the cause of a failed container; None if it is the program's own failure.

        Args:
            code: The exit code of the command, not 0.
            errors: The end of the command's standard error.
        """
        state = self._state(folder, replica)
        name = f"The replica {replica.name}"
        if not state or state.get("StartedAt", "").startswith("0001-"):
            if code < 0:
                return None
            # The engine exits with 126 or 127 if the image's command fails to start, with 125 for its own
            # failure.
            message = f"{name} couldn't be started by {self.name}: {last_line(errors)}"
            if code in (126, 127):
                return RunError(Code.INVALID_ARGUMENT, message, "COMMAND_NOT_RUN")
            return RunError(Code.INTERNAL, message, "ENGINE_FAILED", engine=self.name)
        if match := _NOT_RUN.search(errors):
            command = " ".join(getattr(replica.task, "command", ()) or ("of the image",))
            why = match["catatonit"] or match["tini"]
            message = f"{name} couldn't be started: the command {command}: {why}"
            return RunError(Code.INVALID_ARGUMENT, message, "COMMAND_NOT_RUN")
        held = f", which is {replica.memory >> 20} MiB here" if replica.memory else ""
        if state.get("OOMKilled"):
            message = f"{name} ran out of memory: it may use its machine's{held}."
            return RunError(Code.RESOURCE_EXHAUSTED, message, "OUT_OF_MEMORY")
        if code == _KILLED and replica.memory:  # some kernels don't report to the engine that memory ran out
            message = (
                f"{name} was killed by signal 9 (SIGKILL): out of its machine's memory{held}; or by hand."
            )
            return RunError(Code.RESOURCE_EXHAUSTED, message, "KILLED")
        return None

    def _limits(self, replica: ReplicaSpec) -> Iterator[str]:
        if replica.cpus and "cpu" in self.abilities.limits:
            yield from ("--cpus", str(replica.cpus))
        if replica.memory and "memory" in self.abilities.limits:
            yield from ("--memory", f"{replica.memory}b")

    def _gpus(self, gpus: tuple[str, ...]) -> Iterator[str]:
        if self.name == PODMAN:
            for gpu in gpus:
                yield from ("--device", f"nvidia.com/gpu={gpu}")
        elif gpus:
            yield from ("--gpus", f'"device={",".join(gpus)}"')  # a CSV field, which needs the quotes

    def _state(self, folder: RunFolder, replica: ReplicaSpec) -> dict[str, Any]:
        with suppress(OSError, subprocess.TimeoutExpired, ValueError):
            container = (_replica_folder(folder, replica) / "container").read_text().strip()
            inspect = ("inspect", "--type", "container", "--format", "{{json .State}}", "--", container)
            state: dict[str, Any] = json.loads(self.client.ask(*inspect)[1])
            return state
        return {}


def find_engine(environ: Mapping[str, str]) -> ContainerEngine:
    """Return this machine's engine: Docker if it answers, else Podman.

    Raises:
        RunError: No engine works; the message names the missing part.
    """
    complaints = []
    for client in clients(environ):
        answer = abilities(client)
        if isinstance(answer, Abilities):
            return ContainerEngine(client, answer)
        complaints.append(f"{client.program} is installed, but reports: {answer}")
    raise RunError(
        Code.FAILED_PRECONDITION,
        "The job runs in a container, but no container engine works on this machine"
        + (f": {'; '.join(complaints)}" if complaints else "."),
        "ENGINE_MISSING",
    )


def has_containers(folder: RunFolder) -> bool:
    """Return True if there may be containers of this run."""
    return _record(folder).exists()


def end_containers(folder: RunFolder) -> bool:
    """Remove a run's containers; return True once all are gone.

    Returns at once for a run without containers. Returns False as well if the engine doesn't answer: call it
    again later.
    """
    try:
        gone = all(_removed(client, name, folder.run_id) for client, name in _engines_of(folder))
    except (OSError, subprocess.TimeoutExpired):
        return False
    if gone:
        _record(folder).unlink(missing_ok=True)
    return gone


def _engines_of(folder: RunFolder) -> Iterator[tuple[Client, str]]:
    """Yield the engines that may have containers of the run, with their names."""
    recorded = read_json(_record(folder))
    if recorded is not None and Path(recorded["program"]).exists():
        yield Client(Path(recorded["program"]), os.environ), recorded["name"]
    elif recorded is not None or not folder.path.exists():
        # The engine's command was moved or uninstalled, or the record was removed with the run's folder.
        for client in clients(os.environ):
            if isinstance(answer := abilities(client), Abilities):
                yield client, answer.name


def _removed(client: Client, name: str, run_id: str) -> bool:
    listing = ("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={_LABEL}={run_id}")
    code, ids, _ = client.ask(*listing)
    if code == 0 and ids.split():
        # Podman would wait ten seconds for the containers to end; their grace period is over.
        at_once = ("--time", "0") if name == PODMAN else ()
        client.ask("rm", "--force", "--volumes", *at_once, *ids.split(), within=_REMOVAL)
        code, ids, _ = client.ask(*listing)
    # A stopped engine runs no containers.
    return not ids.split() if code == 0 else isinstance(abilities(client), str)


def _record(folder: RunFolder) -> Path:
    """Return the path of the record of the engine that may have containers of this run."""
    return folder.path / "engine"


def _replica_folder(folder: RunFolder, replica: ReplicaSpec) -> Path:
    return folder.temp() / replica.task_name


def _prepare_replica_folder(folder: RunFolder, replica: ReplicaSpec) -> Path:
    """Return the replica's folder without the files of an earlier container."""
    replica_folder = _replica_folder(folder, replica)
    metrics = replica_folder / "hypertune"
    metrics.mkdir(parents=True, exist_ok=True)
    metrics.chmod(0o777)  # for the image's user; the folder above keeps other users out
    (replica_folder / "container").unlink(missing_ok=True)
    return replica_folder


def _volumes(replica_folder: Path, buckets: Path, visible: Sequence[str]) -> Iterator[str]:
    names, hidden = View(buckets, tuple(visible)).places()
    empty = replica_folder / "nothing"  # hides a reserved part
    empty.mkdir(exist_ok=True)
    for name in names:
        yield from ("--volume", f"{buckets / name}:{BUCKETS}/{name}")
    for part in hidden:
        (buckets / part).mkdir(parents=True, exist_ok=True)
        yield from ("--volume", f"{empty}:{BUCKETS}/{part}:ro")


def _env_file(replica_folder: Path, names: set[str], variables: Mapping[str, str]) -> Path:
    # A file for the variables that must not reach the engine command through its environment.
    path = replica_folder / "variables"
    lines = []
    for name in sorted(names):
        if "\n" in variables[name]:
            message = f"The environment variable {name} can't hold a line break in a container."
            raise RunError(Code.INVALID_ARGUMENT, message, "INVALID_JOB")
        lines.append(f"{name}={variables[name]}\n")
    path.write_text("".join(lines), "utf-8")
    path.chmod(0o600)
    return path
