"""`reconciler tensorboard`: the real TensorBoard on events that a job wrote with TensorBoard's own writer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import urllib3

from reconciler import cli
from reconciler.training_service import client
from reconciler.training_service.client import folder_of
from tests.support.google_place import google_place
from tests.support.held_service import HeldService
from tests.support.repository import IMAGE, Repository
from tests.support.waiting import PATIENCE, until

# The tests' own writer and storage client: installing them for a job takes long.
TRAINER = """
import os, sys
from pathlib import Path

sys.path += os.environ["LIBRARIES"].split(os.pathsep)

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("events")
for step in range(3):
    value = Summary.Value(tag="loss", simple_value=1 / (step + 1))
    writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[value])))
writer.close()

bucket, _, prefix = os.environ["AIP_TENSORBOARD_LOG_DIR"].removeprefix("gs://").partition("/")
client = storage.Client(project="any", credentials=AnonymousCredentials())
for file in Path("events").iterdir():
    client.bucket(bucket).blob(prefix + file.name).upload_from_filename(str(file))
"""
MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: census}}
package: {{path: ../trainer}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      pythonPackageSpec:
        executorImageUri: {image}
        pythonModule: task
        env: [{{name: LIBRARIES, value: "{libraries}"}}]
  {output}
"""
OUTPUT = "baseOutputDirectory: {outputUriPrefix: gs://models/census/}"
# Stands in for TensorBoard: prints its arguments, and waits to be ended.
STAND_IN = """#!{python}
import json, os, sys, time
print(json.dumps(sys.argv[1:]), flush=True)
time.sleep({seconds})
sys.exit({code})
"""


def job(repository: Repository, output: str = OUTPUT) -> None:
    libraries = os.pathsep.join(filter(os.path.isdir, sys.path))
    repository.write("trainer/task.py", TRAINER)
    repository.job()  # shares environments with other tests
    manifest = MANIFEST.format(image=IMAGE, output=output, libraries=libraries)
    repository.write("jobs/census.yaml", manifest)


