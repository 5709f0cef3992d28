"""`reconciler show`: the details of a job on a screen, over real jobs, service answers and partial faults."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3
import yaml
from jsonschema import Draft202012Validator

from reconciler import cli
from reconciler.engines.api.engine_jobs import EngineJobs
from reconciler.google.claim_store import ObjectClaims
from reconciler.manifests import schemas
from reconciler.operations import results
from reconciler.training_service.state.records import UNFINISHED, JobState
from tests.support.google_place import google_place
from tests.support.held_service import HeldService
from tests.support.raw_server import Arrived, RawServer, answer, passing_on
from tests.support.repository import IMAGE, Repository, Result

HOSTILE = "\x1b]0;title\x07\n::error::x\u202e.json"
# It writes through the storage API as any client does; the names of two files, and a key, are hostile.
TRAINER = """
import json, os, sys, urllib.parse, urllib.request

def write(name, data):
    bucket, _, path = name.removeprefix("gs://").partition("/")
    query = urllib.parse.urlencode({"uploadType": "media", "name": path})
    url = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o?{query}"
    urllib.request.urlopen(urllib.request.Request(url, data=data.encode(), method="POST")).read()

model = os.environ["AIP_MODEL_DIR"]
write(model + "model.bin", "x" * 5000)
metrics = {"accuracy": 0.98067, "loss": float("nan"), "name": "a", "ok": True}
write(model + "metrics.json", json.dumps(metrics))
write(model.removesuffix("model/") + "eval_metrics.json", '{"\\\\u001b[2Jf1": 0.5}')
write(model + "results.json", "no JSON")
write(model + "large_metrics.json", '{"a": 1}' + " " * 70000)
write(model + "deep/metrics.json", '{"hidden": 1}')
for number in range(12):
    print("line", number, flush=True)
