"""`reconciler run`: unchanged programs for Google Cloud, signals, exit codes and mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documented import snippets
from tests.support.repository import Repository, environ
from tests.support.unpacked import unpack
from tests.support.waiting import PATIENCE, until

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# The SDK packs the script, and sends `sh -c "… python3 -m …"` for an image that isn't Google's.
SUBMIT = f"""
import googleapiclient.discovery
import requests
from google.cloud import aiplatform, bigquery, storage

storage.Client().create_bucket("my-staging")
aiplatform.init(project="local", api_transport="rest", staging_bucket="gs://my-staging")
job = aiplatform.CustomJob.from_local_script(
    display_name="census",
    script_path="task.py",
    container_uri="python:{VERSION}-slim",
    args=["--epochs=3", "'two words'"],
    machine_type="n1-standard-4",
)
job.run()
print(job.state.name)

jobs = googleapiclient.discovery.build("ml", "v1").projects().jobs()
print(jobs.list(parent="projects/local").execute())
# With credentials of the user's own, which would reach Google.
own, place = dict(Authorization="Bearer the-users-own"), "projects/local/locations/us-central1/customJobs"
address = "https://us-central1-aiplatform.googleapis.com/v1/" + place
print([each["displayName"] for each in requests.get(address, headers=own).json()["customJobs"]])
print(requests.get("https://storage.googleapis.com/my-staging/none").status_code)
for call in (lambda: bigquery.Client().query("SELECT 1"), of_grpc):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
""".replace("of_grpc", 'lambda: aiplatform.init(api_transport="grpc") or aiplatform.CustomJob.list()')


@pytest.fixture
def repository(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("RECONCILER_PULL_IMAGES", "0")
    # The SDK's modules compile for seconds otherwise.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    return repository


def test_run_submits_by_an_unchanged_script_that_trains(repository: Repository) -> None:
    repository.write("submit.py", SUBMIT)
    repository.write("task.py", "import sys\nprint('trained with', sys.argv[1:])\n")
    (block,) = (each for each in snippets("sh") if "reconciler run" in each)
    done = subprocess.run(
        ["/bin/sh", "-ec", block], cwd=repository.root, env=environ(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    state, listed, of_vertex, status, query, by_grpc = done.stdout.splitlines()[-6:]
    assert (state, listed, of_vertex, status) == ("JOB_STATE_SUCCEEDED", "{}", "['census']", "404")
    assert "bigquery.googleapis.com" in query
    assert "MethodNotImplemented" in query
    assert 'api_transport="rest"' in by_grpc
    assert "trained with ['--epochs=3', 'two words']" in "".join(
        path.read_text() for path in repository.home.glob("runs/*/log*")
    )


CLIENTS = """
import gcsfs, pandas, pyarrow.fs
from google.cloud import storage
storage.Client().create_bucket("my-data")
table = pandas.DataFrame({"age": [38, 39]})
table.to_csv("gs://my-data/a.csv", index=False)
table.to_parquet("gs://my-data/a.parquet")
print(pandas.read_csv("gs://my-data/a.csv").age.sum(), pandas.read_parquet("gs://my-data/a.parquet").age.sum())
print(gcsfs.GCSFileSystem().ls("my-data"))
arrow = pyarrow.fs.GcsFileSystem()  # with the default credentials, which it refreshes at once
print(arrow.get_file_info("my-data/a.csv").size)
print(pandas.read_parquet("my-data/a.parquet", filesystem=arrow).age.sum())
"""


@pytest.mark.parametrize("how", ["run", "env"])
def test_newest_pandas_gcsfs_and_pyarrow_use_default_credentials(
    repository: Repository, tmp_path: Path, wheelhouse: Path, how: str
) -> None:
    env = {**os.environ, "PYTHONPATH": str(unpack(wheelhouse, tmp_path / "packages"))}
    if how == "env":
        env |= repository.run("env", "--format", "json").json["variables"]
    command = [sys.executable, "-c", CLIENTS]
    if how == "run":
        command = [sys.executable, "-P", "-m", "reconciler", "run", "--", *command]
    done = subprocess.run(
        command, cwd=repository.root, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines() == [
        "77 77",
        "['my-data/a.csv', 'my-data/a.parquet']",
        "10",
        "77",
    ], done.stderr


def test_run_ends_with_the_program_s_exit_code(repository: Repository) -> None:
    assert repository.run("run", "--", "sh", "-c", "exit 7").code == 7
    assert repository.run("run", "--", "sh", "-c", "kill -9 $$").code == 137
    assert repository.run("run", "--", "printf", "%s", "--env", "--").out == "--env--"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_run_passes_a_signal_on_and_leaves_no_process(repository: Repository, number: signal.Signals) -> None:
    program = (
        "import os, signal, time; signal.signal(signal.SIGHUP, signal.SIG_DFL);"  # nohup ignores it
        " open('started', 'w').write(os.environ['HTTPS_PROXY']); time.sleep(600)"
    )
    process = repository.start("run", "--", sys.executable, "-c", program)
    started = repository.root / "started"
    until(lambda: started.exists() and started.read_text())
    process.send_signal(number)
    process.send_signal(number)  # as an impatient person does
    assert process.wait(PATIENCE) == 128 + number
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if started.read_text() in _text(path)]
    assert left == []


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def test_run_explains_what_it_lacks(repository: Repository) -> None:
    for words, message in (
        ((), "the program is missing"),
        (("--", "no-such-program"), "there is no program 'no-such-program'"),
        (("--", str(repository.root)), "can't be run: Permission denied"),
        (("python", "--flag"), "run has no flag --flag"),
    ):
        refused = repository.run("run", *words)
        assert (refused.code, message in refused.err) == (64, True)
    refused = repository.run("run", "--", "true", HTTPS_PROXY="socks5://127.0.0.1:1")
    assert (refused.code, "of the kind socks5" in refused.err) == (64, True)
    google = "{engine: google, project: acme-ml, location: us-central1, stagingBucket: gs://acme-staging}"
    repository.write("reconciler.yaml", f"source: env-test-7f3a\nenvironments:\n  production: {google}\n")
    refused = repository.run("run", "--env", "production", "--", "true")
    assert (refused.code, "engine: local" in refused.err) == (64, True)