@contextmanager
def opened(
    repository: Repository, *arguments: str, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Yield `reconciler tensorboard` while it runs, and the lines that it has printed."""
    process = repository.start("tensorboard", *arguments, **environ)
    printed: list[str] = []
    readers = [
        threading.Thread(target=printed.extend, args=(stream,)) for stream in (process.stdout, process.stderr)
    ]
    for reader in readers:
        reader.start()
    try:
        yield process, printed
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE)
        for reader in readers:
            reader.join(PATIENCE)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def fetched(url: str) -> Any:
    answer = urllib3.request("GET", url, retries=False, timeout=10)
    return json.loads(answer.data) if answer.status == 200 else None


def test_tensorboard_shows_what_a_job_wrote(repository: Repository) -> None:
    job(repository)
    # The repository's own "tensorboard" files must not run.
    trap = "from pathlib import Path\nPath('trapped').touch()\n"
    for path in ("tensorboard/__init__.py", "tensorboard/main.py"):
        repository.write(path, trap)
    repository.write("bin/tensorboard", f"#!{sys.executable}\n{trap}").chmod(0o755)
    applied = repository.run("apply", "--wait")
    assert applied.code == 0, applied.out + applied.err

    path = os.pathsep.join(["bin", ".", os.environ["PATH"]])
    with opened(repository, "census", "--port", "0", PATH=path) as (process, printed):
        pattern = re.compile(r"http://127\.0\.0\.1:(\d+)/")
        (port,) = until(lambda: pattern.search("".join(printed)) or _none_if_alive(process, printed)).groups()
        url = f"http://127.0.0.1:{port}/data/plugin/scalars"
        # TensorBoard's two readers of events give different display names.
        tags = until(lambda: fetched(f"{url}/tags"))
        assert {run: [*found] for run, found in tags.items()} == {".": ["loss"]}
        scalars = fetched(f"{url}/scalars?tag=loss&run=.")
        assert [(step, round(value, 3)) for _, step, value in scalars] == [(0, 1.0), (1, 0.5), (2, 0.333)]
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        listening = [
            each.laddr.ip
            for member in family
            for each in member.net_connections()
            if each.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert not set(listening) - {"127.0.0.1", "::1"}
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    until(lambda: not any(map(lives, family)))
    assert not (repository.root / "trapped").exists()


def lives(process: psutil.Process) -> bool:
    """Return True if the process runs and isn't a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _none_if_alive(process: subprocess.Popen[str], printed: list[str]) -> None:
    assert process.poll() is None, "".join(printed)


def stand_in(folder: Path, *, seconds: float = 0, code: int = 0) -> str:
    """Return a PATH with the stand-in first."""
    folder.mkdir()
    program = folder / "tensorboard"
    program.write_text(STAND_IN.format(python=sys.executable, seconds=seconds, code=code))
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_it_is_called_for_this_machine_alone_and_its_failure_is_told(
    repository: Repository, tmp_path: Path
) -> None:
    job(repository)
    with HeldService(repository.home).running():
        assert repository.run("apply").code == 0
        good = repository.run("tensorboard", "census", PATH=stand_in(tmp_path / "good"))
        folder = repository.home / "gcs" / "models" / "census" / "logs"
        assert (good.code, json.loads(good.out)) == (0, ["--logdir", str(folder), "--host", "127.0.0.1"])
        bad = repository.run(
            "tensorboard", "census", "--port", "70", PATH=stand_in(tmp_path / "bad", code=255)
        )
        assert (bad.code, json.loads(bad.out)[-2:]) == (1, ["--port", "70"])
        assert repository.run("tensorboard", "census", "--port", "65536").code == 64
        assert repository.run("tensorboard", "nobody").code == 1
        endless = stand_in(tmp_path / "endless", seconds=1000)
        with opened(repository, "census", PATH=endless) as (process, printed):
            until(lambda: printed)
            (child,) = psutil.Process(process.pid).children()
            process.terminate()
            assert process.wait(PATIENCE) == 0
        assert not lives(child)


def test_in_the_cloud_it_reads_the_bucket(repository: Repository, tmp_path: Path) -> None:
    job(repository)
    with (
        HeldService(repository.home).running() as service,
        google_place(repository, service, service.url, tmp_path, submitter=False) as environ,
    ):
        assert repository.run("init", "--claims", **environ).code == 0
        applied = repository.run("apply", **environ)
        assert applied.code == 0, applied.out + applied.err
        done = repository.run("tensorboard", "census", PATH=stand_in(tmp_path / "bin"), **environ)
    assert json.loads(done.out) == ["--logdir", "gs://models/census/logs", "--host", "127.0.0.1"]


def test_a_job_without_a_folder_and_a_machine_without_tensorboard_are_told(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job(repository, output="")
    repository.write("tensorboard/__init__.py", "")
    monkeypatch.chdir(repository.root)
    with HeldService(repository.home).running():
        assert cli.run(["apply"]) == 0
        assert cli.run(["tensorboard", "census"]) == 1
        assert "set spec.baseOutputDirectory.outputUriPrefix" in capsys.readouterr().err

        job(repository)
        assert cli.run(["apply"]) == 0
        monkeypatch.setenv("PATH", str(repository.root))
        monkeypatch.setattr(sys, "path", ["", str(repository.root)])
        monkeypatch.setattr(client, "_EXTRA", ())  # the extra can't be imported from that path either
        assert cli.run(["tensorboard", "census"]) == 1
        assert "pip install tensorboard" in capsys.readouterr().err


def test_the_folder_of_a_bucket_is_below_the_home(tmp_path: Path) -> None:
    assert folder_of(tmp_path, "gs://models/a/logs/") == tmp_path / "gcs/models/a/logs"
    assert folder_of(tmp_path, "gs://models") == tmp_path / "gcs/models"
    for uri in ("gs://models/../../etc", "gs://../etc", "/etc", "file:///etc", "gs://models//x", "gs://", ""):
        assert folder_of(tmp_path, uri) is None
