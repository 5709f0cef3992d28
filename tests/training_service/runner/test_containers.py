"""Containers through the engine of this machine, with an image built here from a single static program."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.jobs import machines
from reconciler.training_service.runner.containers import (
    ContainerEngine,
    end_containers,
    find_engine,
    has_containers,
)
from reconciler.training_service.state.run_folder import RunError, RunFolder, run_folder
from reconciler.training_service.state.run_spec import ContainerTask, ReplicaSpec, Role
from tests.support.container_image import IMAGE, containers_of
from tests.support.waiting import PATIENCE, until

MIB = 1 << 20
SECRET = "two\nlines of a secret"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """Yield a run's folder; check at the end that none of its containers is left."""
    made = run_folder(tmp_path / "home", f"1-1-{secrets.token_hex(4)}")  # also for parallel test runs
    made.path.mkdir(parents=True)
    yield made
    assert end_containers(made)
    made.clean()


def a_replica(*words: str, image: str = IMAGE, **fields: Any) -> ReplicaSpec:
    """Return a replica that runs these words by the image's shell, or runs the given `task`."""
    task = ContainerTask(image, ("/bin/sh", "-c"), (" ".join(words),))
    plain = ReplicaSpec("workerpool0-0", "workerpool0-0", Role.PRIMARY, task, {}, 1, 256 * MIB)
    return replace(plain, **fields)


def ran(
    engine: ContainerEngine, folder: RunFolder, replica: ReplicaSpec, buckets: Path, *seen: str
) -> subprocess.CompletedProcess[str]:
    """Run the replica's container to its end."""
    argv, env = engine.command(replica, folder, buckets, seen)
    # Podman's monitor may leave a file in its working directory.
    return subprocess.run(
        argv, env=env, cwd=folder.path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


# The choice of the engine.


def a_program(path: Path, script: str) -> Path:
    """Write a program of this name that is a shell script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def answering(info: dict[str, Any]) -> str:
    """Return the script of an engine's command that prints this information and lists no containers."""
    return f"case $1 in info) echo '{json.dumps(info)}';; esac"


NO_DAEMON = """\
echo '{"ServerVersion": "", "ServerErrors": ["Cannot connect to the Docker daemon. Is it running?"]}'
exit 0"""


def test_without_an_engine_the_error_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        find_engine({"PATH": str(tmp_path)})
    assert caught.value.code == 9
    assert (
        caught.value.message == "The job runs in a container, but no container engine works on this machine."
    )


@pytest.mark.parametrize(
    "script", [NO_DAEMON, "echo 'Cannot connect to the Docker daemon. Is it running?' >&2; exit 1"]
)
def test_a_command_without_its_engine_is_told_of(tmp_path: Path, script: str) -> None:
    docker = a_program(tmp_path / "bin" / "docker", script)
    with pytest.raises(RunError) as caught:
        find_engine({"PATH": str(docker.parent)})
    assert caught.value.message.endswith(
        f": {docker} is installed, but reports: Cannot connect to the Docker daemon. Is it running?"
    )


@pytest.mark.slow
def test_a_command_without_its_engine_does_not_stand_before_one_that_works(
    tmp_path: Path, engine: ContainerEngine
) -> None:
    docker = a_program(tmp_path / "bin" / "docker", NO_DAEMON)
    podman = shutil.which("podman")
    if podman is None:
        pytest.skip("Podman isn't here")
    found = find_engine({**os.environ, "PATH": f"{docker.parent}:{Path(podman).parent}"})
    assert (found.name, found.client.program) == ("podman", Path(podman))


@pytest.mark.slow
def test_podman_by_the_name_of_docker_is_podman(tmp_path: Path, engine: ContainerEngine) -> None:
    podman = shutil.which("podman")
    if podman is None:
        pytest.skip("Podman isn't here")
    (tmp_path / "docker").symlink_to(podman)
    assert find_engine({**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}).name == "podman"


def test_limits_that_the_kernel_does_not_allow_are_left_out_and_told_of(
    tmp_path: Path, folder: RunFolder
) -> None:
    info = {"ServerVersion": "28.2.2", "MemoryLimit": True, "CpuCfsQuota": False}
    docker = a_program(tmp_path / "bin" / "docker", answering(info))
    found = find_engine({"PATH": str(docker.parent)})
    assert found.warnings == ("docker can't limit cpu here: containers run without such a limit.",)
    argv, _ = found.command(a_replica("true"), folder, tmp_path)
    assert argv[argv.index("--memory") + 1] == f"{256 * MIB}b"
    assert "--cpus" not in argv


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"ServerVersion": "28"}, ["--gpus", '"device=2,GPU-3a"']),
        ({"host": {}}, ["--device", "nvidia.com/gpu=2", "--device", "nvidia.com/gpu=GPU-3a"]),
    ],
)
def test_a_replica_s_gpus_are_given_to_its_container(
    tmp_path: Path, folder: RunFolder, info: dict[str, Any], words: list[str]
) -> None:
    program = a_program(tmp_path / "bin" / "docker", answering(info))
    found = find_engine({"PATH": str(program.parent)})
    with_gpus = a_replica("true", env={"CUDA_VISIBLE_DEVICES": "2,GPU-3a"})
    argv, env = found.command(with_gpus, folder, tmp_path)
    assert " ".join(words) in " ".join(argv)
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1"
    without, _ = found.command(a_replica("true", env={"CUDA_VISIBLE_DEVICES": ""}), folder, tmp_path)
    assert not {"--gpus", "--device"} & {*without}