print("\\x1b[2J::error::inert?", flush=True)
"""
MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: census, labels: {{team: risk}}}}
package: {{path: ../trainer}}
reconcile: {{notSecret: [/spec/workerPoolSpecs/0/pythonPackageSpec/env/0/value]}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      pythonPackageSpec:
        executorImageUri: {image}
        pythonModule: task
        args: ["--epochs=3", "--name=two words"]
        env:
          - {{name: DB_PASSWORD, value: hunter2}}
          - {{name: MODE, value: fast}}
          - {{name: API_TOKEN, value: shown-only-to-its-owner}}
  baseOutputDirectory: {{outputUriPrefix: gs://models/census/}}
"""
TUNED = """
apiVersion: aiplatform.googleapis.com/v1
kind: HyperparameterTuningJob
metadata: {{name: tuned}}
package: {{path: ../tuner}}
spec:
  studySpec:
    metrics: [{{metricId: merit, goal: MINIMIZE}}]
    parameters: [{{parameterId: x, discreteValueSpec: {{values: [1, 2, 3]}}}}]
    algorithm: GRID_SEARCH
  maxTrialCount: 3
  parallelTrialCount: 3
  trialJobSpec:
    workerPoolSpecs:
      - machineSpec: {{machineType: n1-standard-4}}
        replicaCount: 1
        pythonPackageSpec: {{executorImageUri: {image}, pythonModule: task}}
"""
TUNER = """
import json, os, pathlib, sys, time
x = float(sys.argv[sys.argv.index("--x") + 1])
if x == 3:
    raise ValueError("the loss is NaN")
file = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
file.parent.mkdir(parents=True, exist_ok=True)
line = {"merit": str(10 - x), "global_step": "1", "timestamp": time.time(),
        "trial": os.environ["CLOUD_ML_TRIAL_ID"], "checkpoint_path": ""}
file.write_text(json.dumps(line) + "\\n")
"""


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the width, so that no line is cut."""
    monkeypatch.delenv("COLUMNS", raising=False)


def shown(repository: Repository, name: str, **environ: str) -> Any:
    """Return the output of `show --format json`, and check it against its schema."""
    done = repository.run("show", name, "--format", "json", **environ)
    assert done.code == 0, done.err
    Draft202012Validator(schemas.document("show-output.schema.json")).validate(done.json)
    return json.loads(done.out, parse_constant=pytest.fail)


def rows(text: str) -> dict[str, str]:
    """Return the rows of the screen by their names, each with its further lines."""
    found: dict[str, list[str]] = {}
    name = "head"
    for line in filter(None, text.splitlines()):
        name = name if line.startswith(" ") else line[:13].strip()
        found.setdefault(name, []).append(
            line[13:] if line[2:3] in ("", " ") or line[0] != " " else line.strip()
        )
    return {name: "\n".join(texts) for name, texts in found.items()}


def in_process(*arguments: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def test_a_trained_job_is_on_one_screen_with_its_results(repository: Repository) -> None:
    repository.write("trainer/task.py", TRAINER)
    repository.job()  # shares environments with other tests
    repository.write("jobs/census.yaml", MANIFEST.format(image=IMAGE))
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "Train the census job")
    applied = repository.run("apply", "--wait")
    assert applied.code == 0, applied.out + applied.err

    screen = repository.run("show", "census")
    assert screen.code == 0
    assert "shown-only" not in screen.out
    assert all(line.isprintable() and not line.lstrip().startswith("::") for line in screen.out.splitlines())
    found = rows(screen.out)
    assert screen.out.startswith("census  SUCCEEDED, ")
    head = repository.git("rev-parse", "HEAD")
    assert found["Commit"] == f"{head[:12]} Train the census job (a)"
    assert found["Manifest"] == "jobs/census.yaml:2"
    assert re.fullmatch(r"[\d.]+s: [\d.]+s queued, [\d.]+s preparing", found["Waited"])
    assert found["Machine"].endswith("n1-standard-4")
    assert (found["Image"], found["Module"]) == (IMAGE, "task")
    assert found["Arguments"] == "--epochs=3 '--name=two words'"
    assert found["Environment"].split() == ["DB_PASSWORD=hunter2", "MODE=fast", "API_TOKEN=***"]
    where = ["gs://models/census", str(repository.home / "gcs/models/census"), "6 files, 73.3 KiB"]
    assert found["Output"].splitlines()[:3] == where
    assert "  4.9 KiB  model/model.bin" in found["Output"]
    metrics = found["Metrics"].splitlines()
    assert metrics[:2] == [
        "\\x1b[2Jf1 0.5  (eval_metrics.json)",
        "accuracy 0.98067, loss nan  (model/metrics.json)",
    ]
    assert metrics[2] == "can't be read: model/large_metrics.json: larger than 64 KiB"
    assert found["Labels"] == "team=risk"
    assert found["Claim"] == "bound: its request created this job"
    assert len(found["Log"].splitlines()) == 10
    assert "line 11" in found["Log"]

    job = shown(repository, "census")
    assert job["commit"] == {"sha": head, "author": "a", "subject": "Train the census job"}
    assert job["metrics"][1] == {"file": "model/metrics.json", "values": {"accuracy": 0.98067, "loss": None}}
    assert {file["name"]: file["size"] for file in job["output"]["files"]}["model/model.bin"] == 5000
    assert job["workers"][0]["env"][0] == {"name": "DB_PASSWORD", "value": "hunter2"}
    assert job["workers"][0]["env"][2] == {"name": "API_TOKEN", "value": "***"}
    assert job["createTime"] <= job["prepareTime"] <= job["startTime"] <= job["endTime"]
    assert shown(repository, job["jobName"]) == job

    resource = yaml.safe_load(repository.run("show", "census", "--format", "yaml").out)
    assert resource["displayName"] == job["jobName"]
    assert resource["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["env"][0]["value"] == "hunter2"

    # A run of other content has the same directory: the first run's files aren't its result.
    repository.write("trainer/task.py", "raise SystemExit(3)\n")
    assert repository.run("apply", "--wait").code == 1
    failed = rows(repository.run("show", "census").out)
    assert failed["Cause"] == "user code: exit code 3"
    assert failed["Next step"] == "see `reconciler logs census` and correct the code"
    assert "6 from before this run" in failed["Output"]
    assert "Metrics" not in failed
    earlier = shown(repository, job["jobName"])
    assert (earlier["state"], earlier["manifest"]["relation"]) == ("SUCCEEDED", "changed")


def test_a_failed_set_up_shows_its_cause_and_the_way_out(repository: Repository) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    repository.write(
        "reconciler.yaml",
        f'images:\n  {IMAGE}: {{python: "{version}", requirements: [no-such-package==1]}}\n',
    )
    repository.job()
    assert repository.run("apply", "--wait").code == 1
    found = rows(repository.run("show", "census").out)
    assert found["Cause"].startswith("set-up: ")
    assert found["Next step"].endswith("then run `reconciler apply`")
    assert "no-such-package" in found["Log"]
    assert "Ran" not in found


def test_a_cancelled_job_shows_whose_cancel_it_was(repository: Repository) -> None:
    repository.hold.touch()
    repository.job()
    assert repository.run("apply").code == 0
    assert repository.run("cancel", "census").code == 0
    repository.hold.unlink()
    assert rows(repository.run("show", "census").out)["Cause"] == "cancelled by `reconciler cancel`"
    assert shown(repository, "census")["cause"]["message"] == "cancelled by `reconciler cancel`"


def test_a_tuning_job_shows_its_trials_with_the_best_one(repository: Repository) -> None:
    repository.write("tuner/task.py", TUNER)
    repository.job()
    (repository.root / "jobs" / "census.yaml").unlink()
    repository.write("jobs/tuned.yaml", TUNED.format(image=IMAGE))
    applied = repository.run("apply", "--wait")
    assert applied.code == 0, applied.out + applied.err
    study = shown(repository, "tuned")["study"]
    best = next(trial for trial in study["trials"] if trial["id"] == study["best"])
    assert (best["parameters"], best["metrics"]) == ({"x": 2}, {"merit": 8})
    assert study["goals"] == [{"metric": "merit", "goal": "MINIMIZE"}]
    failed = next(trial for trial in study["trials"] if trial["parameters"] == {"x": 3})
    assert failed["metrics"] == {}
    found = rows(repository.run("show", "tuned").out)
    assert found["Best trial"].startswith(f"{best['id']}: merit 8 with x 2")
    table = found["Trials"].splitlines()[1:]
    assert table[0].split() == ["TRIAL", "STATE", "merit", "x", "TIME"]
    assert [line.split()[0] for line in table if "★" in line] == [best["id"]]
    assert f"trial {failed['id']}: " in found["Trials"]


def test_a_job_that_was_never_submitted_is_shown_as_its_manifest_describes_it(
    repository: Repository, service: HeldService
) -> None:
    repository.job("census", args=["--lr=3"])
    repository.job("census-2", reconcile="{suspend: true}")
    found = rows(in_process("show", "census").out)
    assert in_process("show", "census").out.startswith("census  not submitted\n")
    assert in_process("show", "census_2").out.startswith("census-2  suspended: not submitted\n")
    assert (found["Arguments"], found["Claim"]) == ("--lr=3", "none: nothing was submitted")
    assert "reconciler plan" in found["See"]
    job = shown(repository, "census")
    assert (job["state"], job["claim"]["state"], job["log"]) == (None, "none", [])
    assert in_process("show", job["jobName"]).code == 0
    repository.write("jobs/census.yaml", MANIFEST.format(image=IMAGE))
    assert rows(in_process("show", "census").out)["Output"] == "gs://models/census"
    none = in_process("show", "census", "--format", "yaml")
    assert (none.code, none.out) == (1, "")
    assert "has no run" in none.err
    missing = in_process("show", "cencus")
    assert missing.code == 1
    assert 'there is no job "cencus"' in missing.err
    assert "did you mean census?" in missing.err


def test_a_queued_a_running_and_a_deleted_job(repository: Repository, service: HeldService) -> None:
    manifest = repository.job("census", args=["--lr=3"])
    assert in_process("apply").code == 0
    (record,) = service.store.unfinished()
    queued = in_process("show", "census").out
    assert queued.startswith("census  QUEUED\n")
    assert "in the queue and preparing" in queued
    service.store.move(record.id, JobState.RUNNING, only_from=UNFINISHED, at="2026-01-01T00:00:00Z")
    assert re.match(r"census  RUNNING for \d+", in_process("show", "census").out)

    # The name means the newest run of other content, while the present content has none.
    repository.job("census", args=["--lr=4"])
    found = rows(in_process("show", "census").out)
    assert found["Arguments"] == "--lr=3"
    assert found["Manifest"].endswith("(changed since: `reconciler plan` shows how)")
    repository.job("census", args=["--lr=3"])
    renamed = manifest.rename(manifest.with_name("other.yaml"))
    assert rows(in_process("show", "census").out)["Manifest"].startswith("jobs/other.yaml:")
    renamed = renamed.rename(manifest.with_name("other.txt"))
    assert rows(in_process("show", "census").out)["Manifest"] == (
        "jobs/census.yaml (no longer exists: moved or removed)"
    )
    renamed.rename(manifest)

    service.store.move(record.id, JobState.SUCCEEDED, only_from=UNFINISHED, at="2026-01-01T00:00:01Z")
    in_process("apply")  # records the end
    service.store.delete(record.id)
    gone = in_process("show", "census")
    assert gone.out.startswith("census  deleted outside; it was SUCCEEDED\n")
    assert rows(gone.out)["Arguments"] == "--lr=3"
    assert "which the service no longer has" in rows(gone.out)["Claim"]
    job = shown(repository, "census")
    assert (job["deletedOutside"], job["state"]) == (True, "SUCCEEDED")
    repository.job("census", args=["--lr=5"])
    assert in_process("show", "census").out.startswith("census  not submitted\n")
    assert in_process("show", job["jobName"]).out.startswith("census  deleted outside; it was SUCCEEDED\n")
    manifest.unlink()
    assert in_process("show", "census").out.startswith("census  deleted outside; it was SUCCEEDED\n")
    similar = in_process("show", "cencus")
    assert "did you mean census?" in similar.err


def test_a_submission_without_a_job_is_shown_with_its_claim(
    repository: Repository, service: HeldService
) -> None:
    repository.job("census")
    assert in_process("apply").code == 0
    (claim,) = service.claims()
    (record,) = service.store.unfinished()
    service.store.move(record.id, JobState.FAILED, only_from=UNFINISHED, at="2026-01-01T00:00:01Z")
    held = {**claim, "state": "held", "error": "two jobs", "attempt": 2, "job_name": f"{claim['job_name']}_2"}
    del held["resource"]
    name = f"reconciler/claims/local/local/local/{claim['key']}/2"
    store(service, "reconciler-staging", name, json.dumps(held).encode())
    found = rows(in_process("show", "census").out)["Claim"].splitlines()
    assert found[0] == "bound: its request created this job"
    assert found[1].startswith(f"{held['job_name']} too: held: two jobs; run `reconciler resolve")
    alone = in_process("show", held["job_name"])
    assert alone.out.startswith("census  held\n")
    job = json.loads(in_process("show", "census", "--format", "json").out)
    assert (job["attempt"], job["unsettled"]) == (1, [{"jobName": held["job_name"], "state": "held"}])


def test_only_the_runs_of_the_base_name_are_listed(
    repository: Repository, service: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("census", "census-two", "census_two_3")
    for name in names:
        repository.job(name)
    assert in_process("apply").code == 0
    monkeypatch.setattr(EngineJobs, "runs", pytest.fail)
    monkeypatch.setattr(ObjectClaims, "listed", pytest.fail)
    for name in (*names, "census-two-3"):
        job = json.loads(in_process("show", name, "--format", "json").out)
        assert job["baseName"].replace("-", "_") == name.replace("-", "_")
        again = json.loads(in_process("show", job["jobName"], "--format", "json").out)
        assert again == job


def test_an_invalid_manifest_and_unusable_claims_hide_no_run(
    repository: Repository, service: HeldService
) -> None:
    manifest = repository.job("census")
    assert in_process("apply").code == 0
    valid = manifest.read_text()
    manifest.write_text(valid + "nonsense: 1\n")
    broken = in_process("show", "census")
    assert broken.out.startswith("census  QUEUED\n")
    assert "see `reconciler validate`" in rows(broken.out)["Manifest"]
    manifest.write_text(valid)
    key = shown(repository, "census")["labels"]["reconciler-key"]
    store(service, "reconciler-staging", f"reconciler/claims/local/local/local/{key}/1", b"no claim")
    unclaimed = in_process("show", "census").out
    assert unclaimed.startswith("census  QUEUED\n")
    assert "can't be read as a claim" in rows(unclaimed)["Claim"]


def test_metrics_behind_many_files_are_found(
    repository: Repository, service: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.job()
    repository.write("jobs/census.yaml", MANIFEST.format(image=IMAGE))
    assert in_process("apply").code == 0
    names = [f"checkpoints/{number}/weights" for number in range(4)]
    for name in (*names, "eval.json", "model/metrics.json", "model/old/metrics.json"):
        store(service, "models", f"census/{name}", b'{"f1": 1}')
    store(service, "models", "census2/metrics.json", b'{"f1": 2}')
    monkeypatch.setattr(results, "_MOST_FILES", 3)
    job = json.loads(in_process("show", "census", "--format", "json").out)
    assert [file["name"] for file in job["output"]["files"]] == names[:3]
    assert job["output"]["complete"] is False
    assert [metrics["file"] for metrics in job["metrics"]] == ["eval.json", "model/metrics.json"]
    assert "3 files and more, 27 bytes and more" in rows(in_process("show", "census").out)["Output"]


def refused(path: str) -> bool:
    """Return True for the parts that this identity may not read: the models' bucket and the log."""
    return path.startswith(("/storage/v1/b/models/o", "/v2/entries:list"))


