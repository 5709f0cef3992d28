"""Containers: run through Docker or Podman, whichever is there.

A container isn't of the family of the program that starts it: it lives on when that is killed. So whatever
of it there may be is written into the run's folder first, and removed by a label that all of it carries.
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
from reconciler.training_service.state.records import Code
from reconciler.training_service.state.run_folder import (
    ContainerTask,
    ReplicaSpec,
    RunFolder,
    read_json,
    write_json,
)

BUCKETS = "/gcs"
METRICS = "/tmp/hypertune"  # noqa: S108 where cloudml-hypertune writes to by itself, in every container

_LABEL = "reconciler.run"
_REMOVAL = 60.0
_KILLED = 137
# Variables that the engine's own program obeys: the replica's of these names must not reach it.
_OBEYED = re.compile(
    r"PATH|HOME|USER|LANG|TMPDIR|STORAGE_(?:DRIVER|OPTS)|NOTIFY_SOCKET"
    r"|_?(?:BUILDAH|CONTAINERS?|DOCKER|LC|LD|LISTEN|PODMAN|REGISTR(?:Y|IES)|SSL|XDG)_.*|GO[A-Z]+|.*_PROXY",
    re.IGNORECASE,
)
_NOT_RUN = re.compile(
    r"ERROR \(catatonit:\d+\): failed to exec pid1: (?P<catatonit>.+)"
    r"|\[FATAL tini \(\d+\)\] exec .+ failed: (?P<tini>.+)"
)


class ContainerError(Exception):
    """The container can't be run, or wasn't; `code` is the google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Runs(Protocol):
    """Runs a program of the run to its end: exit code, and all that it printed."""

    def __call__(self, argv: list[str]) -> tuple[int, str]:
        """Run it; ends in an exception where the run is to end."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that works."""

    client: Client
    abilities: Abilities

    @property
    def name(self) -> str:
        """`docker` or `podman`."""
        return self.abilities.name

    @property
    def warnings(self) -> tuple[str, ...]:
        """What differs from the cloud with this engine."""
        missing = " and ".join(sorted({"cpu", "memory"} - self.abilities.limits))
        if not missing:
            return ()
        told = f"{self.name} can't limit {missing} here: containers run without such a limit."
        return (told,)

    def make_ready(self, task: ContainerTask, run: Runs) -> None:
        """Have the image here: the one of this name that is here already, or the registry's.

        Raises:
            ContainerError: It isn't to be had.
        """
        if (
            run([str(self.client.program), "image", "inspect", "--format", "{{.Id}}", "--", task.image])[0]
            == 0
        ):
            return
        if task.image.startswith("localhost/"):  # what Podman calls the images that were built here
            raise ContainerError(Code.NOT_FOUND, f"The image {task.image} isn't here: build it first.")
        code, output = run([str(self.client.program), "pull", "--", task.image])
        if code != 0:
            full = "no space left on device" in output
            message = f"The image {task.image} can't be pulled by {self.name}: {last_line(output)}"
            raise ContainerError(Code.RESOURCE_EXHAUSTED if full else Code.NOT_FOUND, message)

    def command(
        self, replica: ReplicaSpec, folder: RunFolder, buckets: Path, seen: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, str]]:
        """What runs a replica's container in the foreground, and the whole environment of that program.

        The container gets the variables of the image and the replica's, none of this machine. Their values
        are in that environment, not in the arguments: anybody may read those.

        Call it anew for each start: a container that has ended is kept until `end_containers`.

        Args:
            buckets: The folder of the buckets' folders.
            seen: What the container sees of them, as `RunSpec.buckets`.
        """
        assert isinstance(replica.task, ContainerTask)
        write_json(_record(folder), {"program": str(self.client.program), "name": self.name})
        own = _fresh(folder, replica)
        variables = {
            **environment_variables.proxies(self.client.environ),
            **replica.env,
            "RECONCILER_GCS_DIR": BUCKETS,
            "CLOUD_ML_HP_METRIC_FILE": f"{METRICS}/output.metrics",
        }
        gpus = tuple(filter(None, replica.env.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        if gpus:  # there they are counted anew
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(gpus))))
        through = {name: value for name, value in variables.items() if not _OBEYED.fullmatch(name)}
        task = replica.task
        argv = [
            *(str(self.client.program), "run", "--cidfile", str(own / "container")),
            *("--name", f"reconciler-{folder.run_id}-{replica.task_name}-{secrets.token_hex(2)}"),
            *("--label", f"{_LABEL}={folder.run_id}"),
            *(
                "--pull",
                "never",
                "--network",
                "host",
                "--log-driver",
                "none",
                "--security-opt",
                "label=disable",
            ),
            *("--volume", f"{own / 'hypertune'}:{METRICS}", *_volumes(own, buckets, seen)),
            *self.abilities.options,
            *self._limits(replica),
            *self._gpus(gpus),
            *("--env-file", str(_env_file(own, variables.keys() - through.keys(), variables))),
            *(word for name in through for word in ("--env", name)),
            *(("--entrypoint", task.command[0]) if task.command else ()),
            *("--", task.image, *task.command[1:], *task.args),
        ]
        return argv, {**self.client.environ, **through}

    def explain(
        self, folder: RunFolder, replica: ReplicaSpec, code: int, errors: str
    ) -> ContainerError | None:
        """What is behind the exit code of a replica's container, None where it is the program's own.

        Args:
            code: What the command has ended with, not 0.
            errors: The end of what it has printed to its standard error.
        """
        state = self._state(folder, replica)
        name = f"The replica {replica.name}"
        if not state or state.get("StartedAt", "").startswith("0001-"):
            if code < 0:
                return None
            # 126 and 127 the engine says of a command in the image, 125 of itself.
            kind = Code.INVALID_ARGUMENT if code in (126, 127) else Code.INTERNAL
            return ContainerError(kind, f"{name} couldn't be started by {self.name}: {last_line(errors)}")
        if found := _NOT_RUN.search(errors):
            command = " ".join(getattr(replica.task, "command", ()) or ("of the image",))
            why = found["catatonit"] or found["tini"]
            return ContainerError(
                Code.INVALID_ARGUMENT, f"{name} couldn't be started: the command {command}: {why}"
            )
        held = f", which is {replica.memory >> 20} MiB here" if replica.memory else ""
        if state.get("OOMKilled"):
            return ContainerError(
                Code.RESOURCE_EXHAUSTED, f"{name} ran out of memory: it had that of its machine{held}."
            )
        if code == _KILLED and replica.memory:  # not every kernel tells the engine that it was for memory
            told = f"{name} was killed by signal 9 (SIGKILL): out of its machine's memory{held}; or by hand."
            return ContainerError(Code.RESOURCE_EXHAUSTED, told)
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
            yield from ("--gpus", f'"device={",".join(gpus)}"')  # a CSV field: the quotes belong to it

    def _state(self, folder: RunFolder, replica: ReplicaSpec) -> dict[str, Any]:
        """What the engine knows of the replica's last container; nothing where it knows of none."""
        with suppress(OSError, subprocess.TimeoutExpired, ValueError):
            container = (_own(folder, replica) / "container").read_text().strip()
            found: dict[str, Any] = json.loads(
                self.client.ask(
                    "inspect", "--type", "container", "--format", "{{json .State}}", "--", container
                )[1]
            )
            return found
        return {}