# The image.


def asking(engine: ContainerEngine) -> Callable[[list[str]], tuple[int, str]]:
    def run(argv: list[str]) -> tuple[int, str]:
        code, output, errors = engine.client.ask(*argv[1:], within=PATIENCE)
        return code, output + errors

    return run


@pytest.mark.slow
def test_an_image_that_is_here_is_taken(engine: ContainerEngine, image: str) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str]:
        asked.append(argv)
        return asking(engine)(argv)

    engine.make_ready(ContainerTask(image), run)
    assert len(asked) == 1


def test_an_image_that_was_to_be_built_here(engine: ContainerEngine) -> None:
    with pytest.raises(RunError) as caught:
        engine.make_ready(ContainerTask("localhost/never-built:1"), asking(engine))
    assert (caught.value.code, caught.value.message) == (
        5,
        "The image localhost/never-built:1 isn't here: build it first.",
    )


@pytest.mark.slow
def test_an_image_whose_registry_does_not_answer(engine: ContainerEngine) -> None:
    with pytest.raises(RunError) as caught:
        engine.make_ready(ContainerTask("127.0.0.1:9/team/image:1"), asking(engine))
    assert caught.value.code == 5
    assert caught.value.message.startswith("The image 127.0.0.1:9/team/image:1 can't be pulled by ")
    assert "connection refused" in caught.value.message
    assert "\n" not in caught.value.message


# The process in the container.