def test_in_the_cloud_parts_without_permission_are_one_line_each(
    repository: Repository, tmp_path: Path
) -> None:
    repository.job()
    repository.write("jobs/census.yaml", MANIFEST.format(image=IMAGE))
    error = {
        "error": {
            "code": 403,
            "status": "PERMISSION_DENIED",
            "message": "ci lacks \x1b[2Jstorage.objects.list",
        }
    }
    forbidden = answer(403, json.dumps(error).encode())
    is_open = [False]

    def is_bad(request: Arrived) -> bool:
        return not is_open[0] and refused(request.target)

    with HeldService(repository.home).running() as service:
        server = RawServer([passing_on(service.url, forbidden, is_bad)])
        with (
            server.running(),
            google_place(repository, service, server.url, tmp_path, submitter=False) as environ,
        ):
            assert repository.run("init", "--claims", **environ).code == 0
            applied = repository.run("apply", **environ)
            assert applied.code == 0, applied.out + applied.err
            screen = repository.run("show", "census", **environ)
            assert screen.code == 0, screen.err
            found = rows(screen.out)
            said = "can't be read: ci lacks \\x1b[2Jstorage.objects.list"
            assert found["Output"].splitlines() == ["gs://models/census", said]
            assert found["Log"] == said
            assert found["Job"].endswith("(CustomJob in prod)")
            assert "--env prod" in found["See"]
            parts = {each["part"] for each in shown(repository, "census", **environ)["unread"]}
            assert parts == {"output", "log"}

            is_open[0] = True
            store(service, "models", "census/metrics.json", b'{"f1": 1}')
            job = shown(repository, "census", **environ)
            assert job["unread"] == []
            assert job["metrics"] == [{"file": "metrics.json", "values": {"f1": 1}}]
            assert job["output"]["folder"] is None


def store(service: HeldService, bucket: str, name: str, data: bytes) -> None:
    """Write an object as a job would."""
    headers = {"Authorization": f"Bearer {service.token}"}
    urllib3.request("POST", f"{service.url}/storage/v1/b?project=p", json={"name": bucket}, headers=headers)
    url = f"{service.url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
    assert urllib3.request("POST", url, body=data, headers=headers).status == 200
