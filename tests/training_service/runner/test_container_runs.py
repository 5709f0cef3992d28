"""Jobs that run in containers: by the runner, and by the service that starts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.runner.containers import ContainerEngine, end_containers
from reconciler.training_service.state.records import CUSTOM_JOBS, JobRecord, JobState
from reconciler.training_service.state.run_folder import read_measurements
from tests.support.container_image import IMAGE, containers_of
from tests.support.training_service import runs, trainers
from tests.support.training_service.runs import Run, nothing_is_left_of
from tests.support.training_service.supervised import Bench, supervised
from tests.support.waiting import until

IGNORING = """\
trap '' TERM INT
(trap '' TERM INT; while :; do sleep 1; done) &
touch /gcs/models/alive
while :; do sleep 1; done
"""

# Notes each SIGTERM at once, and continues for a while after the first.
TOLD = """\
trap 'echo told >> /gcs/models/told' TERM
touch /gcs/models/alive
until [ -e /gcs/models/told ]; do sleep 1 & wait $!; done
for _ in 1 2 3 4 5; do sleep 0.2; done
"""

Starts = Callable[..., Run]


def custom_job(script: str, *, env: dict[str, str] | None = None, **spec: Any) -> JobRecord:
    """Return a CustomJob whose container runs this shell script."""
    job = trainers.custom_job(spec=spec or None)
    pool = job.body["jobSpec"]["workerPoolSpecs"][0]
    del pool["pythonPackageSpec"]
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    pool["containerSpec"] = {
        "imageUri": IMAGE,
        "command": ["/bin/sh", "-c"],
        "args": [script],
        **({"env": variables} if variables else {}),
    }
    assert job.collection == CUSTOM_JOBS
    return job


@pytest.fixture
def container(image: str, engine: ContainerEngine, trainer: runs.Starter) -> Iterator[Starts]:
    """Yield a function that makes the run of a job in a container; check that no container is left."""
    made: list[Run] = []

    def make(script: str, job: JobRecord | None = None, **spec: Any) -> Run:
        run = trainer("", job=job or custom_job(script), **spec)
        (run.folder.service_home / "gcs" / "models").mkdir(parents=True, exist_ok=True)
        made.append(run)
        return run

    yield make
    left = [run.folder.run_id for run in made if containers_of(engine, run.folder.run_id)]
    for run in made:
        end_containers(run.folder)
    assert left == []


def bucket(run: Run) -> Path:
    return run.folder.service_home / "gcs" / "models"


PROXIED = """\
[ "$CURL_CA_BUNDLE" = /etc/ssl/certs/ca-certificates.crt ] && grep -c 'BEGIN CERT' "$CURL_CA_BUNDLE"
url=${HTTPS_PROXY#http://}
secret=$(printf %s "${url%@*}" | base64 | tr -d '\\n')
printf "CONNECT www.googleapis.com:443 HTTP/1.1\\r\\nProxy-Authorization: Basic $secret\\r\\n\\r\\n" |
    nc 127.0.0.1 ${url##*:} | head -n 1 | tr -d '\\r'
"""


def test_a_container_reaches_the_run_s_proxy_and_trusts_its_authority(container: Starts) -> None:
    run = container(PROXIED).start()
    assert run.end() == ("SUCCEEDED", 0, "")
    own = Path(os.environ["SSL_CERT_FILE"]).read_text().count("BEGIN CERT")
    printed = [text for severity, text in run.log() if severity == "INFO"]
    assert len(printed) == 2
    assert int(printed[0]) > own
    assert printed[1] == "HTTP/1.1 200 Connection established"


def test_a_container_runs_to_its_end(container: Starts) -> None:
    run = container("echo training; echo careful >&2; echo model > /gcs/models/model.txt").start()
    assert run.end() == ("SUCCEEDED", 0, "")
    assert ("INFO", "training") in run.log()
    assert ("ERROR", "careful") in run.log()
    assert (bucket(run) / "model.txt").read_text() == "model\n"
    assert nothing_is_left_of(run)


def test_a_container_finds_what_trainers_find(container: Starts) -> None:
    job = custom_job(
        "cat /proc/self/environ > /gcs/models/environ",
        env={"MINE": "1"},
        baseOutputDirectory={"outputUriPrefix": "gs://models/x"},
    )
    run = container("", job=job).start()
    assert run.end()[0] == "SUCCEEDED"
    entries = (bucket(run) / "environ").read_text().split("\0")
    seen = dict(entry.split("=", 1) for entry in entries if entry)
    assert seen["AIP_MODEL_DIR"] == "gs://models/x/model/"
    assert seen["STORAGE_EMULATOR_HOST"] == "http://127.0.0.1:9/jobs/x"
    assert seen["MINE"] == "1"
    assert "CLUSTER_SPEC" in seen


def test_a_trial_in_a_container_reports_its_metrics(container: Starts) -> None:
    line = '{"accuracy": "0.75", "global_step": "2", "timestamp": %s, "trial": "1"}'
    script = f"printf '{line}' $(date +%s) > /tmp/hypertune/output.metrics"
    run = container(script, trial=1, metrics=("accuracy",)).start()
    assert run.end()[0] == "SUCCEEDED"
    (found,) = read_measurements(run.folder)
    assert (found.metrics, found.step) == ({"accuracy": 0.75}, 2)


def test_a_failed_container_s_message_ends_in_what_it_said(container: Starts) -> None:
    state, code, message = container("echo 'the loss is NaN' >&2; exit 3").start().end()
    assert (state, code) == ("FAILED", 3)
    assert message == (
        "The replica workerpool0-0 exited with a non-zero status of 3. Termination reason: Error.\n"
        "the loss is NaN"
    )


def test_a_container_that_runs_out_of_memory_says_so(container: Starts, engine: ContainerEngine) -> None:
    if "memory" not in engine.abilities.limits:
        pytest.skip("this machine's kernel allows no memory limits")
    run = container("exec tail /dev/zero")
    spec = run.folder.spec.read_text()
    memory = 4 * 1024**3
    assert str(memory) in spec
    run.folder.spec.write_text(spec.replace(str(memory), str(32 << 20)))
    state, code, message = run.start().end()
    assert (state, code) == ("FAILED", 8)
    assert "memory, which is 32 MiB here" in message


def test_an_image_that_is_not_here(container: Starts) -> None:
    job = custom_job("true")
    job.body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["imageUri"] = "localhost/never-built:1"
    run = container("", job=job).start()
    assert run.end() == ("FAILED", 5, "The image localhost/never-built:1 isn't here: build it first.")
    assert nothing_is_left_of(run)


def test_without_an_engine_the_job_fails_and_says_what_is_missing(container: Starts, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = container("true")
    run.environ = {"PATH": str(tmp_path / "empty")}
    state, code, message = run.start().end()
    assert (state, code) == ("FAILED", 9)
    assert message.endswith("no container engine works on this machine.")


def test_a_cancelled_container_has_its_time_and_gets_one_sigterm(container: Starts) -> None:
    run = container(TOLD).start()
    until((bucket(run) / "alive").exists)
    run.folder.ask_to_cancel("Enough.")
    assert run.end() == ("CANCELLED", 1, "Enough.")
    assert (bucket(run) / "told").read_text() == "told\n"
    assert nothing_is_left_of(run)


def test_a_cancelled_container_that_ignores_sigterm_is_ended(container: Starts) -> None:
    run = container(IGNORING, grace=1.0).start()
    until((bucket(run) / "alive").exists)
    run.folder.ask_to_cancel("Enough.")
    assert run.end() == ("CANCELLED", 1, "Enough.")
    assert nothing_is_left_of(run)


def test_two_replicas_in_containers_reach_each_other(container: Starts) -> None:
    script = """\
case $RANK in
0) echo ready > /gcs/models/chief; until [ -e /gcs/models/worker ]; do sleep 0.1; done ;;
*) until [ -e /gcs/models/chief ]; do sleep 0.1; done; echo here > /gcs/models/worker; sleep 100 ;;
esac
"""
    job = custom_job(script)
    pools = job.body["jobSpec"]["workerPoolSpecs"]
    pools.append({**pools[0]})
    run = container("", job=job, grace=1.0).start()
    assert run.end() == ("SUCCEEDED", 0, "")
    assert nothing_is_left_of(run)


@pytest.fixture
def bench(image: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with supervised(tmp_path, trainers.shared_environments(tmp_path_factory)) as running:
        (running.home / "gcs" / "models").mkdir(parents=True)
        yield running


@pytest.mark.slow
def test_jobs_of_both_apis_run_in_containers(bench: Bench) -> None:
    ml = trainers.ml_job(
        masterConfig={
            "imageUri": IMAGE,
            "containerCommand": ["/bin/sh", "-c"],
            "containerArgs": ["echo $TF_CONFIG"],
        }
    )
    for field in ("pythonModule", "packageUris", "runtimeVersion"):
        del ml.body["trainingInput"][field]
    jobs = [bench.submit(job=custom_job("echo $CLOUD_ML_JOB_ID")), bench.submit(job=ml)]
    assert [bench.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
    assert '"environment":"cloud"' in "".join(bench.log(jobs[1]))


@pytest.mark.slow
def test_a_container_whose_runner_was_killed_is_ended_and_its_job_starts_anew(
    bench: Bench, engine: ContainerEngine
) -> None:
    script = f"[ -e /gcs/models/alive ] && exit 0\n{IGNORING}"
    job = bench.submit(job=custom_job(script))
    bench.until((bench.home / "gcs" / "models" / "alive").exists)
    first = bench.folder(job)
    runner = first.runner()
    assert runner is not None
    assert containers_of(engine, first.run_id)
    os.kill(runner, 9)
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert len(bench.store.runs(job.id)) == 2
    assert containers_of(engine, first.run_id) == []