@pytest.mark.slow
def test_the_image_s_own_command_runs_where_the_job_names_none(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    own = replace(a_replica(), task=ContainerTask(image))
    assert ran(engine, folder, own, tmp_path).stdout == "entry of the image\n"
    args = replace(own, task=ContainerTask(image, (), ("--epochs=3", "a b", "$HOME")))
    assert ran(engine, folder, args, tmp_path).stdout == "entry --epochs=3 a b $HOME\n"
    command = replace(own, task=ContainerTask(image, ("/bin/echo", "--"), ("-x",)))
    assert ran(engine, folder, command, tmp_path).stdout == "-- -x\n"


@pytest.mark.slow
def test_the_container_has_the_image_s_variables_and_the_replica_s_and_none_of_this_machine(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THIS_MACHINE", "x")
    env = {
        "KEY": SECRET,
        "SPACED": "  a = 'b' \"c\"  #d",
        "DOCKER_HOST": "tcp://192.0.2.1:1",
        "CONTAINERS_CONF": "/nowhere",
        "RECONCILER_GCS_DIR": "/home/me/buckets",
    }
    found = find_engine(os.environ)
    done = ran(found, folder, a_replica("cat /proc/self/environ", env=env), tmp_path)
    assert done.returncode == 0, done.stderr
    seen = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    assert seen.items() >= {**env, "RECONCILER_GCS_DIR": "/gcs"}.items()
    assert (seen["OF_THE_IMAGE"], seen["PATH"]) == ("yes", "/bin")
    assert seen["CLOUD_ML_HP_METRIC_FILE"] == "/tmp/hypertune/output.metrics"
    assert not {"OF_THIS_MACHINE", "VIRTUAL_ENV", "PIP_NO_INDEX", "RECONCILER_RUN"} & {*seen}


@pytest.mark.slow
def test_the_replica_s_own_path_and_home_hold(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    env = {"PATH": "/nowhere:/bin", "HOME": "/tmp", "LANG": "de_DE.UTF-8"}
    assert ran(engine, folder, a_replica("echo $PATH $HOME $LANG", env=env), tmp_path).stdout == (
        "/nowhere:/bin /tmp de_DE.UTF-8\n"
    )


def test_values_of_variables_are_not_among_the_arguments(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    env = {"KEY": "s3cr3t", "HOME": "s3cr3t"}
    argv, _ = engine.command(a_replica("true", env=env), folder, tmp_path)
    assert not [word for word in argv if "s3cr3t" in word]


@pytest.mark.slow
def test_what_it_writes_to_a_bucket_s_folder_is_an_object_s_file(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    buckets = tmp_path / "gcs"
    (buckets / "models").mkdir(parents=True)
    (buckets / "models" / "data.csv").write_text("1,2\n")
    words = "mkdir /gcs/models/run && cat /gcs/models/data.csv > /gcs/models/run/model.txt"
    assert ran(engine, folder, a_replica(words), buckets, "models").returncode == 0
    written = buckets / "models" / "run" / "model.txt"
    assert written.read_text() == "1,2\n"
    if engine.name == "podman":
        assert written.stat().st_uid == os.geteuid()


@pytest.mark.slow
def test_it_sees_the_job_s_buckets_alone_and_none_of_the_claims(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    buckets = tmp_path / "gcs"
    for place in ("models/data", "models/locks/deep", "other", "split"):
        (buckets / place).mkdir(parents=True)
        (buckets / place / "claim").touch()
    seen = ("absent", "models", "split", "models/locks/", "models/later/cl", "split/cl")
    words = "ls /gcs; cd /gcs/models; ls data locks later; touch locks/x || touch later/x"
    done = ran(engine, folder, a_replica(f"{words} || echo refused"), buckets, *seen)
    assert done.stdout.split() == ["models", "data:", "claim", "later:", "locks:", "refused"], done.stderr
    assert [path.name for path in (buckets / "models" / "locks").iterdir()] == ["deep"]


@pytest.mark.slow
def test_it_reaches_what_listens_on_loopback(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket; s = socket.create_server(('127.0.0.1', 0));"
            "print(s.getsockname()[1], flush=True); s.accept()[0].sendall(b'hello')",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert ran(engine, folder, a_replica(f"nc 127.0.0.1 {port}"), tmp_path).stdout == "hello"


# The end of the container.


def explained(
    engine: ContainerEngine, folder: RunFolder, replica: ReplicaSpec, buckets: Path
) -> tuple[int, int, str]:
    """Return the exit code, and the code and the text of the engine's explanation."""
    done = ran(engine, folder, replica, buckets)
    told = engine.explain(folder, replica, done.returncode, done.stderr)
    return (done.returncode, told.code, told.message) if told else (done.returncode, 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("status", [1, 125, 127])
def test_a_program_s_own_status_needs_no_explanation(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path, status: int
) -> None:
    assert explained(engine, folder, a_replica(f"exit {status}"), tmp_path) == (status, 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("init", [True, False])
def test_a_command_that_is_not_in_the_image(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path, init: bool
) -> None:
    options = tuple(option for option in engine.abilities.options if init or option != "--init")
    engine = replace(engine, abilities=replace(engine.abilities, options=options))
    absent = replace(a_replica(), task=ContainerTask(image, ("/opt/train", "x")))
    status, code, message = explained(engine, folder, absent, tmp_path)
    assert status != 0
    assert code == 3
    assert message.startswith("The replica workerpool0-0 couldn't be started")
    assert "no such file" in message.lower()


def test_what_the_engine_itself_fails_at(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    gone = a_replica("true", task=ContainerTask("localhost/never-built:1"))
    status, code, message = explained(engine, folder, gone, tmp_path)
    assert (status, code) == (125, 13)
    assert message.startswith(f"The replica workerpool0-0 couldn't be started by {engine.name}: ")
    assert "never-built" in message


@pytest.mark.slow
def test_a_container_that_takes_more_memory_than_it_has(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    if "memory" not in engine.abilities.limits:
        pytest.skip("this machine's kernel allows no memory limits")
    hungry = a_replica("tail /dev/zero", memory=32 * MIB)
    status, code, message = explained(engine, folder, hungry, tmp_path)
    assert (status, code) == (137, 8)
    assert "memory, which is 32 MiB here" in message


@pytest.mark.slow
def test_a_replica_is_started_anew_while_its_first_container_is_there(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    assert ran(engine, folder, a_replica("exit 3"), tmp_path).returncode == 3
    assert ran(engine, folder, a_replica("exit 4"), tmp_path).returncode == 4
    assert len(containers_of(engine, folder.run_id)) == 2
    assert end_containers(folder)
    assert containers_of(engine, folder.run_id) == []
    assert not has_containers(folder)


@pytest.mark.slow
def test_a_container_outlives_its_killed_command_and_is_removed(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    words = "trap '' TERM; touch /gcs/models/alive; while :; do sleep 1; done"
    (tmp_path / "models").mkdir()
    argv, env = engine.command(a_replica(words), folder, tmp_path, ["models"])
    with subprocess.Popen(argv, env=env, cwd=folder.path) as command:
        until((tmp_path / "models" / "alive").exists)
        command.kill()
    assert containers_of(engine, folder.run_id)
    assert has_containers(folder)
    assert end_containers(folder)
    assert containers_of(engine, folder.run_id) == []


@pytest.mark.slow
def test_containers_are_found_where_the_run_s_folder_is_gone(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    ran(engine, folder, a_replica("true"), tmp_path)
    shutil.rmtree(folder.path)
    assert containers_of(engine, folder.run_id)
    assert end_containers(folder)
    assert containers_of(engine, folder.run_id) == []


@pytest.mark.slow
def test_containers_are_found_where_the_engine_s_command_has_moved(
    engine: ContainerEngine, image: str, folder: RunFolder, tmp_path: Path
) -> None:
    ran(engine, folder, a_replica("true"), tmp_path)
    record = folder.path / "engine"
    record.write_text(json.dumps({**json.loads(record.read_text()), "program": str(tmp_path / "moved")}))
    assert containers_of(engine, folder.run_id)
    assert end_containers(folder)
    assert containers_of(engine, folder.run_id) == []


def test_a_run_without_containers_asks_no_engine(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert not has_containers(folder)
    assert end_containers(folder)


@pytest.mark.slow
def test_an_engine_that_was_removed_has_no_containers(tmp_path: Path, folder: RunFolder) -> None:
    docker = a_program(tmp_path / "bin" / "docker", answering({"ServerVersion": "28"}))
    find_engine({"PATH": str(docker.parent)}).command(a_replica("true"), folder, tmp_path)
    docker.unlink()
    assert end_containers(folder)


# GPUs.


@pytest.fixture
def _gpus_looked_for_anew() -> Iterator[None]:
    machines.gpu_ids.cache_clear()
    yield
    machines.gpu_ids.cache_clear()


@pytest.mark.usefixtures("_gpus_looked_for_anew")
@pytest.mark.parametrize(
    ("given", "ids"),
    [("", ()), ("0", ("0",)), ("2, GPU-3a", ("2", "GPU-3a")), ("-1", ()), ("1,-1,0", ("1",))],
)
def test_the_service_s_own_list_of_gpus_holds(
    monkeypatch: pytest.MonkeyPatch, given: str, ids: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert machines.gpu_ids() == ids


@pytest.mark.usefixtures("_gpus_looked_for_anew")
def test_gpus_are_those_that_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = (
        "GPU 0: Tesla T4 (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-2)\nGPU 1: Tesla T4 (UUID: GPU-3)"
    )
    a_program(tmp_path / "bin" / "nvidia-smi", f"cat <<'END'\n{listing}\nEND")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert machines.gpu_ids() == ("0", "1")


@pytest.mark.usefixtures("_gpus_looked_for_anew")
def test_a_driver_that_does_not_work_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_program(tmp_path / "bin" / "nvidia-smi", "echo 'GPU 0: none'; exit 9")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(machines, "_DRIVER", tmp_path)
    assert machines.gpu_ids() == ()