def find_engine(environ: Mapping[str, str]) -> Engine:
    """The engine of this machine: Docker where it answers, else Podman.

    Raises:
        ContainerError: There is none; the message names what is missing.
    """
    complaints = []
    for client in clients(environ):
        found = abilities(client)
        if isinstance(found, Abilities):
            return Engine(client, found)
        complaints.append(f"{client.program} is here, but says: {found}")
    raise ContainerError(
        Code.FAILED_PRECONDITION,
        "The job runs in a container, but no container engine works on this machine: "
        + "; ".join(["install Docker or Podman", *complaints]),
    )


def has_containers(folder: RunFolder) -> bool:
    """Whether there may be containers of this run."""
    return _record(folder).exists()


def end_containers(folder: RunFolder) -> bool:
    """Remove what there is of a run's containers; whether nothing of them lives.

    At once for a run that has made none. False as well where the engine doesn't answer: ask again then.
    """
    try:
        gone = all(_removed(client, name, folder.run_id) for client, name in _engines_of(folder))
    except (OSError, subprocess.TimeoutExpired):
        return False
    if gone:
        _record(folder).unlink(missing_ok=True)
    return gone


def _engines_of(folder: RunFolder) -> Iterator[tuple[Client, str]]:
    """The engines that may have containers of the run, with their names."""
    recorded = read_json(_record(folder))
    if recorded is not None:
        if Path(recorded["program"]).exists():  # it may have been taken off the machine
            yield Client(Path(recorded["program"]), os.environ), recorded["name"]
    elif not folder.path.exists():  # somebody has removed all that told
        for client in clients(os.environ):
            if isinstance(found := abilities(client), Abilities):
                yield client, found.name


def _removed(client: Client, name: str, run_id: str) -> bool:
    listing = ("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={_LABEL}={run_id}")
    code, found, _ = client.ask(*listing)
    if code == 0 and found.split():
        # Podman would give them ten seconds first: their time to end by themselves is over.
        at_once = ("--time", "0") if name == PODMAN else ()
        client.ask("rm", "--force", "--volumes", *at_once, *found.split(), within=_REMOVAL)
        code, found, _ = client.ask(*listing)
    # An engine that isn't running runs no containers.
    return not found.split() if code == 0 else isinstance(abilities(client), str)


def _record(folder: RunFolder) -> Path:
    """Which engine may have containers of this run."""
    return folder.path / "engine"


def _own(folder: RunFolder, replica: ReplicaSpec) -> Path:
    return folder.temp() / replica.task_name


def _fresh(folder: RunFolder, replica: ReplicaSpec) -> Path:
    """The replica's folder, without what an earlier container has left in it."""
    own = _own(folder, replica)
    metrics = own / "hypertune"
    metrics.mkdir(parents=True, exist_ok=True)
    metrics.chmod(0o777)  # whichever user the image is for; nobody else gets to the folder above
    (own / "container").unlink(missing_ok=True)
    return own


def _volumes(own: Path, buckets: Path, seen: Sequence[str]) -> Iterator[str]:
    """The buckets that are there; over what is hidden in them lies an empty folder that can't be written.

    A beginning of names that ends within a folder's name hides the folder above: files that come later could
    have such names. A bucket of which that would hide everything isn't there.
    """
    hidden = [place.rpartition("/")[0] for place in seen if "/" in place]
    names = [place for place in seen if "/" not in place and place not in hidden]
    nothing = own / "nothing"
    nothing.mkdir(exist_ok=True)
    for name in names:
        if (buckets / name).is_dir():
            yield from ("--volume", f"{buckets / name}:{BUCKETS}/{name}")
    for place in hidden:
        name = place.partition("/")[0]
        if name in names and (buckets / name).is_dir():
            (buckets / place).mkdir(parents=True, exist_ok=True)
            yield from ("--volume", f"{nothing}:{BUCKETS}/{place}:ro")


def _env_file(own: Path, names: set[str], variables: Mapping[str, str]) -> Path:
    """A file with the variables that the engine's own program would obey."""
    path = own / "variables"
    lines = []
    for name in sorted(names):
        if "\n" in variables[name]:
            message = f"The environment variable {name} can't hold a line break in a container."
            raise ContainerError(Code.INVALID_ARGUMENT, message)
        lines.append(f"{name}={variables[name]}\n")
    path.write_text("".join(lines), "utf-8")
    path.chmod(0o600)
    return path
